//! Results of the methods of [`Sending`](super::Sending): actions for the caller, which posts,
//! releases and reports.

use crate::endpoint::api::completion::PacketError;
use crate::endpoint::api::error::Failure;
use crate::endpoint::api::reports::Report;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::memory::rdma::RdmaPart;
use crate::endpoint::memory::registration::OwnRegions;
use crate::endpoint::posting::AbandonedMessage;
use crate::wire::MsgId;

use super::sequence::Loss;
use super::stream::NextPacket;

/// The next packet or RDMA write of an operation.
#[expect(
    clippy::large_enum_variant,
    reason = "packets are the usual case, and it lives for one call"
)]
pub(crate) enum NextRequest {
    /// A packet. Data of the operation's source follows its header.
    Packet(NextPacket),
    /// An RDMA write, with immediate data.
    Write(RdmaPart, Option<u32>),
    /// An RDMA write of memory that is not registered, which is an error.
    Unregistered,
}

/// Whether an operation has something to post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PendingPost {
    /// No packet now.
    Nothing,
    /// A packet or RDMA write.
    Post,
    /// CTSDATA to this peer, whose handshake may have to arrive first.
    Data(PeerId),
}

/// The reason why a peer's packet has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RejectReason {
    /// The peer has no such operation, or the operation does not expect such a packet.
    NoOperation,
    /// The sizes contradict the operation.
    Sizes,
    /// The operation accepts no window now, or none of this operation of the peer.
    Window,
}

impl RejectReason {
    /// The error to report for a packet that names the operation `id`.
    pub(crate) fn error(self, id: u32) -> PacketError {
        match self {
            RejectReason::NoOperation => PacketError::StaleOperation { id },
            RejectReason::Sizes => PacketError::SizeMismatch,
            RejectReason::Window => PacketError::UnexpectedWindow { id },
        }
    }
}

/// Effects of an operation that ended.
pub(crate) struct EndedOperation {
    pub(crate) peer: PeerId,
    pub(crate) report: Option<Report>,
    /// Length of the data in bytes.
    pub(crate) length: u64,
    pub(crate) failure: Option<Failure>,
    /// The `msg_id` of a message or atomic that failed, and whether the peer may have some of it.
    pub(crate) lost: Option<(MsgId, Loss)>,
    /// The message to name in a PEER_ERROR, if one can be sent.
    pub(crate) abandoned: Option<AbandonedMessage>,
    pub(crate) resources: OperationResources,
}

/// Resources of an operation that must be released.
#[derive(Default)]
pub(crate) struct OperationResources {
    /// Registrations to end.
    pub(crate) own_regions: OwnRegions,
    /// The size in bytes of the runt to end in [`ReadBased`].
    pub(crate) runt: Option<u64>,
}
