//! The driver protocol, by which any program can play an endpoint of a scenario.
//!
//! The suite starts the program and writes a [`Command`] per line, as JSON, to its standard input;
//! the program writes an [`Event`] per line to its standard output. `docs/driver.md` is the
//! contract for authors of such programs; its tables are generated from the declarations. [`serve`]
//! is the implementation of this package, over stock libfabric or the protocol engine;
//! [`crate::player`] is the driving side.

mod contract;
pub mod line;
pub mod serve;

pub use contract::{Command, EndpointOptions, Event, Identity};
pub use line::{Bytes, Line, LineError};

/// The version of the protocol.
pub const VERSION: u32 = 2;

/// No command is longer than this many bytes, its end included.
pub const LONGEST_COMMAND: usize = 4096;
/// No answer may be longer than this many bytes, its end included.
pub const LONGEST_ANSWER: usize = 1 << 20;
