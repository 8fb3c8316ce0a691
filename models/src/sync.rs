//! Replaces the module of this name in the other packages.

/// More attempts would add nothing to a model.
pub(crate) const SPINS: u32 = 1;

pub(crate) use loom::hint::spin_loop;
pub(crate) use loom::sync::atomic;
pub(crate) use loom::thread::yield_now;

/// A cell whose accesses are all checked to be ordered.
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        UnsafeCell(loom::cell::UnsafeCell::new(value))
    }

    /// Counts as a write at the time of the call.
    pub(crate) fn get(&self) -> *mut T {
        self.0.with_mut(|pointer| pointer)
    }
}
