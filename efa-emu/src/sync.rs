//! What the algorithms without locks are made of. Their files name it by `crate::sync`, so that the
//! package `efa-models` can compile the same files with loom's types, which explore the interleavings.

#![allow(
    dead_code,
    unused_imports,
    reason = "each package that has this file uses a part of it"
)]

/// Attempts before a thread that waits for another gives its processor away: most holders of a lock are
/// done in less than a microsecond, unless they were preempted.
pub(crate) const SPINS: u32 = 64;

pub(crate) use core::cell::UnsafeCell;
pub(crate) use core::hint::spin_loop;
pub(crate) use core::sync::atomic;
pub(crate) use std::thread::yield_now;
