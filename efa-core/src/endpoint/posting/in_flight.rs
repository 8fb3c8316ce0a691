//! Packets and RDMA requests on their way to the device and back.
//!
//! What the device took is remembered until its completion, so that it can be posted again when the
//! receiver had no buffer, and so that its operation learns of its end.

use crate::address::{Qkey, Qpn};
use crate::nic::{
    BufferId, Destination, LocalKey, Nic, NicError, RdmaRequest, RemoteKey, SendRequest, Status,
    UserSlice,
};
use crate::wire::{PacketType, Repr, ReqOptions};

use crate::endpoint::Endpoint;
use crate::endpoint::api::completion::Event;
use crate::endpoint::api::error::{EndpointError, Errno, Failure, ProviderError};
use crate::endpoint::base::ids::{OutboundId, PacketId, PeerId, ReceiveId};
use crate::endpoint::conversation::PeerState;
use crate::endpoint::sending::outbound::OnePacket;

/// A packet or RDMA request that the device has, or that waits to be posted again.
pub(crate) struct InFlight {
    pub(crate) peer: PeerId,
    owner: Owner,
    request: Request,
    /// The receiver was not ready, this many times.
    pub(crate) refusals: u32,
}

/// What was posted.
#[derive(Debug)]
enum Request {
    Packet(Outgoing),
    /// A packet that waits outside of its buffer, which others need.
    Stored(Box<Stored>),
    Rdma(RdmaPart, Rdma),
}

/// A packet and the bytes that were in its buffer.
#[derive(Debug)]
struct Stored {
    packet: Outgoing,
    bytes: Box<[u8]>,
}

/// Which way an RDMA request moves data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rdma {
    Read,
    /// With immediate data.
    Write(Option<u32>),
}

/// The memory of one RDMA request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RdmaPart {
    pub(crate) local: UserSlice,
    pub(crate) local_key: LocalKey,
    pub(crate) remote_address: u64,
    pub(crate) remote_key: RemoteKey,
}

/// The operation that a packet belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// The packet is all of it.
    Whole(OnePacket),
    /// Its end waits for the packet's completion.
    Outbound(OutboundId),
    /// It fails if the packet cannot be sent.
    Inbound(ReceiveId),
    /// None: a packet that the application does not know of.
    Nobody,
    /// None, but operations wait for the peer's answer to it.
    Provocation,
}

/// A packet in a buffer, ready to be posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) packet_type: PacketType,
    pub(crate) buffer: BufferId,
    pub(crate) in_buffer: usize,
    pub(crate) gathered: Option<(UserSlice, LocalKey)>,
    pub(crate) headerless: Option<Headerless>,
}

/// A packet without a header, for a queue pair of the peer that takes only such.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headerless {
    pub(crate) qpn: Qpn,
    pub(crate) qkey: Qkey,
    /// Takes the place of the CQ data header.
    pub(crate) immediate: Option<u32>,
}

impl<N: Nic> Endpoint<N> {
    /// Takes a packet buffer and writes a header into it.
    #[inline]
    pub(crate) fn start_packet(&mut self, header: &impl Repr) -> Result<Outgoing, EndpointError> {
        let buffer = self.nic.acquire_buffer().ok_or(EndpointError::TryAgain)?;
        match header.emit(self.nic.buffer_mut(buffer)) {
            Ok(length) => Ok(Outgoing {
                packet_type: header.packet_type(),
                buffer,
                in_buffer: length,
                gathered: None,
                headerless: None,
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
    pub(crate) fn post_packet(
        &mut self,
        peer: PeerId,
        owner: Owner,
        packet: Outgoing,
    ) -> Result<(), EndpointError> {
        self.post_new(peer, owner, Request::Packet(packet))
            .inspect_err(|_| self.nic.release_buffer(packet.buffer))
    }

    /// Posts an RDMA request.
    pub(crate) fn post_rdma(
        &mut self,
        peer: PeerId,
        owner: Owner,
        part: RdmaPart,
        rdma: Rdma,
    ) -> Result<(), EndpointError> {
        self.post_new(peer, owner, Request::Rdma(part, rdma))
    }

    #[inline(always)]
    fn post_new(
        &mut self,
        peer: PeerId,
        owner: Owner,
        request: Request,
    ) -> Result<(), EndpointError> {
        let destination = self
            .peers
            .destination(peer)
            .ok_or(EndpointError::UnknownPeer(peer))?;
        let Some(id) = self.packets.next_id() else {
            return Err(EndpointError::TryAgain);
        };
        hand_over(&mut self.nic, destination, &request, id)?;
        self.statistics.packets_sent += 1;
        if let Owner::Whole(_) = owner {
            // It counts as an operation.
            self.outbound.narrow();
        }
        let in_flight = InFlight {
            peer,
            owner,
            request,
            refusals: 0,
        };
        let stored = self.packets.insert(in_flight);
        debug_assert!(stored.is_ok_and(|stored| stored == id));
        Ok(())
    }

    /// Moves a packet that waits for its peer out of its buffer, so that one peer that is not ready
    /// does not take the buffers of all others.
    pub(crate) fn store(&mut self, id: PacketId) {
        let Some(InFlight { request, .. }) = self.packets.get_mut(id) else {
            return;
        };
        if let Request::Packet(packet) = *request {
            let bytes = &self.nic.buffer(packet.buffer)[..packet.in_buffer];
            let bytes = bytes.into();
            *request = Request::Stored(Box::new(Stored { packet, bytes }));
            self.recycle(packet.buffer);
        }
    }

    /// Whether a packet that waits is in a buffer.
    pub(crate) fn is_in_buffer(&self, id: PacketId) -> bool {
        let in_flight = self.packets.get(id);
        in_flight.is_some_and(|in_flight| matches!(in_flight.request, Request::Packet(_)))
    }

    /// Whether a packet that waits has to be brought back into a buffer.
    pub(crate) fn is_stored(&self, id: PacketId) -> bool {
        let in_flight = self.packets.get(id);
        in_flight.is_some_and(|in_flight| matches!(in_flight.request, Request::Stored(_)))
    }

    /// Brings a packet back into a buffer, if it is not in one.
    fn restore(&mut self, id: PacketId) -> Result<(), EndpointError> {
        let Some(InFlight { request, .. }) = self.packets.get_mut(id) else {
            return Ok(());
        };
        if let Request::Stored(stored) = request {
            let buffer = self.nic.acquire_buffer().ok_or(EndpointError::TryAgain)?;
            self.nic.buffer_mut(buffer)[..stored.bytes.len()].copy_from_slice(&stored.bytes);
            *request = Request::Packet(Outgoing {
                buffer,
                ..stored.packet
            });
        }
        Ok(())
    }

    /// Posts what is remembered under `id`, again.
    pub(crate) fn post(&mut self, id: PacketId) -> Result<(), EndpointError> {
        let Some(InFlight { peer, .. }) = self.packets.get(id) else {
            return Ok(());
        };
        let destination = self
            .peers
            .destination(*peer)
            .ok_or(EndpointError::UnknownPeer(*peer))?;
        self.restore(id)?;
        let Some(in_flight) = self.packets.get(id) else {
            return Ok(());
        };
        hand_over(&mut self.nic, destination, &in_flight.request, id)?;
        self.statistics.packets_sent += 1;
        Ok(())
    }

    /// The optional headers of a request to a peer: who we are, in the form that the peer needs
    /// (spec section 2.2; stock libfabric since 1.17).
    #[inline]
    pub(crate) fn request_options(&self, peer: PeerId, cq_data: Option<u64>) -> ReqOptions {
        self.options_for(self.peers.state(peer), cq_data)
    }

    /// As [`Endpoint::request_options`], for a peer in this state.
    #[inline]
    pub(crate) fn options_for(
        &self,
        state: Option<&PeerState>,
        cq_data: Option<u64>,
    ) -> ReqOptions {
        let identity = crate::endpoint::subprotocols::handshake::identity(state);
        let address = self.address;
        ReqOptions {
            raw_address: identity.raw_address_header(address),
            cq_data,
            connid: identity.connid(address),
            ..ReqOptions::default()
        }
    }

    /// The device is done with a packet or an RDMA request.
    #[inline]
    pub(crate) fn on_done(&mut self, context: u64, status: Status) {
        let id = PacketId::from_wire(context as u32);
        if status == Status::RemoteRnr {
            return self.on_receiver_not_ready(id);
        }
        if status != Status::Ok {
            return self.on_undelivered(id, status);
        }
        // A completion that comes twice finds nothing.
        let Some(done) = self.take_packet(id) else {
            self.statistics.stray_completions += 1;
            return;
        };
        if self.waiting_peers > 0 {
            self.end_backoff_series(done.peer);
        }
        let mut read = None;
        match done.request {
            Request::Packet(packet) => self.recycle(packet.buffer),
            Request::Rdma(part, Rdma::Read) => read = Some(part.local.length as u64),
            Request::Stored(_) | Request::Rdma(_, Rdma::Write(_)) => {}
        }
        match done.owner {
            Owner::Whole(operation) => self.end_one_packet(done.peer, &operation),
            Owner::Outbound(id) => {
                if let Some(outbound) = self.outbound.get_mut(id) {
                    outbound.outstanding -= 1;
                    self.finish_outbound(id);
                }
            }
            Owner::Inbound(id) => {
                if let Some(length) = read {
                    self.on_read_done(id, length, None);
                }
            }
            Owner::Nobody | Owner::Provocation => {}
        }
    }

    /// The device could not deliver a packet or carry out an RDMA request.
    #[cold]
    fn on_undelivered(&mut self, id: PacketId, status: Status) {
        match self.packets.get(id) {
            Some(refused) => {
                let failure = self.refine(refused.peer, status);
                self.lose_packet(id, failure);
            }
            None => self.statistics.stray_completions += 1,
        }
    }

    /// Forgets a packet or RDMA request.
    #[inline]
    fn take_packet(&mut self, id: PacketId) -> Option<InFlight> {
        let taken = self.packets.remove(id)?;
        if let Owner::Whole(_) = taken.owner {
            self.outbound.widen();
        }
        Some(taken)
    }

    /// Operations of one packet.
    pub(crate) fn one_packet_operations(&self) -> usize {
        let is_whole = |in_flight: &InFlight| matches!(in_flight.owner, Owner::Whole(_));
        self.packets
            .iter()
            .filter(|(_, packet)| is_whole(packet))
            .count()
    }

    /// Notes that the operations of one packet with a peer failed; they end when the device is done
    /// with their memory.
    pub(crate) fn fail_one_packet_operations(&mut self, peer: PeerId, failure: Failure) {
        for in_flight in self.packets.iter_mut() {
            if let Owner::Whole(operation) = &mut in_flight.owner
                && in_flight.peer == peer
            {
                operation.failure.get_or_insert(failure);
            }
        }
    }

    /// Gives up a packet that the device lost, or that waited to be posted again.
    pub(crate) fn lose_packet(&mut self, id: PacketId, failure: Failure) {
        if let Some(lost) = self.take_packet(id) {
            self.on_lost(&lost, failure);
        }
    }

    fn on_lost(&mut self, lost: &InFlight, failure: Failure) {
        let packet_type = match &lost.request {
            Request::Packet(packet) => {
                self.recycle(packet.buffer);
                Some(packet.packet_type)
            }
            Request::Stored(stored) => Some(stored.packet.packet_type),
            Request::Rdma(..) => None,
        };
        if is_peer_gone(failure)
            && let Some(state) = self.peers.state_mut(lost.peer)
            && state.features.is_none()
        {
            // Nothing that was sent will be answered by a handshake: the next one is asked for anew.
            state.request_sent = false;
        }
        match (lost.owner, packet_type) {
            (Owner::Whole(mut operation), _) => {
                operation.failure.get_or_insert(failure);
                self.end_one_packet(lost.peer, &operation);
            }
            (Owner::Outbound(id), _) => {
                if let Some(outbound) = self.outbound.get_mut(id) {
                    outbound.outstanding -= 1;
                    self.fail_outbound(id, failure);
                }
            }
            (Owner::Inbound(id), None) => self.on_read_done(id, 0, Some(failure)),
            (Owner::Inbound(id), Some(_)) => self.fail_inbound(id, failure),
            (Owner::Provocation, _) => self.on_provocation_lost(lost.peer, failure),
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
}

/// Hands a request to the device.
#[inline(always)]
fn hand_over<N: Nic>(
    nic: &mut N,
    destination: Destination,
    request: &Request,
    id: PacketId,
) -> Result<(), EndpointError> {
    let context = u64::from(id.to_wire());
    let posted = match request {
        Request::Packet(packet) => {
            let (destination, immediate) = match packet.headerless {
                None => (destination, None),
                Some(Headerless {
                    qpn,
                    qkey,
                    immediate,
                }) => {
                    let ahn = destination.ahn;
                    (Destination { ahn, qpn, qkey }, immediate)
                }
            };
            nic.post_send(&SendRequest {
                destination,
                buffer: packet.buffer,
                header_length: packet.in_buffer,
                payload: packet.gathered,
                immediate,
                context,
            })
        }
        // It has no buffer to be posted from.
        Request::Stored(_) => Err(NicError::QueueFull),
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
                Rdma::Read => nic.post_read(&request),
                Rdma::Write(immediate) => {
                    request.immediate = *immediate;
                    nic.post_write(&request)
                }
            }
        }
    };
    match posted {
        Ok(()) => Ok(()),
        Err(NicError::QueueFull) => Err(EndpointError::TryAgain),
        Err(error) => Err(error.into()),
    }
}

/// How an error of a post is reported when there is no call left to return it from.
pub(crate) fn failure_of(error: &EndpointError) -> Failure {
    Failure::new(error.errno(), ProviderError::PacketPost)
}

/// Whether a failure says that the peer's endpoint does not exist any more, or our own is closing.
fn is_peer_gone(failure: Failure) -> bool {
    matches!(
        failure.errno,
        Errno::ENOTCONN | Errno::ECONNABORTED | Errno::EHOSTUNREACH | Errno::ECANCELED
    )
}
