//! The frames of packets, as rules see them.

use efa_wire::address::Qkey;

use super::node::NodeId;
use super::operation::End;
use super::packet::{PacketBody, ParsedPacket};
use super::qp_generations::QpGeneration;

/// The frame of a finding.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameContext {
    /// The frame's number.
    pub(super) number: u64,
    /// The interface that captured it.
    pub(super) interface: usize,
    /// The end that sent the frame, or should have sent one.
    pub(super) sender: End,
    /// Whether the frame is judged in this conversation, and not in its sender's.
    pub(super) is_judged: bool,
    /// Whether the near end sent the frame.
    pub(super) is_own: bool,
}

/// A packet's frame and its state.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketFrame {
    pub(super) from: NodeId,
    pub(super) qkey: Qkey,
    pub(super) sequence: u32,
    pub(super) retransmission: bool,
    /// Whether the capture has all packets that the near end has sent since it was created.
    pub(super) is_from_start: bool,
    /// Its run of consecutive requests of the queue pair; unknown for a repetition.
    pub(super) run: Option<u64>,
    /// The generation of the sender's queue pair.
    pub(super) qp_generation: QpGeneration,
}

/// Whether a packet can only be the first of a conversation: the first request of a queue pair,
/// message 0 to a peer to which the sender is still unknown, or a request for a handshake.
pub(super) fn begins(frame: &PacketFrame, parsed: &ParsedPacket) -> bool {
    if parsed.raw_address().is_none() {
        return false;
    }
    let is_first = frame.sequence == 0 && !frame.retransmission;
    is_first
        || match parsed.body {
            PacketBody::Message(message) => match (message.msg_id, message.rma_iov) {
                (Some(msg_id), _) => msg_id.0 == 0,
                (None, iov) => iov.is_some_and(|iov| iov.count() == 0),
            },
            PacketBody::Atomic(atomic) => atomic.msg_id == 0,
            _ => false,
        }
}
