//! The reasons why a driven process cannot be used any more.

use std::path::PathBuf;
use std::time::Duration;

use super::status::NO_CONNECTION;

/// The reason why a driven process cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum PlayerError {
    /// It could not be started.
    #[error("cannot start {program} for endpoint `{endpoint}`: {source}")]
    Start {
        /// The endpoint.
        endpoint: String,
        /// The program.
        program: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// It ended, or closed its output.
    #[error("the process of endpoint `{endpoint}` ended early{how}{tail}")]
    Ended {
        /// The endpoint.
        endpoint: String,
        /// How it ended, if known.
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
        /// The endpoint.
        endpoint: String,
        /// The host.
        host: String,
        /// The end of its standard error.
        tail: String,
    },
    /// It did not answer in time.
    #[error(
        "the process of endpoint `{endpoint}` did not answer `{command}` within {limit:?}: {printed}{tail}"
    )]
    Silent {
        /// The endpoint.
        endpoint: String,
        /// The command.
        command: String,
        /// The time waited.
        limit: Duration,
        /// Its output instead of an answer.
        printed: String,
        /// The end of its standard error.
        tail: String,
    },
    /// It was not started, because it did not answer after any of its last starts.
    #[error(
        "the program was not started again: after {starts} starts it had not answered `hello` within \
         {limit:?}"
    )]
    GivenUp {
        /// The number of starts.
        starts: u32,
        /// The time waited after each.
        limit: Duration,
    },
    /// It did not end after the end of its input.
    #[error(
        "the process of endpoint `{endpoint}` did not end within {limit:?} of the end of its input{before}, \
         and was killed; it has to end then (docs/driver.md)"
    )]
    Lingers {
        /// The endpoint.
        endpoint: String,
        /// The time waited.
        limit: Duration,
        /// A note that a longer wait did not help before; empty if there was none.
        before: String,
    },
    /// It answered everything, and then crashed or ended with another status than 0.
    #[error(
        "the process of endpoint `{endpoint}` answered everything, but when its input had ended {how}; it \
         has to end with status 0 then (docs/driver.md){tail}"
    )]
    EndedBadly {
        /// The endpoint.
        endpoint: String,
        /// How it ended.
        how: String,
        /// The end of its standard error.
        tail: String,
    },
    /// It wrote a line that is not part of the driver protocol.
    #[error(
        "the process of endpoint `{endpoint}` does not keep to the driver protocol \
         (docs/driver.md): it printed `{line}`: {problem}; {remedy}{tail}"
    )]
    Rubbish {
        /// The endpoint.
        endpoint: String,
        /// The line, or its beginning.
        line: String,
        /// The error in the line.
        problem: String,
        /// The remedy.
        remedy: &'static str,
        /// The end of its standard error.
        tail: String,
    },
    /// It refused a command, or gave an unexpected answer.
    #[error("endpoint `{endpoint}`: {text}")]
    Refused {
        /// The endpoint.
        endpoint: String,
        /// The answer.
        text: String,
    },
    /// It does not support a command.
    #[error("endpoint `{endpoint}`: unsupported: {text}")]
    Unsupported {
        /// The endpoint.
        endpoint: String,
        /// The unsupported operation.
        text: String,
    },
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
