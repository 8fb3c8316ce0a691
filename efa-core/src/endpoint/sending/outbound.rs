//! Operations in which this endpoint is the source of the data: sends and writes of its
//! application, and emulated reads of peers.

use crate::endpoint::api::completion::CompletionFlags;
use crate::endpoint::api::error::Failure;
use crate::endpoint::api::reports::Report;
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::by_peer::PeerLinks;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::memory::iov::Iov;
use crate::endpoint::memory::registration::OwnRegions;
use crate::endpoint::posting::AbandonedMessage;

use super::sequence::Loss;
use super::stream::Stream;
use crate::wire::{MsgId, OpeType, PeerError};

/// One operation.
pub(crate) struct Outbound {
    pub(crate) peer: PeerId,
    /// How the end is reported to the application. `None` if it is not: the operation is a peer's.
    pub(crate) report: Option<Report>,
    /// Length of the data in bytes.
    pub(crate) length: u64,
    /// The packet of the peer that ends the operation.
    pub(crate) awaited: AwaitedPacket,
    /// The number of packets and RDMA requests that the device has.
    pub(crate) outstanding: u32,
    pub(crate) failure: Option<Failure>,
    /// The id of a message or atomic.
    pub(super) msg_id: Option<MsgId>,
    /// Whether the first packet was posted.
    pub(super) request_posted: bool,
    /// Whether the peer may have some of it.
    pub(super) reached: Loss,
    /// Whether the peer has abandoned it.
    pub(super) peer_aborted: bool,
    /// The state of an operation that needs more than one packet.
    pub(super) bulk: Option<BulkKey>,
    /// Its links among the operations with the same peer.
    pub(super) links: PeerLinks,
}

/// Names a [`Bulk`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BulkKey(pub(super) u32);

/// The data of an operation that needs more than one packet, and its progress.
pub(crate) struct Bulk {
    pub(crate) source: Iov,
    /// Bytes that this side transfers, in packets or by RDMA writes. The peer reads the rest.
    pub(crate) to_move: u64,
    /// Bytes moved so far, from the start.
    pub(crate) moved: u64,
    /// Bytes that may be moved now, beyond those moved.
    pub(crate) allowed: u64,
    /// The type of the next packet.
    pub(crate) stream: Stream,
    /// The protocol under which copies are counted.
    pub(crate) protocol: Protocol,
    /// Whether it is in the work queue.
    pub(crate) queued: bool,
    /// Registrations made for the operation.
    pub(crate) own_regions: OwnRegions,
    /// The bytes in packets, if the peer reads the rest; see [`ReadBased`](super::ReadBased).
    pub(crate) runt: Option<u64>,
}

/// The packet of the peer that ends an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AwaitedPacket {
    Nothing,
    /// RECEIPT: the receiver has the data in its buffer.
    Receipt,
    /// EOR: the peer has read the data.
    Eor,
}

impl AwaitedPacket {
    /// The packet that ends an operation whose data travels in packets.
    pub(crate) fn for_packets(delivery_complete: bool) -> Self {
        if delivery_complete {
            AwaitedPacket::Receipt
        } else {
            AwaitedPacket::Nothing
        }
    }
}

impl Outbound {
    /// Makes an operation of the application that is one packet, and waits for `awaited` after it.
    pub(crate) fn one_packet(
        peer: PeerId,
        msg_id: Option<MsgId>,
        report: Report,
        length: u64,
        awaited: AwaitedPacket,
    ) -> Self {
        Outbound {
            peer,
            report: Some(report),
            length,
            awaited,
            outstanding: 1,
            failure: None,
            msg_id,
            request_posted: true,
            reached: Loss::NotDelivered,
            peer_aborted: false,
            bulk: None,
            links: PeerLinks::NONE,
        }
    }

    /// The id of a message: not of an atomic, nor of an operation of a peer.
    pub(super) fn message(&self) -> Option<MsgId> {
        let report = self.report.as_ref()?;
        self.msg_id
            .filter(|_| report.flags.contains(CompletionFlags::SEND))
    }

    /// The message to report to the peer if the operation fails, because the peer would otherwise
    /// wait forever.
    pub(super) fn abandoned(&self, bulk: Option<&Bulk>) -> Option<AbandonedMessage> {
        let msg_id = self.message()?;
        // If the peer has received no part of the message, the message id is reused.
        if self.reached == Loss::NotDelivered {
            return None;
        }
        let op_id = match bulk.map(|bulk| bulk.stream) {
            Some(Stream::CtsData(Some(recv_id))) => recv_id.0,
            _ => PeerError::NO_OP,
        };
        let side = OpeType::TXE;
        Some(AbandonedMessage {
            msg_id,
            op_id,
            side,
        })
    }
}

impl Bulk {
    /// Makes data that may be moved without waiting for the peer.
    pub(crate) fn new(source: Iov, length: u64, stream: Stream) -> Self {
        Bulk {
            source,
            to_move: length,
            moved: 0,
            allowed: length,
            protocol: stream.protocol(),
            stream,
            queued: false,
            own_regions: None,
            runt: None,
        }
    }

    /// Returns whether there is something to post now.
    pub(crate) fn has_work(&self) -> bool {
        self.moved < self.allowed || self.stream.is_request()
    }

    /// Returns whether this side has moved all its data.
    pub(super) fn is_moved(&self) -> bool {
        self.moved == self.to_move && !self.stream.is_request()
    }
}
