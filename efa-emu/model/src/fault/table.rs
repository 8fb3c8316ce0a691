//! All armed rules, and their decisions.

use std::collections::{BTreeMap, HashMap};

use efa_core::address::{Gid, Qpn};
use efa_core::nic::Status;

use super::event::{Event, Frame, Stage};
use super::rule::{Action, Delay, Fault, HostName, Match, Queues};
use crate::device::{PortLink, QueueError, QueueKind};
use crate::link::Operation;

/// The id of an armed fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FaultId(pub u64);

/// The outcome of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventOutcome {
    /// The frame is deferred until it is released, or until this many later frames have passed.
    Hold {
        /// The number of frames.
        packets: Option<u32>,
    },
    /// The frame is delayed.
    Delay(Delay),
    /// The frame is lost once.
    Drop,
    /// The request is lost permanently.
    Lose,
    /// The frame's completion is written twice.
    Duplicate,
    /// The packet arrives twice.
    Repeat,
    /// The request's outcome.
    Answer(Status),
    /// The error number of the memory registration.
    Fail(i32),
    /// The number for the queue pair.
    Qpn(Qpn),
}

/// An effect in addition to the outcome of the event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trigger {
    /// Release the frames that these faults hold.
    Release(Vec<FaultId>),
    /// End this host.
    Kill(HostName),
    /// Remove this device.
    Remove(HostName),
    /// Restore this device.
    Restore(HostName),
    /// Stage an error in queues of this device.
    Queues(HostName, QueueError),
}

/// The decision of the rules about an event.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// The outcome, and the fault that decided it; `None` for the normal outcome.
    pub outcome: Option<(FaultId, EventOutcome)>,
    /// Further effects, in this order: [`Verdict::take_deaths`] before the event is handled, the
    /// rest after it.
    pub triggers: Vec<Trigger>,
}

impl Verdict {
    /// Removes and returns the triggers that kill hosts. A host that a frame kills must not receive
    /// that frame.
    pub fn take_deaths(&mut self) -> Vec<Trigger> {
        let deaths = |trigger: &mut Trigger| matches!(trigger, Trigger::Kill(_));
        self.triggers.extract_if(.., deaths).collect()
    }
}

/// The counts of armed faults, shared by all that evaluate the same rules.
pub trait Tally {
    /// Counts an event that matches the fault and returns its number, from 1.
    fn sight(&self, fault: FaultId) -> u64;
    /// Counts an event to which the fault is applied.
    fn apply(&self, fault: FaultId);
    /// Whether a cut is in force.
    fn is_engaged(&self, fault: FaultId) -> bool;
    /// Starts or ends a cut.
    fn engage(&self, fault: FaultId, in_force: bool);
}

/// All armed faults, in the order in which they were armed.
#[derive(Debug, Default)]
pub struct Faults {
    armed: Vec<(FaultId, Fault)>,
    /// Requests that will be answered with RNR some more times.
    refused: HashMap<(Gid, Qpn, u32), (FaultId, u32)>,
}

/// Limit for these requests, because entries of requests that were given up remain.
const MOST_REFUSED: usize = 4096;

/// Whether the device with this GID has this name, or belongs to the host with this name. Events
/// contain GIDs only.
type IsNamed<'a> = dyn Fn(Gid, &str) -> bool + 'a;

impl Faults {
    /// Arms a fault after those already armed. [`Faults::begin`] executes actions without an event.
    pub fn arm(&mut self, id: FaultId, fault: Fault) {
        self.armed.push((id, fault));
    }

    /// Disarms a fault.
    pub fn disarm(&mut self, id: FaultId) {
        self.armed.retain(|(other, _)| *other != id);
        self.refused.retain(|_, (fault, _)| *fault != id);
    }

    /// Disarms all faults for which `keep` returns false.
    pub fn retain(&mut self, keep: impl Fn(FaultId) -> bool) {
        self.armed.retain(|(id, _)| keep(*id));
        self.refused.retain(|_, (fault, _)| keep(*fault));
    }

    /// Whether nothing is armed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.armed.is_empty()
    }

    /// Whether a fault is armed.
    pub fn is_armed(&self, id: FaultId) -> bool {
        self.armed.iter().any(|(other, _)| *other == id)
    }

    /// The armed faults, in the order in which they were armed.
    pub fn iter(&self) -> impl Iterator<Item = (FaultId, &Fault)> {
        self.armed.iter().map(|(id, fault)| (*id, fault))
    }

    /// Executes the action of a newly armed fault that has no event.
    pub fn begin(&mut self, id: FaultId, tally: &impl Tally) -> Vec<Trigger> {
        let mut triggers = Vec::new();
        let begun = self.armed.iter().find(|(other, _)| *other == id);
        if let Some((id, fault)) = begun
            && fault.when.is_none()
        {
            tally.apply(*id);
            self.trigger(*id, &fault.then, tally, &mut triggers);
        }
        triggers
    }

    /// Decides about an event. The first matching fault with an outcome decides, and faults after
    /// it do not count the event. A fault that only triggers another action leaves the decision to
    /// the next fault.
    pub fn decide(
        &mut self,
        event: &Event<'_>,
        is_named: &IsNamed<'_>,
        tally: &impl Tally,
    ) -> Verdict {
        let mut verdict = Verdict::default();
        if let Event::Frame(frame) = event {
            if let Some(cut) = self.cut_between(frame.initiator, frame.responder, is_named, tally) {
                tally.apply(cut);
                verdict.outcome = Some((cut, EventOutcome::Drop));
                return verdict;
            }
            if let Some(id) = self.refuse_again(frame) {
                verdict.outcome = Some((id, EventOutcome::Answer(Status::RemoteRnr)));
                return verdict;
            }
        }
        for (id, fault) in &self.armed {
            let Some(when) = &fault.when else { continue };
            let concerns = fault.then.concerns(event) && when.matches(event, is_named);
            if !concerns || !when.selects(tally.sight(*id)) {
                continue;
            }
            tally.apply(*id);
            if fault.then.is_trigger() {
                self.trigger(*id, &fault.then, tally, &mut verdict.triggers);
                continue;
            }
            verdict.outcome = fault.then.outcome().map(|outcome| (*id, outcome));
            break;
        }
        if let (Some((id, _)), Event::Frame(frame)) = (verdict.outcome, event) {
            self.begin_refusal(id, frame);
        }
        // A cut that this event has triggered does not apply to the event itself.
        verdict
    }

    /// The cut in force between two devices, or the port whose link is down.
    fn cut_between(
        &self,
        a: Gid,
        b: Gid,
        is_named: &IsNamed<'_>,
        tally: &impl Tally,
    ) -> Option<FaultId> {
        self.armed.iter().find_map(|(id, fault)| {
            let is_between = match &fault.then {
                Action::Cut([one, other]) => {
                    let between = |x, y| one.is(x, is_named) && other.is(y, is_named);
                    between(a, b) || between(b, a)
                }
                Action::PortDown(down) => down.is(a, is_named) || down.is(b, is_named),
                _ => return None,
            };
            (is_between && tally.is_engaged(*id)).then_some(*id)
        })
    }

    /// The link state of a device's port.
    pub fn port(&self, gid: Gid, is_named: &IsNamed<'_>, tally: &impl Tally) -> PortLink {
        let mut port = PortLink::default();
        for (id, fault) in &self.armed {
            let in_force = |host: &HostName| host.is(gid, is_named) && tally.is_engaged(*id);
            match &fault.then {
                Action::PortDown(down) if in_force(down) => port.is_down = true,
                Action::PortSpeed(set) if in_force(&set.host) => port.speed = set.speed,
                _ => {}
            }
        }
        port
    }

    fn refuse_again(&mut self, frame: &Frame<'_>) -> Option<FaultId> {
        if self.refused.is_empty() || frame.stage != Stage::Request || frame.header.retries == 0 {
            return None;
        }
        let key = refusal_key(frame);
        let (id, left) = self.refused.get_mut(&key)?;
        let id = *id;
        *left -= 1;
        if *left == 0 {
            self.refused.remove(&key);
        }
        Some(id)
    }

    fn begin_refusal(&mut self, id: FaultId, frame: &Frame<'_>) {
        let fault = self.armed.iter().find(|(other, _)| *other == id);
        if let Some((_, fault)) = fault
            && let Action::NotReady(times) = fault.then
            && times > 1
        {
            if self.refused.len() >= MOST_REFUSED {
                self.refused.clear();
            }
            self.refused.insert(refusal_key(frame), (id, times - 1));
        }
    }

    fn trigger(
        &self,
        id: FaultId,
        action: &Action,
        tally: &impl Tally,
        triggers: &mut Vec<Trigger>,
    ) {
        match action {
            Action::Release(label) => {
                let labelled = self.armed.iter().filter(|(_, other)| other.label == *label);
                triggers.push(Trigger::Release(labelled.map(|(id, _)| *id).collect()));
            }
            Action::Kill(host) => triggers.push(Trigger::Kill(host.clone())),
            Action::Remove(host) => triggers.push(Trigger::Remove(host.clone())),
            Action::Restore(host) => triggers.push(Trigger::Restore(host.clone())),
            Action::QpError(queues) => triggers.push(queues.fail(QueueKind::QueuePair)),
            Action::CqError(queues) => triggers.push(queues.fail(QueueKind::CompletionQueue)),
            Action::Cut(_)
            | Action::Heal(_)
            | Action::PortDown(_)
            | Action::PortUp(_)
            | Action::PortSpeed(_) => {
                for (other, fault) in &self.armed {
                    if *other != id && action.ends(&fault.then) {
                        tally.engage(*other, false);
                    }
                }
                if action.is_lasting() {
                    tally.engage(id, true);
                }
            }
            _ => {}
        }
    }
}

fn refusal_key(frame: &Frame<'_>) -> (Gid, Qpn, u32) {
    let header = frame.header;
    (frame.initiator, header.source_qpn, header.sequence)
}

impl Action {
    /// The outcome for the event, if the action determines one.
    pub(super) fn outcome(&self) -> Option<EventOutcome> {
        Some(match self {
            Action::Hold => EventOutcome::Hold { packets: None },
            Action::HoldPackets(packets) => EventOutcome::Hold {
                packets: Some(*packets),
            },
            Action::Delay(delay) => EventOutcome::Delay(*delay),
            Action::Drop => EventOutcome::Drop,
            Action::Lose => EventOutcome::Lose,
            Action::Duplicate => EventOutcome::Duplicate,
            Action::Repeat => EventOutcome::Repeat,
            Action::Answer(status) => EventOutcome::Answer(*status),
            Action::NotReady(_) => EventOutcome::Answer(Status::RemoteRnr),
            Action::Fail(errno) => EventOutcome::Fail(errno.0),
            Action::Qpn(qpn) => EventOutcome::Qpn(*qpn),
            Action::Release(_)
            | Action::Cut(_)
            | Action::Heal(_)
            | Action::Kill(_)
            | Action::Remove(_)
            | Action::Restore(_)
            | Action::PortDown(_)
            | Action::PortUp(_)
            | Action::PortSpeed(_)
            | Action::QpError(_)
            | Action::CqError(_) => return None,
        })
    }

    /// Whether the action is possible for an event: only packets can be repeated.
    fn concerns(&self, event: &Event<'_>) -> bool {
        match (self, event) {
            (Action::Repeat, Event::Frame(frame)) => {
                let operation = frame.header.operation;
                matches!(
                    operation,
                    Operation::Send | Operation::Datagram | Operation::Connected
                )
            }
            _ => true,
        }
    }
}

impl Queues {
    fn fail(&self, kind: QueueKind) -> Trigger {
        let error = QueueError {
            kind,
            qpn: self.qpn,
        };
        Trigger::Queues(self.host.clone(), error)
    }
}

impl HostName {
    /// Whether this is the device with this GID, or its host.
    pub fn is(&self, gid: Gid, is_named: &IsNamed<'_>) -> bool {
        match self {
            HostName::Gid(own) => *own == gid,
            HostName::Name(name) => is_named(gid, name),
        }
    }
}

impl Match {
    /// Whether the event matches, independent of its number.
    pub fn matches(&self, event: &Event<'_>, is_named: &IsNamed<'_>) -> bool {
        fn is<T: PartialEq>(wanted: Option<T>, actual: T) -> bool {
            wanted.is_none_or(|wanted| wanted == actual)
        }
        let host_is = |wanted: &Option<HostName>, gid: Gid| {
            wanted.as_ref().is_none_or(|host| host.is(gid, is_named))
        };
        let length_is = |length: u64| {
            self.min_length.is_none_or(|least| length >= least)
                && self.max_length.is_none_or(|most| length <= most)
        };
        if self.on != event.point() {
            return false;
        }
        match event {
            Event::Registration { host, length } => {
                host_is(&self.host, *host) && length_is(*length)
            }
            Event::QueuePair { host } => host_is(&self.host, *host),
            Event::Command { host, command } => {
                host_is(&self.host, *host) && is(self.command, *command)
            }
            Event::Frame(frame) => {
                is(self.operation, frame.header.operation)
                    && (self.packet.is_any()
                        || frame
                            .rdm_packet_type()
                            .is_some_and(|code| self.packet.0.contains(&code)))
                    && (self.msg_id.is_none() || self.msg_id == frame.msg_id())
                    && is(self.source_qpn, frame.header.source_qpn)
                    && is(self.destination_qpn, frame.header.destination_qpn)
                    && length_is(frame.header.length.into())
                    && (self.status.is_none() || self.status == frame.status)
                    && is(self.repeated, frame.is_repeated())
                    && host_is(&self.sender, frame.initiator)
                    && host_is(&self.receiver, frame.responder)
            }
        }
    }
}

/// Counts of one process.
#[derive(Debug, Default)]
pub struct LocalTally(std::cell::RefCell<BTreeMap<FaultId, Counts>>);

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    seen: u64,
    applied: u64,
    engaged: bool,
}

impl LocalTally {
    /// The number of events to which a fault was applied.
    pub fn applied(&self, fault: FaultId) -> u64 {
        self.0.borrow().get(&fault).map_or(0, |of| of.applied)
    }

    /// Removes the counts of a fault.
    pub fn forget(&self, fault: FaultId) {
        self.0.borrow_mut().remove(&fault);
    }
}

impl Tally for LocalTally {
    fn sight(&self, fault: FaultId) -> u64 {
        let mut all = self.0.borrow_mut();
        let of = all.entry(fault).or_default();
        of.seen += 1;
        of.seen
    }

    fn apply(&self, fault: FaultId) {
        self.0.borrow_mut().entry(fault).or_default().applied += 1;
    }

    fn is_engaged(&self, fault: FaultId) -> bool {
        self.0.borrow().get(&fault).is_some_and(|of| of.engaged)
    }

    fn engage(&self, fault: FaultId, in_force: bool) {
        self.0.borrow_mut().entry(fault).or_default().engaged = in_force;
    }
}

#[cfg(test)]
mod tests;
