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
    /// The device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The device refused a request.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// The request names a queue pair that was not created, or was destroyed.
    #[error("there is no such queue pair")]
    NoQueuePair,
    /// The request names memory that was not registered.
    #[error("there is no such memory")]
    NoMemory,
    /// All packet buffers are in sends that have not completed, or in receives.
    #[error("there is no packet buffer left")]
    NoBuffer,
    /// The packet to send is longer than a packet buffer.
    #[error("no packet is as long")]
    TooLong,
    /// Completions did not arrive in time.
    #[error("after {limit:?} there are {found} of {expected} completions")]
    Completions {
        /// The time that they had.
        limit: Duration,
        /// The number of those that arrived.
        found: usize,
        /// The number of those that were waited for.
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
    /// The side on another host cannot execute a request.
    #[error("at {place}: {reason}")]
    Remote {
        /// The host, and its device.
        place: HostDevice,
        /// The text of a [`SideError`].
        reason: String,
    },
    /// The program that reaches other hosts does not start.
    #[error("cannot start `{shell}`: {source}")]
    Start {
        /// That program and its options.
        shell: String,
        /// The reason of the system.
        source: io::Error,
    },
    /// The process of a side has ended.
    #[error("the connection to {place} ended, or its program did{how}")]
    Ended {
        /// The host of the side, and its device.
        place: HostDevice,
        /// How it ended, to follow the text before it.
        how: String,
    },
    /// A side answered too late, or not in the protocol between the sides.
    #[error("no answer from {place}: {source}")]
    NoAnswer {
        /// The host of the side, and its device.
        place: HostDevice,
        /// What was there instead of an answer.
        source: NoAnswer,
    },
    /// The host of a side cannot be used.
    #[error(transparent)]
    Place(#[from] Box<PlaceError>),
    /// The two devices are of different generations.
    #[error(
        "{} has a device with part id {:#06x}, {} one with {:#06x}: a profile is of one generation",
        places[0], part_ids[0], places[1], part_ids[1]
    )]
    Generations {
        /// The hosts of the two sides, and their devices.
        places: Box<[HostDevice; 2]>,
        /// The part ids of the two devices, in the same order.
        part_ids: [u32; 2],
    },
    /// A completion has a status code that the protocol does not define.
    #[error("status {0} is unknown")]
    Status(u8),
    /// A side answered another request than the one that was made.
    #[error("unexpected answer {answer}")]
    Answer {
        /// The answer as `Debug` shows it, because its type is internal.
        answer: String,
    },
    /// The completion that arrived is not that of a receive.
    #[error("no receive: {completion}")]
    NoReceive {
        /// The completion as `Debug` shows it, because its type is internal.
        completion: String,
    },
    /// The device refuses address handles of GIDs without a host, so that none can be sent to.
    #[error("a handle of a GID that nobody has: {0}")]
    UnknownGid(#[source] Box<SurveyError>),
}
