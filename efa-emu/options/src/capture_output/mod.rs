//! The output of captures: a pipe, a file, or a series of files, with the frames that a filter
//! accepts, in the order of time.
//!
//! `efa-emu run --pcap`, `efa-emu capture` and `efa-tap run` share these options, filters and
//! files.

mod files;
mod filter;
mod options;
mod store;

pub use files::CaptureOutputError;
pub use filter::{CaptureFilterError, Filter, FilterError, parse_filter};
pub use options::{CaptureOptions, Ring, UnlimitedFile};
pub use store::{RecordingTotals, SendCounts, Store};

/// The interval at which recorded frames are collected.
pub const TICK: std::time::Duration = std::time::Duration::from_millis(100);
