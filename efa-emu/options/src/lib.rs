//! Command lines that several programs of this project have.
//!
//! * [`bridge`]: that of the program that joins machines, of which `efa-emu` has help and manual
//!   pages.
//! * [`capture_output`]: what commands that write captures have in common: options, filter, order
//!   of time, files.
//! * [`pages`]: manual pages and shell completions of a command.
//! * [`vm`]: that of the program that starts virtual machines, likewise.
//!
//! ```no_run
//! use clap::{Args, Command};
//! use efa_options::{bridge::BridgeArguments, pages};
//!
//! let command = BridgeArguments::augment_args(Command::new("efa-emu-bridge"));
//! pages::write(command, "/usr/local/share".as_ref())?;
//! # Ok::<(), efa_commands::Failure>(())
//! ```

pub mod bridge;
pub mod capture_output;
pub mod pages;
pub mod vm;
