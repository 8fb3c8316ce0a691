//! Requests in flight. A request is remembered until its completion, to post it again if the
//! receiver had no buffer, and to notify its operation.

use core::fmt;

use crate::address::{Qkey, Qpn};
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::reports::Report;
use crate::endpoint::base::ids::{InboundId, OutboundId, PacketId, PeerId};
use crate::endpoint::memory::rdma::RdmaPart;
use crate::nic::{
    BufferId, Destination, Doorbell, LocalKey, Nic, NicError, RdmaRequest, SendRequest, UserSlice,
};
use crate::wire::{MsgId, PacketType};

/// A packet or RDMA request that the device has, or that waits to be posted again.
pub(crate) struct InFlight {
    pub(crate) peer: PeerId,
    pub(crate) owner: PacketOwner,
    pub(crate) request: PostedRequest,
    /// The number of receiver-not-ready errors.
    pub(super) rnr_count: u32,
    /// The number of retries after other losses.
    pub(super) retries: u8,
}

/// A packet or RDMA request that was posted.
#[derive(Debug)]
pub(crate) enum PostedRequest {
    Packet(Outgoing),
    /// A packet that waits outside of a packet buffer, because others need the buffer.
    Copied(Box<CopiedPacket>),
    Rdma(RdmaPart, Rdma),
}

/// A packet, and the bytes of its buffer.
#[derive(Debug)]
pub(crate) struct CopiedPacket {
    pub(super) packet: Outgoing,
    pub(super) bytes: Box<[u8]>,
}

/// The direction in which an RDMA request transfers data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rdma {
    Read,
    /// A write, with immediate data if `Some`.
    Write(Option<u32>),
}

/// The operation that a packet belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PacketOwner {
    /// The packet is the whole operation.
    OnePacket(OnePacket),
    /// A sending operation, which ends after the packet's completion.
    Outbound(OutboundId),
    /// A transfer, which fails if the packet cannot be sent.
    Inbound(InboundId),
    /// No operation: the application is not aware of the packet.
    Control,
    /// No operation, but operations wait for the peer's HANDSHAKE, which is its answer to the
    /// packet.
    Provocation,
}

/// An operation of one packet, which ends when the device reports the packet's arrival. No other
/// state of it is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OnePacket {
    pub(crate) report: Report,
    /// Length of the data in bytes.
    pub(crate) length: u64,
}

/// A packet in a buffer, ready to be posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) packet_type: PacketType,
    pub(crate) buffer: BufferId,
    pub(crate) in_buffer: usize,
    pub(crate) gathered: Option<(UserSlice, LocalKey)>,
    pub(crate) headerless: Option<Headerless>,
    /// The id of the message or atomic that the packet begins.
    pub(crate) sequenced: Option<MsgId>,
}

/// A packet without a header, for a queue pair of the peer that accepts only such packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headerless {
    pub(crate) qpn: Qpn,
    pub(crate) qkey: Qkey,
    /// Remote CQ data, in place of the CQ data header.
    pub(crate) immediate: Option<u32>,
}

/// A packet or RDMA request that is complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletedRequest {
    pub(crate) peer: PeerId,
    pub(crate) owner: PacketOwner,
    pub(crate) what: FinishedRequest,
    /// The id of the message or atomic that the packet began.
    pub(crate) sequenced: Option<MsgId>,
}

/// The kind of request that is complete.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FinishedRequest {
    /// A packet, and its buffer if it was in one.
    Packet(PacketType, Option<BufferId>),
    /// An RDMA read of this many bytes.
    Read(u64),
    /// An RDMA write.
    Write,
}

impl fmt::Display for FinishedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FinishedRequest::Packet(packet_type, _) => packet_type.fmt(f),
            FinishedRequest::Read(_) => f.write_str("RDMA read"),
            FinishedRequest::Write => f.write_str("RDMA write"),
        }
    }
}

impl InFlight {
    /// The values that are needed after the end.
    #[inline(always)]
    pub(super) fn finished(&self) -> CompletedRequest {
        CompletedRequest {
            peer: self.peer,
            owner: self.owner,
            what: match &self.request {
                PostedRequest::Packet(packet) => {
                    FinishedRequest::Packet(packet.packet_type, Some(packet.buffer))
                }
                PostedRequest::Copied(stored) => {
                    FinishedRequest::Packet(stored.packet.packet_type, None)
                }
                PostedRequest::Rdma(part, Rdma::Read) => {
                    FinishedRequest::Read(part.local.length as u64)
                }
                PostedRequest::Rdma(_, Rdma::Write(_)) => FinishedRequest::Write,
            },
            sequenced: match &self.request {
                PostedRequest::Packet(packet) => packet.sequenced,
                PostedRequest::Copied(stored) => stored.packet.sequenced,
                PostedRequest::Rdma(..) => None,
            },
        }
    }

    /// Its packet buffer, if it is in one.
    pub(crate) fn buffer(&self) -> Option<BufferId> {
        match &self.request {
            PostedRequest::Packet(packet) => Some(packet.buffer),
            PostedRequest::Copied(_) | PostedRequest::Rdma(..) => None,
        }
    }
}

/// Hands a request to the device.
#[inline(always)]
pub(super) fn hand_over<N: Nic>(
    nic: &mut N,
    destination: Destination,
    request: &PostedRequest,
    id: PacketId,
    doorbell: Doorbell,
) -> Result<(), EndpointError> {
    let context = u64::from(id.to_wire());
    let posted = match request {
        PostedRequest::Packet(packet) => {
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
            let request = SendRequest {
                destination,
                buffer: packet.buffer,
                header_length: packet.in_buffer,
                payload: packet.gathered,
                immediate,
                context,
            };
            nic.post_send(&request, doorbell)
        }
        // The packet has no buffer, so it cannot be posted again.
        PostedRequest::Copied(_) => Err(NicError::QueueFull),
        PostedRequest::Rdma(part, rdma) => {
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
                Rdma::Read => nic.post_read(&request, doorbell),
                Rdma::Write(immediate) => {
                    request.immediate = *immediate;
                    nic.post_write(&request, doorbell)
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
