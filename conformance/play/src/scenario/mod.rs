//! Scenarios: what the applications of a trace do and see.
//!
//! A scenario is a TOML file that a person can read from top to bottom: the endpoints, then the
//! steps in the order in which they happen. It drives the recording of a trace, it drives the
//! endpoint under test when the trace is replayed, and it says what that endpoint's application
//! must see. `docs/scenarios.md` describes the format for writers.

mod endpoint;
mod error;
mod expectation;
mod fault;
mod keys;
mod load;
mod packet;
mod policy;
mod step;
mod steps;

use std::path::{Path, PathBuf};

pub use endpoint::{Capability, EndpointSpec, Settings, Software};
pub use error::{ScenarioError, suggest};
pub use expectation::{ErrorName, Expectation};
pub use fault::file_of_faults;
pub use packet::{WrittenKey, WrittenPacket};
pub use policy::{FieldPolicy, PolicyOverride};
pub use step::{Action, Step};

use efa_device_model::fault::Fault;

use crate::operation::{self, EndpointIndex, RegionOffset};

/// An operation as steps name it.
pub type Operation = operation::Operation<RegionOffset>;

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
