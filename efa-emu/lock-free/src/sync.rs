//! The primitives of lock-free algorithms: the standard library's and the kernel's, or with
//! `--cfg loom` those of loom, which explores the interleavings.

/// Attempts before a thread that waits for another yields its processor: most holders of a lock
/// release it in less than a microsecond, unless they were preempted. More than one would add
/// nothing to a model.
pub const SPINS: u32 = if cfg!(loom) { 1 } else { 64 };

#[cfg(loom)]
mod modelled;
#[cfg(not(loom))]
mod native;

#[cfg(loom)]
pub use modelled::*;
#[cfg(not(loom))]
pub use native::*;
