//! Failures with the name of the operation.

use crate::harness::Unmet;

/// Adds the name of the operation to a failure.
pub(super) fn at(unmet: Unmet, what: &str) -> Unmet {
    match unmet {
        Unmet::Failed(text) => Unmet::Failed(format!("{what}: {text}")),
        unmet => unmet,
    }
}

pub(super) fn at_size(unmet: Unmet, what: &str, size: usize) -> Unmet {
    at(unmet, &format!("{what}{size} bytes"))
}
