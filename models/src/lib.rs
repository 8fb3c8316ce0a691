//! The algorithms without locks of the other packages, and models of them.
//!
//! The files are the same that the device is built from. Here, what they take from `crate::sync`
//! and their neighbours are loom's types, and shared memory is an array of them. A model runs its
//! threads in every interleaving that matters, with every value that a weakly ordered machine may
//! let a load see, and fails on a data race, a deadlock or a broken promise.
//!
//! `tests/models.rs` runs them. That they would notice a wrong ordering is tried by
//! `scripts/verify`, which weakens each one in turn.

// The unit tests in the files are those of the packages that have them.
#![cfg(not(test))]

#[allow(dead_code, reason = "a model uses a part")]
mod error;
#[allow(dead_code, reason = "a model uses a part")]
mod identity;
#[allow(dead_code, reason = "a model uses a part")]
mod process;
pub mod sessions;
#[allow(dead_code, reason = "a model uses a part")]
#[path = "../../efa-emu/verbs/src/objects/spin.rs"]
mod spin;
mod sync;
#[allow(dead_code, reason = "a model uses a part")]
mod transport;

pub use identity::numbers;
pub use process::counter;
pub use transport::{doorbells, rings};

/// What `spin` knows of threads.
mod ffi {
    pub(crate) mod interrupted {
        /// Says that a lock is held; nothing here interrupts a thread.
        pub(crate) struct Locking;

        impl Locking {
            pub(crate) fn new() -> Locking {
                Locking
            }
        }

        /// A number that only the calling thread has.
        pub(crate) fn this_thread() -> usize {
            let name = format!("{:?}", loom::thread::current().id());
            let digits: String = name.chars().filter(char::is_ascii_digit).collect();
            1 + digits.parse::<usize>().expect("threads are numbered")
        }
    }
}
