//! Packets on their way to the device and back: posting, completions, receiver-not-ready.
//!
//! A packet that the device took is remembered until its completion, so that it can be posted again
//! when the receiver had no buffer. What could not be posted because a queue was full waits as
//! [`Work`], in order; what is for a peer in back-off waits with the peer. The waits are those of
//! stock libfabric: the first refusal of a packet is answered by posting it again at once, further
//! ones by waiting, each time twice as long, until a packet gets through.

use core::cmp::Reverse;
use core::time::Duration;

use crate::nic::{
    BufferId, LocalKey, Nic, NicError, RdmaRequest, RemoteKey, SendRequest, Status, UserSlice,
};
use crate::wire::{Eor, MsgId, PacketType, Receipt, RecvId, Repr, ReqOptions, SendId};

use super::Endpoint;
use super::completion::Event;
use super::error::{EndpointError, Errno, Failure, ProviderError};
use super::ids::{OutboundId, PacketId, PeerId, ReceiveId};
use super::peer::Backoff;

/// Something to do when the device has room again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// Send our HANDSHAKE.
    Handshake(PeerId),
    /// Post a packet again.
    Resend(PacketId),
    /// Send packets, or post RDMA writes, of an operation.
    Outbound(OutboundId),
    /// Send a CTS or READ_NACK, or post RDMA reads.
    Inbound(ReceiveId),
    /// Send RECEIPT.
    Receipt {
        peer: PeerId,
        send_id: SendId,
        msg_id: MsgId,
    },
    /// Send ATOMRSP.
    AtomicResponse(u32),
    /// Send EOR.
    Eor {
        peer: PeerId,
        send_id: SendId,
        recv_id: RecvId,
    },
}

/// A packet or RDMA request that the device has, or that waits to be posted again.
pub(super) struct InFlight {
    pub(super) peer: PeerId,
    owner: Owner,
    request: Request,
    /// The receiver was not ready, this many times.
    refusals: u32,
}

/// What was posted.
#[derive(Clone, Copy, Debug)]
enum Request {
    Packet(Outgoing),
    Rdma(RdmaPart, Rdma),
}

/// Which way an RDMA request moves data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rdma {
    Read,
    /// With immediate data.
    Write(Option<u32>),
}

/// The memory of one RDMA request.
#[derive(Clone, Copy, Debug)]
pub(super) struct RdmaPart {
    pub(super) local: UserSlice,
    pub(super) local_key: LocalKey,
    pub(super) remote_address: u64,
    pub(super) remote_key: RemoteKey,
}

/// The operation that a packet belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// Its end waits for the packet's completion.
    Outbound(OutboundId),
    /// It fails if the packet cannot be sent.
    Inbound(ReceiveId),
    /// None: a packet that the application does not know of.
    Nobody,
}

/// A packet in a buffer, ready to be posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    pub(super) packet_type: PacketType,
    pub(super) buffer: BufferId,
    pub(super) in_buffer: usize,
    pub(super) gathered: Option<(UserSlice, LocalKey)>,
}

/// What became of a piece of [`Work`].
enum Outcome {
    Done,
    /// There is more of it; others first.
    Again,
    /// The device has no room.
    Blocked,
}

/// Packets that one operation may post before others get their turn.
pub(super) const QUANTUM: usize = 32;

impl<N: Nic> Endpoint<N> {
    /// Takes a packet buffer and writes a header into it.
    #[inline]
    pub(super) fn start_packet(&mut self, header: &impl Repr) -> Result<Outgoing, EndpointError> {
        let buffer = self.nic.acquire_buffer().ok_or(EndpointError::TryAgain)?;
        match header.emit(self.nic.buffer_mut(buffer)) {
            Ok(length) => Ok(Outgoing {
                packet_type: header.packet_type(),
                buffer,
                in_buffer: length,
                gathered: None,
            }),
            Err(error) => {
                self.nic.release_buffer(buffer);
                Err(EndpointError::OutOfRange {
                    what: "header length",
                    value: error.needed as u64,
                    limit: error.available as u64,
                })
            }
        }
    }

    /// Posts a packet. If the device does not take it, the buffer goes back to the pool.
    #[inline]
    pub(super) fn post_packet(
        &mut self,
        peer: PeerId,
        owner: Owner,
        packet: Outgoing,
    ) -> Result<(), EndpointError> {
        self.post_new(peer, owner, Request::Packet(packet))
            .inspect_err(|_| self.nic.release_buffer(packet.buffer))
    }

    /// Posts an RDMA request.
    pub(super) fn post_rdma(
        &mut self,
        peer: PeerId,
        owner: Owner,
        part: RdmaPart,
        rdma: Rdma,
    ) -> Result<(), EndpointError> {
        self.post_new(peer, owner, Request::Rdma(part, rdma))
    }

    #[inline]
    fn post_new(
        &mut self,
        peer: PeerId,
        owner: Owner,
        request: Request,
    ) -> Result<(), EndpointError> {
        let in_flight = InFlight {
            peer,
            owner,
            request,
            refusals: 0,
        };
        let Ok(id) = self.packets.insert(in_flight) else {
            return Err(EndpointError::TryAgain);
        };
        self.post(id).inspect_err(|_| {
            self.packets.remove(id);
        })
    }

    /// Posts what is remembered under `id`.
    fn post(&mut self, id: PacketId) -> Result<(), EndpointError> {
        let Some(in_flight) = self.packets.get(id) else {
            return Ok(());
        };
        let destination = self
            .peers
            .destination(in_flight.peer)
            .ok_or(EndpointError::UnknownPeer(in_flight.peer))?;
        let context = u64::from(id.to_wire());
        let posted = match &in_flight.request {
            Request::Packet(packet) => self.nic.post_send(&SendRequest {
                destination,
                buffer: packet.buffer,
                header_length: packet.in_buffer,
                payload: packet.gathered,
                immediate: None,
                context,
            }),
            Request::Rdma(part, rdma) => {
                let mut request = RdmaRequest {
                    destination,
                    local: part.local,
                    local_key: part.local_key,
                    remote_address: part.remote_address,
                    remote_key: part.remote_key,
                    immediate: None,
                    context,
                };
                match rdma {
                    Rdma::Read => self.nic.post_read(&request),
                    Rdma::Write(immediate) => {
                        request.immediate = *immediate;
                        self.nic.post_write(&request)
                    }
                }
            }
        };
        match posted {
            Ok(()) => {
                self.statistics.packets_sent += 1;
                Ok(())
            }
            Err(NicError::QueueFull) => Err(EndpointError::TryAgain),
            Err(error) => Err(error.into()),
        }
    }

    /// The optional headers of a request to a peer: who we are, in the form that the peer needs
    /// (spec section 2.2; stock libfabric since 1.17).
    #[inline]
    pub(super) fn request_options(&self, peer: PeerId, cq_data: Option<u64>) -> ReqOptions {
        let identity = super::handshake::identity(self.peers.state(peer));
        let address = self.address;
        ReqOptions {
            raw_address: identity.raw_address_header(address),
            cq_data,
            connid: identity.connid(address),
            ..ReqOptions::default()
        }
    }

    /// Queues work and does it as soon as there is room. Packets that are to be posted again go
    /// first: they hold buffers that the others may be waiting for.
    pub(super) fn queue_work(&mut self, work: Work) {
        match work {
            Work::Resend(_) => self.resend.push_back(work),
            _ => self.ready.push_back(work),
        }
    }

    fn next_work(&mut self) -> Option<Work> {
        self.resend.pop_front().or_else(|| self.ready.pop_front())
    }

    fn take_back(&mut self, work: Work) {
        match work {
            Work::Resend(_) => self.resend.push_front(work),
            _ => self.ready.push_front(work),
        }
    }

    /// Does what waits, as far as the device has room.
    pub(super) fn do_ready_work(&mut self) {
        while let Some(work) = self.next_work() {
            if let Some(peer) = self.peer_of(work)
                && let Some(state) = self.peers.state(peer)
                && state.backoff.is_some()
            {
                if let Some(state) = self.peers.state_mut(peer) {
                    state.parked.push_back(work);
                    self.parked += 1;
                }
                continue;
            }
            match self.do_work(work) {
                Outcome::Done => {}
                Outcome::Again => self.queue_work(work),
                Outcome::Blocked => {
                    self.take_back(work);
                    return;
                }
            }
        }
    }

    fn peer_of(&self, work: Work) -> Option<PeerId> {
        match work {
            Work::Handshake(peer) | Work::Receipt { peer, .. } | Work::Eor { peer, .. } => {
                Some(peer)
            }
            Work::AtomicResponse(key) => self.atomic_response_peer(key),
            Work::Resend(id) => self.packets.get(id).map(|packet| packet.peer),
            Work::Outbound(id) => self.outbound.get(id).map(|outbound| outbound.peer),
            Work::Inbound(id) => match self.inbound.get(id) {
                Some(super::inbound::Inbound::Active(transfer)) => Some(transfer.peer),
                _ => None,
            },
        }
    }

    fn do_work(&mut self, work: Work) -> Outcome {
        let result = match work {
            Work::Handshake(peer) => self.send_handshake(peer),
            Work::Resend(id) => match self.post(id) {
                Ok(()) => Ok(()),
                Err(EndpointError::TryAgain) => Err(EndpointError::TryAgain),
                Err(error) => {
                    self.lose_packet(id, failure_of(&error));
                    Ok(())
                }
            },
            Work::Outbound(id) => match self.send_stream(id) {
                Ok(true) => return Outcome::Again,
                Ok(false) => Ok(()),
                Err(error) => Err(error),
            },
            Work::Inbound(id) => match self.serve_inbound(id) {
                Ok(true) => return Outcome::Again,
                Ok(false) => Ok(()),
                Err(error) => Err(error),
            },
            Work::AtomicResponse(key) => self.send_atomic_response(key),
            Work::Receipt {
                peer,
                send_id,
                msg_id,
            } => self.send_control(
                peer,
                &Receipt {
                    send_id,
                    msg_id,
                    connid: Some(self.address.qkey.into()),
                    ..Receipt::default()
                },
            ),
            Work::Eor {
                peer,
                send_id,
                recv_id,
            } => self.send_control(
                peer,
                &Eor {
                    send_id,
                    recv_id,
                    connid: Some(self.address.qkey.into()),
                    ..Eor::default()
                },
            ),
        };
        match result {
            Ok(()) => Outcome::Done,
            Err(EndpointError::TryAgain) => Outcome::Blocked,
            Err(_) => Outcome::Done,
        }
    }

    /// Sends a packet that belongs to no operation of the application.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`]; other errors are told as events.
    pub(super) fn send_control(
        &mut self,
        peer: PeerId,
        header: &impl Repr,
    ) -> Result<(), EndpointError> {
        let packet_type = header.packet_type();
        let sent = self
            .start_packet(header)
            .and_then(|packet| self.post_packet(peer, Owner::Nobody, packet));
        match sent {
            Ok(()) => Ok(()),
            Err(EndpointError::TryAgain) => Err(EndpointError::TryAgain),
            // The peer was removed: nobody waits for the packet.
            Err(EndpointError::UnknownPeer(_)) => Ok(()),
            Err(error) => {
                self.push_event(Event::ControlSendFailed {
                    peer,
                    packet_type: packet_type.code(),
                    failure: failure_of(&error),
                });
                Ok(())
            }
        }
    }

    /// The device is done with a packet or an RDMA request.
    #[inline]
    pub(super) fn on_done(&mut self, context: u64, status: Status) {
        let id = PacketId::from_wire(context as u32);
        if status == Status::RemoteRnr {
            return self.on_receiver_not_ready(id);
        }
        // A completion that comes twice finds nothing.
        let Some(done) = self.packets.remove(id) else {
            self.statistics.stray_completions += 1;
            return;
        };
        if status != Status::Ok {
            let failure = self.refine(done.peer, status);
            return self.on_lost(&done, failure);
        }
        if self.waiting_peers > 0 {
            self.end_backoff_series(done.peer);
        }
        match done.request {
            Request::Packet(packet) => self.recycle(packet.buffer),
            Request::Rdma(part, Rdma::Read) => {
                if let Owner::Inbound(id) = done.owner {
                    self.on_read_done(id, part.local.length as u64, None);
                }
            }
            Request::Rdma(_, Rdma::Write(_)) => {}
        }
        if let Owner::Outbound(id) = done.owner
            && let Some(outbound) = self.outbound.get_mut(id)
        {
            outbound.outstanding -= 1;
            self.finish_outbound(id);
        }
    }

    /// Gives up a packet that waited to be posted again.
    fn lose_packet(&mut self, id: PacketId, failure: Failure) {
        if let Some(lost) = self.packets.remove(id) {
            self.on_lost(&lost, failure);
        }
    }

    fn on_lost(&mut self, lost: &InFlight, failure: Failure) {
        let packet_type = match lost.request {
            Request::Packet(packet) => {
                self.recycle(packet.buffer);
                Some(packet.packet_type)
            }
            Request::Rdma(..) => None,
        };
        match (lost.owner, packet_type) {
            (Owner::Outbound(id), _) => {
                if let Some(outbound) = self.outbound.get_mut(id) {
                    outbound.outstanding -= 1;
                    self.fail_outbound(id, failure);
                }
            }
            (Owner::Inbound(id), None) => self.on_read_done(id, 0, Some(failure)),
            (Owner::Inbound(id), Some(_)) => self.fail_inbound(id, failure),
            (Owner::Nobody, _) if is_peer_gone(failure) => {
                // Normal at the end of a program: the peer closed its endpoint without waiting for
                // what the application does not know of (spec section 2.3).
                self.statistics.control_packets_lost += 1;
            }
            (Owner::Nobody, packet_type) => self.push_event(Event::ControlSendFailed {
                peer: lost.peer,
                packet_type: packet_type.map_or(0, PacketType::code),
                failure,
            }),
        }
    }

    /// Says whether a peer that does not respond ever did, as stock libfabric does.
    fn refine(&self, peer: PeerId, status: Status) -> Failure {
        let mut failure = Failure::from(status);
        if status == Status::LocalUnresponsiveRemote {
            let known = self
                .peers
                .state(peer)
                .is_some_and(|state| state.features.is_some());
            failure.provider = if known {
                ProviderError::EstablishedUnresponsive
            } else {
                ProviderError::UnestablishedUnresponsive
            };
        }
        failure
    }

    fn on_receiver_not_ready(&mut self, id: PacketId) {
        self.statistics.receiver_not_ready += 1;
        let Some(packet) = self.packets.get_mut(id) else {
            self.statistics.stray_completions += 1;
            return;
        };
        packet.refusals += 1;
        let (peer, first) = (packet.peer, packet.refusals == 1);
        let Some(state) = self.peers.state_mut(peer) else {
            return self.lose_packet(id, Failure::new(Errno::ECANCELED, ProviderError::RemoteRnr));
        };
        let work = Work::Resend(id);
        if state.backoff.is_some() {
            state.parked.push_back(work);
            self.parked += 1;
        } else if first {
            self.resend.push_back(work);
        } else {
            let (shortest, longest) = self.config.backoff_first_micros;
            let wait = if state.last_wait.is_zero() {
                self.waiting_peers += 1;
                let spread = u64::from(longest.saturating_sub(shortest)) + 1;
                let micros = u64::from(shortest) + self.random.next() % spread;
                Duration::from_micros(micros)
            } else {
                state.last_wait.saturating_mul(2)
            };
            let wait = wait
                .max(Duration::from_nanos(1))
                .min(self.config.backoff_max);
            let until = self.now + wait;
            state.last_wait = wait;
            state.backoff = Some(Backoff { until });
            state.parked.push_back(work);
            self.parked += 1;
            self.timers.push(Reverse((until, peer)));
        }
    }

    fn end_backoff_series(&mut self, peer: PeerId) {
        if let Some(state) = self.peers.state_mut(peer)
            && !state.last_wait.is_zero()
            && state.backoff.is_none()
        {
            state.last_wait = Duration::ZERO;
            self.waiting_peers -= 1;
        }
    }

    /// Ends the waits whose time has come.
    pub(super) fn end_backoffs(&mut self) {
        while let Some(Reverse((until, peer))) = self.timers.peek().copied()
            && until <= self.now
        {
            self.timers.pop();
            if let Some(state) = self.peers.state_mut(peer)
                && state.backoff == Some(Backoff { until })
            {
                state.backoff = None;
                let mut parked = core::mem::take(&mut state.parked);
                self.parked -= parked.len();
                for work in parked.drain(..) {
                    self.queue_work(work);
                }
                // Its memory serves the next wait.
                if let Some(state) = self.peers.state_mut(peer) {
                    state.parked = parked;
                }
            }
        }
    }

    /// Gives a buffer back: to the receive queue if that lacks one, else to the pool. Buffers of
    /// packets that wait count as those of the receive queue, so that they never eat into those
    /// for sending.
    #[inline]
    pub(super) fn recycle(&mut self, buffer: BufferId) {
        let receiving = self.posted_receives + self.to_post.len() + self.held.in_buffers();
        if receiving < self.wanted_receives {
            self.to_post.push(buffer);
        } else {
            self.nic.release_buffer(buffer);
        }
    }

    /// Posts receive buffers.
    pub(super) fn post_receives(&mut self) {
        while let Some(buffer) = self.to_post.pop() {
            match self.nic.post_recv(buffer) {
                Ok(()) => self.posted_receives += 1,
                Err(NicError::QueueFull) => {
                    self.to_post.push(buffer);
                    return;
                }
                Err(error) => {
                    self.nic.release_buffer(buffer);
                    self.wanted_receives -= 1;
                    self.push_event(Event::ReceivePostFailed(error));
                }
            }
        }
    }
}

/// How an error of a post is reported when there is no call left to return it from.
pub(super) fn failure_of(error: &EndpointError) -> Failure {
    Failure::new(error.errno(), ProviderError::PacketPost)
}

/// Whether a failure says that the peer's endpoint does not exist any more, or our own is closing.
fn is_peer_gone(failure: Failure) -> bool {
    matches!(
        failure.errno,
        Errno::ENOTCONN | Errno::ECONNABORTED | Errno::EHOSTUNREACH | Errno::ECANCELED
    )
}
