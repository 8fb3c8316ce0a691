//! Endpoints under test, wherever they run.

use std::collections::HashMap;

use efa_core::endpoint::Instant;

use super::{Application, Report, Request, RequestError, Started, Token};
use crate::drive::{Command, Event};
use crate::player::{Player, PlayerError};
use crate::scenario::{EndpointIndex, Payload, pattern};

/// An application that compares what arrives with what should, in this process or another.
pub trait Subject {
    /// The endpoint's raw address.
    fn address(&self) -> Result<Vec<u8>, RequestError>;

    /// Makes a peer's raw address known.
    fn insert(&mut self, peer: EndpointIndex, address: &[u8]) -> Result<(), RequestError>;

    /// Starts an operation; `seed` names the message that it must deliver.
    fn start(
        &mut self,
        token: Token,
        request: &Request,
        seed: Option<u64>,
    ) -> Result<Started, RequestError>;

    /// Compares memory that operation `token` registered with a message; the result is the first
    /// difference.
    fn check(
        &mut self,
        token: Token,
        offset: usize,
        payload: Payload,
    ) -> Result<Option<String>, RequestError>;

    /// Makes progress once and takes completions.
    fn poll(&mut self) -> Result<Vec<Report>, RequestError>;

    /// Takes what the endpoint reported outside of any operation.
    fn events(&mut self) -> Result<Vec<String>, RequestError>;

    /// When progress is due although nothing arrives.
    fn next_timeout(&self) -> Option<Instant>;
}

/// An application in this process.
pub struct Local {
    application: Box<dyn Application>,
    seeds: HashMap<Token, u64>,
}

impl Local {
    /// Takes an application.
    pub fn new(application: Box<dyn Application>) -> Self {
        Local {
            application,
            seeds: HashMap::new(),
        }
    }

    /// Takes a peer out of the address vector.
    pub fn remove(&mut self, peer: EndpointIndex) -> Result<(), RequestError> {
        self.application.remove(peer)
    }

    /// Memory that operation `token` registered, as 64-bit words. What is left at its end does not
    /// count.
    pub fn words(&mut self, token: Token) -> Result<Vec<u64>, RequestError> {
        let bytes = self.application.region(token)?;
        let (words, _) = bytes.as_chunks();
        Ok(words.iter().copied().map(u64::from_le_bytes).collect())
    }
}

impl Subject for Local {
    fn address(&self) -> Result<Vec<u8>, RequestError> {
        self.application.address()
    }

    fn insert(&mut self, peer: EndpointIndex, address: &[u8]) -> Result<(), RequestError> {
        self.application.insert(peer, address)
    }

    fn start(
        &mut self,
        token: Token,
        request: &Request,
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
    ) -> Result<Option<String>, RequestError> {
        let bytes = self.application.region(token)?;
        let range = offset..offset.saturating_add(payload.length);
        Ok(match bytes.get(range) {
            Some(bytes) => pattern::compare(payload.seed, bytes).err(),
            None => Some(format!("the region has only {} bytes", bytes.len())),
        })
    }

    fn poll(&mut self) -> Result<Vec<Report>, RequestError> {
        let outcomes = self.application.poll()?;
        let reports = outcomes.iter().map(|outcome| {
            let seed = outcome.token.and_then(|token| self.seeds.get(&token));
            outcome.report(seed.copied())
        });
        Ok(reports.collect())
    }

    fn events(&mut self) -> Result<Vec<String>, RequestError> {
        self.application.events()
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.application.next_timeout()
    }
}

/// An application behind a driver process.
pub struct Remote {
    player: Player,
    address: Vec<u8>,
    reports: Vec<Report>,
    events: Vec<String>,
}

impl From<PlayerError> for RequestError {
    fn from(error: PlayerError) -> Self {
        RequestError::Refused(error.to_string())
    }
}

impl Remote {
    /// Opens an endpoint in a driver process.
    pub fn open(player: Player, open: &Command) -> Result<Self, RequestError> {
        let mut remote = Remote {
            player,
            address: Vec::new(),
            reports: Vec::new(),
            events: Vec::new(),
        };
        match remote.ask(open)? {
            Event::Opened { address, .. } => remote.address = address,
            event => return Err(unexpected(&event)),
        }
        Ok(remote)
    }

    fn ask(&mut self, command: &Command) -> Result<Event, RequestError> {
        let mut aside = Vec::new();
        let answer = self.player.ask(command, &mut aside)?;
        for event in aside {
            match event {
                Event::Completed { report } => self.reports.push(report),
                Event::Reported { text } => self.events.push(text),
                _ => {}
            }
        }
        match answer {
            Event::TryAgain => Err(RequestError::TryAgain),
            answer => Ok(answer),
        }
    }
}

fn unexpected(event: &Event) -> RequestError {
    RequestError::Refused(format!("unexpected answer {event:?}"))
}

impl Subject for Remote {
    fn address(&self) -> Result<Vec<u8>, RequestError> {
        Ok(self.address.clone())
    }

    fn insert(&mut self, peer: EndpointIndex, address: &[u8]) -> Result<(), RequestError> {
        let address = address.to_vec();
        self.ask(&Command::Insert { peer, address }).map(drop)
    }

    fn start(
        &mut self,
        token: Token,
        request: &Request,
        seed: Option<u64>,
    ) -> Result<Started, RequestError> {
        let command = Command::Start {
            token,
            request: request.clone(),
            seed,
        };
        match self.ask(&command)? {
            Event::Started { started } => Ok(started),
            event => Err(unexpected(&event)),
        }
    }

    fn check(
        &mut self,
        token: Token,
        offset: usize,
        payload: Payload,
    ) -> Result<Option<String>, RequestError> {
        let command = Command::Check {
            token,
            offset,
            payload,
        };
        match self.ask(&command)? {
            Event::Checked { difference } => Ok(difference),
            event => Err(unexpected(&event)),
        }
    }

    fn poll(&mut self) -> Result<Vec<Report>, RequestError> {
        self.ask(&Command::Poll)?;
        Ok(std::mem::take(&mut self.reports))
    }

    fn events(&mut self) -> Result<Vec<String>, RequestError> {
        Ok(std::mem::take(&mut self.events))
    }

    /// The process looks after its own time.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }
}
