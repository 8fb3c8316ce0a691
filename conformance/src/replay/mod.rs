//! Replaying one side of a trace against an implementation.
//!
//! One endpoint of the trace is under test: its application does what the scenario says, over the
//! implementation. The other endpoints are *scripted* ([`peer`]): they send the packets that were
//! recorded there, each as soon as everything that its sender had received before has arrived
//! ([`script`]). Every packet that the endpoint under test sends is compared with the recorded one in
//! its place ([`crate::compare`]), and its application must see what the scenario says
//! ([`crate::verify`]).
//!
//! The two sides meet on a [`backend::Backend`].

pub mod backend;
pub mod codec;
pub mod coverage;
pub mod emu;
pub mod hw;
mod memory;
pub mod peer;
pub mod script;

use std::collections::HashMap;

use efa_core::address::RawAddress;
use efa_core::endpoint::{EndpointConfig, Instant};
use efa_core::nic::{Nic, Status};
use efa_emu::frame::Kind;

use crate::application::engine::{CoreApplication, configuration};
use crate::application::subject::{Local, Subject};
use crate::application::{Remote, Report, RequestError, Started, Token};
use crate::compare::{Bindings, Mismatch, Recorded};
use crate::conduct::request;
use crate::scenario::{Action, Capability, EndpointIndex, EndpointSpec, Operation};
use crate::trace::Trace;
use crate::verify;
use backend::{Backend, BackendError};
use peer::Peer;
use script::{Cast, Script};

/// How strictly the packets of the endpoint under test are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strictness {
    /// Field by field.
    Fields,
    /// Not: the network reorders, so packets may differ; what the application sees may not.
    Outcome,
}

/// What came of a replay.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// Packets of the endpoint under test that were compared.
    pub compared: usize,
    /// Packets that the scripted peers sent.
    pub played: usize,
    /// Fields that differ.
    pub mismatches: Vec<Mismatch>,
    /// Everything else that went otherwise than recorded.
    pub problems: Vec<String>,
    /// What is under test said that it cannot do this, so that nothing else counts.
    pub unsupported: Option<String>,
}

impl Verdict {
    /// Whether everything went as recorded.
    pub fn passed(&self) -> bool {
        self.unsupported.is_none() && self.mismatches.is_empty() && self.problems.is_empty()
    }

    /// All differences, one text each.
    pub fn texts(&self) -> Vec<String> {
        let mismatches = self.mismatches.iter().map(ToString::to_string);
        mismatches.chain(self.problems.iter().cloned()).collect()
    }
}

/// After so many differences a replay tells nothing new.
const ENOUGH: usize = 20;
/// How often the application is polled without result before all that arrived counts as handled.
const QUIET_POLLS: u32 = 4;

struct Replay<'t, B: Backend> {
    trace: &'t Trace,
    dut: EndpointIndex,
    strictness: Strictness,
    backend: &'t mut B,
    subject: Box<dyn Subject>,
    peers: Vec<Peer<B::Nic>>,
    script: Script<'t>,
    bindings: Bindings,
    tokens: HashMap<&'t str, Token>,
    /// Where the memory of `register` steps is now.
    regions: HashMap<&'t str, Remote>,
    reports: HashMap<Token, Report>,
    verdict: Verdict,
}

/// The replay cannot go on: what it waits for does not come, or enough went wrong.
struct Stopped;

/// How the endpoint under test is opened.
pub trait Opener<B: Backend> {
    /// Opens it in the place of `endpoint`.
    fn open(
        &mut self,
        backend: &mut B,
        endpoint: &EndpointSpec,
    ) -> Result<Box<dyn Subject>, BackendError>;
}

/// Opens the protocol engine in this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Engine {
    /// Decides what the engine leaves to chance.
    pub seed: u64,
}

impl<B: Backend> Opener<B> for Engine
where
    B::Nic: 'static,
{
    fn open(
        &mut self,
        backend: &mut B,
        endpoint: &EndpointSpec,
    ) -> Result<Box<dyn Subject>, BackendError> {
        let config = EndpointConfig {
            seed: self.seed,
            ..configuration(&endpoint.settings)
        };
        let application = CoreApplication::open(
            backend.open(endpoint)?,
            config,
            endpoint.has(Capability::Source),
            backend.clock(),
        );
        Ok(Box::new(Local::new(Box::new(application?))))
    }
}

/// Replays `trace` with what `opener` opens as endpoint `dut`.
pub fn replay<B: Backend>(
    trace: &Trace,
    dut: EndpointIndex,
    strictness: Strictness,
    backend: &mut B,
    opener: &mut dyn Opener<B>,
) -> Result<Verdict, BackendError> {
    match play(trace, dut, strictness, backend, opener) {
        Err(BackendError::Subject(RequestError::Unsupported(text))) => Ok(Verdict {
            unsupported: Some(text),
            ..Verdict::default()
        }),
        Err(error @ BackendError::Subject(_)) => Ok(Verdict {
            problems: vec![error.to_string()],
            ..Verdict::default()
        }),
        other => other,
    }
}

fn play<B: Backend>(
    trace: &Trace,
    dut: EndpointIndex,
    strictness: Strictness,
    backend: &mut B,
    opener: &mut dyn Opener<B>,
) -> Result<Verdict, BackendError> {
    let cast = match Cast::of(trace) {
        Ok(cast) => cast,
        Err(problem) => {
            return Ok(Verdict {
                problems: vec![problem],
                ..Verdict::default()
            });
        }
    };
    backend.reset();
    let mut subject = opener.open(backend, &trace.scenario.endpoints[dut])?;
    let address = subject.address()?;
    let address = address
        .first_chunk()
        .map(RawAddress::from_bytes)
        .ok_or_else(|| RequestError::Refused("it has no raw address".into()))?;
    let mut peers = Vec::new();
    let mut actual = Vec::new();
    for (at, endpoint) in trace.scenario.endpoints.iter().enumerate() {
        if at == dut {
            actual.push(address);
            continue;
        }
        let nic = backend.open(endpoint)?;
        actual.push(nic.local_address());
        peers.push(Peer::new(at, nic, address)?);
    }
    for &known in &trace.scenario.endpoints[dut].address_vector {
        subject.insert(known, &actual[known].to_bytes())?;
    }
    // Stock libfabric posts its receive buffers when it first makes progress.
    subject.poll()?;
    let mut replay = Replay {
        trace,
        dut,
        strictness,
        backend,
        subject,
        peers,
        script: Script::new(trace, dut),
        bindings: Bindings::new(cast.addresses, actual, &trace.scenario.policies),
        tokens: HashMap::new(),
        regions: HashMap::new(),
        reports: HashMap::new(),
        verdict: Verdict::default(),
    };
    // Whether it stopped early shows in the verdict.
    let _ = replay.run();
    Ok(replay.verdict)
}

impl<'t, B: Backend> Replay<'t, B> {
    fn run(&mut self) -> Result<(), Stopped> {
        let trace = self.trace;
        for (index, step) in trace.scenario.steps.iter().enumerate() {
            self.step(index, &step.action)?;
        }
        // What was recorded after the last step.
        self.pump(trace.scenario.steps.len(), true, true, &[])
    }

    fn step(&mut self, index: usize, action: &'t Action) -> Result<(), Stopped> {
        match action {
            Action::Start {
                at, id, operation, ..
            } => {
                self.tokens.insert(id, index as Token);
                if let Operation::Register { payload, .. } = operation
                    && *at != self.dut
                {
                    self.register(*at, id, *payload)?;
                }
                if *at == self.dut {
                    self.start(index, id, operation)?;
                    // Posting is progress enough: whatever else it would do was recorded later.
                    self.pump(index, true, false, &[])
                } else {
                    // It may have been kept waiting by the endpoint under test.
                    let progress = self.script.missing(index).is_some();
                    self.pump(index, progress, false, &[])
                }
            }
            Action::Wait {
                operations,
                progress,
            } => {
                let own: Vec<&str> = operations
                    .iter()
                    .map(String::as_str)
                    .filter(|id| self.is_own(id))
                    .collect();
                self.pump(index, self.progresses(progress), true, &own)?;
                for id in own {
                    if let Some(report) = self.reports.get(&self.tokens[id]) {
                        let problems = verify::completion(&self.trace.scenario, id, report);
                        self.verdict.problems.extend(problems);
                    }
                }
                Ok(())
            }
            Action::Settle { progress } => self.pump(index, self.progresses(progress), true, &[]),
            Action::Check {
                at,
                region,
                offset,
                message,
            } => {
                // Into a scripted endpoint's memory nobody writes but by packets, which are compared.
                if *at != self.dut {
                    return Ok(());
                }
                self.check(region, *offset, message)
            }
        }
    }

    fn progresses(&self, only: &[EndpointIndex]) -> bool {
        only.is_empty() || only.contains(&self.dut)
    }

    /// Whether the endpoint under test runs the operation and will hear of its end.
    fn is_own(&self, id: &str) -> bool {
        self.trace
            .scenario
            .operation(id)
            .is_some_and(|(at, operation, _)| at == self.dut && operation.completes())
    }

    fn unsupported(&mut self, text: String) -> Stopped {
        self.verdict.unsupported = Some(text);
        Stopped
    }

    fn problem(&mut self, text: String) -> Result<(), Stopped> {
        self.verdict.problems.push(text);
        if self.verdict.problems.len() + self.verdict.mismatches.len() >= ENOUGH {
            return Err(Stopped);
        }
        Ok(())
    }

    fn start(&mut self, index: usize, id: &'t str, operation: &Operation) -> Result<(), Stopped> {
        let nowhere = Remote { address: 0, key: 0 };
        let request = request(operation, |region| {
            self.regions.get(region).copied().unwrap_or(nowhere)
        });
        let mut rounds = 0;
        loop {
            let seed = verify::expected_seed(&self.trace.scenario, id);
            match self.subject.start(self.tokens[id], &request, seed) {
                Ok(Started::Operation) => return Ok(()),
                Ok(Started::Region(remote)) => {
                    let length = operation.payload().map_or(0, |payload| payload.length);
                    return self.bind(self.dut, id, remote, length);
                }
                Err(RequestError::TryAgain) => {
                    self.round(index, true)?;
                    rounds += 1;
                    let timeout = self.subject.next_timeout();
                    if !self.backend.idle(rounds, timeout) {
                        self.problem(format!("`{id}`: resources stayed short"))?;
                        return Err(Stopped);
                    }
                }
                Err(RequestError::Unsupported(text)) => return Err(self.unsupported(text)),
                Err(error) => {
                    self.problem(format!("`{id}` was not started: {error}"))?;
                    return Err(Stopped);
                }
            }
        }
    }

    /// Lets everything happen that belongs to steps up to `step`: scripted packets go out, packets
    /// of the endpoint under test arrive and the operations `own` complete. With `handle_all`, also
    /// everything that has arrived is handled.
    fn pump(
        &mut self,
        step: usize,
        progress: bool,
        handle_all: bool,
        own: &[&str],
    ) -> Result<(), Stopped> {
        let mut idle = 0;
        let mut quiet = 0;
        loop {
            if self.round(step, progress)? {
                idle = 0;
                quiet = 0;
                continue;
            }
            let sent = self.peers.iter().all(Peer::is_idle);
            let pending = |id: &&str| !self.reports.contains_key(&self.tokens[*id]);
            if self.script.is_done(step) && sent && !own.iter().any(pending) {
                if !(progress && handle_all) || quiet == QUIET_POLLS {
                    return Ok(());
                }
                quiet += 1;
                continue;
            }
            idle += 1;
            let timeout = self.subject.next_timeout();
            if !self.backend.idle(idle, timeout.filter(|_| progress)) {
                return self.stalled(step, own);
            }
        }
    }

    /// One look at everybody; returns whether anything happened.
    fn round(&mut self, step: usize, progress: bool) -> Result<bool, Stopped> {
        let mut busy = false;
        if progress {
            busy |= self.poll_application()?;
        }
        for place in 0..self.peers.len() {
            for packet in self.peers[place].poll() {
                busy = true;
                match packet {
                    peer::Arrival::Packet(bytes) => {
                        let from = self.peers[place].endpoint();
                        self.receive(from, &bytes)?;
                    }
                    peer::Arrival::Failed(status) => self.refused(place, status)?,
                    peer::Arrival::Read { name, result } => self.has_read(name, result)?,
                }
            }
            busy |= self.release(place, step)?;
        }
        Ok(busy)
    }

    fn poll_application(&mut self) -> Result<bool, Stopped> {
        let reports = match self.subject.poll() {
            Ok(reports) => reports,
            Err(RequestError::Unsupported(text)) => return Err(self.unsupported(text)),
            Err(error) => {
                self.problem(format!("polling failed: {error}"))?;
                return Err(Stopped);
            }
        };
        let events = self.subject.events().unwrap_or_default();
        let busy = !reports.is_empty() || !events.is_empty();
        for event in events {
            self.problem(format!("the endpoint under test reported {event}"))?;
        }
        for report in reports {
            let id = report.token.and_then(|token| {
                let found = self.tokens.iter().find(|(_, known)| **known == token);
                found.map(|(id, _)| *id)
            });
            let Some(id) = id else {
                self.problem(format!("a completion that belongs to nothing: {report:?}"))?;
                continue;
            };
            let token = self.tokens[id];
            if self.reports.insert(token, report).is_some() {
                self.problem(format!("`{id}` completed twice"))?;
            }
        }
        Ok(busy)
    }

    /// A packet of the endpoint under test arrived at the scripted endpoint `at`.
    fn receive(&mut self, at: EndpointIndex, bytes: &[u8]) -> Result<(), Stopped> {
        let Some(place) = self.script.expect(at, bytes, self.strictness) else {
            let what = efa_core::wire::PacketType::peek(bytes)
                .map_or_else(|| "a packet".into(), |t| t.to_string());
            let last = self.script.last_matched().map_or_else(
                || "as its first packet".into(),
                |number| format!("after packet {number}"),
            );
            return self.problem(format!(
                "the endpoint under test sent {what} ({} bytes) {last}, where the trace has no \
                 more packets",
                bytes.len()
            ));
        };
        let frame = &self.trace.capture.frames[place];
        let recorded = Recorded {
            number: frame.number,
            sender: self.dut,
            receiver: at,
            bytes: &frame.payload,
        };
        // Bindings have to be made in any case.
        let mismatches = self.bindings.compare(recorded, bytes);
        self.verdict.compared += 1;
        if self.strictness == Strictness::Fields {
            self.verdict.mismatches.extend(mismatches);
            if self.verdict.mismatches.len() >= ENOUGH {
                return Err(Stopped);
            }
        }
        Ok(())
    }

    /// Sends what the script of one peer has to say by now; returns whether it said anything.
    fn release(&mut self, place: usize, step: usize) -> Result<bool, Stopped> {
        let at = self.peers[place].endpoint();
        let mut busy = false;
        while !self.peers[place].is_reading()
            && let Some(frame) = self.script.due(at, step)
        {
            let captured = &self.trace.capture.frames[frame];
            if let Kind::RdmaReadRequest(rdma) = captured.header.kind {
                if !self.read(place, frame, rdma)? {
                    break;
                }
                self.script.sent(at);
                busy = true;
                continue;
            }
            self.offer_memory(place, &captured.payload)?;
            let recorded = Recorded {
                number: captured.number,
                sender: at,
                receiver: self.dut,
                bytes: &captured.payload,
            };
            let bytes = match self.bindings.translate(recorded) {
                Ok(bytes) => bytes,
                Err(unbound) => {
                    self.problem(format!(
                        "packet {} ({}) of the trace names {} = {}, which the endpoint under test \
                         has not introduced",
                        captured.number,
                        captured.kind(),
                        unbound.field,
                        unbound.value
                    ))?;
                    return Err(Stopped);
                }
            };
            match self.peers[place].send(&bytes) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.problem(format!(
                        "packet {} of the trace cannot be sent: {error}",
                        captured.number
                    ))?;
                    return Err(Stopped);
                }
            }
            self.script.sent(at);
            self.verdict.played += 1;
            busy = true;
        }
        Ok(busy)
    }

    fn refused(&mut self, place: usize, status: Status) -> Result<(), Stopped> {
        let at = self.peers[place].endpoint();
        let name = &self.trace.scenario.endpoints[at].name;
        let text = format!(
            "a packet of scripted endpoint `{name}` was refused: {}",
            status.describe()
        );
        self.problem(text)
    }

    /// Says what does not come.
    fn stalled(&mut self, step: usize, own: &[&str]) -> Result<(), Stopped> {
        let scenario = &self.trace.scenario;
        let during = match scenario.steps.get(step) {
            Some(now) => now.describe(step, scenario),
            None => "the end".into(),
        };
        let mut texts = Vec::new();
        if let Some(place) = self.script.missing(step) {
            let frame = &self.trace.capture.frames[place];
            texts.push(format!(
                "packet {} ({}) of the trace was not sent by the endpoint under test until {during}",
                frame.number,
                frame.kind()
            ));
        }
        for id in own {
            if !self.reports.contains_key(&self.tokens[*id]) {
                texts.push(format!("`{id}` did not complete until {during}"));
            }
        }
        if texts.is_empty() {
            texts.push(format!("nothing more happens in {during}"));
        }
        self.verdict.problems.extend(texts);
        Err(Stopped)
    }
}

/// The clock of a backend, as the engine takes it.
pub type Clock = Box<dyn FnMut() -> Instant>;
