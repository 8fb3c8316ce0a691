//! Failures with the name of the operation.

use crate::harness::{NotMeasured, failed};

/// Adds the name of the operation to a failure.
pub(super) fn at(not_measured: NotMeasured, what: &str) -> NotMeasured {
    match not_measured {
        NotMeasured::Failed(text) => failed!("{what}: {text}"),
        not_measured => not_measured,
    }
}

pub(super) fn at_size(not_measured: NotMeasured, what: &str, size: usize) -> NotMeasured {
    at(not_measured, &format!("{what}{size} bytes"))
}
