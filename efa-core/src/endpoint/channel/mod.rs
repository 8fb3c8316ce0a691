//! The channel to the peers: who they are, how far the conversation with each is, and the device
//! through which packets come and go.
//!
//! [`Channel`] has what operations in both directions need, and knows no operation. What it finds out
//! that concerns operations (a peer has to be given up, an answer can be sent) it queues as work, or
//! returns. What one part can do alone it does itself: [`Conversation`] and its methods on [`Peers`], [`Sizes`],
//! [`Posting`], [`Quota`], [`Reports`]. The channel's own methods are for what takes two of them.

mod answers;
mod conversation;
mod gaps;
mod handshake;
mod held;
mod packets;
mod registration;
mod sizes;

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
use crate::endpoint::receiving::Postponed;
use crate::endpoint::sending::choice::Local;
use crate::nic::Nic;
use crate::wire::{Handshake, PacketType};

pub(crate) use conversation::Conversation;
pub(crate) use sizes::{MAX_REQUEST_HEADER, Sizes};

/// What operations in both directions need.
pub(crate) struct Channel<N> {
    pub(crate) config: EndpointConfig,
    pub(crate) address: RawAddress,
    /// What peers hear of us.
    pub(crate) handshake: Handshake,
    pub(crate) sizes: Sizes,
    pub(crate) local: Local,
    pub(crate) posting: Posting<N>,
    pub(crate) peers: Peers<Conversation>,
    /// Peers that were given up, and with which there may still be operations. [`Work::GiveUp`] is queued
    /// for them.
    pub(crate) given_up: Vec<PeerId>,
    /// Peers whose queue pair does not exist any more, and what said so, for
    /// [`Endpoint::end_waits`](crate::endpoint::Endpoint::end_waits).
    pub(crate) gone: Vec<(PeerId, Failure)>,
    pub(crate) quota: Quota<Postponed>,
    /// What the application has yet to take.
    pub(crate) reports: Reports,
    pub(crate) now: Instant,
}

impl<N: Nic> Channel<N> {
    /// Gives up a peer that broke the protocol in a way that cannot be mended. From now on its packets
    /// are dropped; its operations end with the next work that is done.
    #[cold]
    pub(crate) fn give_up(&mut self, peer: PeerId, packet_type: PacketType) {
        let failure = Failure::new(Errno::EIO, ProviderError::for_request(packet_type));
        if self.peers.give_up(peer, failure) {
            self.given_up.push(peer);
            self.posting.queue(Work::GiveUp);
            self.reports.event(Event::PeerFailed { peer, failure });
        }
    }

    /// Notes that a packet was lost because the peer is gone. What it has not answered so far it never
    /// will.
    #[cold]
    pub(crate) fn peer_gone(&mut self, peer: PeerId, failure: Failure) {
        let Some(state) = self.peers.state_mut(peer) else {
            return;
        };
        state.handshake.peer_gone();
        if failure.is_queue_pair_gone() && !self.gone.iter().any(|(known, _)| *known == peer) {
            self.gone.push((peer, failure));
        }
    }

    /// Takes a peer that was given up, with the reason, to end what there is with it.
    #[inline]
    pub(crate) fn next_given_up(&mut self) -> Option<(PeerId, Failure)> {
        let peer = self.given_up.pop()?;
        let failure = self.peers.failure_of(peer);
        Some((peer, failure.unwrap_or(Failure::CANCELED)))
    }

    /// Forgets what is kept about a peer. Packets to it that wait to be sent again are queued, to be
    /// given up; the others end with their completions.
    pub(crate) fn forget_conversation(&mut self, peer: PeerId) {
        if let Some(mut state) = self.peers.forget(peer) {
            self.posting.forget_backoff(&mut state.backoff);
        }
    }

    /// Returns whether there is something to do that does not wait for a completion of the device.
    pub(crate) fn is_due(&self) -> bool {
        self.posting.is_due(self.now) || !self.gone.is_empty()
    }
}

#[cfg(test)]
mod tests;
