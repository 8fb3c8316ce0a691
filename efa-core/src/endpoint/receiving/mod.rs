//! Receiving: messages in order, their matching with receives, messages that wait, and the transfer
//! of data to its destination.
//!
//! Each part owns its state and its decisions: [`PostedReceives`], [`UnexpectedMessages`],
//! [`Transfers`] and each [`Transfer`] in it, and the [`ReorderWindow`] of each peer. [`Receiving`]
//! connects them. None accesses packets or memory: the caller owns the packets, copies data, and
//! reports to peers and the application.

mod arrived;
mod assembly;
mod ending;
mod matching;
mod multi_receive;
mod posted;
mod progress;
mod read_plan;
mod reorder;
mod transfer;
mod transfers;
mod unexpected;

use crate::endpoint::api::config::EndpointConfig;
use crate::endpoint::api::operation::IoVec;
use crate::endpoint::base::hash::SeededHasher;
use crate::endpoint::base::ids::{InboundId, PeerId, ReceiveId};
use crate::wire::{LongctsRtm, MsgId};

pub(crate) use arrived::ReceivedRanges;
pub(crate) use ending::{ReportRecipient, TransferEnding, message_flags, receive_flags};
pub(crate) use matching::Filter;
pub(crate) use posted::{NewReceive, PostedReceives};
pub(crate) use progress::{NextAction, ReadStart};
pub(crate) use reorder::{Position, ReorderWindow};
pub(crate) use transfer::{ControlPacket, DataAction, EndedTransfer, Nack, Transfer};
pub(crate) use transfers::Transfers;
pub(crate) use unexpected::{
    DeferredOperation, DeferredPart, PartKey, Segment, UnexpectedMessage, UnexpectedMessages,
};

/// The state of receiving.
pub(crate) struct Receiving {
    pub(crate) posted: PostedReceives,
    pub(crate) unexpected: UnexpectedMessages,
    pub(crate) transfers: Transfers,
    /// The number of receives and transfers that the application may have together.
    max_operations: usize,
}

impl Receiving {
    /// Reserves room for [`EndpointConfig::max_operations`] operations of the application.
    pub(crate) fn new(config: &EndpointConfig, hasher: SeededHasher) -> Self {
        let max_operations = config.max_operations;
        Receiving {
            posted: PostedReceives::new(max_operations, hasher),
            unexpected: UnexpectedMessages::new(max_operations, hasher),
            transfers: Transfers::new(),
            max_operations,
        }
    }

    /// The number of receives posted, and of operations in flight that receive data.
    pub(crate) fn len(&self) -> usize {
        self.posted.len() + self.transfers.len()
    }

    /// Returns whether there is no room for another operation of the application.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.posted.len() + self.transfers.own_len() >= self.max_operations
    }

    /// Posts a receive, without checking messages that have arrived. `None` if there are too many
    /// operations.
    #[inline(always)]
    pub(crate) fn post(&mut self, receive: NewReceive) -> Option<ReceiveId> {
        match self.is_full() {
            true => None,
            false => self.posted.post(receive),
        }
    }

    /// Posts a buffer for several messages, as [`Receiving::post`] posts a receive.
    pub(crate) fn post_multi(
        &mut self,
        receive: NewReceive,
        piece: IoVec,
        min_free: usize,
    ) -> Option<ReceiveId> {
        match self.is_full() {
            true => None,
            false => self.posted.post_multi(receive, piece, min_free),
        }
    }

    /// Starts a transfer. Returns `None` if the application has too many operations. Operations of
    /// peers always have room, because [`EndpointConfig::remote_operations`] limits their number.
    pub(crate) fn start(&mut self, transfer: Transfer) -> Option<InboundId> {
        match self.is_full() && !transfer.ending.is_remote() {
            true => None,
            false => self.transfers.insert(transfer),
        }
    }

    /// Turns a receive that [`PostedReceives::match_message`] found into a transfer.
    pub(crate) fn activate(
        &mut self,
        slot: u32,
        peer: PeerId,
        msg_id: MsgId,
        length: u64,
        (tag, cq_data): (Option<u64>, Option<u64>),
    ) -> Option<InboundId> {
        let posted = self.posted.take_matched(slot)?;
        let ending = posted.ending(tag, cq_data);
        let transfer = Transfer::new(peer, msg_id, length, posted.target, ending);
        self.transfers.insert(transfer)
    }

    /// Directs further packets of a message to its transfer.
    pub(crate) fn assemble(&mut self, id: InboundId) {
        if let Some(transfer) = self.transfers.get_mut(id)
            && !transfer.assembled
        {
            transfer.assembled = true;
            self.unexpected
                .direct_to(id, transfer.peer, transfer.msg_id);
        }
    }

    /// Records that the data of a transfer beyond the first `in_packets` bytes cannot be read.
    /// Returns its peer.
    pub(crate) fn refuse_read(&mut self, id: InboundId, in_packets: u64) -> Option<PeerId> {
        let transfer = self.transfers.get_mut(id)?;
        transfer.refuse(in_packets);
        let (peer, is_message) = (transfer.peer, !transfer.ending.is_peers());
        if is_message {
            // The answer to READ_NACK finds the transfer by its message id.
            self.assemble(id);
        }
        Some(peer)
    }

    /// Handles the peer's response to READ_NACK: the peer sends the rest in windows. Returns the
    /// transfer, or `None` if the packet does not answer a READ_NACK.
    pub(crate) fn nack_answered(&mut self, peer: PeerId, long: &LongctsRtm) -> Option<InboundId> {
        let Segment::Transfer(id) = self.unexpected.segment(peer, long.msg_id) else {
            return None;
        };
        let transfer = self.transfers.get_mut(id)?;
        let (length, send_id) = (long.msg_length, long.send_id);
        let is_answer = transfer.nack_answered(length, send_id, long.delivery_complete);
        is_answer.then_some(id)
    }

    /// Removes a transfer that ends.
    pub(crate) fn finish(&mut self, id: InboundId) -> Option<EndedTransfer> {
        let transfer = self.transfers.remove(id)?;
        if transfer.assembled {
            self.unexpected
                .forget_segments(transfer.peer, transfer.msg_id);
        }
        Some(transfer.end())
    }

    /// Returns whether a peer has no messages, transfers, claims, or receives that name it.
    pub(crate) fn has_none_of(&self, peer: PeerId) -> bool {
        self.transfers.has_none_with(peer)
            && self.posted.is_none_naming(peer)
            && self.unexpected.has_none_of(peer)
    }
}

#[cfg(test)]
mod tests;
