//! The parts of the preloaded library.

mod exports;
mod lookup;
mod memory;
mod polling;
mod posted;
mod posting;
mod real;
mod ring;
mod spin;
mod state;
mod verbs_context;
