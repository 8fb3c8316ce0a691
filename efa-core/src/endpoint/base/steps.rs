//! Counts the objects that the engine visits, for tests of complexity: with debug assertions only.

use core::cell::Cell;

std::thread_local! {
    static STEPS: Cell<usize> = const { Cell::new(0) };
}

/// Counts an object that was visited in a walk over many objects.
pub(crate) fn step() {
    STEPS.set(STEPS.get() + 1);
}

/// The number of objects that this thread's endpoints have visited in walks over many objects.
pub fn steps_in_walks() -> usize {
    STEPS.get()
}

/// Calls `what`. Returns the number of objects that it visited, and its result.
#[cfg(test)]
pub(crate) fn counted<R>(what: impl FnOnce() -> R) -> (usize, R) {
    let before = STEPS.get();
    let result = what();
    (STEPS.get() - before, result)
}
