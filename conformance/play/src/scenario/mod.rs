//! Scenarios: what the applications of a trace do and see.
//!
//! A scenario is a TOML file that a person can read from top to bottom: the endpoints, then the
//! steps in the order in which they happen. It drives the recording of a trace, it drives the
//! endpoint under test when the trace is replayed, and it says what that endpoint's application
//! must see. `docs/scenarios.md` describes the format for writers.

mod describe;
mod error;
mod fault;
mod file;
mod load;
mod steps;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use error::ScenarioError;
pub use error::suggest;
pub use fault::file_of_faults;

use efa_device_model::fault::Fault;
use serde::{Deserialize, Serialize};

use crate::libfabric::{Version, ffi};
use crate::operation::{self, EndpointIndex, Place};

/// An operation as steps name it.
pub type Operation = operation::Operation<Place>;

/// A scenario, checked: every name refers to something, every step has what it needs.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The file's name without its extension.
    pub name: String,
    /// Where it was read from.
    pub path: PathBuf,
    /// What is shown, in a sentence or more.
    pub description: String,
    /// Sections of the protocol specification that the trace exercises.
    pub spec: Vec<String>,
    /// Who takes part.
    pub endpoints: Vec<EndpointSpec>,
    /// What happens, in this order.
    pub steps: Vec<Step>,
    /// The packets, if they are written by hand, in their order.
    pub packets: Vec<WrittenPacket>,
    /// The rules that packets written by hand break on purpose, by their ids.
    pub breaks: Vec<&'static str>,
    /// What goes wrong in the fabric, from the time when all endpoints are open. Hosts have the
    /// names of their endpoints.
    pub faults: Vec<Fault>,
    /// Departures from the suite's policy for comparing fields.
    pub policies: Vec<PolicyOverride>,
}

/// A packet that is written by hand, as it stands in the file: `efa_replay::synthetic` knows what
/// its keys mean.
#[derive(Clone, PartialEq, Debug)]
pub struct WrittenPacket {
    /// The line of the file on which it begins.
    pub line: usize,
    /// The step during which it is sent: the last one in front of it.
    pub step: usize,
    /// Its sender.
    pub from: EndpointIndex,
    /// Its receiver.
    pub to: EndpointIndex,
    /// Its other keys.
    pub keys: Vec<WrittenKey>,
}

/// A key of a packet.
#[derive(Clone, PartialEq, Debug)]
pub struct WrittenKey {
    /// The key.
    pub name: String,
    /// Its line in the file.
    pub line: usize,
    /// What it says.
    pub value: toml::Value,
}

/// Which implementation an endpoint is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Software {
    /// Stock libfabric.
    Libfabric,
    /// The protocol engine of `efa-core`.
    Core,
    /// None: the endpoint does what its packets say, which are written by hand.
    Script,
}

impl Software {
    const NAMES: [(&'static str, Software); 3] = [
        ("libfabric", Software::Libfabric),
        ("core", Software::Core),
        ("script", Software::Script),
    ];
}

/// One endpoint.
#[derive(Clone, Debug)]
pub struct EndpointSpec {
    /// Its name in the scenario; also the name of its emulated host.
    pub name: String,
    /// The implementation.
    pub software: Software,
    /// The release that the recording needs, such as `1.17`.
    pub version: Option<Version>,
    /// The version of the programming interface that its application asks for.
    pub api: Version,
    /// What its application asks for.
    pub capabilities: Vec<Capability>,
    /// The profile of its emulated device; `None` is the emulator's default.
    pub profile: Option<String>,
    /// Whether its application registers every buffer (`FI_MR_LOCAL`).
    pub register_local: bool,
    /// The largest message that its application promises to send and receive, in bytes, so that
    /// stock libfabric may receive into the application's buffers; `None` promises nothing.
    pub max_message: Option<usize>,
    /// The endpoints that its application knows from the start; by default all others. An endpoint
    /// that is not known is met through the raw address in its first packet.
    pub address_vector: Vec<EndpointIndex>,
    /// Why nothing else can take its place in a replay, if that is so: it does what it is free to
    /// do and others do otherwise.
    pub not_under_test: Option<String>,
    /// Environment variables of its process.
    pub environment: BTreeMap<String, String>,
    /// What the protocol engine must be set to in order to choose like this endpoint.
    pub settings: Settings,
}

impl EndpointSpec {
    /// Whether the application asked for `capability`.
    pub fn has(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }
}

/// A capability that an application asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are libfabric's")]
pub enum Capability {
    Msg,
    Tagged,
    Rma,
    Atomic,
    Source,
    DirectedRecv,
}

impl Capability {
    /// Their names in scenarios and in the driver protocol.
    pub const NAMES: [(&'static str, Capability); 6] = [
        ("msg", Capability::Msg),
        ("tagged", Capability::Tagged),
        ("rma", Capability::Rma),
        ("atomic", Capability::Atomic),
        ("source", Capability::Source),
        ("directed-recv", Capability::DirectedRecv),
    ];

    /// libfabric's bit.
    pub fn bits(self) -> u64 {
        match self {
            Capability::Msg => ffi::FI_MSG,
            Capability::Tagged => ffi::FI_TAGGED,
            Capability::Rma => ffi::FI_RMA,
            Capability::Atomic => ffi::FI_ATOMIC,
            Capability::Source => ffi::FI_SOURCE,
            Capability::DirectedRecv => ffi::FI_DIRECTED_RECV,
        }
    }
}

/// Settings for the choice of subprotocols; what is not set is left as it is. Names and units are
/// those of the protocol engine's configuration.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Settings {
    /// Messages up to this many bytes are sent by medium packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_medium_size: Option<usize>,
    /// Messages from this many bytes on are read by the receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_read_message_size: Option<usize>,
    /// Writes from this many bytes on are read by the receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_read_write_size: Option<usize>,
    /// How many bytes a runting read sends ahead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runt_size: Option<usize>,
    /// How many packets a window of a CTS holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cts_window_packets: Option<u32>,
    /// Whether RDMA of the device is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_device_rdma: Option<bool>,
    /// Whether messages wait for the handshake.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handshake_before_messages: Option<bool>,
    /// Whether the queue pair is made for unsolicited writes.
    // Of `efa_hw::NicConfig`; the simulated device decides by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsolicited_write_recv: Option<bool>,
}

impl Settings {
    pub(crate) fn is_default(&self) -> bool {
        *self == Settings::default()
    }
}

/// One thing that happens.
#[derive(Clone, Debug)]
pub struct Step {
    /// The line of the file on which the step begins.
    pub line: usize,
    /// What happens.
    pub action: Action,
}

/// What a step does.
#[derive(Clone, Debug)]
pub enum Action {
    /// An application starts an operation.
    Start {
        /// At which endpoint.
        at: EndpointIndex,
        /// The operation's name, unique in the scenario.
        id: String,
        /// What it is.
        operation: Operation,
        /// What its completion must say; meaningless for operations without a completion.
        expect: Expectation,
    },
    /// The named operations complete; meanwhile the endpoints make progress.
    Wait {
        /// Names of operations.
        operations: Vec<String>,
        /// Endpoints that make progress; empty means all.
        progress: Vec<EndpointIndex>,
    },
    /// Endpoints make progress until nothing more happens.
    Settle {
        /// Endpoints that make progress; empty means all.
        progress: Vec<EndpointIndex>,
    },
    /// Registered memory must hold a message's bytes now.
    Check {
        /// At which endpoint.
        at: EndpointIndex,
        /// Name of a `register` step.
        region: String,
        /// Where in the region, in bytes.
        offset: usize,
        /// Name of the operation whose bytes must be there.
        message: String,
    },
}

/// What an operation's completion must say.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Expectation {
    /// The operation of the peer whose bytes, tag, completion data and source must arrive.
    pub message: Option<String>,
    /// The error, by libfabric's name; `None` is success.
    pub error: Option<ErrorName>,
    /// Bytes that did not fit, with `FI_ETRUNC`.
    pub overflow: Option<usize>,
}

/// A libfabric error number that has a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ErrorName {
    /// Such as `FI_ETRUNC`.
    pub name: &'static str,
    /// The positive number.
    pub code: i32,
}

impl ErrorName {
    /// Some error: what a device says of a failure, releases tell their applications differently.
    pub const ANY: ErrorName = ErrorName::new("any", 0);

    /// The errors that a scenario may expect.
    pub const ALL: [ErrorName; 12] = [
        ErrorName::ANY,
        ErrorName::new("FI_ETRUNC", ffi::FI_ETRUNC as i32),
        ErrorName::new("FI_ECANCELED", libc::ECANCELED),
        ErrorName::new("FI_EIO", libc::EIO),
        ErrorName::new("FI_EINVAL", libc::EINVAL),
        ErrorName::new("FI_EMSGSIZE", libc::EMSGSIZE),
        ErrorName::new("FI_ENOTCONN", libc::ENOTCONN),
        ErrorName::new("FI_ECONNABORTED", libc::ECONNABORTED),
        ErrorName::new("FI_EHOSTUNREACH", libc::EHOSTUNREACH),
        ErrorName::new("FI_EOPNOTSUPP", libc::EOPNOTSUPP),
        ErrorName::new("FI_ENOMSG", libc::ENOMSG),
        ErrorName::new("FI_ENORX", ffi::FI_ENORX as i32),
    ];

    const fn new(name: &'static str, code: i32) -> Self {
        ErrorName { name, code }
    }
}

/// A per-trace departure from the suite's policy for one field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyOverride {
    /// The line of the file.
    pub line: usize,
    /// Packet type, such as `HANDSHAKE`; `*` is any.
    pub packet: String,
    /// Field, such as `extra_info`.
    pub field: String,
    /// How the field is compared in this trace.
    pub policy: FieldPolicy,
    /// Why.
    pub reason: String,
}

/// How a field of a packet under test is compared with the recorded one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FieldPolicy {
    /// The values must be equal.
    Exact,
    /// The first pair of values seen belongs together, and from then on always.
    Bound,
    /// Not compared.
    Ignored,
    /// The value must be one of these.
    OneOf(Vec<u64>),
}

impl Scenario {
    /// Reads and checks a scenario.
    pub fn load(path: &Path) -> Result<Self, ScenarioError> {
        let text = std::fs::read_to_string(path).map_err(|source| ScenarioError::Unreadable {
            file: path.to_owned(),
            source,
        })?;
        Self::parse(path, &text)
    }

    /// Checks the text of a scenario; `path` is only named.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ScenarioError> {
        load::scenario(path, text)
    }

    /// Whether a file looks like a scenario whose packets are written by hand.
    pub fn has_packets(path: &Path) -> bool {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().any(|line| line.trim() == "[[packet]]")
    }

    /// Whether its packets are written by hand.
    pub fn is_written(&self) -> bool {
        !self.packets.is_empty()
    }

    /// An error about a key of this scenario.
    pub fn error_at(
        &self,
        line: usize,
        key: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> ScenarioError {
        ScenarioError::invalid(&self.path, line, key, problem, remedy)
    }

    /// The endpoint of a name.
    pub fn endpoint(&self, name: &str) -> Option<EndpointIndex> {
        self.endpoints.iter().position(|e| e.name == name)
    }

    /// The operation of a name, with the endpoint that starts it and what is expected of it.
    pub fn operation(&self, id: &str) -> Option<(EndpointIndex, &Operation, &Expectation)> {
        self.steps.iter().find_map(|step| match &step.action {
            Action::Start {
                at,
                id: name,
                operation,
                expect,
            } if name == id => Some((*at, operation, expect)),
            _ => None,
        })
    }
}
