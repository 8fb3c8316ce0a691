//! Counting what a test makes the engine look at.

use core::cell::Cell;

std::thread_local! {
    static STEPS: Cell<usize> = const { Cell::new(0) };
}

/// Notes that an object was looked at in a walk over many.
pub(crate) fn step() {
    STEPS.set(STEPS.get() + 1);
}

/// Does something. Returns how many objects were looked at in walks, with the result.
pub(crate) fn counted<R>(what: impl FnOnce() -> R) -> (usize, R) {
    let before = STEPS.get();
    let result = what();
    (STEPS.get() - before, result)
}
