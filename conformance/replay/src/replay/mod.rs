//! Replaying one side of a trace against an implementation.
//!
//! One endpoint of the trace is under test: its application does what the scenario says, over the
//! implementation. The other endpoints are *scripted* ([`peer`]): they send the packets that were
//! recorded there, each as soon as everything that its sender had received before has arrived
//! ([`script`]). Every packet that the endpoint under test sends is compared with the recorded one in
//! its place ([`crate::compare`]) under what the protocol allows: where it leaves a choice, such as
//! the size of segments and windows, the scripted endpoints follow the choice of the endpoint under
//! test. If that starts an operation by another subprotocol than the recorded one, no recorded answer
//! fits: the scenario is played with the engine as its peer instead ([`live`]). The application must
//! see what the scenario says ([`efa_play::verify`]) in any case.
//!
//! The two sides meet on a [`backend::Backend`].

mod arrivals;
pub mod backend;
pub mod codec;
pub mod coverage;
pub mod emu;
mod exchange;
mod headerless;
pub mod hw;
pub mod live;
mod memory;
pub mod operations;
pub mod outside;
pub mod peer;
mod ranges;
mod rdma;
mod recording;
mod release;
mod requirements;
pub mod script;
mod staged;
mod verdict;

use std::collections::BTreeMap;

use efa_core::address::RawAddress;
use efa_core::endpoint::{EndpointConfig, Instant};
use efa_core::nic::{Nic, QueuePair, Status};
use efa_core::rules::{self, Severity};
use efa_core::wire::{ExtraFeatures, Family, PacketType};
use efa_play::application::engine::{CoreApplication, configuration};
use efa_play::application::subject::{Local, Subject};
use efa_play::application::{Request, RequestError, Started, Token};
use efa_play::operation::{EndpointIndex, Remote};
use efa_play::play::{self, Comparison, Ledger, Stage, Start};
use efa_play::scenario::{Action, Capability, EndpointSpec, Scenario};
use efa_play::trace::Trace;

use crate::compare::{Bindings, Finding};
use arrivals::{owed, source_of};
use backend::{Backend, BackendError};
pub use exchange::{Exchanged, What};
use peer::Peer;
use script::{Cast, Script};
pub use verdict::Verdict;

/// How strictly the packets of the endpoint under test are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strictness {
    /// Field by field.
    Fields,
    /// Not: the network reorders, so packets may differ; what the application sees may not.
    Outcome,
    /// Not: a request failed, and operations may fail or stay open. What completes has to be right.
    Survival {
        /// The endpoint under test knows of the failure: if an operation stays open, it has to tell.
        is_told: bool,
    },
}

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
    /// The step that is being played.
    step: usize,
    bindings: Bindings,
    /// Where the endpoints are.
    actual: Vec<RawAddress>,
    /// What the endpoint under test has announced.
    announced: Option<ExtraFeatures>,
    /// What scripted endpoints have announced.
    greeted: BTreeMap<EndpointIndex, ExtraFeatures>,
    rdma: rdma::Requests,
    meddler: Option<&'t mut Meddler<'t>>,
    ledger: Ledger<'t>,
    /// The last step has been played.
    is_over: bool,
    /// The operations that failed, where that is allowed; `None` stands for what belongs to no one
    /// operation.
    failed: Vec<Option<Token>>,
    /// What is refused of scripted endpoints' packets, as in the recording.
    foreseen: Vec<(EndpointIndex, Status)>,
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
        let application = application?.meeting_second_copies(backend.repetitions());
        Ok(Box::new(Local::new(Box::new(application))))
    }
}

/// Does something to a packet of the endpoint under test before it is looked at: what it returns
/// arrives instead. Tests of the suite make right implementations wrong in this way.
pub type Meddler<'m> = dyn FnMut(Vec<u8>) -> Vec<Vec<u8>> + 'm;

/// Replays `trace` with what `opener` opens as endpoint `dut`.
pub fn replay<B: Backend>(
    trace: &Trace,
    dut: EndpointIndex,
    strictness: Strictness,
    backend: &mut B,
    opener: &mut dyn Opener<B>,
) -> Result<Verdict, BackendError> {
    replay_meddled(trace, dut, strictness, backend, opener, None)
}

/// [`replay`] with a `meddler` between the endpoint under test and the scripted ones.
pub fn replay_meddled<'t, B: Backend>(
    trace: &'t Trace,
    dut: EndpointIndex,
    strictness: Strictness,
    backend: &'t mut B,
    opener: &mut dyn Opener<B>,
    meddler: Option<&'t mut Meddler<'t>>,
) -> Result<Verdict, BackendError> {
    match play(trace, dut, strictness, backend, opener, meddler) {
        Err(BackendError::Subject(RequestError::Unsupported(text))) => Ok(Verdict {
            unsupported: Some(text),
            ..Verdict::default()
        }),
        Err(error @ BackendError::Subject(_)) => Ok(Verdict {
            findings: vec![Finding::plain(Severity::Error, error.to_string())],
            never_opened: true,
            ..Verdict::default()
        }),
        other => other,
    }
}

fn play<'t, B: Backend>(
    trace: &'t Trace,
    dut: EndpointIndex,
    strictness: Strictness,
    backend: &'t mut B,
    opener: &mut dyn Opener<B>,
    meddler: Option<&'t mut Meddler<'t>>,
) -> Result<Verdict, BackendError> {
    let cast = match Cast::of(trace) {
        Ok(cast) => cast,
        Err(problem) => {
            return Ok(Verdict {
                findings: vec![Finding::plain(Severity::Error, problem)],
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
        if let Some(lack) = requirements::device_lacks(trace, nic.queue_pair().attributes()) {
            return Ok(Verdict {
                unsupported: Some(lack),
                ..Verdict::default()
            });
        }
        actual.push(nic.address());
        let mut peer = Peer::new(at, nic, address)?;
        if headerless::is_zero_copy_receiver(trace, at) {
            let beside = backend.open_beside(peer.nic())?;
            peer.takes_headerless_on(beside)?;
        }
        peers.push(peer);
    }
    if let Some(lack) = stage(backend, &trace.scenario, &actual)? {
        return Ok(Verdict {
            unsupported: Some(lack),
            ..Verdict::default()
        });
    }
    for &known in &trace.scenario.endpoints[dut].address_vector {
        subject.insert(known, &actual[known].to_bytes())?;
    }
    // Stock libfabric posts its receive buffers when it first makes progress.
    subject.poll()?;
    let owner = |place: usize| {
        let frame = &trace.capture.frames[place];
        let is_it = |address: &RawAddress| address.gid == frame.destination;
        cast.addresses.iter().position(is_it).unwrap_or(dut)
    };
    let rdma = rdma::Requests::of(trace, dut, backend.sees_rdma(), owner);
    let refused = trace.refused.iter();
    let foreseen = refused
        .map(|(place, status)| {
            (
                trace.endpoint_of[trace.capture.frames[*place].interface],
                *status,
            )
        })
        .filter(|(at, status)| *at != dut && *status != Status::RemoteRnr)
        .collect();
    let mut replay = Replay {
        trace,
        dut,
        strictness,
        backend,
        subject,
        peers,
        script: Script::new(trace, dut),
        step: 0,
        rdma,
        bindings: Bindings::new(
            cast.addresses.clone(),
            actual.clone(),
            &trace.scenario.policies,
        ),
        actual,
        announced: None,
        greeted: BTreeMap::new(),
        meddler,
        ledger: Ledger::new(&trace.scenario),
        is_over: false,
        failed: Vec::new(),
        foreseen,
        verdict: Verdict::default(),
    };
    // Whether it stopped early shows in the verdict.
    let _ = play::play(&mut replay);
    let mut said = vec![(dut, replay.subject.take_device_errors())];
    let peers = replay.peers.iter_mut();
    said.extend(peers.map(|peer| (peer.endpoint(), peer.take_device_errors())));
    for (at, errors) in said {
        let name = &trace.scenario.endpoints[at].name;
        let lines = errors.chunk_by(|one, next| one == next).map(|same| {
            let times = match same.len() {
                1 => String::new(),
                count => format!(", {count} times"),
            };
            format!(
                "the device of endpoint `{name}` reported{times}: {}",
                same[0]
            )
        });
        replay.verdict.device_errors.extend(lines);
    }
    Ok(replay.verdict)
}

/// Stages the faults of a scenario whose endpoints are at these addresses. Returns what the backend lacks.
fn stage<B: Backend>(
    backend: &mut B,
    scenario: &Scenario,
    addresses: &[RawAddress],
) -> Result<Option<String>, BackendError> {
    if scenario.faults.is_empty() {
        return Ok(None);
    }
    let names = scenario.endpoints.iter().map(|endpoint| &endpoint.name[..]);
    let places: Vec<_> = names.zip(addresses.iter().copied()).collect();
    backend.stage(&scenario.faults, &places)
}

impl<'t, B: Backend> Replay<'t, B> {
    /// Waits for what comes too much.
    fn drain(&mut self, step: usize) -> Result<(), Stopped> {
        let mut idle = 0;
        while idle < self.backend.quiet_rounds() {
            if self.round(step, true)? {
                idle = 0;
                continue;
            }
            idle += 1;
            let timeout = self.subject.next_timeout();
            if !self.backend.idle(idle, timeout) {
                break;
            }
        }
        Ok(())
    }

    /// A packet of the trace did not come.
    fn missing(&mut self, place: usize, until: &str) -> Result<(), Stopped> {
        let frame = &self.trace.capture.frames[place];
        let family = frame.packet_type().map(PacketType::family);
        if matches!(family, Some(Family::Rtr | Family::Rtw)) && self.rdma.may_replace_packets() {
            // Where RDMA cannot be seen, the outcome with a live peer says whether it was that.
            self.verdict.departed = Some(format!(
                "it did not send packet {} ({}) of the trace, as if it left that to its device",
                frame.number,
                frame.kind()
            ));
            return Err(Stopped);
        }
        let rule = match frame.packet_type() {
            Some(packet_type) => owed(packet_type),
            None if frame.headerless => &rules::MESSAGE_WHOLE,
            None => &rules::RDMA_AS_ASKED,
        };
        let mut finding = Finding::of(
            rule,
            format!("it was not sent by the endpoint under test until {until}"),
        );
        finding.packet = Some(frame.number);
        finding.packet_type = frame.kind();
        finding.source = frame.packet_type().and_then(source_of);
        self.add([finding])
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

    /// Keeps something that passed; `place` is the recorded frame that it stands for.
    fn note(&mut self, from: EndpointIndex, to: EndpointIndex, place: Option<usize>, what: What) {
        if self.strictness == Strictness::Fields {
            self.verdict.exchanged.push(Exchanged {
                from,
                to,
                place,
                what,
            });
        }
    }

    fn unsupported(&mut self, text: String) -> Stopped {
        self.verdict.unsupported = Some(text);
        Stopped
    }

    /// Whether requests fail for good, of which an application may be told in any way.
    fn tells_of_failures(&self) -> bool {
        let mut refused = self.trace.refused.values();
        refused.any(|status| *status != Status::RemoteRnr)
    }

    /// Something that the application, or nobody, should see.
    fn problem(&mut self, text: String) -> Result<(), Stopped> {
        self.add([Finding::of(&rules::OUTCOME, text)])
    }

    fn survives(&self) -> bool {
        matches!(self.strictness, Strictness::Survival { .. })
    }

    /// What must not happen even if a request failed.
    fn never(&mut self, text: String) -> Result<(), Stopped> {
        self.verdict.add([Finding::of(&rules::OUTCOME, text)]);
        match self.verdict.is_enough() {
            true => Err(Stopped),
            false => Ok(()),
        }
    }

    fn add(&mut self, findings: impl IntoIterator<Item = Finding>) -> Result<(), Stopped> {
        if self.survives() {
            return Ok(());
        }
        // In a network that reorders, fields depend on what arrived first.
        let of_fields = self.strictness == Strictness::Fields;
        let findings = findings
            .into_iter()
            .filter(|finding| of_fields || finding.field.is_empty());
        self.verdict.add(findings);
        if self.verdict.is_enough() {
            return Err(Stopped);
        }
        Ok(())
    }

    /// Starts an operation of the endpoint under test.
    fn start_live(&mut self, step: usize, start: &Start<'t>) -> Result<Option<Remote>, Stopped> {
        let id = start.id;
        let mut rounds = 0;
        loop {
            let started = self.subject.start(start.token, &start.request, start.seed);
            match started {
                Ok(Started::Operation) => return Ok(None),
                Ok(Started::Region(remote)) => {
                    let length = start.request.payload().map_or(0, |payload| payload.length);
                    self.bind(self.dut, id, remote, length)?;
                    return Ok(Some(remote));
                }
                Err(RequestError::TryAgain) => {
                    self.round(step, true)?;
                    rounds += 1;
                    let timeout = self.subject.next_timeout();
                    let is_quiet =
                        rounds > self.backend.quiet_rounds() || !self.backend.idle(rounds, timeout);
                    if is_quiet && self.greet_early()? {
                        rounds = 0;
                    } else if is_quiet && !self.backend.idle(rounds, timeout) {
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

    /// Lets what belongs to steps up to `step` happen as far as it does so by itself. What the endpoint
    /// under test sends later than the recorded one is waited for when it makes progress anyway.
    fn catch_up(&mut self, step: usize, progress: bool) -> Result<(), Stopped> {
        let mut idle = 0;
        while !(self.script.is_done(step) && self.peers.iter().all(Peer::is_idle)) {
            if self.round(step, progress)? {
                idle = 0;
                continue;
            }
            idle += 1;
            let timeout = self.subject.next_timeout();
            if idle > self.backend.quiet_rounds()
                || !self.backend.idle(idle, timeout.filter(|_| progress))
            {
                break;
            }
        }
        Ok(())
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
            let pending = |id: &&str| !self.ledger.is_done(id);
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
                // What it has not sent without making progress it may send later.
                return if progress {
                    self.stalled(step, own)
                } else {
                    Ok(())
                };
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
                        self.watch_rdma()?;
                        let packets = match &mut self.meddler {
                            Some(meddler) => meddler(bytes),
                            None => vec![bytes],
                        };
                        for packet in packets {
                            self.receive(from, &packet)?;
                        }
                    }
                    peer::Arrival::Headerless { bytes, immediate } => {
                        let at = self.peers[place].endpoint();
                        let messages = match &mut self.meddler {
                            Some(meddler) => meddler(bytes),
                            None => vec![bytes],
                        };
                        for bytes in messages {
                            self.receive_headerless(at, &bytes, immediate)?;
                        }
                    }
                    peer::Arrival::Written { immediate } => {
                        let at = self.peers[place].endpoint();
                        self.take_immediate(at, immediate);
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
                self.never(format!("polling failed: {error}"))?;
                return Err(Stopped);
            }
        };
        let events = self.subject.events().unwrap_or_default();
        let busy = !reports.is_empty() || !events.is_empty();
        for event in events {
            self.failed.push(None);
            let text = format!("the endpoint under test reported {event}");
            match self.tells_of_failures() {
                true => self.add([Finding::plain(Severity::Note, text)])?,
                false => self.problem(text)?,
            }
        }
        for report in reports {
            if self.survives() && report.failure.is_some() {
                if report.token.is_some() && self.failed.contains(&report.token) {
                    self.never(format!("an operation failed twice: {report:?}"))?;
                }
                self.failed.push(report.token);
            } else if let Some(text) = self.ledger.take(self.dut, report) {
                self.never(text)?;
            }
        }
        Ok(busy)
    }

    fn refused(&mut self, place: usize, status: Status) -> Result<(), Stopped> {
        let at = self.peers[place].endpoint();
        let foreseen = self.foreseen.iter().position(|seen| *seen == (at, status));
        if let Some(foreseen) = foreseen {
            self.foreseen.swap_remove(foreseen);
            return Ok(());
        }
        self.note(self.dut, at, None, What::Refused(status));
        let name = &self.trace.scenario.endpoints[at].name;
        let text = format!(
            "a packet of scripted endpoint `{name}` was refused: {}",
            status.describe()
        );
        self.problem(text)
    }

    /// After a failure that nobody was told of, every operation must have completed.
    fn check_told(&mut self) -> Result<(), Stopped> {
        let scenario = &self.trace.scenario;
        let waited = scenario.steps.iter().filter_map(|step| match &step.action {
            Action::Wait { operations, .. } => Some(operations),
            _ => None,
        });
        let open: Vec<&str> = waited
            .flatten()
            .map(String::as_str)
            .filter(|id| self.is_own(id) && !self.ledger.is_done(id))
            .collect();
        for id in open {
            self.never(format!(
                "`{id}` neither completes nor fails, and no error is reported"
            ))?;
        }
        for place in self.script.all_missing() {
            let frame = &self.trace.capture.frames[place];
            let (number, kind) = (frame.number, frame.kind());
            self.never(format!(
                "packet {number} ({kind}) never came, and no error is reported"
            ))?;
        }
        Ok(())
    }

    /// Says what does not come.
    fn stalled(&mut self, step: usize, own: &[&str]) -> Result<(), Stopped> {
        if self.survives() {
            return Ok(());
        }
        let scenario = &self.trace.scenario;
        let during = match scenario.steps.get(step) {
            Some(now) => now.describe(step, scenario),
            None => "the end".into(),
        };
        let during = format!("the end of {during}");
        if let Some(place) = self.script.missing(step) {
            self.missing(place, &during)?;
        }
        for id in own {
            if !self.ledger.is_done(id) {
                self.problem(format!("`{id}` did not complete until {during}"))?;
            }
        }
        if self.verdict.passed() {
            self.problem(format!("nothing more happens before {during}"))?;
        }
        Err(Stopped)
    }
}

impl<'t, B: Backend> Stage<'t> for Replay<'t, B> {
    type Stop = Stopped;

    fn ledger(&mut self) -> &mut Ledger<'t> {
        &mut self.ledger
    }

    fn is_live(&self, at: EndpointIndex) -> bool {
        at == self.dut
    }

    fn begin(&mut self, step: usize) {
        self.step = step;
    }

    fn start(&mut self, step: usize, start: &Start<'t>) -> Result<Option<Remote>, Stopped> {
        if start.at == self.dut {
            let remote = self.start_live(step, start)?;
            // Posting is progress enough: whatever else it would do was recorded later.
            self.catch_up(step, true)?;
            return Ok(remote);
        }
        let remote = match &start.request {
            Request::Register { payload, .. } => self.register(start.at, start.id, *payload)?,
            _ => None,
        };
        // It may have been kept waiting by the endpoint under test.
        let progress = self.script.missing(step).is_some();
        self.catch_up(step, progress)?;
        Ok(remote)
    }

    fn wait(
        &mut self,
        step: usize,
        operations: &'t [String],
        progress: &[EndpointIndex],
    ) -> Result<(), Stopped> {
        let own: Vec<&str> = operations
            .iter()
            .map(String::as_str)
            .filter(|id| self.is_own(id))
            .collect();
        self.pump(step, self.progresses(progress), true, &own)
    }

    fn settle(&mut self, step: usize, progress: &[EndpointIndex]) -> Result<(), Stopped> {
        self.pump(step, self.progresses(progress), true, &[])
    }

    fn compare(&mut self, comparison: Comparison<'t>) -> Result<(), Stopped> {
        if self.survives() {
            // What was to be there may have failed.
            return Ok(());
        }
        if comparison.at == self.dut {
            self.compare_memory(comparison)
        } else {
            self.compare_scripted_memory(comparison)
        }
    }

    fn problem(&mut self, text: String) -> Result<(), Stopped> {
        match self.is_over {
            // Completion data of writes that failed does not come.
            true => Replay::problem(self, text),
            false => self.never(text),
        }
    }

    /// What was recorded after the last step, and what comes too much.
    fn end(&mut self) -> Result<(), Stopped> {
        let end = self.trace.scenario.steps.len();
        self.is_over = true;
        self.pump(end, true, true, &[])?;
        self.drain(end)?;
        if self.strictness == (Strictness::Survival { is_told: true }) && self.failed.is_empty() {
            self.check_told()?;
        }
        for place in self.script.all_missing() {
            self.missing(place, "the end")?;
        }
        if self.strictness == Strictness::Fields {
            for rule in self.backend.unapplied() {
                let text =
                    format!("nothing happened that this fault of the scenario is about: {rule}");
                Replay::problem(self, text)?;
            }
        }
        self.check_rdma()
    }
}

/// The clock of a backend, as the engine takes it.
pub type Clock = Box<dyn FnMut() -> Instant>;
