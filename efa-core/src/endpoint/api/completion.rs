//! Reports to the application: completions of its operations, and events that belong to no
//! operation.

use core::fmt;

use crate::address::RawAddress;
use crate::nic::{NicError, Status};
use crate::wire::{PacketType, ParseError};

use crate::endpoint::api::error::Failure;
use crate::endpoint::base::ids::PeerId;

bitflags::bitflags! {
    /// Kinds of completed operations, in libfabric's bit numbers.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct CompletionFlags: u64 {
        /// An untagged message.
        const MSG = 1 << 1;
        /// A read or write of remote memory.
        const RMA = 1 << 2;
        /// A tagged message.
        const TAGGED = 1 << 3;
        /// An atomic operation.
        const ATOMIC = 1 << 4;
        /// The local side read remote memory.
        const READ = 1 << 8;
        /// The local side wrote remote memory.
        const WRITE = 1 << 9;
        /// A receive.
        const RECV = 1 << 10;
        /// A send.
        const SEND = 1 << 11;
        /// A peer read local memory.
        const REMOTE_READ = 1 << 12;
        /// A peer wrote local memory.
        const REMOTE_WRITE = 1 << 13;
        /// The multi-receive buffer accepts no more messages, and all its messages are complete.
        /// The application may reuse it.
        const MULTI_RECV = 1 << 16;
        /// `data` is meaningful.
        const REMOTE_CQ_DATA = 1 << 17;
    }
}

/// A successful operation (`fi_cq_tagged_entry` and the source).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompletionEntry {
    /// The operation's context; 0 for a peer's write with CQ data.
    pub context: u64,
    /// Kind of the completed operation.
    pub flags: CompletionFlags,
    /// Bytes received (receives and peers' writes), or bytes of the operation.
    pub length: u64,
    /// The sender's CQ data, with [`CompletionFlags::REMOTE_CQ_DATA`]; otherwise 0.
    pub data: u64,
    /// The tag of a tagged receive; otherwise 0.
    pub tag: u64,
    /// The sender or writer (receives and peers' writes only).
    pub source: Option<PeerId>,
    /// Address of the message in the buffer (multi-receive); otherwise 0.
    pub buffer: u64,
}

/// A failed operation (`fi_cq_err_entry` and the source).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ErrorEntry {
    /// The operation's context.
    pub context: u64,
    /// Kind of the failed operation.
    pub flags: CompletionFlags,
    /// Bytes that were placed in the buffer (truncated receives); otherwise 0.
    pub length: u64,
    /// Bytes that did not fit (truncated receives); otherwise 0.
    pub overflow_length: u64,
    /// The sender's CQ data, with [`CompletionFlags::REMOTE_CQ_DATA`]; otherwise 0.
    pub data: u64,
    /// The tag of a tagged receive; otherwise 0.
    pub tag: u64,
    /// The sender or writer, if a message was received; otherwise the peer of the operation.
    pub source: Option<PeerId>,
    /// The cause.
    pub failure: Failure,
}

impl ErrorEntry {
    /// The failure of an operation without data: `length`, `overflow_length`, `data` and `tag` are
    /// 0.
    pub const fn without_data(
        context: u64,
        flags: CompletionFlags,
        source: Option<PeerId>,
        failure: Failure,
    ) -> Self {
        Self {
            context,
            flags,
            length: 0,
            overflow_length: 0,
            data: 0,
            tag: 0,
            source,
            failure,
        }
    }
}

impl fmt::Display for ErrorEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operation {}: {}", self.context, self.failure)
    }
}

impl core::error::Error for ErrorEntry {}

/// An event that belongs to no operation of the application (libfabric's event queue).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The endpoint refused a packet. Other packets of the sender are not affected. If a message is
    /// now missing, [`Event::PeerFailed`] follows.
    PacketRefused {
        /// The sender, if known.
        peer: Option<PeerId>,
        /// The packet type id of its first byte; 0 for an empty packet.
        packet_type: u8,
        /// The reason.
        reason: PacketError,
    },
    /// A packet that belongs to no operation of the application (a handshake, a CTS, ...) could not
    /// be sent, although the peer exists.
    ControlSendFailed {
        /// The destination.
        peer: PeerId,
        /// The packet type id.
        packet_type: u8,
        /// The reason.
        failure: Failure,
    },
    /// The conversation with a peer has failed: its packets are dropped from now on, and operations
    /// with it have failed. To start afresh, remove its address and insert it again.
    PeerFailed {
        /// The peer.
        peer: PeerId,
        /// The reason.
        failure: Failure,
    },
    /// The endpoint forgot a peer that had only introduced itself, to make room for another. No
    /// operation with the peer was in flight
    /// ([`EndpointConfig::max_implicit_peers`](crate::endpoint::EndpointConfig::max_implicit_peers)).
    /// Its id is no longer valid. If the peer sends again, its next packet introduces it again,
    /// provided that the packet contains its address.
    PeerForgotten {
        /// The peer.
        peer: PeerId,
        /// Its address.
        address: RawAddress,
    },
    /// A message or atomic to a peer was lost, and the peer may wait forever for it or for the rest
    /// of it. Sends to the peer fail from now on, but its messages still arrive. To resume sending
    /// despite the loss, remove the peer's address and insert it again.
    SendingFailed {
        /// The peer.
        peer: PeerId,
        /// Result of the operation.
        failure: Failure,
    },
    /// The device refused a receive buffer. The receive queue is one buffer smaller.
    ReceivePostFailed(NicError),
    /// The device returned a receive buffer without a packet.
    ReceiveFailed(Status),
    /// The device failed to end a registration of the endpoint.
    DeregistrationFailed(NicError),
    /// A one-sided operation of a peer named memory that could not be reached, or was malformed.
    RemoteOperationFailed {
        /// The requester.
        peer: PeerId,
        /// The packet type id of the request.
        packet_type: u8,
        /// The reason.
        failure: Failure,
    },
}

/// The reason why a packet was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PacketError {
    /// It could not be parsed.
    Malformed(ParseError),
    /// The sender is not in the address vector, and the endpoint has no room for another peer that
    /// introduces itself
    /// ([`EndpointConfig::max_implicit_peers`](crate::endpoint::EndpointConfig::max_implicit_peers)).
    TooManyPeers,
    /// Its type is retired, unassigned or reserved.
    InvalidType,
    /// Its type is known, but this endpoint does not handle it.
    UnsupportedType,
    /// It names an operation that does not exist any more, or never did, or that belongs to another
    /// peer.
    StaleOperation {
        /// The id in the packet.
        id: u32,
    },
    /// It reports an abandoned message, but the message is unknown here, and the operation that it
    /// names is not a message (libfabric sends this packet for messages only).
    NoMessage {
        /// The id in the packet.
        id: u32,
    },
    /// Its message was already received.
    AlreadyProcessed {
        /// The message id.
        msg_id: u32,
    },
    /// It is a duplicate: all its data has arrived in other packets.
    RepeatedData {
        /// The offset of its data in the message, in bytes.
        offset: u64,
    },
    /// It opens a window for an operation whose last window is not used up, or which another
    /// operation of the peer has opened: either this packet or the earlier request is a duplicate.
    UnexpectedWindow {
        /// The id in the packet.
        id: u32,
    },
    /// Its message id is beyond the reorder window.
    BeyondWindow {
        /// The message id.
        msg_id: u32,
        /// The oldest message id missing.
        expected: u32,
    },
    /// Its raw address names another host or queue pair than the one that sent it.
    ForeignAddress,
    /// Its sizes or offsets contradict each other or the operation.
    SizeMismatch,
    /// It is a message with a header, and this endpoint receives into the application's buffers
    /// ([`Endpoint::with_user_receives`](crate::endpoint::Endpoint::with_user_receives)): its
    /// sender did not wait for the handshake, or does not support the request. The message is lost.
    MessageWithHeader,
}

impl PacketError {
    /// Whether a duplicate of a packet is refused for this reason.
    pub const fn fits_second_copy(&self) -> bool {
        matches!(
            self,
            PacketError::AlreadyProcessed { .. }
                | PacketError::RepeatedData { .. }
                | PacketError::StaleOperation { .. }
                | PacketError::UnexpectedWindow { .. }
        )
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |code| TypeName(code);
        match self {
            Event::PacketRefused {
                peer,
                packet_type,
                reason,
            } => {
                write!(f, "{} packet from ", name(*packet_type))?;
                match peer {
                    Some(peer) => write!(f, "peer {peer}")?,
                    None => f.write_str("an unknown sender")?,
                }
                write!(f, " refused: {reason}")
            }
            Event::ControlSendFailed {
                peer,
                packet_type,
                failure,
            } => write!(
                f,
                "{} packet to peer {peer} could not be sent: {failure}",
                name(*packet_type)
            ),
            Event::PeerFailed { peer, failure } => {
                write!(
                    f,
                    "the conversation with peer {peer} was given up: {failure}"
                )
            }
            Event::PeerForgotten { peer, address } => {
                write!(
                    f,
                    "peer {peer} at {address} was forgotten to make room for another"
                )
            }
            Event::SendingFailed { peer, failure } => {
                write!(f, "no more can be sent to peer {peer}: {failure}")
            }
            Event::ReceivePostFailed(error) => {
                write!(f, "a receive buffer could not be posted: {error}")
            }
            Event::ReceiveFailed(status) => {
                write!(f, "a receive buffer came back empty: {}", status.describe())
            }
            Event::DeregistrationFailed(error) => {
                write!(f, "a registration could not be ended: {error}")
            }
            Event::RemoteOperationFailed {
                peer,
                packet_type,
                failure,
            } => write!(f, "{} of peer {peer} failed: {failure}", name(*packet_type)),
        }
    }
}

/// A packet type id by its name, if it has one.
pub(crate) struct TypeName(pub(crate) u8);

impl fmt::Display for TypeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match PacketType::from_code(self.0) {
            Some(packet_type) => packet_type.fmt(f),
            None => write!(f, "type {}", self.0),
        }
    }
}

impl fmt::Display for PacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PacketError::Malformed(error) => error.fmt(f),
            PacketError::TooManyPeers => {
                f.write_str("there is no room for another peer that introduces itself")
            }
            PacketError::InvalidType => f.write_str("retired, unassigned or reserved packet type"),
            PacketError::UnsupportedType => f.write_str("packet type not supported here"),
            PacketError::StaleOperation { id } => write!(f, "operation {id:#x} does not exist"),
            PacketError::NoMessage { id } => write!(f, "operation {id:#x} is not a message"),
            PacketError::AlreadyProcessed { msg_id } => {
                write!(f, "message {msg_id} was already received")
            }
            PacketError::RepeatedData { offset } => {
                write!(f, "the data at byte {offset} has arrived before")
            }
            PacketError::UnexpectedWindow { id } => {
                write!(f, "operation {id:#x} takes no such window now")
            }
            PacketError::BeyondWindow { msg_id, expected } => write!(
                f,
                "message {msg_id} is beyond the reorder window that starts at {expected}"
            ),
            PacketError::ForeignAddress => {
                f.write_str("the raw address is not that of the packet's sender")
            }
            PacketError::SizeMismatch => f.write_str("contradictory sizes or offsets"),
            PacketError::MessageWithHeader => {
                f.write_str("messages to a zero-copy receiver must not have a header")
            }
        }
    }
}
