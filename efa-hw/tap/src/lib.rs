//! The library that `efa-tap run` preloads. It records the calls of a program to libibverbs and
//! libefa.
//!
//! [`preload::exports`] has the functions that replace those of the libraries. They pass every call
//! on, and put functions of [`preload::posting`] and [`preload::polling`] into the tables through
//! which programs post and poll. The objects remain those of the libraries; their additional state
//! is in [`preload::state`]. Records are written to a ring in shared memory (`exchange`), from
//! which the command `efa-tap` (`command`) makes frames, as `efa-emu run --pcap` does.
//!
//! The library must never disturb its program: it does not wait or fail. If it cannot record, it
//! reports this once and passes calls on.

mod exchange;
mod preload;
