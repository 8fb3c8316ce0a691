//! Requests on their way: departure, loss, retransmission, arrival, answer.
//!
//! A request is one object for its whole life, however many frames it needs: at any time there is at
//! most one frame or timer of it, so an event never refers to a request that is gone. The wire never
//! calls a device; [`super::world`] does when an event says so.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use efa_core::address::{Gid, Qpn};
use efa_core::nic::Status;
use slab::Slab;

use super::HostId;
use super::agenda::Agenda;
use super::flight::{Flight, FlightId};
use super::log::EventLog;
use super::memory::AddressSpace;
use super::network::Network;
use super::tap::{FrameTaps, TappedFrame};
use crate::capture::{Direction, Interface};
use crate::fault::{
    Delay, Event as Occasion, Fate, Fault, FaultId, Faults, Flow, HostName, LocalTally, Stage,
    Trigger, Verdict, Withheld,
};
use crate::link::{LinkBusy, LocalData, Operation, RequestHeader, Token};

/// What happens at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// A frame gets the sender's port.
    Depart(FlightId, Stage),
    /// A frame reaches the other side.
    Arrive(FlightId, Stage),
    /// A lost frame is noticed: the request is sent again.
    Resend(FlightId),
    /// The initiating network card ends a request by itself.
    Fail(FlightId, Status),
    /// A datagram left its host, which is all that its sender learns.
    Sent {
        host: HostId,
        life: u32,
        token: Token,
    },
    /// A device asked to be called.
    Timer(HostId),
    /// A fault ends a host.
    Kill(HostId),
}

/// A host's connection to the network.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) gid: Gid,
    pub(super) alive: bool,
    /// Counts lives of the host: handles of an earlier life are dead for good.
    pub(super) life: u32,
    busy_until: Duration,
    in_flight: usize,
}

/// Initiator, its queue pair number and the request's sequence number.
type RequestKey = (HostId, u16, u32);

fn request_key(initiator: HostId, header: &RequestHeader) -> RequestKey {
    (initiator, header.source_qpn.0, header.sequence)
}

/// Everything between the devices.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) now: Duration,
    pub(super) agenda: Agenda<Event>,
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
    held: Withheld<(FlightId, Stage)>,
    /// Requests that found their receiver not ready: if they come again, that is a retry.
    refused: BTreeSet<RequestKey>,
    /// Data buffers of finished requests, to be used again.
    spare: Vec<Vec<u8>>,
}

/// How many spare data buffers are kept, and how large one may be.
const SPARE_BUFFERS: usize = 1024;
const SPARE_CAPACITY: usize = 64 * 1024;

impl Wire {
    pub(super) fn new(network: Network, log: EventLog) -> Self {
        Wire {
            now: Duration::ZERO,
            agenda: Agenda::new(),
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
            held: Withheld::default(),
            refused: BTreeSet::new(),
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
            life: 0,
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
        &mut self.flights[id.0]
    }

    /// Requests that have not completed, those kept by faults included.
    pub(super) fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Takes a request of a device; see [`crate::link::Link::try_send`].
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
        let life = port.life;
        let rnr_retry =
            !self.refused.is_empty() && self.refused.remove(&request_key(initiator, header));
        let mut data = self.spare.pop().unwrap_or_default();
        let mut reachable = true;
        match (header.operation, local) {
            // The device is asked for the target when the data is there.
            (Operation::RdmaRead, _) => {}
            (_, LocalData::Inline(bytes)) => data.extend_from_slice(bytes),
            (_, LocalData::Segments(segments)) => {
                for segment in segments {
                    match memory.bytes(segment.address, segment.length as usize) {
                        Ok(bytes) => data.extend_from_slice(bytes),
                        Err(_) => reachable = false,
                    }
                }
            }
        }
        // A GID that nobody has keeps the initiator as a stand-in; the departure sorts it out.
        let responder = self.hosts_by_gid.get(&to).copied().unwrap_or(initiator);
        let flight = FlightId(self.flights.insert(Flight {
            initiator,
            life,
            responder,
            to,
            token,
            header: *header,
            data,
            attempts: 0,
            rnr_retry,
            prescribed: None,
            duplicated: None,
            outcome: None,
            path: 0,
        }));
        if reachable {
            self.queue(flight, Stage::Request);
        } else {
            // The program freed memory that was still registered.
            let failure = Event::Fail(flight, Status::LocalInvalidLkey);
            self.agenda.add(self.now, failure);
        }
        Ok(())
    }

    /// Whether the host that made a request still lives, in the same life.
    pub(super) fn initiator_lives(&self, id: FlightId) -> bool {
        let flight = &self.flights[id.0];
        let port = self.port(flight.initiator);
        port.alive && port.life == flight.life
    }

    /// Ends a request's life on the wire. Answers its initiator's token if anybody waits for it.
    pub(super) fn finish(&mut self, id: FlightId) -> Option<(HostId, Token, Status)> {
        let waiting = self.initiator_lives(id);
        let flight = self.flights.remove(id.0);
        if waiting {
            self.port_mut(flight.initiator).in_flight -= 1;
        }
        let mut data = flight.data;
        if self.spare.len() < SPARE_BUFFERS && data.capacity() <= SPARE_CAPACITY {
            data.clear();
            self.spare.push(data);
        }
        let status = flight.outcome.filter(|_| waiting)?;
        if status == Status::RemoteRnr {
            let key = request_key(flight.initiator, &flight.header);
            self.refused.insert(key);
        }
        Some((flight.initiator, flight.token, status))
    }

    /// The host loses power. What it has on the wire travels on, and nobody waits for it.
    pub(super) fn kill(&mut self, host: HostId) {
        self.refused.retain(|(other, _, _)| *other != host);
        let port = self.port_mut(host);
        port.alive = false;
        port.life += 1;
        port.in_flight = 0;
        port.busy_until = Duration::ZERO;
        self.log.add(self.now, format_args!("kill {host}"));
    }

    /// Forgets what a queue pair left behind, before its number is used again.
    pub(super) fn close(&mut self, host: HostId, qpn: Qpn) {
        let of = |(other, number, _): &RequestKey| (*other, *number) == (host, qpn.0);
        self.refused.retain(|key| !of(key));
        self.log.add(self.now, format_args!("close {host}:{qpn}"));
    }

    /// Notes an event of a request.
    pub(super) fn report(&mut self, event: &str, id: FlightId) {
        let flight = &self.flights[id.0];
        self.log.add(self.now, format_args!("{event} {flight}"));
    }

    /// Queues a frame at its sender's port.
    pub(super) fn queue(&mut self, id: FlightId, stage: Stage) {
        let flight = &self.flights[id.0];
        let time = self.network.wire_time(flight.data_length(stage));
        let sender = flight.sender(stage);
        let now = self.now;
        let port = self.port_mut(sender);
        let start = port.busy_until.max(now);
        port.busy_until = start + time;
        self.agenda.add(start, Event::Depart(id, stage));
    }

    /// Puts a frame on the wire.
    pub(super) fn depart(&mut self, id: FlightId, stage: Stage) {
        if !self.initiator_lives(id) && stage == Stage::Request {
            self.finish(id);
            return;
        }
        let flight = &mut self.flights[id.0];
        if !self.ports[flight.sender(stage).0 as usize].alive {
            return self.lose(id, stage);
        }
        if stage == Stage::Request {
            flight.attempts += 1;
            if flight.header.operation == Operation::Datagram {
                let sent = Event::Sent {
                    host: flight.initiator,
                    life: flight.life,
                    token: flight.token,
                };
                self.agenda.add(self.now, sent);
            }
            if !self.hosts_by_gid.contains_key(&flight.to) {
                return self.unreachable(id);
            }
        }
        let route = self
            .network
            .route(flight.sender(stage), flight.receiver(stage));
        flight.path = route.path;
        let event = match (stage, flight.attempts) {
            (Stage::Request, 1) => "send",
            (Stage::Request, _) => "resend",
            (Stage::Answer, _) => "answer",
        };
        self.log.add(self.now, format_args!("{event} {flight}"));
        self.observe(id, stage, Direction::Outbound);
        let verdict = self.judge(id, stage);
        let flight = &mut self.flights[id.0];
        let mut latency = route.latency;
        let mut is_lost = false;
        match verdict.fate {
            None | Some((_, Fate::Fail(_) | Fate::Qpn(_))) => {}
            Some((fault, Fate::Hold { packets })) => {
                self.log.add(self.now, format_args!("hold {flight}"));
                let flow = self.flow(id, stage);
                self.held.keep(fault, flow, packets, (id, stage));
                return self.trigger(verdict.triggers, self.now);
            }
            Some((_, Fate::Delay(delay))) => latency += self.draw(delay),
            Some((_, Fate::Drop)) => is_lost = true,
            Some((_, Fate::Lose)) => {
                flight.attempts = flight.attempts.max(self.network.config.attempts);
                is_lost = true;
            }
            Some((_, Fate::Duplicate)) => flight.duplicated = Some(stage),
            Some((_, Fate::Answer(status))) => match stage {
                Stage::Request => flight.prescribed = Some(status),
                Stage::Answer => flight.outcome = Some(status),
            },
        }
        let flight = &self.flights[id.0];
        let length = flight.data_length(stage);
        is_lost |= self.network.loses();
        let at = self.now + self.network.wire_time(length) + latency;
        if is_lost {
            self.lose(id, stage);
        } else {
            self.agenda.add(at, Event::Arrive(id, stage));
            self.pass_by(id, stage, at);
        }
        self.trigger(verdict.triggers, at);
    }

    /// No host has the destination's GID.
    fn unreachable(&mut self, id: FlightId) {
        let flight = &self.flights[id.0];
        self.log.add(self.now, format_args!("unreachable {flight}"));
        if flight.header.operation == Operation::Datagram {
            self.finish(id);
        } else {
            let at = self.now + self.network.config.latency;
            let failure = Event::Fail(id, Status::LocalUnreachableRemote);
            self.agenda.add(at, failure);
        }
    }

    /// Whether a frame that arrives now is received at all: its receiver may have died, or the
    /// connection may have been cut, while it was on its way.
    pub(super) fn receives(&self, id: FlightId, stage: Stage) -> bool {
        let flight = &self.flights[id.0];
        let (from, to) = (flight.sender(stage), flight.receiver(stage));
        self.port(to).alive && !self.is_cut(from, to)
    }

    /// A frame is lost: its initiator's network card sends the request again or gives up.
    pub(super) fn lose(&mut self, id: FlightId, stage: Stage) {
        let flight = &self.flights[id.0];
        let what = match stage {
            Stage::Request => "lose",
            Stage::Answer => "lose-answer",
        };
        self.log.add(self.now, format_args!("{what} {flight}"));
        if flight.header.operation == Operation::Datagram {
            self.finish(id);
            return;
        }
        let event = match self.network.retransmit_after(flight.attempts) {
            Some(wait) => (self.now + wait, Event::Resend(id)),
            None => {
                let wait = self.network.config.retransmit_timeout;
                let failure = Event::Fail(id, Status::LocalUnresponsiveRemote);
                (self.now + wait, failure)
            }
        };
        self.agenda.add(event.0, event.1);
    }

    /// What the responder's side makes of a request without asking the device, if anything.
    pub(super) fn verdict(&mut self, id: FlightId) -> Option<Status> {
        let flight = &mut self.flights[id.0];
        if let Some(status) = flight.prescribed.take() {
            return Some(status);
        }
        let is_send = flight.header.operation == Operation::Send;
        (is_send && self.network.refuses()).then_some(Status::RemoteRnr)
    }

    pub(super) fn observe(&mut self, id: FlightId, stage: Stage, direction: Direction) {
        if self.taps.is_empty() {
            return;
        }
        let flight = &self.flights[id.0];
        let initiator = self.port(flight.initiator).gid;
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
            frame: flight.frame(stage, initiator),
        });
    }

    fn flow(&self, id: FlightId, stage: Stage) -> Flow {
        let flight = &self.flights[id.0];
        let initiator = self.port(flight.initiator).gid;
        Flow::from(&flight.frame(stage, initiator))
    }

    /// What the armed faults say about a frame that departs.
    fn judge(&mut self, id: FlightId, stage: Stage) -> Verdict {
        if self.faults.is_empty() {
            return Verdict::default();
        }
        let Wire {
            faults,
            tally,
            interfaces,
            hosts_by_gid,
            flights,
            ports,
            ..
        } = self;
        let flight = &flights[id.0];
        let frame = flight.frame(stage, ports[flight.initiator.index()].gid);
        let named = is_named(interfaces, hosts_by_gid);
        faults.decide(&Occasion::Frame(frame), &named, tally)
    }

    /// What the armed faults say about something that happens on a host.
    pub(super) fn decide(&mut self, event: &Occasion<'_>) -> Verdict {
        let Wire {
            faults,
            tally,
            interfaces,
            hosts_by_gid,
            ..
        } = self;
        faults.decide(event, &is_named(interfaces, hosts_by_gid), tally)
    }

    /// Whether frames between two hosts are lost.
    fn is_cut(&self, a: HostId, b: HostId) -> bool {
        let named = is_named(&self.interfaces, &self.hosts_by_gid);
        let (a, b) = (self.port(a).gid, self.port(b).gid);
        !self.faults.is_empty() && self.faults.is_cut(a, b, &named, &self.tally)
    }

    fn draw(&mut self, delay: Delay) -> Duration {
        delay.least + self.network.up_to(delay.most - delay.least)
    }

    /// Two hosts, as a cut names them.
    pub(super) fn pair(&self, a: HostId, b: HostId) -> [HostName; 2] {
        [a, b].map(|host| HostName::Gid(self.port(host).gid))
    }

    /// Arms a fault and does what it does at once.
    pub(super) fn arm(&mut self, fault: Fault) -> FaultId {
        let id = FaultId(self.next_fault);
        self.next_fault += 1;
        self.faults.arm(id, fault);
        let triggers = self.faults.begin(id, &self.tally);
        self.trigger(triggers, self.now);
        id
    }

    /// Disarms a fault and releases what it holds.
    pub(super) fn disarm(&mut self, id: FaultId) {
        self.faults.disarm(id);
        self.release(id, usize::MAX);
        self.tally.forget(id);
    }

    /// Does what faults want done beside an event that takes place at `at`.
    pub(super) fn trigger(&mut self, triggers: Vec<Trigger>, at: Duration) {
        for trigger in triggers {
            match trigger {
                Trigger::Release(faults) => {
                    for fault in faults {
                        let released = self.held.release(fault, usize::MAX);
                        self.let_go(released, at);
                    }
                }
                Trigger::Kill(host) => {
                    let named = is_named(&self.interfaces, &self.hosts_by_gid);
                    let is_meant = |port: &&Port| host.is(port.gid, &named);
                    let gid = self.ports.iter().find(is_meant).map(|port| port.gid);
                    if let Some(id) = gid.and_then(|gid| self.hosts_by_gid.get(&gid)) {
                        self.agenda.add(at, Event::Kill(*id));
                    }
                }
            }
        }
    }

    /// How many frames a fault keeps.
    pub(super) fn held(&self, fault: FaultId) -> usize {
        self.held.count(fault)
    }

    /// Sends the oldest `count` frames that a fault keeps on their way.
    pub(super) fn release(&mut self, fault: FaultId, count: usize) -> usize {
        let released = self.held.release(fault, count);
        let number = released.len();
        for frame in released {
            let at = self.now + self.latency_of(frame);
            self.let_go(vec![frame], at);
        }
        number
    }

    /// Notes that a frame arrives at `at`, which may be what others of its flow were kept for.
    fn pass_by(&mut self, id: FlightId, stage: Stage, at: Duration) {
        if self.held.is_empty() {
            return;
        }
        let released = self.held.passed(self.flow(id, stage));
        let released = released.into_iter().map(|(_, frame)| frame).collect();
        self.let_go(released, at);
    }

    fn latency_of(&mut self, (id, stage): (FlightId, Stage)) -> Duration {
        let flight = &self.flights[id.0];
        let (from, to) = (flight.sender(stage), flight.receiver(stage));
        self.network.route(from, to).latency
    }

    /// Lets frames arrive at `at`, behind what arrives then already.
    fn let_go(&mut self, released: Vec<(FlightId, Stage)>, at: Duration) {
        for (id, stage) in released {
            let flight = &self.flights[id.0];
            self.log.add(self.now, format_args!("release {flight}"));
            self.agenda.add(at, Event::Arrive(id, stage));
        }
    }
}

/// Whether a host has a name, for faults.
fn is_named(interfaces: &[Interface], hosts: &BTreeMap<Gid, HostId>) -> impl Fn(Gid, &str) -> bool {
    move |gid, name| {
        let host = hosts.get(&gid);
        host.is_some_and(|host| interfaces[host.index()].host == name)
    }
}
