//! Requests in flight: departure, loss, retransmission, arrival, answer.
//!
//! A request is one object for its whole life, with any number of frames. At any time it has at
//! most one frame or timer, so an event never refers to a request that has ended.
//! [`efa_device_model::network`] decides the outcome of a frame, and the wire turns that into
//! events. The wire never calls a device; [`super::world`] does so when an event requires it.

use std::collections::BTreeMap;
use std::time::Duration;

use efa_core::address::{Gid, Qpn};
use efa_core::nic::Status;
use slab::Slab;

use super::flight::{Flight, FlightId};
use super::host_id::HostId;
use super::log::EventLog;
use super::memory::AddressSpace;
use super::tap::{FrameTaps, TappedFrame};
use efa_capture::{Direction, Interface};
use efa_device_model::device::QueueError;
use efa_device_model::fault::{
    Deferred, Event as FaultEvent, Fault, FaultId, Faults, Flow, HostName, LocalTally, Stage,
    Trigger, Verdict,
};
use efa_device_model::link::{HostSegment, LinkBusy, LocalData, Operation, RequestHeader, Token};
use efa_device_model::network::{Disposition, Duplicated, EventQueue, Loss, Network};
use efa_device_model::prefetch;

/// A timed event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WireEvent {
    /// The sender's port starts to send a frame.
    Depart(FlightId, Stage),
    /// A frame reaches its destination. The rules have not been applied to it yet.
    Arrive(FlightId, Stage),
    /// A frame that faults deferred or delayed is handed over.
    HandOver(FlightId, Stage),
    /// A lost frame is retransmitted.
    Resend(FlightId, Stage),
    /// The initiator's device ends a request without an answer.
    Fail(FlightId, Status),
    /// A datagram left its host; its sender gets no more events.
    Sent {
        host: HostId,
        incarnation: u32,
        token: Token,
    },
    /// A device requested a call at this time.
    Timer(HostId),
    /// A fault kills a host.
    Kill(HostId),
    /// A fault removes a host's device.
    Remove(HostId),
    /// A fault replaces a host's removed device with a new one.
    Restore(HostId),
    /// A fault causes an error of queues of a host's device.
    Stage(HostId, QueueError),
}

/// A host's connection to the network.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) gid: Gid,
    pub(super) alive: bool,
    /// Counts the incarnations of the host: handles of an earlier incarnation stay invalid.
    pub(super) incarnation: u32,
    busy_until: Duration,
    in_flight: usize,
}

/// The state of the network between the devices.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) now: Duration,
    pub(super) events: EventQueue<WireEvent>,
    pub(super) network: Network,
    pub(super) faults: Faults,
    pub(super) tally: LocalTally,
    next_fault: u64,
    pub(super) log: EventLog,
    pub(super) taps: FrameTaps,
    pub(super) ports: Vec<Port>,
    /// The hosts as captures name them, by host number.
    interfaces: Vec<Interface>,
    pub(super) hosts_by_gid: BTreeMap<Gid, HostId>,
    flights: Slab<Flight>,
    deferred: Deferred<(FlightId, Stage)>,
    /// Data buffers of completed requests, for reuse.
    spare: Vec<Vec<u8>>,
}

/// The most spare data buffers, and the largest size of one.
const SPARE_BUFFERS: usize = 1024;
const SPARE_CAPACITY: usize = 64 * 1024;

impl Wire {
    pub(super) fn new(network: Network, log: EventLog) -> Self {
        Wire {
            now: Duration::ZERO,
            events: EventQueue::default(),
            network,
            faults: Faults::default(),
            tally: LocalTally::default(),
            next_fault: 0,
            log,
            taps: FrameTaps::default(),
            ports: Vec::new(),
            interfaces: Vec::new(),
            hosts_by_gid: BTreeMap::new(),
            flights: Slab::new(),
            deferred: Deferred::default(),
            spare: Vec::new(),
        }
    }

    pub(super) fn connect(&mut self, interface: Interface) -> HostId {
        let id = HostId(self.ports.len() as u32);
        let gid = interface.gid;
        self.interfaces.push(interface);
        self.ports.push(Port {
            gid,
            alive: true,
            incarnation: 0,
            busy_until: Duration::ZERO,
            in_flight: 0,
        });
        self.hosts_by_gid.insert(gid, id);
        id
    }

    pub(super) fn port(&self, host: HostId) -> &Port {
        &self.ports[host.0 as usize]
    }

    pub(super) fn port_mut(&mut self, host: HostId) -> &mut Port {
        &mut self.ports[host.0 as usize]
    }

    pub(super) fn flight(&mut self, id: FlightId) -> &mut Flight {
        &mut self.flights[id.index()]
    }

    /// Prefetches a request.
    #[inline]
    pub(super) fn prefetch(&self, id: FlightId) {
        if let Some(flight) = self.flights.get(id.index()) {
            prefetch::value(flight);
        }
    }

    /// The host that a frame is addressed to, its queue pair there, and the request's token.
    #[inline]
    pub(super) fn receiver(&self, id: FlightId, stage: Stage) -> Option<(HostId, Qpn, Token)> {
        let flight = self.flights.get(id.index())?;
        let qpn = match stage {
            Stage::Request => flight.header.destination_qpn,
            Stage::Answer => flight.header.source_qpn,
        };
        Some((flight.receiver(stage), qpn, flight.token))
    }

    /// The number of requests that have not completed, including those that faults hold.
    pub(super) fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Accepts a request from a device; see [`efa_device_model::link::Link::try_send`].
    pub(super) fn accept(
        &mut self,
        initiator: HostId,
        memory: &AddressSpace,
        to: Gid,
        token: Token,
        header: &RequestHeader,
        local: LocalData<'_>,
    ) -> Result<(), LinkBusy> {
        let limit = self.network.config.in_flight;
        let port = self.port_mut(initiator);
        if port.in_flight >= limit {
            return Err(LinkBusy);
        }
        port.in_flight += 1;
        let (incarnation, from) = (port.incarnation, port.gid);
        let mut data = self.spare.pop().unwrap_or_default();
        let mut reachable = true;
        match (header.operation, local) {
            // The device determines the target when the data arrives.
            (Operation::RdmaRead, _) => {}
            (_, LocalData::Inline(bytes)) => data.extend_from_slice(bytes),
            (_, LocalData::Segments(segments)) => reachable = gather(memory, segments, &mut data),
            (
                _,
                LocalData::Packet {
                    head,
                    segments,
                    padding,
                },
            ) => {
                data.extend_from_slice(head);
                reachable = gather(memory, segments, &mut data);
                data.resize(data.len() + padding, 0);
            }
        }
        // For an unknown GID the initiator acts as the responder; `depart` fails the request.
        let responder = self.hosts_by_gid.get(&to).copied().unwrap_or(initiator);
        let flight = self.flights.insert(Flight {
            initiator,
            incarnation,
            responder,
            from,
            to,
            token,
            header: *header,
            data,
            lost: 0,
            prescribed: None,
            twice: Duplicated::Nothing,
            outcome: None,
            path: 0,
        });
        let flight = FlightId(flight as u32);
        if reachable {
            self.queue(flight, Stage::Request);
        } else {
            // The program freed memory that was still registered.
            let failure = WireEvent::Fail(flight, Status::LocalInvalidLkey);
            self.events.add(self.now, failure);
        }
        Ok(())
    }

    /// Whether the host that posted a request is still in the same incarnation.
    pub(super) fn initiator_lives(&self, id: FlightId) -> bool {
        let flight = &self.flights[id.index()];
        let port = self.port(flight.initiator);
        port.alive && port.incarnation == flight.incarnation
    }

    /// Removes a request. Returns its initiator's token if the initiator still waits for it.
    pub(super) fn finish(&mut self, id: FlightId) -> Option<(HostId, Token, Status)> {
        let waiting = self.initiator_lives(id);
        let flight = self.flights.remove(id.index());
        if waiting {
            self.port_mut(flight.initiator).in_flight -= 1;
        }
        let mut data = flight.data;
        if self.spare.len() < SPARE_BUFFERS && data.capacity() <= SPARE_CAPACITY {
            data.clear();
            self.spare.push(data);
        }
        let status = flight.outcome.filter(|_| waiting)?;
        Some((flight.initiator, flight.token, status))
    }

    /// The host loses power. Its frames in flight still arrive, but nothing answers them.
    pub(super) fn kill(&mut self, host: HostId) {
        let port = self.port_mut(host);
        port.alive = false;
        port.incarnation += 1;
        port.in_flight = 0;
        port.busy_until = Duration::ZERO;
        self.log.add(self.now, format_args!("kill {host}"));
    }

    /// Records that a queue pair was destroyed, and that its number is free.
    pub(super) fn close(&mut self, host: HostId, qpn: Qpn) {
        self.log.add(self.now, format_args!("close {host}:{qpn}"));
    }

    /// Logs an event of a request.
    pub(super) fn report(&mut self, event: &str, id: FlightId) {
        let flight = &self.flights[id.index()];
        self.log.add(self.now, format_args!("{event} {flight}"));
    }

    /// Queues a frame at its sender's port.
    pub(super) fn queue(&mut self, id: FlightId, stage: Stage) {
        let flight = &self.flights[id.index()];
        let time = self.network.config.wire_time(flight.data_length(stage));
        let sender = flight.sender(stage);
        let now = self.now;
        let port = self.port_mut(sender);
        let start = port.busy_until.max(now);
        port.busy_until = start + time;
        self.events.add(start, WireEvent::Depart(id, stage));
    }

    /// Sends a frame.
    pub(super) fn depart(&mut self, id: FlightId, stage: Stage) {
        if !self.initiator_lives(id) && stage == Stage::Request {
            self.finish(id);
            return;
        }
        let flight = &mut self.flights[id.index()];
        if !self.ports[flight.sender(stage).index()].alive {
            return self.lose(id, stage);
        }
        if stage == Stage::Request {
            if flight.header.operation.is_unanswered() {
                let sent = WireEvent::Sent {
                    host: flight.initiator,
                    incarnation: flight.incarnation,
                    token: flight.token,
                };
                self.events.add(self.now, sent);
            }
            if !self.hosts_by_gid.contains_key(&flight.to) {
                return self.unreachable(id);
            }
        }
        let passage = self.network.transmit(&flight.transmission(stage));
        flight.path = passage.path;
        let event = match (stage, flight.lost) {
            (Stage::Request, 0) => "send",
            (Stage::Request, _) => "resend",
            (Stage::Answer, 0) => "answer",
            (Stage::Answer, _) => "answer-again",
        };
        self.log.add(self.now, format_args!("{event} {flight}"));
        self.observe(id, stage, Direction::Outbound);
        if passage.is_lost {
            return self.lose(id, stage);
        }
        let length = self.flights[id.index()].data_length(stage);
        let at = self.now + self.network.config.wire_time(length) + passage.latency;
        self.events.add(at, WireEvent::Arrive(id, stage));
    }

    /// A frame reaches its destination. Returns whether it is passed to the device there now.
    pub(super) fn arrive(&mut self, id: FlightId, stage: Stage) -> bool {
        if !self.is_received(id, stage) {
            return false;
        }
        self.faults.is_empty() || self.judge(id, stage)
    }

    /// Whether the receiver of a frame is alive: it may have died while the frame was in flight. If
    /// not, the frame is lost.
    pub(super) fn is_received(&mut self, id: FlightId, stage: Stage) -> bool {
        let to = self.flights[id.index()].receiver(stage);
        let is_alive = self.port(to).alive;
        if !is_alive {
            self.lose(id, stage);
        }
        is_alive
    }

    /// Applies the armed faults to an arriving frame. Returns whether the frame is handed over now.
    fn judge(&mut self, id: FlightId, stage: Stage) -> bool {
        let flow = Flow::from(&self.flights[id.index()].frame(stage));
        let mut verdict = self.decide_frame(id, stage);
        let deaths = verdict.take_deaths();
        let is_deadly = !deaths.is_empty();
        self.trigger(deaths);
        let flight = &mut self.flights[id.index()];
        let disposition =
            Disposition::new(verdict.outcome, &flight.transmission(stage), &self.network);
        match disposition {
            Disposition::Proceeds { twice, status } => {
                flight.twice = twice;
                match stage {
                    Stage::Request => flight.prescribed = status,
                    Stage::Answer => flight.outcome = status.or(flight.outcome),
                }
            }
            Disposition::Late(delay) => {
                self.log.add(self.now, format_args!("delay {flight}"));
                self.events
                    .add(self.now + delay, WireEvent::HandOver(id, stage));
            }
            Disposition::Deferred { fault, packets } => {
                self.log.add(self.now, format_args!("hold {flight}"));
                self.deferred.defer(fault, flow, packets, (id, stage));
            }
            Disposition::Lost(loss) => self.suffer(id, stage, loss),
        }
        if disposition.passes() && !self.deferred.is_empty() {
            let released = self.deferred.passed(flow);
            self.let_go(released.into_iter().map(|(_, frame)| frame));
        }
        let proceeds = matches!(disposition, Disposition::Proceeds { .. });
        if proceeds && is_deadly {
            self.events
                .add_ahead(self.now, WireEvent::HandOver(id, stage));
        }
        // The frame itself is handed over first; triggered actions follow it.
        self.trigger(verdict.triggers);
        proceeds && !is_deadly
    }

    /// The status of a request that is refused on the responder's side without asking the device.
    pub(super) fn refusal(&mut self, id: FlightId) -> Option<Status> {
        let flight = &mut self.flights[id.index()];
        let prescribed = flight.prescribed.take();
        prescribed.or_else(|| {
            let request = flight.transmission(Stage::Request);
            self.network
                .answers_rnr(&request)
                .then_some(Status::RemoteRnr)
        })
    }

    /// No host has the destination's GID.
    fn unreachable(&mut self, id: FlightId) {
        let flight = &self.flights[id.index()];
        self.log.add(self.now, format_args!("unreachable {flight}"));
        if flight.header.operation.is_unanswered() {
            self.finish(id);
        } else {
            let at = self.now + self.network.config.latency;
            let failure = WireEvent::Fail(id, Status::LocalUnreachableRemote);
            self.events.add(at, failure);
        }
    }

    /// Handles the loss of a frame: its initiator's device retransmits it or fails the request.
    pub(super) fn lose(&mut self, id: FlightId, stage: Stage) {
        let flight = &self.flights[id.index()];
        let loss = self.network.lose(&flight.transmission(stage));
        self.suffer(id, stage, loss);
    }

    /// Schedules the events after a loss.
    fn suffer(&mut self, id: FlightId, stage: Stage, loss: Loss) {
        let flight = &mut self.flights[id.index()];
        let what = match stage {
            Stage::Request => "lose",
            Stage::Answer => "lose-answer",
        };
        self.log.add(self.now, format_args!("{what} {flight}"));
        flight.lost = flight.lost.saturating_add(1);
        match loss {
            Loss::Repeated { after } => {
                self.events
                    .add(self.now + after, WireEvent::Resend(id, stage));
            }
            Loss::Fatal { after } => {
                let failure = WireEvent::Fail(id, Status::LocalUnresponsiveRemote);
                self.events.add(self.now + after, failure);
            }
            Loss::Unnoticed => {
                self.finish(id);
            }
        }
    }

    pub(super) fn observe(&mut self, id: FlightId, stage: Stage, direction: Direction) {
        if self.taps.is_empty() {
            return;
        }
        let flight = &self.flights[id.index()];
        let host = match direction {
            Direction::Outbound => flight.sender(stage),
            Direction::Inbound => flight.receiver(stage),
        };
        self.taps.call(&TappedFrame {
            time: self.now,
            host,
            direction,
            interfaces: &self.interfaces,
            path: flight.path,
            frame: flight.frame(stage),
        });
    }

    /// The verdict of the armed faults on an arriving frame.
    fn decide_frame(&mut self, id: FlightId, stage: Stage) -> Verdict {
        let Wire {
            faults,
            tally,
            interfaces,
            hosts_by_gid,
            flights,
            ..
        } = self;
        let frame = flights[id.index()].frame(stage);
        let named = is_named(interfaces, hosts_by_gid);
        faults.decide(&FaultEvent::Frame(frame), &named, tally)
    }

    /// The verdict of the armed faults on an event of a host.
    pub(super) fn decide(&mut self, event: &FaultEvent<'_>) -> Verdict {
        let Wire {
            faults,
            tally,
            interfaces,
            hosts_by_gid,
            ..
        } = self;
        faults.decide(event, &is_named(interfaces, hosts_by_gid), tally)
    }

    /// Arms a fault and runs its immediate actions.
    pub(super) fn arm(&mut self, fault: Fault) -> FaultId {
        let id = FaultId(self.next_fault);
        self.next_fault += 1;
        self.faults.arm(id, fault);
        let triggers = self.faults.begin(id, &self.tally);
        self.trigger(triggers);
        id
    }

    /// Disarms a fault and releases the frames that it holds.
    pub(super) fn disarm(&mut self, id: FaultId) {
        self.faults.disarm(id);
        self.release(id, usize::MAX);
        self.tally.forget(id);
    }

    /// Runs actions of faults after the current event.
    pub(super) fn trigger(&mut self, triggers: Vec<Trigger>) {
        for trigger in triggers {
            match trigger {
                Trigger::Release(faults) => {
                    for fault in faults {
                        self.release(fault, usize::MAX);
                    }
                }
                Trigger::Kill(host) => {
                    if let Some(id) = self.find(&host) {
                        self.events.add_ahead(self.now, WireEvent::Kill(id));
                    }
                }
                Trigger::Remove(host) => {
                    if let Some(id) = self.find(&host) {
                        self.events.add_ahead(self.now, WireEvent::Remove(id));
                    }
                }
                Trigger::Restore(host) => {
                    if let Some(id) = self.find(&host) {
                        self.events.add_ahead(self.now, WireEvent::Restore(id));
                    }
                }
                Trigger::Queues(host, error) => {
                    if let Some(id) = self.find(&host) {
                        self.events.add_ahead(self.now, WireEvent::Stage(id, error));
                    }
                }
            }
        }
    }

    /// The host with the name that a fault uses.
    fn find(&self, host: &HostName) -> Option<HostId> {
        let named = is_named(&self.interfaces, &self.hosts_by_gid);
        let port = self.ports.iter().find(|port| host.is(port.gid, &named))?;
        self.hosts_by_gid.get(&port.gid).copied()
    }

    /// The number of frames that a fault holds.
    pub(super) fn held(&self, fault: FaultId) -> usize {
        self.deferred.count(fault)
    }

    /// Releases the oldest `count` frames that a fault holds, and returns their number.
    pub(super) fn release(&mut self, fault: FaultId, count: usize) -> usize {
        let released = self.deferred.release(fault, count);
        let number = released.len();
        self.let_go(released);
        number
    }

    /// Hands over deferred frames directly after the current event.
    fn let_go(&mut self, released: impl IntoIterator<Item = (FlightId, Stage)>) {
        for (id, stage) in released {
            let flight = &self.flights[id.index()];
            self.log.add(self.now, format_args!("release {flight}"));
            self.events
                .add_ahead(self.now, WireEvent::HandOver(id, stage));
        }
    }
}

/// Appends memory of a host to `data`. Returns whether all of it is allocated.
fn gather(memory: &AddressSpace, segments: &[HostSegment], data: &mut Vec<u8>) -> bool {
    let mut is_there = true;
    for segment in segments {
        match memory.bytes(segment.address, segment.length as usize) {
            Ok(bytes) => data.extend_from_slice(bytes),
            Err(_) => is_there = false,
        }
    }
    is_there
}

/// Whether a host has the specified name, for faults.
fn is_named(interfaces: &[Interface], hosts: &BTreeMap<Gid, HostId>) -> impl Fn(Gid, &str) -> bool {
    move |gid, name| {
        let host = hosts.get(&gid);
        host.is_some_and(|host| interfaces[host.index()].host == name)
    }
}
