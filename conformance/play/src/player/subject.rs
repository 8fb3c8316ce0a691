//! An endpoint under test in a driven process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use efa_core::endpoint::Instant;

use super::error::PlayerError;
use super::process::Player;
use crate::application::subject::Subject;
use crate::application::{Report, Request, RequestError, Started, Token};
use crate::drive::{Bytes, Command, Event, Opening};
use crate::operation::pattern::Difference;
use crate::operation::{EndpointIndex, Payload};

/// An application in a driven process.
pub struct Driven {
    player: Player,
    /// Counts the commands that are not answered.
    hangs: Arc<AtomicU32>,
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

impl Driven {
    /// Opens an endpoint in a driven process. `hangs` goes up if the process does not answer a
    /// command.
    pub fn open(
        player: Player,
        opening: &Opening,
        hangs: Arc<AtomicU32>,
    ) -> Result<Self, RequestError> {
        let mut driven = Driven {
            player,
            hangs,
            address: Vec::new(),
            reports: Vec::new(),
            events: Vec::new(),
        };
        match driven.ask(&Command::Open(opening.clone()))? {
            Event::Opened { address } => driven.address = address.0,
            event => return Err(driven.player.unexpected(&event).into()),
        }
        Ok(driven)
    }

    fn ask(&mut self, command: &Command) -> Result<Event, RequestError> {
        let mut aside = Vec::new();
        let answer = self.player.ask(command, &mut aside);
        if matches!(answer, Err(PlayerError::Silent { .. })) {
            self.hangs.fetch_add(1, Ordering::Relaxed);
        }
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

impl Subject for Driven {
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
        request: &Request,
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

    /// `None`: the process keeps its own time.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }
}
