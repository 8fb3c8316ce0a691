//! Counts the objects that the engine visits, for tests of complexity: with debug assertions only.

use core::cell::Cell;

std::thread_local! {
    static STEPS: Cell<usize> = const { Cell::new(0) };
}

/// Notes that an object was visited in a walk over many.
pub(crate) fn step() {
    STEPS.set(STEPS.get() + 1);
}

/// How many objects this thread's endpoints have visited in walks over many.
pub fn steps_in_walks() -> usize {
    STEPS.get()
}

/// Calls `what`. Returns how many objects it visited, and its result.
#[cfg(test)]
pub(crate) fn counted<R>(what: impl FnOnce() -> R) -> (usize, R) {
    let before = STEPS.get();
    let result = what();
    (STEPS.get() - before, result)
}
