//! The lock-free algorithms of the other packages, and models of them.
//!
//! The files are those that the device is built from. The types that they use from `crate::sync`
//! and from neighbouring modules are loom's here, and shared memory is an array of them. A model
//! runs its threads in every relevant interleaving, with every value that a weakly ordered machine
//! may let a load see, and fails on a data race, a deadlock or a broken guarantee.
//!
//! `tests/models.rs` runs them. `scripts/verify` weakens each ordering in turn, and checks that the
//! models notice.

// The unit tests in the files belong to the packages of the files.
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

/// The thread functions that `spin` uses.
mod ffi {
    pub(crate) mod interrupted {
        /// Marks that a lock is held; nothing here interrupts a thread.
        pub(crate) struct Locking;

        impl Locking {
            pub(crate) fn new() -> Locking {
                Locking
            }
        }

        /// A number that is unique to the calling thread.
        pub(crate) fn this_thread() -> usize {
            let name = format!("{:?}", loom::thread::current().id());
            let digits: String = name.chars().filter(char::is_ascii_digit).collect();
            1 + digits.parse::<usize>().expect("threads are numbered")
        }
    }
}
