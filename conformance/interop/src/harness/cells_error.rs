//! Why there are no cells to run.

use std::num::ParseIntError;

use efa_commands::shell::SplitError;
use efa_device_model::profile::ProfileError;
use efa_play::scenario::ScenarioError;
use efa_suite::CorpusError;

/// The cells cannot be listed: nothing has the selected name, or a file of cells is wrong.
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
    /// The filter leaves no cell.
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
        /// The line, and what is wrong in it.
        source: toml::de::Error,
    },
    /// A cell of a file names what there is not, or contradicts itself.
    #[error("{file}: cell `{cell}`: {source}")]
    Cell {
        /// The file.
        file: String,
        /// The cell's name.
        cell: String,
        /// The error.
        source: Box<CellsError>,
    },
    /// Nothing has the name that a cell gives.
    #[error("unknown {what} `{name}`")]
    Unknown {
        /// The key that was looked for, such as `transport`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The file of subprotocols has no such operations.
    #[error("cells/engine.toml: unknown operations `{0}`")]
    UnknownOperations(String),
    /// There is no such profile, or it cannot be read.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A text is not a number.
    #[error("`{text}`: {source}")]
    Number {
        /// The text.
        text: String,
        /// Why.
        source: ParseIntError,
    },
    /// A text is not a regular expression.
    #[error(transparent)]
    Expression(#[from] regex::Error),
    /// A cell has both programs and an exchange, or neither.
    #[error("either programs or an exchange have to be there")]
    ProgramsOrExchange,
    /// A program is no command.
    #[error("`run`: {0}")]
    Words(#[from] SplitError),
    /// A program would run nowhere.
    #[error("`{0}` has neither host nor job nor guests")]
    Nowhere(String),
    /// A job has no MPI library.
    #[error("a job takes a cell with `mpi`")]
    JobWithoutMpi,
}

impl CellsError {
    /// Nothing has this name.
    pub(crate) fn unknown(what: &'static str, name: &str) -> Self {
        let name = name.to_owned();
        CellsError::Unknown { what, name }
    }
}
