//! PEER_ERROR: the other side of a message has abandoned its half. The effect depends on the local
//! state of the message. The packet always names the message, and may also name the local
//! operation, only as a shortcut. Operation ids are reused, so the shortcut counts only if the
//! operation belongs to that message. A PEER_ERROR about an unknown message that names a write,
//! read or atomic is an error.

use crate::endpoint::api::completion::PacketError;
use crate::endpoint::api::error::Failure;
use crate::endpoint::base::ids::{InboundId, PeerId};
use crate::endpoint::receiving::{DeferredOperation, Position, Segment};
use crate::endpoint::subprotocols::SendSide;
use crate::endpoint::subprotocols::turns::OrderedDelivery;
use crate::nic::Nic;
use crate::wire::{MsgId, PeerError, RecvId};

impl<N: Nic> SendSide<'_, N> {
    /// The receiver of a message of this endpoint has abandoned it.
    ///
    /// # Errors
    /// The packet has no effect.
    pub(crate) fn on_receiver_error(
        &mut self,
        peer: PeerId,
        error: &PeerError,
    ) -> Result<(), PacketError> {
        let id = self.sending.aborted(peer, error)?;
        self.finish_outbound(id);
        Ok(())
    }
}

impl<N: Nic> OrderedDelivery<'_, N> {
    /// The sender of a message to this endpoint has abandoned it.
    ///
    /// # Errors
    /// The packet has no effect.
    pub(crate) fn on_sender_error(
        &mut self,
        peer: PeerId,
        error: &PeerError,
    ) -> Result<(), PacketError> {
        let (msg_id, transfers) = (error.msg_id, &mut self.receiving.transfers);
        let named = transfers.named_by(peer, RecvId(error.op_id));
        let named = named.map(|(id, transfer)| (id, transfer.message()));
        if let Some((id, Some(message))) = named
            && message == msg_id
        {
            self.abort(id);
            return Ok(());
        }
        let names_no_message = matches!(named, Some((_, None)));
        let size = self.channel.config.reorder_window;
        let Some(state) = self.channel.peers.state_mut(peer) else {
            return Ok(());
        };
        let is_known = match state.window.position(msg_id, size) {
            Position::Expected | Position::Beyond if names_no_message => false,
            Position::Expected => {
                state.window.advance();
                let chains = state.window.take_expected();
                self.process_deferred(peer, chains);
                true
            }
            Position::Early if !state.window.has_passed(msg_id) => {
                let deferred = state.window.take(msg_id);
                let is_known = !names_no_message || deferred != [None; 2];
                // The sequence continues after the message when its turn comes.
                if is_known {
                    state.window.pass(msg_id);
                }
                for head in deferred.into_iter().flatten() {
                    self.channel.drop_deferred(peer, head);
                }
                is_known
            }
            Position::Early | Position::Past => self.abandon_message(peer, msg_id),
            Position::Beyond => {
                let expected = state.window.expected().0;
                let msg_id = msg_id.0;
                return Err(PacketError::BeyondWindow { msg_id, expected });
            }
        };
        match names_no_message && !is_known {
            true => Err(PacketError::NoMessage { id: error.op_id }),
            false => Ok(()),
        }
    }

    /// Ends a message that has been processed. Returns false if it has ended.
    fn abandon_message(&mut self, peer: PeerId, msg_id: MsgId) -> bool {
        let by_packets = match self.receiving.unexpected.segment(peer, msg_id) {
            Segment::Transfer(id) => Some(id),
            Segment::Deferred(_) | Segment::Unknown => None,
        };
        let transfers = &self.receiving.transfers;
        if let Some(id) = by_packets.or_else(|| transfers.of_message(peer, msg_id)) {
            self.abort(id);
            return true;
        }
        let waiting = self.channel.quota.waiting_of(peer);
        let parts = waiting.filter_map(|operation| match operation {
            DeferredOperation::Part(key) => Some(*key),
            DeferredOperation::Request(_) => None,
        });
        let unexpected = &mut self.receiving.unexpected;
        let head = unexpected.abandon(peer, msg_id, Failure::PEER_ABORTED, parts);
        if let Some(head) = head {
            self.channel.drop_deferred(peer, head);
        }
        head.is_some()
    }

    /// Ends a receive when the device no longer uses its memory.
    fn abort(&mut self, id: InboundId) {
        if let Some(transfer) = self.receiving.transfers.get_mut(id) {
            transfer.peer_aborted();
        }
        self.receive_side().go_on_with(id);
    }
}
