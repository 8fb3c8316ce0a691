//! Events that rules match.

use efa_core::address::Gid;
use efa_core::nic::Status;
use efa_core::wire::{PacketType, fields};

use super::AdminCommand;
use super::rule::Point;
use crate::link::{Operation, RequestHeader};

/// Bytes at the start of an RDM packet that rules can match.
pub const PACKET_START: usize = 16;

/// The direction of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stage {
    /// The request on its way to the responder.
    Request,
    /// The responder's answer, which completes the request at the initiator.
    Answer,
}

/// A frame, as rules match it.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Request or answer. The fields below always describe the request.
    pub stage: Stage,
    /// The GID of the initiating host.
    pub initiator: Gid,
    /// The GID of the responding host.
    pub responder: Gid,
    /// The request.
    pub header: &'a RequestHeader,
    /// How often this frame was lost since the last retry of its request.
    pub lost: u32,
    /// The outcome; `Some` if and only if it is an answer.
    pub status: Option<Status>,
    /// The data of a send or write, or at least its first [`PACKET_START`] bytes; empty for a read.
    pub data: &'a [u8],
}

impl Frame<'_> {
    /// Whether the frame is a retransmission after a loss, or of a request after RNR.
    pub fn is_repeated(&self) -> bool {
        self.lost > 0 || self.header.retries > 0
    }

    /// The type byte of the RDM packet in a send.
    pub fn rdm_packet_type(&self) -> Option<u8> {
        match self.header.operation {
            Operation::Send => self.data.first().copied(),
            Operation::Datagram
            | Operation::RdmaRead
            | Operation::RdmaWrite
            | Operation::Connected => None,
        }
    }

    /// The message id of the RDM packet, if its type has one.
    pub fn msg_id(&self) -> Option<u32> {
        let packet_type = PacketType::from_code(self.rdm_packet_type()?)?;
        let field = fields::layout(packet_type).find(|field| field.descriptor.name == "msg_id")?;
        let bytes = self.data.get(field.offset?..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    }
}

/// An event that a fault rule can match.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A request or its answer arrives.
    Frame(Frame<'a>),
    /// A program registers memory.
    Registration {
        /// The program's host.
        host: Gid,
        /// The length in bytes.
        length: u64,
    },
    /// A program creates a queue pair.
    QueuePair {
        /// The program's host.
        host: Gid,
    },
    /// A driver submits a command to the admin queue of a device at PCI level.
    Command {
        /// The device's host.
        host: Gid,
        /// The command.
        command: AdminCommand,
    },
}

impl Event<'_> {
    /// The point of the fabric at which it happens.
    pub fn point(&self) -> Point {
        match self {
            Event::Frame(frame) => match frame.stage {
                Stage::Request => Point::Request,
                Stage::Answer => Point::Answer,
            },
            Event::Registration { .. } => Point::Registration,
            Event::QueuePair { .. } => Point::QueuePair,
            Event::Command { .. } => Point::Command,
        }
    }
}
