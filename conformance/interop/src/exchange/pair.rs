//! Two driven endpoints.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::party::{INITIATOR, Party, TARGET};
use super::verified::Verified;
use crate::harness::{Bench, NotMeasured, failed};
use efa_play::application::{OperationRequest, Report, Started, Token};
use efa_play::drive::{Bytes, Command, Event, Line};
use efa_play::player::{self, Player, PlayerError, Program};

/// The longest time without a completion while operations are in flight.
pub(super) const STALLED: Duration = Duration::from_secs(30);
/// The interval between two checks for an event.
const PAUSE: Duration = Duration::from_millis(1);
/// The number of lines of standard error that a failure shows.
const SHOWN: usize = 12;

impl From<PlayerError> for NotMeasured {
    fn from(error: PlayerError) -> Self {
        NotMeasured::failed(error)
    }
}

/// Checks that another host's program is of the cell's release, and that the host meets the
/// requirements.
fn introduce(player: &mut Player, party: &Party) -> Result<(), NotMeasured> {
    let identity = match player.identity() {
        // It has reported the reason before its exit.
        Err(error @ PlayerError::Unsupported { .. }) => {
            return Err(NotMeasured::Skipped(error.to_string()));
        }
        identity => identity?,
    };
    let is_stock = matches!(party.program, Program::Libfabric { .. });
    match is_stock && identity.version() != Some(party.opening.api) {
        true => Err(NotMeasured::Skipped(format!(
            "endpoint `{}` has {identity}, and the cell is about {}",
            player.endpoint(),
            party.opening.api
        ))),
        false => Ok(()),
    }
}

/// An operation in flight: its endpoint, and its token there.
pub(super) type Operation = (usize, Token);

pub(super) struct Pair<'a> {
    pub(super) bench: &'a Bench<'a>,
    pub(super) players: [Player; 2],
    logs: [PathBuf; 2],
    /// The paths for captures from other hosts.
    pub(super) captures: [Option<PathBuf>; 2],
    pub(super) tokens: Token,
    reports: HashMap<Operation, Report>,
    /// Completion data of writes to the target's memory.
    pub(super) written: Vec<u64>,
    /// Reports of endpoints that belong to no operation.
    said: Vec<String>,
    pub(super) verified: Verified,
}

impl<'a> Pair<'a> {
    pub(super) fn open(bench: &'a Bench<'a>, parties: [&Party; 2]) -> Result<Self, NotMeasured> {
        let names = ["a", "b"];
        let logs = names.map(|name| bench.directory().join(format!("{name}.log")));
        let launch = |at: usize| {
            let host = player::Host {
                name: names[at].into(),
                log: Some(logs[at].clone()),
                ..parties[at].host.clone()
            };
            bench.start_player(&parties[at].program, &host)
        };
        let players = [launch(INITIATOR)?, launch(TARGET)?];
        let mut pair = Pair {
            bench,
            players,
            logs,
            captures: parties.map(|party| party.host.capture.clone()),
            tokens: 0,
            reports: HashMap::new(),
            written: Vec::new(),
            said: Vec::new(),
            verified: Verified::default(),
        };
        match pair.connect(parties) {
            Err(NotMeasured::Failed(text)) => Err(pair.explained(text)),
            Err(not_measured) => Err(not_measured),
            Ok(()) => Ok(pair),
        }
    }

    fn connect(&mut self, parties: [&Party; 2]) -> Result<(), NotMeasured> {
        let mut addresses = Vec::new();
        for (at, party) in parties.into_iter().enumerate() {
            if self.bench.lab().hosts().is_some() {
                introduce(&mut self.players[at], party)?;
            }
            match self.ask(at, &Command::Open(party.opening.clone()))? {
                Event::Opened { address } => addresses.push(address.0),
                event => return Err(self.unexpected(at, &event)),
            }
        }
        for (at, address) in addresses.into_iter().rev().enumerate() {
            let peer = 1 - at;
            let address = Bytes(address);
            self.ask(at, &Command::Insert { peer, address })?;
        }
        for at in [INITIATOR, TARGET] {
            self.ask(at, &Command::Progress {})?;
        }
        Ok(())
    }

    pub(super) fn ask(&mut self, at: usize, command: &Command) -> Result<Event, NotMeasured> {
        let mut aside = Vec::new();
        let answer = self.players[at].ask(command, &mut aside)?;
        for event in aside {
            self.take(at, event);
        }
        Ok(answer)
    }

    fn take(&mut self, at: usize, event: Event) {
        match event {
            Event::Completed(report) => match (report.token, report.data) {
                (Some(token), _) => {
                    self.reports.insert((at, token), report);
                }
                (None, Some(data)) if at == TARGET => self.written.push(data),
                (None, _) => self
                    .said
                    .push(format!("completed nothing of ours: {report:?}")),
            },
            Event::Reported { text } => {
                let endpoint = self.players[at].endpoint();
                self.said
                    .push(format!("endpoint `{endpoint}` reported: {text}"));
            }
            _ => {}
        }
    }

    pub(super) fn unexpected(&mut self, at: usize, event: &Event) -> NotMeasured {
        self.players[at].unexpected(event).into()
    }

    /// Returns an error if an endpoint has reported an event that belongs to no operation.
    pub(super) fn reported(&mut self) -> Result<(), NotMeasured> {
        if self.said.is_empty() {
            Ok(())
        } else {
            Err(NotMeasured::Failed(
                std::mem::take(&mut self.said).join("\n"),
            ))
        }
    }

    /// A failure with the endpoints' other reports.
    pub(super) fn explained(&self, mut text: String) -> NotMeasured {
        for line in &self.said {
            text.push_str(&format!("\n{line}"));
        }
        for (player, log) in self.players.iter().zip(&self.logs) {
            let log = std::fs::read_to_string(log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            for line in &lines[lines.len().saturating_sub(SHOWN)..] {
                text.push_str(&format!("\n{}: {line}", player.endpoint()));
            }
        }
        NotMeasured::Failed(text)
    }

    /// Processes events of the endpoints. Returns whether there were any.
    pub(super) fn listen(&mut self) -> Result<bool, NotMeasured> {
        let mut heard = false;
        for at in [INITIATOR, TARGET] {
            while let Some(event) = self.players[at].receive(PAUSE)? {
                heard = true;
                self.take(at, event);
            }
        }
        Ok(heard)
    }

    /// Starts an operation when the endpoint has room for it.
    pub(super) fn start(
        &mut self,
        at: usize,
        request: OperationRequest,
        seed: Option<u64>,
    ) -> Result<(Operation, Started), NotMeasured> {
        let token = self.tokens;
        self.tokens += 1;
        let command = Command::Start {
            id: token,
            operation: request,
            expect: seed,
        };
        let deadline = Instant::now() + STALLED.min(self.bench.left());
        loop {
            match self.ask(at, &command)?.into_started() {
                Ok(started) => return Ok(((at, token), started)),
                Err(Event::Again {}) if Instant::now() < deadline => {
                    self.listen()?;
                }
                Err(Event::Again {}) => {
                    return Err(failed!("there is never room for it: {}", command.line()));
                }
                Err(event) => return Err(self.unexpected(at, &event)),
            }
        }
    }

    pub(super) fn begin(
        &mut self,
        at: usize,
        request: OperationRequest,
        seed: Option<u64>,
    ) -> Result<Operation, NotMeasured> {
        Ok(self.start(at, request, seed)?.0)
    }

    /// Waits until an operation has completed successfully and with the right bytes. If another
    /// operation has failed, such as the matching send, its failure is the error.
    pub(super) fn wait(
        &mut self,
        mut operation: Operation,
        length: Option<usize>,
    ) -> Result<Report, NotMeasured> {
        let mut quiet_since = Instant::now();
        let report = loop {
            let mut failed = self
                .reports
                .iter()
                .filter(|(_, report)| report.failure.is_some());
            operation = failed.next().map_or(operation, |(failed, _)| *failed);
            if let Some(report) = self.reports.remove(&operation) {
                break report;
            }
            if self.listen()? {
                quiet_since = Instant::now();
            }
            if quiet_since.elapsed() > STALLED || self.bench.left().is_zero() {
                let endpoint = self.players[operation.0].endpoint();
                return Err(failed!("endpoint `{endpoint}` never completes it"));
            }
        };
        if let Some(failure) = &report.failure {
            let endpoint = self.players[operation.0].endpoint();
            return Err(failed!(
                "endpoint `{endpoint}` ends it with error {}: {}",
                failure.code,
                failure.text
            ));
        }
        if let Some(difference) = &report.difference {
            return Err(NotMeasured::Failed(difference.to_string()));
        }
        if let Some(length) = length
            && report.length != length as u64
        {
            return Err(failed!("{} bytes arrive", report.length));
        }
        Ok(report)
    }

    pub(super) fn count(&mut self, bytes: usize) {
        self.verified = self.verified
            + Verified {
                operations: 1,
                bytes,
            };
    }
}
