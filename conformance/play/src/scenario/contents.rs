//! The contents of a scenario.

use std::path::PathBuf;

use efa_device_model::fault::Fault;

use super::endpoint::EndpointSpec;
use super::error::ScenarioError;
use super::expectation::Expectation;
use super::packet::WrittenPacket;
use super::policy::PolicyOverride;
use super::step::{Action, Operation, Step};
use crate::operation::EndpointIndex;

/// A checked scenario: every name refers to an object, and every step is complete.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The file's name without its extension.
    pub name: String,
    /// The file it was read from.
    pub path: PathBuf,
    /// What it shows, in a sentence for lists.
    pub description: String,
    /// Sections of the protocol specification that the trace exercises.
    pub spec: Vec<String>,
    /// The endpoints, whose indices all other parts use.
    pub endpoints: Vec<EndpointSpec>,
    /// The steps, in the order in which they are played.
    pub steps: Vec<Step>,
    /// The packets, if they are written by hand, in their order.
    pub packets: Vec<WrittenPacket>,
    /// The rules that packets written by hand break on purpose, by their ids.
    pub breaks: Vec<&'static str>,
    /// Faults in the fabric, which apply once all endpoints are open. Hosts have the names of their
    /// endpoints.
    pub faults: Vec<Fault>,
    /// Departures from the suite's policy for comparing fields.
    pub policies: Vec<PolicyOverride>,
}

impl Scenario {
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

    /// The operation with this name, with the endpoint that starts it and its expectation.
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
