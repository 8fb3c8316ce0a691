//! Failures that name the operation.

use crate::harness::Unmet;

/// Puts the name of the operation in front of a failure.
pub(super) fn at(unmet: Unmet, what: &str) -> Unmet {
    match unmet {
        Unmet::Failed(text) => Unmet::Failed(format!("{what}: {text}")),
        unmet => unmet,
    }
}

pub(super) fn at_size(unmet: Unmet, what: &str, size: usize) -> Unmet {
    at(unmet, &format!("{what}{size} bytes"))
}
