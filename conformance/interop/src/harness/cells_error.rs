//! Errors of listing cells.

use std::num::ParseIntError;

use efa_commands::shell::SplitError;
use efa_device_model::profile::ProfileError;
use efa_play::scenario::ScenarioError;
use efa_suite::CorpusError;

/// The cells cannot be listed: an unknown name was selected, or a file of cells is invalid.
#[derive(Debug, thiserror::Error)]
pub enum CellsError {
    /// No group has the name.
    #[error("no group is called `{name}`; there are {known}")]
    NoGroup {
        /// The name.
        name: String,
        /// The names of all groups.
        known: String,
    },
    /// No cell passes the filter.
    #[error("no cell's name contains `{0}`; --list shows them")]
    Filtered(String),
    /// There are no scenarios.
    #[error(transparent)]
    Corpus(#[from] CorpusError),
    /// A scenario cannot be read.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A file of cells cannot be read.
    #[error("{file}: {source}")]
    Toml {
        /// The file.
        file: String,
        /// The line and the error.
        source: toml::de::Error,
    },
    /// A cell in a file has an unknown name, or is inconsistent.
    #[error("{file}: cell `{cell}`: {source}")]
    Cell {
        /// The file.
        file: String,
        /// The cell's name.
        cell: String,
        /// The error.
        source: Box<CellsError>,
    },
    /// A name in a cell is unknown.
    #[error("unknown {what} `{name}`")]
    Unknown {
        /// The key, such as `transport`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The file of subprotocols does not contain these operations.
    #[error("cells/engine.toml: unknown operations `{0}`")]
    UnknownOperations(String),
    /// The profile is unknown, or cannot be read.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A text is not a number.
    #[error("`{text}`: {source}")]
    Number {
        /// The text.
        text: String,
        /// The cause.
        source: ParseIntError,
    },
    /// A text is not a regular expression.
    #[error(transparent)]
    Expression(#[from] regex::Error),
    /// A cell has both programs and an exchange, or neither.
    #[error("either programs or an exchange have to be there")]
    ProgramsOrExchange,
    /// A program is not a valid command line.
    #[error("`run`: {0}")]
    Words(#[from] SplitError),
    /// A program has no place to run.
    #[error("`{0}` has neither host nor job nor guests")]
    Nowhere(String),
    /// A job needs a cell with an MPI library.
    #[error("a job takes a cell with `mpi`")]
    JobWithoutMpi,
}

impl CellsError {
    /// The name is unknown.
    pub(crate) fn unknown(what: &'static str, name: &str) -> Self {
        let name = name.to_owned();
        CellsError::Unknown { what, name }
    }
}
