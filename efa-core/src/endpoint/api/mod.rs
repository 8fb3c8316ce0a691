//! Types of the application's interface: arguments, completions, events, errors, settings,
//! counters, time.

pub(crate) mod completion;
pub(crate) mod config;
pub(crate) mod error;
pub(crate) mod operation;
pub(crate) mod reports;
pub(crate) mod statistics;
pub(crate) mod time;
