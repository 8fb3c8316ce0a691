//! Endpoints under test, from the view of a replay.

use std::collections::HashMap;

use efa_core::endpoint::Instant;

use super::{Application, OperationRequest, Report, RequestError, Started, Token};
use crate::operation::pattern::{self, Difference};
use crate::operation::{EndpointIndex, Payload};

/// A program that did not end normally after it had completed all commands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExitError {
    /// It crashed, ended with another status than 0, or printed unrequested output.
    Failed(String),
    /// It did not end, and was killed.
    Lingers(String),
}

/// An application, in this process or another, that compares the arriving bytes with the expected
/// ones.
pub trait CheckedApplication {
    /// The endpoint's raw address.
    fn address(&self) -> Result<Vec<u8>, RequestError>;

    /// Makes a peer's raw address known.
    fn insert(&mut self, peer: EndpointIndex, address: &[u8]) -> Result<(), RequestError>;

    /// Starts an operation; `seed` names the message that it must deliver.
    fn start(
        &mut self,
        token: Token,
        request: &OperationRequest,
        seed: Option<u64>,
    ) -> Result<Started, RequestError>;

    /// Compares memory that operation `token` registered with a message, and returns the first
    /// difference.
    fn check(
        &mut self,
        token: Token,
        offset: usize,
        payload: Payload,
    ) -> Result<Option<Difference>, RequestError>;

    /// Makes progress once and returns the completions.
    fn poll(&mut self) -> Result<Vec<Report>, RequestError>;

    /// Removes and returns the endpoint's reports outside of any operation.
    fn events(&mut self) -> Result<Vec<String>, RequestError>;

    /// The time at which progress is due even if nothing arrives.
    fn next_timeout(&self) -> Option<Instant>;

    /// Ends the application's program, if it has a separate one. It gets no more requests.
    ///
    /// # Errors
    /// The description of an abnormal end. Problems that were reported before are not repeated.
    fn end(&mut self) -> Result<(), ExitError> {
        Ok(())
    }

    /// As [`Application::take_device_errors`].
    fn take_device_errors(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// An application in this process.
pub struct LocalApplication {
    application: Box<dyn Application>,
    seeds: HashMap<Token, u64>,
    report_fault: Option<fn(Report) -> Vec<Report>>,
}

impl LocalApplication {
    /// An endpoint that this application plays.
    pub fn new(application: Box<dyn Application>) -> Self {
        LocalApplication {
            application,
            seeds: HashMap::new(),
            report_fault: None,
        }
    }

    /// The same application with a fault that replaces each report.
    pub fn with_report_fault(mut self, fault: Option<fn(Report) -> Vec<Report>>) -> Self {
        self.report_fault = fault;
        self
    }

    /// Removes a peer from the address vector.
    pub fn remove(&mut self, peer: EndpointIndex) -> Result<(), RequestError> {
        self.application.remove(peer)
    }

    /// The current bytes of memory that operation `token` registered.
    pub fn dump(&mut self, token: Token) -> Result<Vec<u8>, RequestError> {
        self.application.region(token)
    }
}

impl CheckedApplication for LocalApplication {
    fn address(&self) -> Result<Vec<u8>, RequestError> {
        self.application.address()
    }

    fn insert(&mut self, peer: EndpointIndex, address: &[u8]) -> Result<(), RequestError> {
        self.application.insert(peer, address)
    }

    fn start(
        &mut self,
        token: Token,
        request: &OperationRequest,
        seed: Option<u64>,
    ) -> Result<Started, RequestError> {
        let started = self.application.start(token, request)?;
        if let Some(seed) = seed {
            self.seeds.insert(token, seed);
        }
        Ok(started)
    }

    fn check(
        &mut self,
        token: Token,
        offset: usize,
        payload: Payload,
    ) -> Result<Option<Difference>, RequestError> {
        let bytes = self.application.region(token)?;
        let range = offset..offset.saturating_add(payload.length);
        match bytes.get(range) {
            Some(bytes) => Ok(pattern::compare(payload.seed, bytes).err()),
            None => Err(RequestError::Refused(format!(
                "the region has only {} bytes",
                bytes.len()
            ))),
        }
    }

    fn poll(&mut self) -> Result<Vec<Report>, RequestError> {
        let outcomes = self.application.poll()?;
        let reports = outcomes.iter().map(|outcome| {
            let seed = outcome.token.and_then(|token| self.seeds.get(&token));
            outcome.report(seed.copied())
        });
        Ok(match self.report_fault {
            Some(fault) => reports.flat_map(fault).collect(),
            None => reports.collect(),
        })
    }

    fn events(&mut self) -> Result<Vec<String>, RequestError> {
        self.application.events()
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.application.next_timeout()
    }

    fn take_device_errors(&mut self) -> Vec<String> {
        self.application.take_device_errors()
    }
}
