//! Where commands write captures to: a pipe, a file, or a series of files, of what passes a filter,
//! in the order of time.
//!
//! `efa-emu run --pcap`, `efa-emu capture` and `efa-tap run` have these options, filters and files
//! in common.

mod files;
mod filter;
mod options;
mod store;

pub use filter::{Filter, FilterError, Seen, parse_filter};
pub use options::{CaptureOptions, Ring};
pub use store::{Sends, Store, Written};

/// Time between two looks at what was recorded.
pub const TICK: std::time::Duration = std::time::Duration::from_millis(100);
