//! The reason why a cell has no measurement.

use std::fmt;
use std::path::PathBuf;

use super::cells_error::CellsError;

/// The result of a cell's function: the measurement in a few words, or the reason why there is
/// none.
pub type CellResult = Result<String, NotMeasured>;

/// The reason why there is no measurement.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotMeasured {
    /// It failed. The first line is the reason, the others are details.
    #[error("{0}")]
    Failed(String),
    /// It was not run, because the environment lacks a requirement.
    #[error("{0}")]
    Skipped(String),
    /// It fails because of a fault of stock software.
    #[error("{reason}")]
    Known {
        /// The fault, and the software that has it.
        reason: String,
        /// The traffic that shows it.
        capture: PathBuf,
    },
}

/// [`NotMeasured::Failed`] with a reason in the form of `format!`.
macro_rules! failed {
    ($($reason:tt)*) => {
        $crate::harness::NotMeasured::Failed(format!($($reason)*))
    };
}
pub(crate) use failed;

impl NotMeasured {
    /// A failure with its reason.
    pub fn failed(reason: impl fmt::Display) -> Self {
        NotMeasured::Failed(reason.to_string())
    }

    /// The same with the name of the operation in front of a failure's reason.
    pub(crate) fn at(self, what: impl fmt::Display) -> Self {
        match self {
            NotMeasured::Failed(reason) => failed!("{what}: {reason}"),
            other => other,
        }
    }
}

impl From<CellsError> for NotMeasured {
    fn from(error: CellsError) -> Self {
        NotMeasured::failed(error)
    }
}
