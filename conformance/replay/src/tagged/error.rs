//! Why a scenario of tag matching cannot be played, and why a step of it failed.

use efa_sim::OutOfMemory;

/// A call of a device failed, or the backend lacks what the scenario needs.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// No device of this machine has tag matching.
    #[error(
        "no device matches tags; without the hardware run `efa-emu run --profile tm -- \
         efa-conformance run --backend hw`"
    )]
    NoTagMatching,
    /// This end has no tag list.
    #[error("this end matches no tags")]
    NoTagList,
    /// The device model does not have this profile.
    #[error("there is no profile `{0}`")]
    UnknownProfile(&'static str),
    /// The host of the simulator has too little memory.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// The device model refused a call.
    #[error(transparent)]
    Model(#[from] efa_device_model::device::Error),
    /// A call of the verbs failed.
    #[error(transparent)]
    Verbs(#[from] efa_hw::OpenError),
}

/// A step failed, or its result is not what the scenario expects. Names are those of the scenario.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("`{0}` is not a message")]
    NotMessage(String),
    #[error("`{0}` is not a rendezvous, so it has no data to read")]
    NotRendezvous(String),
    #[error("`{0}` is not a receive, so it has no memory")]
    NotReceive(String),
    #[error("`{0}` has no room for the message")]
    NoRoom(String),
    #[error("`{0}` does not complete")]
    Incomplete(String),
    #[error("`{id}` is next to complete, but `{end}` sees {seen}")]
    OtherCompletion {
        id: String,
        end: &'static str,
        seen: String,
    },
    #[error("at the end, `{end}` sees {seen}")]
    Unexpected { end: &'static str, seen: String },
    #[error("`{id}`: {field}: expected {expected}, actual {actual}")]
    Differs {
        id: String,
        field: String,
        expected: String,
        actual: String,
    },
    #[error("line {line}: {error}")]
    AtLine { line: usize, error: Box<StepError> },
}
