//! The channel to the peers: state and methods that operations in both directions need.
//!
//! [`Channel`] has no knowledge of operations. When an operation is affected (a peer has to be
//! given up, a response can be sent), the channel queues work or returns the fact. Its parts are
//! mostly independent: the conversations with peers ([`Conversation`]), [`Sizes`], [`Posting`],
//! [`Quota`], [`Reports`]. The methods of the channel combine them.

mod aborts;
mod answers;
mod awaiting_handshake;
mod conversation;
mod gaps;
mod own_regions;
mod packets;
mod returned;
mod sizes;
mod unknown_senders;
mod waiting_packets;

use crate::address::RawAddress;
use crate::endpoint::api::completion::Event;
use crate::endpoint::api::config::EndpointConfig;
use crate::endpoint::api::error::{Errno, Failure, ProviderError};
use crate::endpoint::api::reports::Reports;
use crate::endpoint::api::time::Instant;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::peers::Peers;
use crate::endpoint::posting::{Posting, Work};
use crate::endpoint::quota::Quota;
use crate::endpoint::receiving::DeferredOperation;
use crate::endpoint::sending::ReadBased;
use crate::endpoint::sending::choice::LocalCapabilities;
use crate::nic::Nic;
use crate::wire::{Handshake, PacketType};

pub(crate) use conversation::Conversation;
pub use sizes::MAX_REQUEST_HEADER;
pub(crate) use sizes::{Sizes, atomic_operand};
pub(crate) use unknown_senders::{SenderLookup, UnknownSender};

/// State that operations in both directions need.
pub(crate) struct Channel<N> {
    pub(crate) config: EndpointConfig,
    pub(crate) address: RawAddress,
    /// The HANDSHAKE for each peer.
    pub(crate) handshake: Handshake,
    pub(crate) sizes: Sizes,
    pub(crate) local: LocalCapabilities,
    pub(crate) posting: Posting<N>,
    pub(crate) peers: Peers<Conversation>,
    /// Peers that were given up and may still have operations. [`Work::GiveUp`] is queued for them.
    pub(crate) given_up: Vec<PeerId>,
    /// Peers whose queue pair no longer exists, each with the failure that showed it, for
    /// [`Endpoint::end_waits`](crate::endpoint::Endpoint::end_waits).
    pub(crate) gone: Vec<(PeerId, Failure)>,
    pub(crate) quota: Quota<DeferredOperation>,
    /// Completions and events for the application.
    pub(crate) reports: Reports,
    pub(crate) now: Instant,
}

impl<N: Nic> Channel<N> {
    /// Gives up a peer after an unrecoverable protocol violation. Its packets are dropped from now
    /// on; its operations end with the next pending work.
    #[cold]
    pub(crate) fn give_up(&mut self, peer: PeerId, packet_type: PacketType) {
        let failure = Failure::new(Errno::EIO, ProviderError::for_request(packet_type));
        if self.peers.give_up(peer, failure) {
            self.given_up.push(peer);
            self.posting.queue(Work::GiveUp);
            self.reports.event(Event::PeerFailed { peer, failure });
        }
    }

    /// Records that a packet was lost because the peer no longer exists. The peer will not respond
    /// to earlier packets.
    #[cold]
    pub(crate) fn peer_gone(&mut self, peer: PeerId, failure: Failure) {
        let Some(state) = self.peers.state_mut(peer) else {
            return;
        };
        state.handshake.request_lost();
        tracing::info!(%peer, reason = %failure, "peer is gone");
        if failure.is_queue_pair_gone() {
            self.gone.push((peer, failure));
        }
        self.drop_pending_aborts(peer, failure);
    }

    /// Removes a given-up peer from the list, and returns it with the reason, so that its
    /// operations can be ended.
    #[inline]
    pub(crate) fn next_given_up(&mut self) -> Option<(PeerId, Failure)> {
        let peer = self.given_up.pop()?;
        let failure = self.peers.failure_of(peer);
        Some((peer, failure.unwrap_or(Failure::CANCELED)))
    }

    /// Drops the state of a peer. Packets to it that wait for the end of a back-off are queued, and
    /// will fail; the others end with their completions.
    pub(crate) fn forget_conversation(&mut self, peer: PeerId) {
        self.drop_pending_aborts(peer, Failure::CANCELED);
        if let Some(mut state) = self.peers.forget(peer) {
            self.posting.forget_backoff(&mut state.backoff);
        }
    }

    /// Keeps the state of a peer that the application removes, because both sides may still
    /// exchange packets. All earlier operations with the peer have ended.
    pub(crate) fn keep_conversation(&mut self, peer: PeerId) {
        self.drop_pending_aborts(peer, Failure::CANCELED);
        if let Some(state) = self.peers.existing_state_mut(peer) {
            self.posting
                .forget_backoff(&mut core::mem::take(&mut state.backoff));
            state.failure = None;
            state.sequence.mend();
            // The peer may no longer exist. An operation that needs its HANDSHAKE requests it
            // again.
            state.handshake.request_lost();
            // Leftovers of earlier operations are recorded under the peer's earlier id.
            state.deferred_bytes = 0;
            state.read_based = ReadBased::default();
        }
    }

    /// Returns whether there is something to do before the next completion of the device.
    pub(crate) fn is_due(&self) -> bool {
        self.posting.is_due(self.now) || !self.gone.is_empty()
    }
}

#[cfg(test)]
mod tests;
