//! Errors of listing cells.

use std::num::ParseIntError;

use efa_commands::shell::SplitError;
use efa_device_model::profile::ProfileError;
use efa_play::scenario::ScenarioError;
use efa_suite::CorpusError;

/// The cells cannot be listed: an unknown name was selected, or a file of cells is invalid.
#[derive(Debug, thiserror::Error)]
pub enum CellsError {
    /// A group was selected that does not exist.
    #[error("no group is called `{name}`; there are {known}")]
    NoGroup {
        /// The name that was given.
        name: String,
        /// The names of all groups.
        known: String,
    },
    /// The filter accepts no cell of the selected groups.
    #[error("no cell's name contains `{0}`; --list shows them")]
    Filtered(String),
    /// The scenarios to play cannot be found.
    #[error(transparent)]
    Corpus(#[from] CorpusError),
    /// A scenario to play cannot be used.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A file of cells is not TOML, or has other keys.
    #[error("{file}: {source}")]
    Toml {
        /// The file, below `cells`.
        file: String,
        /// Which key, on which line.
        source: toml::de::Error,
    },
    /// A cell of a file is not valid.
    #[error("{file}: cell `{cell}`: {source}")]
    Cell {
        /// The file, below `cells`.
        file: String,
        /// The name of the cell.
        cell: String,
        /// What is wrong with it.
        source: Box<CellsError>,
    },
    /// The value of a key is none of those that it can have.
    #[error("unknown {what} `{name}`")]
    Unknown {
        /// The key, such as `transport`.
        what: &'static str,
        /// The value as written.
        name: String,
    },
    /// A cell of the engine names operations that no exchange has.
    #[error("cells/engine.toml: unknown operations `{0}`")]
    UnknownOperations(String),
    /// A device profile that a cell names does not exist.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A number cannot be read.
    #[error("`{text}`: {source}")]
    Number {
        /// The text instead of it.
        text: String,
        /// What is wrong with the text.
        source: ParseIntError,
    },
    /// A regular expression for the output of a program is not valid.
    #[error(transparent)]
    Expression(#[from] regex::Error),
    /// A cell has both or neither.
    #[error("either programs or an exchange have to be there")]
    ProgramsOrExchange,
    /// The command of a program cannot be split into words.
    #[error("`run`: {0}")]
    Words(#[from] SplitError),
    /// The command of a program for which the cell does not say where it runs.
    #[error("`{0}` has no host, job or guests, and is not local")]
    Nowhere(String),
    /// A program is started by an MPI that the cell does not name.
    #[error("a job takes a cell with `mpi`")]
    JobWithoutMpi,
}

impl CellsError {
    pub(crate) fn unknown(what: &'static str, name: &str) -> Self {
        let name = name.to_owned();
        CellsError::Unknown { what, name }
    }
}
