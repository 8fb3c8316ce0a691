//! The channel to the peers: who they are, how far the conversation with each is, and the device
//! through which packets come and go.
//!
//! [`Channel`] has what operations in both directions need, and knows no operation. What it finds out
//! that concerns operations (a peer has to be given up, an answer can be sent) it queues as work, or
//! returns.

mod answers;
mod conversation;
mod gaps;
mod handshake;
mod held;
mod limits;
mod packets;
mod registration;

use crate::address::RawAddress;
use crate::endpoint::api::completion::{CompletionEntry, CompletionFlags, Event, PacketError};
use crate::endpoint::api::config::EndpointConfig;
use crate::endpoint::api::error::{EndpointError, Errno, Failure, ProviderError};
use crate::endpoint::api::operation::{OperationFlags, SourceFilter};
use crate::endpoint::api::reports::Reports;
use crate::endpoint::api::time::Instant;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::base::immediate;
use crate::endpoint::peers::Peers;
use crate::endpoint::peers::handshake::PeerFeatures;
use crate::endpoint::posting::Posting;
use crate::endpoint::quota::Quota;
use crate::endpoint::receiving::Postponed;
use crate::endpoint::sending::Mistake;
use crate::endpoint::sending::choice::Local;
use crate::nic::{Destination, Nic, Source};
use crate::wire::{MsgId, PacketType};

pub(crate) use conversation::Conversation;
pub(crate) use limits::MAX_REQUEST_HEADER;

/// What operations in both directions need.
pub(crate) struct Channel<N> {
    pub(crate) config: EndpointConfig,
    pub(crate) address: RawAddress,
    pub(crate) mtu: usize,
    pub(crate) local: Local,
    pub(crate) posting: Posting<N>,
    pub(crate) peers: Peers<Conversation>,
    /// Peers that were given up, and with which there may still be operations.
    pub(crate) given_up: Vec<PeerId>,
    /// Peers whose queue pair does not exist any more, and what said so, for
    /// [`Endpoint::end_waits`](crate::endpoint::Endpoint::end_waits).
    pub(crate) gone: Vec<(PeerId, Failure)>,
    pub(crate) quota: Quota<Postponed>,
    /// What the application has yet to take.
    pub(crate) reports: Reports,
    pub(crate) now: Instant,
}

// Conversations.
impl<N: Nic> Channel<N> {
    /// Where packets for a peer go with which an operation can be started now, and its state if there
    /// was ever a packet.
    ///
    /// # Errors
    /// No operation can be started.
    #[inline]
    pub(crate) fn check_peer(
        &self,
        peer: PeerId,
    ) -> Result<(Destination, Option<&Conversation>), EndpointError> {
        match self.peers.lookup(peer) {
            None => Err(EndpointError::UnknownPeer(peer)),
            Some((_, Some(state))) if state.failure.is_some() => {
                Err(EndpointError::PeerFailed(peer))
            }
            Some((_, Some(state))) if state.backoff.is_active() => Err(EndpointError::TryAgain),
            Some(known) => Ok(known),
        }
    }

    /// As [`Channel::check_peer`], for an operation that takes a `msg_id`.
    #[inline]
    pub(crate) fn check_sequence(
        &self,
        peer: PeerId,
    ) -> Result<(Destination, Option<&Conversation>), EndpointError> {
        match self.check_peer(peer)? {
            (_, Some(state)) if state.sequence.is_broken() => Err(EndpointError::PeerFailed(peer)),
            (_, Some(state)) if state.sequence.is_too_far_ahead() => Err(EndpointError::TryAgain),
            known => Ok(known),
        }
    }

    /// Checks that there is such a source of messages.
    pub(crate) fn check_source(&self, source: SourceFilter) -> Result<(), EndpointError> {
        match source {
            SourceFilter::Peer(peer) if !self.peers.contains(peer) => {
                Err(EndpointError::UnknownPeer(peer))
            }
            SourceFilter::Peer(_) | SourceFilter::Any => Ok(()),
        }
    }

    /// What a peer said about itself, once it has.
    pub(crate) fn features(&self, peer: PeerId) -> Option<&PeerFeatures> {
        self.peers.state(peer)?.handshake.features()
    }

    /// The id of the next message to a peer.
    pub(crate) fn next_msg_id(&self, peer: Option<&Conversation>) -> MsgId {
        peer.map_or(MsgId(self.config.first_msg_id), |state| {
            state.sequence.next()
        })
    }

    /// Why operations with a peer fail, if they do: it was removed or given up.
    #[inline]
    pub(crate) fn failure_of(&self, peer: PeerId) -> Option<Failure> {
        match self.peers.state(peer) {
            Some(state) => state.failure,
            None => Some(Failure::CANCELED),
        }
    }

    /// Returns whether a peer was removed or given up: what it sent is dropped.
    pub(crate) fn is_given_up(&self, peer: PeerId) -> bool {
        self.failure_of(peer).is_some()
    }

    /// Gives up a peer that broke the protocol in a way that cannot be mended. From now on its packets
    /// are dropped; its operations end with the next work that is done.
    #[cold]
    pub(crate) fn give_up(&mut self, peer: PeerId, packet_type: PacketType) {
        let failure = Failure::new(Errno::EIO, ProviderError::for_request(packet_type));
        if let Some(state) = self.peers.state_mut(peer)
            && state.failure.is_none()
        {
            state.failure = Some(failure);
            self.given_up.push(peer);
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
        Some((peer, self.failure_of(peer).unwrap_or(Failure::CANCELED)))
    }

    /// Forgets what is kept about a peer. Packets to it that wait to be sent again are queued, to be
    /// given up; the others end with their completions.
    pub(crate) fn forget_conversation(&mut self, peer: PeerId) {
        if let Some(mut state) = self.peers.forget(peer) {
            self.posting.forget_backoff(&mut state.backoff);
        }
    }

    /// Notes that a peer reads a message no more that had so many bytes in packets.
    pub(crate) fn end_read_based(&mut self, peer: PeerId, runt: u64) {
        if let Some(state) = self.peers.state_mut(peer) {
            state.read_based.end(runt);
        }
    }
}

// Progress.
impl<N: Nic> Channel<N> {
    /// Notes the time. Returns whether there may be requests that the device was not told of.
    #[inline]
    pub(crate) fn set_now(&mut self, now: Instant) -> bool {
        self.now = now;
        self.posting.is_deferring()
    }

    /// Returns whether completions of the device may be taken.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.reports.completions_len() < self.config.completion_queue
    }

    /// Returns whether there is something to do that does not wait for a completion of the device.
    pub(crate) fn is_due(&self) -> bool {
        self.posting.is_due(self.now) || !self.given_up.is_empty() || !self.gone.is_empty()
    }

    /// Ends an operation of the application: unless more are announced, the device is told of
    /// everything, also if this operation posted nothing.
    #[cold]
    pub(crate) fn end_batch(&mut self, flags: OperationFlags) {
        if flags.contains(OperationFlags::MORE) {
            self.posting.end_batch();
        } else {
            self.posting.flush();
        }
    }
}

// What peers did without an operation here, or wrongly.
impl<N: Nic> Channel<N> {
    /// A peer's device wrote our memory and left immediate data. No connection id comes with it.
    pub(crate) fn on_written(&mut self, source: &Source, length: usize, immediate: u32) {
        let source = self.peers.identify(source, None);
        let flags =
            CompletionFlags::RMA | CompletionFlags::REMOTE_WRITE | CompletionFlags::REMOTE_CQ_DATA;
        self.reports.succeeded(CompletionEntry {
            context: 0,
            flags,
            length: length as u64,
            data: immediate::to_cq_data(immediate),
            tag: 0,
            source,
            buffer: 0,
        });
    }

    /// Reports a request that names memory which its sender may not use.
    #[cold]
    pub(crate) fn refuse_memory(&mut self, peer: PeerId, packet_type: PacketType) {
        self.reports.event(Event::RemoteOperationFailed {
            peer,
            packet_type: packet_type.code(),
            failure: Failure::new(Errno::EINVAL, ProviderError::RmaAddress),
        });
    }

    /// Reports a packet that names an operation, and changes nothing.
    #[cold]
    pub(crate) fn refuse_mistake(
        &mut self,
        peer: PeerId,
        packet_type: PacketType,
        id: u32,
        mistake: Mistake,
    ) {
        match mistake {
            Mistake::NoOperation => self.reports.refuse_id(peer, packet_type, id),
            Mistake::Sizes => {
                let reason = PacketError::SizeMismatch;
                self.reports.refuse(Some(peer), packet_type.code(), reason);
            }
        }
    }
}
