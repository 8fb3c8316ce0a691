//! Execution of a scenario's steps: the endpoint under test starts and completes its operations,
//! and the scripted endpoints send their packets.

use efa_core::nic::Status;
use efa_core::rules::{self, Severity};
use efa_core::wire::{Family, PacketType};
use efa_play::application::{OperationRequest, RequestError, Started};
use efa_play::operation::{EndpointIndex, Remote};
use efa_play::runner::{Comparison, OperationTracker, Runner, Start};
use efa_play::scenario::Action;

use super::arrivals::{owed, source_of};
use super::backend::Backend;
use super::exchange::WireEvent;
use super::peer::{Arrival, Peer};
use super::session::{Replay, Stopped, Strictness};
use crate::compare::Finding;

/// Polls without result after which all received packets count as handled.
const QUIET_POLLS: u32 = 4;

impl<'t, B: Backend> Replay<'t, B> {
    /// Waits for surplus packets.
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

    /// Handles a recorded packet that was not sent.
    fn missing(&mut self, place: usize, until: &str) -> Result<(), Stopped> {
        let frame = &self.trace.capture.frames[place];
        let family = frame.packet_type().map(PacketType::family);
        if matches!(family, Some(Family::Rtr | Family::Rtw)) && self.rdma.may_replace_packets() {
            // Where RDMA is not visible, a run with a live peer shows whether RDMA was used.
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
                    if is_quiet && self.send_handshakes_early()? {
                        rounds = 0;
                    } else if is_quiet && !self.backend.idle(rounds, timeout) {
                        return Err(self.stop(format!("`{id}`: resources stayed short")));
                    }
                }
                Err(RequestError::Unsupported(text)) => return Err(self.unsupported(text)),
                Err(error) => {
                    return Err(self.stop(format!("`{id}` was not started: {error}")));
                }
            }
        }
    }

    /// Handles the events of steps up to `step` that happen by themselves. Packets that the
    /// endpoint under test sends later than the recorded one are awaited when it makes progress
    /// anyway.
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

    /// Handles all events of steps up to `step`: scripted packets are sent, packets of the endpoint
    /// under test arrive, and the operations `own` complete. With `handle_all`, all received
    /// packets are also handled.
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
            let pending = |id: &&str| !self.tracker.is_done(id);
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
                // Packets that it has not sent without progress may follow later.
                return if progress {
                    self.stalled(step, own)
                } else {
                    Ok(())
                };
            }
        }
    }

    /// Polls all endpoints once. Returns whether there was any event.
    fn round(&mut self, step: usize, progress: bool) -> Result<bool, Stopped> {
        let mut busy = false;
        if progress {
            busy |= self.poll_application()?;
        }
        for place in 0..self.peers.len() {
            for packet in self.peers[place].poll() {
                busy = true;
                match packet {
                    Arrival::Packet(bytes) => {
                        let from = self.peers[place].endpoint();
                        self.watch_rdma()?;
                        let packets = match &mut self.hook {
                            Some(hook) => hook(bytes),
                            None => vec![bytes],
                        };
                        for packet in packets {
                            self.receive(from, &packet)?;
                        }
                    }
                    Arrival::Headerless { bytes, immediate } => {
                        let at = self.peers[place].endpoint();
                        let messages = match &mut self.hook {
                            Some(hook) => hook(bytes),
                            None => vec![bytes],
                        };
                        for bytes in messages {
                            self.receive_headerless(at, &bytes, immediate)?;
                        }
                    }
                    Arrival::Written { immediate } => {
                        let at = self.peers[place].endpoint();
                        self.take_immediate(at, immediate);
                    }
                    Arrival::Failed(status) => self.refused(place, status)?,
                    Arrival::Read { name, result } => self.has_read(name, result)?,
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
            } else if let Some(text) = self.tracker.take(self.dut, report) {
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
        self.note(self.dut, at, None, WireEvent::Refused(status));
        let name = &self.trace.scenario.endpoints[at].name;
        let text = format!(
            "a packet of scripted endpoint `{name}` was refused: {}",
            status.describe()
        );
        self.problem(text)
    }

    /// After an unreported failure, every operation must have completed.
    fn check_told(&mut self) -> Result<(), Stopped> {
        let scenario = &self.trace.scenario;
        let waited = scenario.steps.iter().filter_map(|step| match &step.action {
            Action::Wait { operations, .. } => Some(operations),
            _ => None,
        });
        let open: Vec<&str> = waited
            .flatten()
            .map(String::as_str)
            .filter(|id| self.is_own(id) && !self.tracker.is_done(id))
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

    /// Reports the missing events.
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
            if !self.tracker.is_done(id) {
                self.problem(format!("`{id}` did not complete until {during}"))?;
            }
        }
        if self.verdict.passed() {
            self.problem(format!("nothing more happens before {during}"))?;
        }
        Err(Stopped)
    }
}

impl<'t, B: Backend> Runner<'t> for Replay<'t, B> {
    type Stop = Stopped;

    fn tracker(&mut self) -> &mut OperationTracker<'t> {
        &mut self.tracker
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
            // Posting is enough progress. Anything else was recorded later.
            self.catch_up(step, true)?;
            return Ok(remote);
        }
        let remote = match &start.request {
            OperationRequest::Register { payload, .. } => {
                self.register(start.at, start.id, *payload)?
            }
            _ => None,
        };
        // It may have waited for the endpoint under test.
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
            // The operation of this memory may have failed.
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
            // Failed writes have no completion data.
            true => Replay::problem(self, text),
            false => self.never(text),
        }
    }

    /// Handles the packets recorded after the last step, and surplus ones.
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
