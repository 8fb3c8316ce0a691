//! What the algorithms without locks are made of. Their files name it by `crate::sync`, so that the
//! package `efa-models` can compile the same files with loom's types, which explore the interleavings.

#![allow(
    unused_imports,
    reason = "each package that has this file uses a part of it"
)]

pub(crate) use core::cell::UnsafeCell;
pub(crate) use core::hint::spin_loop;
pub(crate) use core::sync::atomic;
pub(crate) use std::thread::yield_now;
