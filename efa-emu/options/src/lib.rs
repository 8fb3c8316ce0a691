//! Command lines that several programs of this project share.
//!
//! * [`bridge`]: the command line of the program that joins machines; `efa-emu` has its help and
//!   manual pages.
//! * [`capture_output`]: the common parts of commands that write captures: options, filter, order
//!   of time, files.
//! * [`pages`]: manual pages and shell completions of a command.
//! * [`pci`]: the command line of the program that presents a device to QEMU; `efa-emu` writes its
//!   manual page.
//! * [`vm`]: the command line of the program that starts virtual machines; used like [`bridge`].
//!
//! ```no_run
//! use clap::{Args, Command};
//! use efa_options::{bridge::BridgeArguments, pages};
//!
//! let command = BridgeArguments::augment_args(Command::new("efa-emu-bridge"));
//! pages::write(command, "/usr/local/share".as_ref())?;
//! # Ok::<(), efa_options::pages::PagesError>(())
//! ```

pub mod bridge;
pub mod capture_output;
pub mod pages;
pub mod pci;
pub mod vm;
