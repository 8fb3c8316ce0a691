//! Pending work: requests that waited for room in the device's queues or for the end of a back-off.

use crate::endpoint::Endpoint;
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::error::Failure;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::posting::Work;
use crate::endpoint::subprotocols::receive_calls::CompleteMessages;
use crate::nic::Nic;
use crate::wire::{Eor, Receipt};

/// Result of a piece of [`Work`].
enum WorkResult {
    Done,
    /// There is more to do, after other work.
    Requeue,
    /// The device has no room.
    Blocked,
}

impl<N: Nic> Endpoint<N> {
    /// Does the pending work, as far as the device has room.
    pub(crate) fn do_pending_work(&mut self) {
        while let Some(work) = self.channel.posting.next_work() {
            #[cfg(any(test, debug_assertions))]
            crate::endpoint::base::steps::step();
            if let Some(peer) = self.peer_of(work)
                && let Some(state) = self.channel.peers.state_mut(peer)
                && state.backoff.is_active()
            {
                self.channel.posting.defer_work(&mut state.backoff, work);
                continue;
            }
            match self.do_work(work) {
                WorkResult::Done => {
                    if let Some(peer) = work.answers() {
                        self.channel.quota.end_answer(peer);
                    }
                    self.end_given_up();
                }
                WorkResult::Requeue => self.channel.posting.queue(work),
                WorkResult::Blocked => return self.channel.posting.requeue(work),
            }
        }
    }

    /// Ends all operations with peers that were given up.
    #[inline]
    pub(crate) fn end_given_up(&mut self) {
        while let Some((peer, failure)) = self.channel.next_given_up() {
            self.end_operations_with(peer, failure);
        }
    }

    /// Ends operations that wait for a packet of a peer whose queue pair does not exist any more.
    /// The caller has found the device without completions: everything that the peer sent before
    /// its end has been handled.
    #[inline]
    pub(crate) fn end_waits(&mut self) {
        while let Some((peer, failure)) = self.channel.gone.pop() {
            // The peer may have left the address vector since, and another peer may have its place.
            if !self.channel.peers.addresses().contains(peer) {
                continue;
            }
            for id in self.sending.with_peer(peer) {
                if self.sending.waits(id) {
                    self.send_side().fail_outbound(id, failure);
                }
            }
            for id in self.receiving.transfers.with_peer(peer) {
                self.receive_side().fail_inbound(id, failure);
            }
            self.drop_unfinished(peer, failure);
        }
    }

    /// Drops a peer's incomplete messages that no receive has matched and whose remaining packets
    /// will not arrive, and the packets that wait for an earlier message.
    fn drop_unfinished(&mut self, peer: PeerId, failure: Failure) {
        for head in self.receiving.unexpected.abandon_unfinished(peer, failure) {
            self.channel.drop_deferred(peer, head);
        }
        self.receive_side()
            .drop_held_operations(peer, failure, CompleteMessages::Received);
        if let Some(state) = self.channel.peers.state_mut(peer) {
            for head in state.window.drain() {
                self.channel.drop_deferred(peer, head);
            }
        }
    }

    /// The peer to which a piece of work sends something.
    fn peer_of(&self, work: Work) -> Option<PeerId> {
        match work {
            Work::Handshake(peer)
            | Work::Fill(peer)
            | Work::Receipt { peer, .. }
            | Work::Eor { peer, .. }
            | Work::PeerError { peer, .. }
            | Work::AtomicResponse { peer, .. } => Some(peer),
            Work::GiveUp | Work::Admission => None,
            Work::Retry(id) => self.channel.posting.peer(id),
            Work::Outbound(id) => self.sending.peer(id),
            Work::Inbound(id) => self
                .receiving
                .transfers
                .get(id)
                .map(|transfer| transfer.peer),
        }
    }

    #[inline(never)]
    fn do_work(&mut self, work: Work) -> WorkResult {
        let connid = Some(self.channel.address.qkey.into());
        let more = match work {
            // Every piece of work that is done ends the operations of these peers.
            Work::GiveUp => Ok(false),
            Work::Admission => {
                self.admit_waiting();
                Ok(false)
            }
            Work::Handshake(peer) if !self.channel.peers.addresses().contains(peer) => {
                let peer = self.channel.peers.current_id(peer);
                if let Some(state) = self.channel.peers.existing_state_mut(peer) {
                    state.handshake.mark_lost();
                }
                Ok(false)
            }
            Work::Handshake(peer) => {
                let handshake = self.channel.handshake;
                let sent = self.channel.send_control(peer, &handshake);
                sent.map(|()| tracing::debug!(%peer, "HANDSHAKE sent"))
                    .map(|()| false)
            }
            Work::Fill(peer) => self.channel.fill_gaps(peer).map(|()| false),
            Work::Retry(id) => self.retry(id).map(|()| false),
            Work::Outbound(id) => self.send_side().send_stream(id),
            Work::Inbound(id) => self.receive_side().serve_inbound(id),
            Work::AtomicResponse { key, .. } => self
                .atomic_target()
                .send_queued_response(key)
                .map(|()| false),
            Work::Receipt {
                peer,
                send_id,
                msg_id,
            } => {
                let receipt = Receipt {
                    send_id,
                    msg_id,
                    connid,
                    ..Receipt::default()
                };
                self.channel.send_control(peer, &receipt).map(|()| false)
            }
            Work::Eor {
                peer,
                send_id,
                recv_id,
            } => {
                let eor = Eor {
                    send_id,
                    recv_id,
                    connid,
                    ..Eor::default()
                };
                self.channel.send_control(peer, &eor).map(|()| false)
            }
            Work::PeerError { peer, what, code } => self
                .channel
                .send_peer_error(peer, what, code)
                .map(|()| false),
        };
        match more {
            Ok(true) => WorkResult::Requeue,
            Err(EndpointError::TryAgain) => WorkResult::Blocked,
            Ok(false) | Err(_) => WorkResult::Done,
        }
    }
}
