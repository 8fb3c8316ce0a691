//! Errors of listing cells.

use std::num::ParseIntError;

use efa_commands::shell::SplitError;
use efa_device_model::profile::ProfileError;
use efa_play::scenario::ScenarioError;
use efa_suite::CorpusError;

/// The cells cannot be listed: an unknown name was selected, or a file of cells is invalid.
#[derive(Debug, thiserror::Error)]
pub enum CellsError {
    #[error("no group is called `{name}`; there are {known}")]
    NoGroup {
        name: String,
        /// The names of all groups.
        known: String,
    },
    #[error("no cell's name contains `{0}`; --list shows them")]
    Filtered(String),
    #[error(transparent)]
    Corpus(#[from] CorpusError),
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error("{file}: {source}")]
    Toml {
        file: String,
        source: toml::de::Error,
    },
    #[error("{file}: cell `{cell}`: {source}")]
    Cell {
        file: String,
        cell: String,
        source: Box<CellsError>,
    },
    #[error("unknown {what} `{name}`")]
    Unknown {
        /// The key, such as `transport`.
        what: &'static str,
        name: String,
    },
    #[error("cells/engine.toml: unknown operations `{0}`")]
    UnknownOperations(String),
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error("`{text}`: {source}")]
    Number { text: String, source: ParseIntError },
    #[error(transparent)]
    Expression(#[from] regex::Error),
    #[error("either programs or an exchange have to be there")]
    ProgramsOrExchange,
    #[error("`run`: {0}")]
    Words(#[from] SplitError),
    #[error("`{0}` has no host, job or guests, and is not local")]
    Nowhere(String),
    #[error("a job takes a cell with `mpi`")]
    JobWithoutMpi,
}

impl CellsError {
    pub(crate) fn unknown(what: &'static str, name: &str) -> Self {
        let name = name.to_owned();
        CellsError::Unknown { what, name }
    }
}
