//! A software EFA device: device model, network model, transports and captures.
//!
//! Two endpoints of [`efa_core`] on simulated hosts:
//!
//! ```
#![doc = include_str!("../examples/two_endpoints.rs")]
//! ```
//!
//! A program that uses this library does without the command line of `efa-emu`, and without the packages that only the
//! command line needs:
//!
//! ```toml
//! [dependencies]
//! efa-emu = { version = "0.1", default-features = false }
//! ```
//!
//! * [`device`]: the hardware half, without I/O and without a clock; [`provider`]: the user-space half.
//! * [`link`]: what the device needs of whatever carries its requests. Two links implement it: [`sim`], any
//!   number of hosts in one thread and in virtual time, and [`transport`], processes and shared memory.
//! * [`network`] and [`fault`]: what happens to frames, on both links.
//! * [`frame`] and [`capture`]: the emulated wire, and pcapng files.
//! * [`profile`]: the generations of the device, built in or of a file; [`qpn_policy`]: which queue pair numbers it gives out; [`sysfs`]: the files that programs expect of it;
//!   [`numa`]: the processors that it is near to; [`usage`]: how far programs got with it.
//! * [`installation`]: where the files are that belong to the program; [`version`]: which build it is;
//!   [`command`]: what commands that start programs have in common.
//! * With the feature `cli`, for programs that read command lines: `bridge`, that of the program that joins machines;
//!   `pages`, manual pages and shell completions of a command; `capture_output`, what commands that write captures
//!   have in common.

#[cfg(feature = "cli")]
pub mod bridge;
pub mod capture;
#[cfg(feature = "cli")]
pub mod capture_output;
pub mod command;
mod counters;
pub mod device;
mod duration;
pub mod fault;
mod file_size;
pub mod frame;
pub mod installation;
pub mod link;
pub mod network;
pub mod numa;
#[cfg(feature = "cli")]
pub mod pages;
pub mod port;
mod prefetch;
pub mod profile;
pub mod provider;
pub mod qpn_policy;
pub mod sim;
mod sync;
pub mod sysfs;
pub mod transport;
pub mod usage;
pub mod version;
