//! Messages that failed on this side. The peer is notified with PEER_ERROR if it supports that
//! packet. Libfabric 2.7.0 sends PEER_ERROR for messages only: after a failed write, read or atomic
//! the peer's half stays as it is.

use crate::endpoint::api::error::{EndpointError, Failure};
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::posting::{AbandonedMessage, PacketOwner, Work};
use crate::endpoint::sending::Loss;
use crate::nic::Nic;
use crate::wire::{OpeType, PacketType, PeerError};

use super::Channel;

/// A message that failed before the HANDSHAKE showed whether the peer supports PEER_ERROR.
pub(crate) struct PendingAbort {
    what: AbandonedMessage,
    failure: Failure,
    loss: Option<Loss>,
}

impl<N: Nic> Channel<N> {
    /// Notifies a peer that a message failed on this side. `loss` is set for a message to the peer:
    /// if the notification cannot be sent, the peer may wait for the message or for the rest of it.
    #[cold]
    pub(crate) fn abandon(
        &mut self,
        peer: PeerId,
        what: AbandonedMessage,
        failure: Failure,
        loss: Option<Loss>,
    ) {
        if failure.is_peer_gone() || self.peers.is_given_up(peer) {
            return self.abort_not_sent(peer, what, failure, loss);
        }
        // The local endpoint supports PEER_ERROR, so no HANDSHAKE is needed for packets to itself.
        let is_own = self.peers.addresses().address(peer) == Some(self.address);
        let features = self.peers.features(peer);
        let understands = features.map(|features| features.extra.permit(PacketType::PeerError));
        let understands = understands.or(is_own.then_some(true));
        // The PEER_ERROR counts as a response that waits to be sent. Unlike with other responses,
        // an excess of them is not the peer's fault.
        if understands == Some(false) || !self.quota.begin_answer(peer) {
            return self.abort_not_sent(peer, what, failure, loss);
        }
        if understands.is_some() {
            let code = failure.provider.code();
            self.posting.queue(Work::PeerError { peer, what, code });
        } else if let Some(state) = self.peers.state_mut(peer) {
            let pending = PendingAbort {
                what,
                failure,
                loss,
            };
            state.pending_aborts.push(pending);
        }
    }

    /// Sends a PEER_ERROR. If it reports a message of this endpoint, it takes the message's place
    /// in the sequence: without it the peer may be unable to proceed beyond the message.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`].
    pub(crate) fn send_peer_error(
        &mut self,
        peer: PeerId,
        what: AbandonedMessage,
        code: u32,
    ) -> Result<(), EndpointError> {
        let error = PeerError {
            msg_id: what.msg_id,
            op_id: what.op_id,
            emitter_ope_type: what.side,
            prov_errno: code,
            connid: Some(self.address.qkey.into()),
            ..PeerError::default()
        };
        let sequenced = (what.side == OpeType::TXE).then_some(what.msg_id);
        let posted = self.posting.start_packet(&error).and_then(|mut packet| {
            packet.sequenced = sequenced;
            self.post_packet(peer, PacketOwner::Control, packet)
        });
        match (sequenced, &posted) {
            (None, _) | (_, Err(EndpointError::TryAgain)) => {}
            (Some(msg_id), Ok(())) => self.peers.abort_posted(peer, msg_id),
            (Some(msg_id), Err(error)) => {
                self.request_lost(peer, msg_id, Failure::of_post(error), Loss::Unknown);
            }
        }
        self.control_posted(peer, PacketType::PeerError, posted)
    }

    fn abort_not_sent(
        &mut self,
        peer: PeerId,
        what: AbandonedMessage,
        failure: Failure,
        loss: Option<Loss>,
    ) {
        if let Some(loss) = loss {
            self.request_lost(peer, what.msg_id, failure, loss);
        }
    }

    /// Notifies a peer, whose HANDSHAKE has arrived, of the messages that failed before.
    pub(crate) fn send_pending_aborts(&mut self, peer: PeerId) {
        for PendingAbort {
            what,
            failure,
            loss,
        } in self.take_pending_aborts(peer)
        {
            self.abandon(peer, what, failure, loss);
        }
    }

    /// Drops the pending notifications of failed messages, because the peer no longer exists.
    pub(crate) fn drop_pending_aborts(&mut self, peer: PeerId, gone: Failure) {
        for PendingAbort { what, loss, .. } in self.take_pending_aborts(peer) {
            self.abort_not_sent(peer, what, gone, loss);
        }
    }

    fn take_pending_aborts(&mut self, peer: PeerId) -> Vec<PendingAbort> {
        let state = self.peers.existing_state_mut(peer);
        let pending = state.map_or(Vec::new(), |state| {
            core::mem::take(&mut state.pending_aborts)
        });
        pending.iter().for_each(|_| self.quota.end_answer(peer));
        pending
    }
}
