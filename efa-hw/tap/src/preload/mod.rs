//! The parts of the preloaded library.

mod exports;
mod libc_dlsym;
mod lookup;
mod memory;
mod polling;
mod posted;
mod posting;
mod real;
mod ring;
mod session;
mod spin;
mod state;
mod verbs_context;
