//! The tap over the emulated libraries.

mod agrees;
mod compared;
mod troubles;
