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
use super::fault::{Action, FaultId, Faults, Stage};
use super::flight::{Flight, FlightId};
use super::log::EventLog;
use super::memory::AddressSpace;
use super::network::Network;
use super::tap::{FrameTaps, TappedFrame};
use crate::capture::{Direction, Interface};
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

/// A frame that a fault keeps.
#[derive(Clone, Copy, Debug)]
struct Held {
    fault: FaultId,
    flight: FlightId,
    stage: Stage,
}

/// Everything between the devices.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) now: Duration,
    pub(super) agenda: Agenda<Event>,
    pub(super) network: Network,
    pub(super) faults: Faults,
    pub(super) log: EventLog,
    pub(super) taps: FrameTaps,
    pub(super) ports: Vec<Port>,
    /// The hosts as captures name them, by host number.
    interfaces: Vec<Interface>,
    pub(super) hosts_by_gid: BTreeMap<Gid, HostId>,
    flights: Slab<Flight>,
    held: Vec<Held>,
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
            log,
            taps: FrameTaps::default(),
            ports: Vec::new(),
            interfaces: Vec::new(),
            hosts_by_gid: BTreeMap::new(),
            flights: Slab::new(),
            held: Vec::new(),
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
        let action = self.fault(id, stage);
        let flight = &mut self.flights[id.0];
        let mut latency = route.latency;
        match action {
            None => {}
            Some((fault, Action::Hold)) => {
                self.log.add(self.now, format_args!("hold {flight}"));
                self.held.push(Held {
                    fault,
                    flight: id,
                    stage,
                });
                return;
            }
            Some((_, Action::Delay(delay))) => latency += delay,
            Some((_, Action::Drop)) => return self.lose(id, stage),
            Some((_, Action::Answer(status))) => match stage {
                Stage::Request => flight.prescribed = Some(status),
                Stage::Answer => flight.outcome = Some(status),
            },
        }
        let (from, to) = (flight.sender(stage), flight.receiver(stage));
        let length = flight.data_length(stage);
        if self.network.loses(from, to) {
            return self.lose(id, stage);
        }
        let at = self.now + self.network.wire_time(length) + latency;
        self.agenda.add(at, Event::Arrive(id, stage));
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
        self.port(to).alive && !self.network.is_cut(from, to)
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

    fn fault(&mut self, id: FlightId, stage: Stage) -> Option<(FaultId, Action)> {
        if self.faults.is_empty() {
            return None;
        }
        let flight = &self.flights[id.0];
        let initiator = self.port(flight.initiator).gid;
        self.faults.apply(&flight.frame(stage, initiator))
    }

    /// How many frames a fault keeps.
    pub(super) fn held(&self, fault: FaultId) -> usize {
        self.held.iter().filter(|held| held.fault == fault).count()
    }

    /// Sends the oldest `count` frames that a fault keeps on their way.
    pub(super) fn release(&mut self, fault: FaultId, count: usize) -> usize {
        let mut released = Vec::new();
        self.held.retain(|held| {
            let goes = held.fault == fault && released.len() < count;
            if goes {
                released.push(*held);
            }
            !goes
        });
        for held in &released {
            let flight = &self.flights[held.flight.0];
            self.log.add(self.now, format_args!("release {flight}"));
            let (from, to) = (flight.sender(held.stage), flight.receiver(held.stage));
            let latency = self.network.route(from, to).latency;
            let arrival = Event::Arrive(held.flight, held.stage);
            self.agenda.add(self.now + latency, arrival);
        }
        released.len()
    }
}
