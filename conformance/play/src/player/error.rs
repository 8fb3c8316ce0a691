//! The reasons why a driven process cannot be used any more.

use std::path::PathBuf;
use std::time::Duration;

use super::status::NO_CONNECTION;

/// The reason why a driven process cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum PlayerError {
    #[error("cannot start {program} for endpoint `{endpoint}`: {source}")]
    Start {
        endpoint: String,
        program: PathBuf,
        source: std::io::Error,
    },
    #[error("the process of endpoint `{endpoint}` ended early{how}{tail}")]
    Ended {
        endpoint: String,
        how: String,
        /// Whether its exit status reports a deficiency of the environment.
        is_unfit: bool,
        /// The end of its standard error.
        tail: String,
    },
    /// The connection to its host ended, or a signal ended it there.
    #[error(
        "the connection to {host} for endpoint `{endpoint}` ended, or a signal ended the program there \
         (status {NO_CONNECTION}){tail}; see that the host is up"
    )]
    Lost {
        endpoint: String,
        host: String,
        tail: String,
    },
    #[error(
        "the process of endpoint `{endpoint}` did not answer `{command}` within {limit:?}: {printed}{tail}"
    )]
    Silent {
        endpoint: String,
        command: String,
        limit: Duration,
        /// Its output instead of an answer.
        printed: String,
        tail: String,
    },
    #[error(
        "the program was not started again: after {starts} starts it had not answered `hello` within \
         {limit:?}"
    )]
    GivenUp {
        starts: u32,
        /// The time waited after each.
        limit: Duration,
    },
    #[error(
        "the process of endpoint `{endpoint}` did not end within {limit:?} of the end of its input{before}, \
         and was killed; it has to end then (docs/driver.md)"
    )]
    Lingers {
        endpoint: String,
        limit: Duration,
        /// A note that a longer wait did not help before; empty if there was none.
        before: String,
    },
    #[error(
        "the process of endpoint `{endpoint}` answered everything, but when its input had ended {how}; it \
         has to end with status 0 then (docs/driver.md){tail}"
    )]
    EndedBadly {
        endpoint: String,
        how: String,
        tail: String,
    },
    #[error(
        "the process of endpoint `{endpoint}` does not keep to the driver protocol \
         (docs/driver.md): it printed `{line}`: {problem}; {remedy}{tail}"
    )]
    Rubbish {
        endpoint: String,
        line: String,
        problem: String,
        remedy: &'static str,
        tail: String,
    },
    /// It refused a command, or gave an unexpected answer.
    #[error("endpoint `{endpoint}`: {text}")]
    Refused { endpoint: String, text: String },
    #[error("endpoint `{endpoint}`: unsupported: {text}")]
    Unsupported { endpoint: String, text: String },
}

impl PlayerError {
    /// Whether the process has exited, or was killed.
    pub(super) fn is_over(&self) -> bool {
        !matches!(
            self,
            PlayerError::Refused { .. } | PlayerError::Unsupported { .. }
        )
    }
}
