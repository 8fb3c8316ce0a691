//! Applications, which use an endpoint on a scenario's behalf.
//!
//! The same requests and outcomes serve stock libfabric ([`stock`]) and the protocol engine
//! ([`engine`]), in the suite's own process or in another one.

pub mod checked;
pub mod engine;
pub mod stock;

use efa_core::endpoint::Instant;
use serde::{Deserialize, Serialize};

use crate::operation::pattern::{self, Difference};
use crate::operation::{EndpointIndex, Operation, Remote};

/// Names an operation of one application.
pub type Token = u64;

/// An operation, ready to be started. [`Operation::Register`] gives a [`Started::Region`].
pub type OperationRequest = Operation<Remote>;

/// The result of starting a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Started {
    /// A completion will follow, except for injected messages.
    Operation,
    /// Memory is registered.
    Region(Remote),
}

/// A finished operation, or a peer's write with data to our memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The operation; `None` if a peer caused it.
    pub token: Option<Token>,
    /// Bytes received.
    pub length: u64,
    /// The tag of a tagged receive.
    pub tag: u64,
    /// Remote completion data.
    pub data: Option<u64>,
    /// The sender, if the application requested sources and the sender is in its address vector.
    pub source: Option<EndpointIndex>,
    /// How it ended.
    pub result: Result<(), Failure>,
    /// The operation's buffer.
    pub bytes: Vec<u8>,
}

/// Why an operation failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// libfabric's positive error number, such as 265 (`FI_ETRUNC`).
    pub code: i32,
    /// An explanation.
    #[serde(default)]
    pub text: String,
    /// Bytes that did not fit (truncation).
    #[serde(default)]
    pub overflow: u64,
}

/// Why a request was not started.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// Resources are exhausted at the moment: poll, then try again.
    #[error("resources are short: poll, then try again")]
    TryAgain,
    /// The request cannot be started.
    #[error("{0}")]
    Refused(String),
    /// The implementation under test has no such operation.
    #[error("{0}")]
    Unsupported(String),
}

/// An application with one endpoint.
pub trait Application {
    /// The endpoint's raw address.
    fn address(&self) -> Result<Vec<u8>, RequestError>;

    /// Makes a peer's raw address known. Peers are inserted in the order of the scenario.
    fn insert(&mut self, peer: EndpointIndex, address: &[u8]) -> Result<(), RequestError>;

    /// Takes a peer out of the address vector (`fi_av_remove`).
    fn remove(&mut self, peer: EndpointIndex) -> Result<(), RequestError>;

    /// Starts an operation.
    fn start(&mut self, token: Token, request: &OperationRequest) -> Result<Started, RequestError>;

    /// Makes progress and takes completions.
    fn poll(&mut self) -> Result<Vec<Outcome>, RequestError>;

    /// Takes the endpoint's reports outside of any operation, as text.
    fn events(&mut self) -> Result<Vec<String>, RequestError>;

    /// The current bytes of memory that [`OperationRequest::Register`] registered.
    fn region(&mut self, token: Token) -> Result<Vec<u8>, RequestError>;

    /// The time at which progress is due even if nothing arrives; `None` if the application keeps
    /// its own time.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// Takes the device's reports of failed requests, one per line, if the application gets them.
    fn take_device_errors(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// An [`Outcome`] with the result of comparing its bytes, instead of the bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The operation; not there if a peer caused the completion.
    #[serde(rename = "id", skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
    /// Bytes received.
    pub length: u64,
    /// The tag of the message that a tagged receive got.
    #[serde(default)]
    pub tag: u64,
    /// Remote completion data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<u64>,
    /// The sender, if the application requested sources and the sender is in its address vector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<EndpointIndex>,
    /// The error, if the operation failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The first difference between the bytes that arrived and those expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference: Option<Difference>,
}

impl Outcome {
    /// Compares the bytes that arrived with the message of `seed`.
    pub fn report(&self, seed: Option<u64>) -> Report {
        let arrived = self.bytes.len().min(self.length as usize);
        let difference = seed.and_then(|seed| pattern::compare(seed, &self.bytes[..arrived]).err());
        Report {
            token: self.token,
            length: self.length,
            tag: self.tag,
            data: self.data,
            source: self.source,
            failure: self.result.clone().err(),
            difference,
        }
    }
}
