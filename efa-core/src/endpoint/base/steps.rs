//! Counts the objects that the engine visits, for tests of complexity.

use core::cell::Cell;

std::thread_local! {
    static STEPS: Cell<usize> = const { Cell::new(0) };
}

/// Counts one object that is visited in a walk over many.
pub(crate) fn step() {
    STEPS.set(STEPS.get() + 1);
}

/// Calls `what`. Returns how many objects it visited, and its result.
pub(crate) fn counted<R>(what: impl FnOnce() -> R) -> (usize, R) {
    let before = STEPS.get();
    let result = what();
    (STEPS.get() - before, result)
}
