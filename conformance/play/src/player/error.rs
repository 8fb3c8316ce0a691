//! The reasons why a driven process cannot be used any more.

use std::path::PathBuf;
use std::time::Duration;

use super::status::NO_CONNECTION;

/// The reason why a driven process cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum PlayerError {
    /// The program does not start.
    #[error("cannot start {program} for endpoint `{endpoint}`: {source}")]
    Start {
        /// The endpoint of the scenario that it was to play.
        endpoint: String,
        /// The program that was started for it.
        program: PathBuf,
        /// The reason of the system.
        source: std::io::Error,
    },
    /// The process ended before the end of its input.
    #[error("the process of endpoint `{endpoint}` ended early{how}{tail}")]
    Ended {
        /// The endpoint that it played.
        endpoint: String,
        /// How it ended, to follow the text before it.
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
        /// The endpoint that the program played.
        endpoint: String,
        /// The host that the program was on.
        host: String,
        /// The end of its standard error.
        tail: String,
    },
    /// A command was not answered in time.
    #[error(
        "the process of endpoint `{endpoint}` did not answer `{command}` within {limit:?}: {printed}{tail}"
    )]
    Silent {
        /// The endpoint that the process plays.
        endpoint: String,
        /// The command, as it was sent.
        command: String,
        /// The time that it had.
        limit: Duration,
        /// Its output instead of an answer.
        printed: String,
        /// The end of its standard error.
        tail: String,
    },
    /// A program that never answers is not started for every case again.
    #[error(
        "the program was not started again: after {starts} starts it had not answered `hello` within \
         {limit:?}"
    )]
    GivenUp {
        /// How often it was started.
        starts: u32,
        /// The time waited after each.
        limit: Duration,
    },
    /// The process did not end after the end of its input.
    #[error(
        "the process of endpoint `{endpoint}` did not end within {limit:?} of the end of its input{before}, \
         and was killed; it has to end then (docs/driver.md)"
    )]
    Lingers {
        /// The endpoint that it played.
        endpoint: String,
        /// The time that it had.
        limit: Duration,
        /// A note that a longer wait did not help before; empty if there was none.
        before: String,
    },
    /// The process ended after its input, but not with status 0.
    #[error(
        "the process of endpoint `{endpoint}` answered everything, but when its input had ended {how}; it \
         has to end with status 0 then (docs/driver.md){tail}"
    )]
    EndedBadly {
        /// The endpoint that it played.
        endpoint: String,
        /// How it ended, to follow the text before it.
        how: String,
        /// The end of its standard error.
        tail: String,
    },
    /// The process printed a line that is no answer of the driver protocol.
    #[error(
        "the process of endpoint `{endpoint}` does not keep to the driver protocol \
         (docs/driver.md): it printed `{line}`: {problem}; {remedy}{tail}"
    )]
    Rubbish {
        /// The endpoint that it plays.
        endpoint: String,
        /// The line as it was printed.
        line: String,
        /// What is wrong with the line.
        problem: String,
        /// What its author can do.
        remedy: &'static str,
        /// The end of its standard error.
        tail: String,
    },
    /// It refused a command, or gave an unexpected answer.
    #[error("endpoint `{endpoint}`: {text}")]
    Refused {
        /// The endpoint that it plays.
        endpoint: String,
        /// The reason that it gave, or what was wrong with the answer.
        text: String,
    },
    /// The program answered that it cannot do what the command asks for.
    #[error("endpoint `{endpoint}`: unsupported: {text}")]
    Unsupported {
        /// The endpoint that it plays.
        endpoint: String,
        /// The reason that it gave.
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
