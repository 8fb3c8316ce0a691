//! The hosts of a fabric and the loop that runs events.

use std::time::Duration;

use efa_core::address::{Gid, Qpn};
use efa_core::nic::Status;

use super::attachment::{Dma, Uplink};
use super::config::HostConfig;
use super::flight::FlightId;
use super::host_id::HostId;
use super::memory::AddressSpace;
use super::wire::{Wire, WireEvent};
use efa_capture::{Direction, Interface};
use efa_device_model::device::{Device, PrefetchStage, QpnAllocator};
use efa_device_model::fault::{Event as FaultEvent, EventOutcome, Stage};
use efa_device_model::link::{Operation, Token};
use efa_device_model::network::{Duplicated, Random};
use efa_device_model::prefetch;
use efa_device_model::qpn_policy::QpnPolicy;

/// One simulated host: a device and the memory that it can access.
pub(super) struct Host {
    pub(super) config: HostConfig,
    pub(super) device: Device,
    pub(super) memory: AddressSpace,
    pub(super) qpns: QpnAllocator,
    generation: u32,
    /// The time of the device's earliest timer event in the event queue.
    timer: Option<Duration>,
}

impl Host {
    /// A generation for the request ids of the next queue pair.
    pub(super) fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }
}

/// One step of a fabric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FabricStep {
    /// The virtual time of the event.
    pub time: Duration,
    /// The host whose queue pairs may have new completions, if any; no other needs to be polled.
    pub host: Option<HostId>,
}

/// The complete state of a fabric.
pub(super) struct World {
    pub(super) wire: Wire,
    pub(super) hosts: Vec<Host>,
    pub(super) qpn_policy: QpnPolicy,
    pub(super) qpn_random: Random,
    pub(super) qkey_random: Random,
    pub(super) completion_random: Random,
    pub(super) completion_window: usize,
}

impl World {
    /// Adds a host with this `gid`, which no other host may have.
    pub(super) fn add_host(&mut self, gid: Gid, config: HostConfig) -> HostId {
        let number = self.hosts.len();
        let id = self.wire.connect(Interface::new(
            config.name.clone().unwrap_or(format!("host{number}")),
            config.profile.name,
            gid,
        ));
        // Far apart, so that an address of one host is not valid on another.
        let base = (number as u64 + 1) << 44;
        let memory = AddressSpace::new(base, config.memory);
        let host = self.new_host(gid, config, memory);
        self.hosts.push(host);
        self.wire
            .log
            .add(self.wire.now, format_args!("boot {id} {gid}"));
        id
    }

    fn new_host(&self, gid: Gid, config: HostConfig, memory: AddressSpace) -> Host {
        Host {
            device: Device::new(config.profile.clone(), gid),
            memory,
            qpns: QpnAllocator::new(self.qpn_policy, config.profile.max_qp),
            generation: 0,
            timer: None,
            config,
        }
    }

    pub(super) fn host(&mut self, id: HostId) -> &mut Host {
        &mut self.hosts[id.index()]
    }

    /// A free queue pair number of a host.
    pub(super) fn take_qpn(&mut self, id: HostId) -> Option<Qpn> {
        let gid = self.wire.port(id).gid;
        let verdict = self.wire.decide(&FaultEvent::QueuePair { host: gid });
        let preferred = match verdict.outcome {
            Some((_, EventOutcome::Qpn(qpn))) => Some(qpn),
            _ => None,
        };
        self.wire.trigger(verdict.triggers);
        let host = &mut self.hosts[id.index()];
        let qpn = preferred
            .filter(|qpn| host.qpns.take(*qpn))
            .or_else(|| host.qpns.allocate(self.qpn_random.generator()))?;
        self.wire
            .log
            .add(self.wire.now, format_args!("open {id}:{qpn}"));
        Some(qpn)
    }

    /// The error number of a memory registration that a fault makes fail.
    pub(super) fn registration_failure(&mut self, id: HostId, length: u64) -> Option<i32> {
        let host = self.wire.port(id).gid;
        let verdict = self.wire.decide(&FaultEvent::Registration { host, length });
        self.wire.trigger(verdict.triggers);
        match verdict.outcome {
            Some((_, EventOutcome::Fail(errno))) => Some(errno),
            _ => None,
        }
    }

    /// The host loses power: its device, queue pairs and memory are lost.
    pub(super) fn kill(&mut self, id: HostId) {
        if !self.wire.port(id).alive {
            return;
        }
        self.wire.kill(id);
        let gid = self.wire.port(id).gid;
        let host = self.host(id);
        let (config, memory) = (host.config.clone(), host.memory.successor());
        self.hosts[id.index()] = self.new_host(gid, config, memory);
    }

    /// Restarts a killed host, without any of its former state.
    pub(super) fn restart(&mut self, id: HostId) {
        let now = self.wire.now;
        let port = self.wire.port_mut(id);
        if !port.alive {
            port.alive = true;
            self.wire.log.add(now, format_args!("restart {id}"));
        }
    }

    /// Returns a removed device without its objects. The host keeps its memory.
    fn restore(&mut self, id: HostId) {
        let host = &self.hosts[id.index()];
        if host.device.check_present().is_ok() {
            return;
        }
        let (config, next) = (host.config.clone(), host.memory.successor());
        self.wire.kill(id);
        let memory = std::mem::replace(&mut self.host(id).memory, next);
        let gid = self.wire.port(id).gid;
        self.hosts[id.index()] = self.new_host(gid, config, memory);
        self.restart(id);
    }

    /// Makes a host's device send, and records when it requests the next call.
    pub(super) fn drive(&mut self, id: HostId) {
        let host = &mut self.hosts[id.index()];
        let now = self.wire.now;
        let mut uplink = Uplink {
            wire: &mut self.wire,
            host: id,
            memory: &host.memory,
        };
        host.device.transmit(now, &mut uplink);
        if let Some(at) = host.device.next_timeout() {
            let at = at.max(now);
            if host.timer.is_none_or(|timer| at < timer) {
                host.timer = Some(at);
                self.wire.events.add(at, WireEvent::Timer(id));
            }
        }
    }

    /// Prefetches the memory of the next events: a fabric of some hundred hosts does not fit into
    /// the processor's caches, and consecutive events belong to different hosts.
    #[inline]
    fn look_ahead(&self) {
        /// The number of events between the steps of the prefetch.
        const FLIGHT: usize = 10;
        const STEPS: [(usize, PrefetchStage); 4] = [
            (7, PrefetchStage::Coming),
            (5, PrefetchStage::Near),
            (3, PrefetchStage::Close),
            (1, PrefetchStage::Next),
        ];
        let events = &self.wire.events;
        if let Some(WireEvent::Depart(id, _) | WireEvent::Arrive(id, _)) = events.upcoming(FLIGHT) {
            self.wire.prefetch(*id);
        }
        for (ahead, prefetch_stage) in STEPS {
            let Some(WireEvent::Arrive(id, stage)) = events.upcoming(ahead) else {
                continue;
            };
            let Some((host, qpn, token)) = self.wire.receiver(*id, *stage) else {
                continue;
            };
            let host = &self.hosts[host.index()];
            host.device.expect(qpn, prefetch_stage);
            match prefetch_stage {
                PrefetchStage::Coming => prefetch::value(&host.memory),
                PrefetchStage::Near if *stage == Stage::Answer => host.device.expect_answer(token),
                _ => {}
            }
        }
    }

    /// Runs the next event.
    pub(super) fn step(&mut self) -> Option<FabricStep> {
        let (time, event) = self.wire.events.pop()?;
        self.wire.now = time;
        self.look_ahead();
        let host = match event {
            WireEvent::Depart(flight, stage) => {
                self.wire.depart(flight, stage);
                None
            }
            WireEvent::Resend(flight, stage) => {
                self.wire.queue(flight, stage);
                None
            }
            WireEvent::Arrive(flight, stage) => {
                let proceeds = self.wire.arrive(flight, stage);
                proceeds.then(|| self.hand_over(flight, stage))
            }
            WireEvent::HandOver(flight, stage) => {
                let proceeds = self.wire.is_received(flight, stage);
                proceeds.then(|| self.hand_over(flight, stage))
            }
            WireEvent::Fail(flight, status) => {
                self.wire.flight(flight).outcome = Some(status);
                Some(self.finish(flight))
            }
            WireEvent::Sent {
                host,
                incarnation,
                token,
            } => {
                if self.wire.port(host).incarnation == incarnation {
                    self.complete(host, token, Status::Ok);
                }
                Some(host)
            }
            WireEvent::Kill(host) => {
                // A rule kills processes, not machines: the device still answers, without any of
                // their objects.
                self.kill(host);
                self.restart(host);
                None
            }
            WireEvent::Remove(host) => {
                self.host(host).device.remove();
                Some(host)
            }
            WireEvent::Restore(host) => {
                self.restore(host);
                None
            }
            WireEvent::Stage(host, error) => {
                self.host(host).device.stage(error);
                Some(host)
            }
            WireEvent::Timer(host) => {
                let entry = self.host(host);
                if entry.timer == Some(time) {
                    entry.timer = None;
                    self.drive(host);
                }
                Some(host)
            }
        };
        Some(FabricStep { time, host })
    }

    /// Passes a frame to the device that it is addressed to, and returns that device's host.
    fn hand_over(&mut self, id: FlightId, stage: Stage) -> HostId {
        match stage {
            Stage::Request => self.request_arrives(id),
            Stage::Answer => self.answer_arrives(id),
        }
    }

    fn request_arrives(&mut self, id: FlightId) -> HostId {
        self.wire.observe(id, Stage::Request, Direction::Inbound);
        let status = match self.wire.refusal(id) {
            Some(status) => status,
            None => self.deliver(id),
        };
        let flight = self.wire.flight(id);
        flight.outcome = Some(status);
        let responder = flight.responder;
        let is_unanswered = flight.header.operation.is_unanswered();
        self.wire.report("deliver", id);
        if is_unanswered {
            self.wire.finish(id);
            // A packet of a connection may make the responder send one.
            if self.host(responder).device.has_unsent() {
                self.drive(responder);
            }
        } else {
            let flight = self.wire.flight(id);
            (flight.lost, flight.twice) = (0, Duplicated::Nothing);
            self.wire.queue(id, Stage::Answer);
        }
        responder
    }

    /// Lets the responder's device serve a request.
    fn deliver(&mut self, id: FlightId) -> Status {
        let flight = self.wire.flight(id);
        let (responder, from, header) = (flight.responder, flight.from, flight.header);
        let twice = flight.twice;
        let mut data = std::mem::take(&mut flight.data);
        let host = self.host(responder);
        let mut dma = Dma {
            data: &mut data,
            memory: &mut host.memory,
        };
        let device = &mut host.device;
        let status = match twice {
            Duplicated::Completion => {
                device.duplicating(|device| device.deliver(from, &header, &mut dma))
            }
            Duplicated::Nothing | Duplicated::Packet => device.deliver(from, &header, &mut dma),
        };
        if twice == Duplicated::Packet {
            device.deliver(from, &header, &mut dma);
        }
        self.wire.flight(id).data = data;
        if twice == Duplicated::Packet {
            self.wire.observe(id, Stage::Request, Direction::Inbound);
        }
        status
    }

    fn answer_arrives(&mut self, id: FlightId) -> HostId {
        self.wire.observe(id, Stage::Answer, Direction::Inbound);
        let flight = self.wire.flight(id);
        let (initiator, token) = (flight.initiator, flight.token);
        let is_read = flight.header.operation == Operation::RdmaRead;
        let has_data = is_read && flight.outcome == Some(Status::Ok);
        if has_data && self.wire.initiator_lives(id) {
            let flight = self.wire.flight(id);
            let data = std::mem::take(&mut flight.data);
            let written = self.scatter(initiator, token, &data);
            let flight = self.wire.flight(id);
            flight.data = data;
            if !written {
                flight.outcome = Some(Status::LocalInvalidLkey);
            }
        }
        self.finish(id)
    }

    /// Writes the data of an RDMA read into the initiator's memory. Fails, and writes nothing, if
    /// that memory is no longer registered or the device has cancelled the request.
    fn scatter(&mut self, initiator: HostId, token: Token, data: &[u8]) -> bool {
        let host = self.host(initiator);
        let Some(segments) = host.device.local_memory(token) else {
            return false;
        };
        let mut rest = data;
        for segment in segments {
            let (now, later) = rest.split_at(rest.len().min(segment.length as usize));
            rest = later;
            match host.memory.bytes_mut(segment.address, now.len()) {
                Ok(target) => target.copy_from_slice(now),
                Err(_) => return false,
            }
        }
        true
    }

    /// Reports the outcome of a request to the initiator's device.
    fn finish(&mut self, id: FlightId) -> HostId {
        self.wire.report("complete", id);
        let flight = self.wire.flight(id);
        let (initiator, twice) = (flight.initiator, flight.twice);
        if let Some((host, token, status)) = self.wire.finish(id) {
            let now = self.wire.now;
            let device = &mut self.host(host).device;
            match twice {
                Duplicated::Completion => {
                    device.duplicating(|device| device.complete(now, token, status));
                }
                Duplicated::Nothing | Duplicated::Packet => device.complete(now, token, status),
            }
            self.drive(host);
        }
        initiator
    }

    fn complete(&mut self, host: HostId, token: Token, status: Status) {
        let now = self.wire.now;
        self.host(host).device.complete(now, token, status);
        self.drive(host);
    }
}
