//! The library that `efa-tap run` preloads. It records the calls between a program and the
//! program's libibverbs and libefa.
//!
//! [`preload::exports`] has the functions that programs find in the place of the libraries'. They pass every call on,
//! and put functions of [`preload::posting`] and [`preload::polling`] into the tables through which
//! programs post and poll. Objects stay those of the libraries; what is known of them is beside
//! them, in [`preload::state`]. What is written down goes into a ring in shared memory
//! (`exchange`), of which the command `efa-tap` (`command`) makes frames, as `efa-emu run --pcap`
//! does.
//!
//! The library must never harm its program: it does not wait, it does not fail, and where it cannot
//! record it says so once and passes calls on.

mod exchange;
mod preload;
