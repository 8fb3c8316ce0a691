//! The primitives of lock-free algorithms, here and in the emulated libraries. Their files
//! name it by `crate::sync`, so that the package `efa-models` can compile the same files with
//! loom's types, which explore the interleavings.

/// Attempts before a thread that waits for another yields its processor: most holders of a lock
/// release it in less than a microsecond, unless they were preempted.
pub const SPINS: u32 = 64;

pub use core::cell::UnsafeCell;
pub use core::hint::spin_loop;
pub use core::sync::atomic;
pub use std::thread::yield_now;
