//! PEER_ERROR: the other side of a message has given up its half. What that means is decided here, by
//! what this side knows of the message: the packet always says which message it is, and perhaps which
//! operation of this side, which is a shortcut only. Ids are used again, so it counts only if the
//! operation is of that message.

use crate::endpoint::api::completion::PacketError;
use crate::endpoint::api::error::Failure;
use crate::endpoint::base::ids::{InboundId, PeerId};
use crate::endpoint::receiving::{Position, Postponed, Segment};
use crate::endpoint::subprotocols::SendSide;
use crate::endpoint::subprotocols::turns::Turns;
use crate::nic::Nic;
use crate::wire::{MsgId, PeerError, RecvId};

impl<N: Nic> SendSide<'_, N> {
    /// The receiver of a message of ours has given it up.
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

impl<N: Nic> Turns<'_, N> {
    /// The sender of a message to us has given it up.
    ///
    /// # Errors
    /// The packet has no effect.
    pub(crate) fn on_sender_error(
        &mut self,
        peer: PeerId,
        error: &PeerError,
    ) -> Result<(), PacketError> {
        let (msg_id, transfers) = (error.msg_id, &mut self.receiving.transfers);
        if let Some((id, transfer)) = transfers.named_by(peer, RecvId(error.op_id)) {
            match transfer.message() {
                None => return Err(PacketError::NoMessage { id: error.op_id }),
                Some(message) if message == msg_id => {
                    self.abort(id);
                    return Ok(());
                }
                Some(_) => {}
            }
        }
        let size = self.channel.config.reorder_window;
        let Some(state) = self.channel.peers.state_mut(peer) else {
            return Ok(());
        };
        match state.window.position(msg_id, size) {
            Position::Expected => {
                state.window.advance();
                let chains = state.window.take_expected();
                self.process_held(peer, chains);
            }
            // The order goes on behind it when its turn comes.
            Position::Early if state.window.pass(msg_id) => {
                for head in state.window.take(msg_id).into_iter().flatten() {
                    self.channel.drop_held(peer, head);
                }
            }
            Position::Early | Position::Past => self.abandon_message(peer, msg_id),
            Position::Beyond => {
                let expected = state.window.expected().0;
                let msg_id = msg_id.0;
                return Err(PacketError::BeyondWindow { msg_id, expected });
            }
        }
        Ok(())
    }

    /// Ends a message that has been processed, if it has not ended.
    fn abandon_message(&mut self, peer: PeerId, msg_id: MsgId) {
        let by_packets = match self.receiving.unexpected.segment(peer, msg_id) {
            Segment::Transfer(id) => Some(id),
            Segment::Kept(_) | Segment::Unknown => None,
        };
        let transfers = &self.receiving.transfers;
        if let Some(id) = by_packets.or_else(|| transfers.of_message(peer, msg_id)) {
            return self.abort(id);
        }
        let waiting = self.channel.quota.waiting_of(peer);
        let parts = waiting.filter_map(|operation| match operation {
            Postponed::Part(key) => Some(*key),
            Postponed::Request(_) => None,
        });
        let unexpected = &mut self.receiving.unexpected;
        if let Some(head) = unexpected.abandon(peer, msg_id, Failure::PEER_ABORTED, parts) {
            self.channel.drop_held(peer, head);
        }
    }

    /// Ends a receive when the device no longer uses its memory.
    fn abort(&mut self, id: InboundId) {
        if let Some(transfer) = self.receiving.transfers.get_mut(id) {
            transfer.peer_aborted();
        }
        self.receive_side().go_on_with(id);
    }
}
