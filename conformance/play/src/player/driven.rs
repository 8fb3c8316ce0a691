//! An endpoint under test in a driven process.

use efa_core::endpoint::Instant;

use super::error::PlayerError;
use super::process::Player;
use crate::application::checked::{CheckedApplication, ExitError};
use crate::application::{OperationRequest, Report, RequestError, Started, Token};
use crate::drive::{Bytes, Command, EndpointOptions, Event};
use crate::operation::pattern::Difference;
use crate::operation::{EndpointIndex, Payload};

/// An application in a driven process.
pub struct DrivenApplication {
    player: Player,
    /// Whether it has ended, or was ended because it broke the protocol.
    is_over: bool,
    address: Vec<u8>,
    reports: Vec<Report>,
    events: Vec<String>,
}

impl From<PlayerError> for RequestError {
    fn from(error: PlayerError) -> Self {
        match error {
            PlayerError::Unsupported { text, .. } => RequestError::Unsupported(text),
            error => RequestError::Refused(error.to_string()),
        }
    }
}

impl DrivenApplication {
    /// Opens an endpoint in a driven process.
    ///
    /// # Errors
    /// It was not opened.
    pub fn open(player: Player, opening: &EndpointOptions) -> Result<Self, RequestError> {
        let mut driven = DrivenApplication {
            player,
            is_over: false,
            address: Vec::new(),
            reports: Vec::new(),
            events: Vec::new(),
        };
        match driven.ask(&Command::Open(opening.clone())) {
            Ok(Event::Opened { address }) => {
                driven.player.check_address(&address)?;
                driven.address = address.0;
                Ok(driven)
            }
            Ok(event) => Err(driven.player.unexpected(&event).into()),
            // A program that reports `unsupported` must still not crash.
            Err(unsupported @ RequestError::Unsupported(_)) => match driven.end() {
                Err(ExitError::Failed(text)) => Err(RequestError::Refused(text)),
                _ => Err(unsupported),
            },
            Err(error) => Err(error),
        }
    }

    fn ask(&mut self, command: &Command) -> Result<Event, RequestError> {
        let mut aside = Vec::new();
        let answer = self.player.ask(command, &mut aside);
        self.is_over |= answer.as_ref().is_err_and(PlayerError::is_over);
        for event in aside {
            match event {
                Event::Completed(report) => self.reports.push(report),
                Event::Reported { text } => self.events.push(text),
                other => return Err(self.player.unexpected(&other).into()),
            }
        }
        match answer? {
            Event::Again {} => Err(RequestError::TryAgain),
            answer => Ok(answer),
        }
    }

    fn done(&mut self, command: &Command) -> Result<(), RequestError> {
        match self.ask(command)? {
            Event::Done {} => Ok(()),
            other => Err(self.player.unexpected(&other).into()),
        }
    }
}

impl CheckedApplication for DrivenApplication {
    fn address(&self) -> Result<Vec<u8>, RequestError> {
        Ok(self.address.clone())
    }

    fn insert(&mut self, peer: EndpointIndex, address: &[u8]) -> Result<(), RequestError> {
        let address = Bytes(address.to_vec());
        self.done(&Command::Insert { peer, address })
    }

    fn start(
        &mut self,
        token: Token,
        request: &OperationRequest,
        seed: Option<u64>,
    ) -> Result<Started, RequestError> {
        let answer = self.ask(&Command::Start {
            id: token,
            operation: request.clone(),
            expect: seed,
        })?;
        let started = answer.into_started();
        started.map_err(|other| self.player.unexpected(&other).into())
    }

    fn check(
        &mut self,
        token: Token,
        offset: usize,
        payload: Payload,
    ) -> Result<Option<Difference>, RequestError> {
        let command = Command::Check {
            id: token,
            offset,
            payload,
        };
        match self.ask(&command)? {
            Event::Checked { difference } => Ok(difference),
            other => Err(self.player.unexpected(&other).into()),
        }
    }

    fn poll(&mut self) -> Result<Vec<Report>, RequestError> {
        self.done(&Command::Poll {})?;
        Ok(std::mem::take(&mut self.reports))
    }

    fn events(&mut self) -> Result<Vec<String>, RequestError> {
        Ok(std::mem::take(&mut self.events))
    }

    fn end(&mut self) -> Result<(), ExitError> {
        if std::mem::replace(&mut self.is_over, true) {
            return Ok(());
        }
        self.player.end_soon().map_err(|error| match error {
            PlayerError::Lingers { .. } => ExitError::Lingers(error.to_string()),
            error => ExitError::Failed(error.to_string()),
        })
    }

    /// `None`: the process has separate timers.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }
}
