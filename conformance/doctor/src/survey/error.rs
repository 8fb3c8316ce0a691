//! The reasons why experiments and their requests fail.

use std::io;
use std::time::Duration;

use efa_core::nic::NicError;
use efa_hw::OpenError;
use efa_play::answers::NoAnswer;
use efa_play::player::{HostDevice, PlaceError};
use serde::{Serialize, Serializer};

/// The reason why a side cannot execute a request.
#[derive(Debug, thiserror::Error)]
pub enum SideError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Nic(#[from] NicError),
    #[error("there is no such queue pair")]
    NoQueuePair,
    #[error("there is no such memory")]
    NoMemory,
    #[error("there is no packet buffer left")]
    NoBuffer,
    #[error("no packet is as long")]
    TooLong,
    #[error("after {limit:?} there are {found} of {expected} completions")]
    Completions {
        limit: Duration,
        found: usize,
        expected: usize,
    },
}

/// As text, because only the other side's user reads it.
impl Serialize for SideError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The reason why an experiment failed, or cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SurveyError {
    /// Of the side in this process.
    #[error(transparent)]
    Side(#[from] SideError),
    #[error("at {place}: {reason}")]
    Remote {
        place: HostDevice,
        /// The text of a [`SideError`].
        reason: String,
    },
    #[error("cannot start `{shell}`: {source}")]
    Start { shell: String, source: io::Error },
    #[error("the connection to {place} ended, or its program did{how}")]
    Ended { place: HostDevice, how: String },
    #[error("no answer from {place}: {source}")]
    NoAnswer { place: HostDevice, source: NoAnswer },
    #[error(transparent)]
    Place(#[from] Box<PlaceError>),
    #[error(
        "{} has a device with part id {:#06x}, {} one with {:#06x}: a profile is of one generation",
        places[0], part_ids[0], places[1], part_ids[1]
    )]
    Generations {
        places: Box<[HostDevice; 2]>,
        part_ids: [u32; 2],
    },
    #[error("status {0} is unknown")]
    Status(u8),
    #[error("unexpected answer {answer}")]
    Answer {
        /// The answer as `Debug` shows it, because its type is internal.
        answer: String,
    },
    #[error("no receive: {completion}")]
    NoReceive {
        /// The completion as `Debug` shows it, because its type is internal.
        completion: String,
    },
    #[error("a handle of a GID that nobody has: {0}")]
    UnknownGid(#[source] Box<SurveyError>),
}
