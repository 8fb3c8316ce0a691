//! The conversation with one peer and its rules: when operations may start, and the consequences of
//! a lost packet.

use crate::endpoint::api::error::{EndpointError, Failure, ProviderError};
use crate::endpoint::api::operation::SourceFilter;
use crate::endpoint::base::ids::{OutboundId, PeerId};
use crate::endpoint::peers::Peers;
use crate::endpoint::peers::handshake::{HandshakeState, PeerFeatures};
use crate::endpoint::posting::PeerBackoff;
use crate::endpoint::receiving::ReorderWindow;
use crate::endpoint::sending::{Loss, ReadBased, Sequence};
use crate::nic::{Destination, Status};
use crate::wire::MsgId;

use super::aborts::PendingAbort;

/// The state of the conversation with one peer.
pub(crate) struct Conversation {
    /// The ids of messages and atomics to the peer.
    pub(crate) sequence: Sequence,
    pub(crate) handshake: HandshakeState,
    /// The reason why the peer was given up, if it was. Its packets are dropped.
    pub(crate) failure: Option<Failure>,
    /// Whether the peer sent something since the last check.
    pub(crate) heard: bool,
    /// Packets of the peer that arrived before their turn.
    pub(crate) window: ReorderWindow,
    /// Failed messages that await the peer's HANDSHAKE. The peer is notified of them if it supports
    /// PEER_ERROR.
    pub(super) pending_aborts: Vec<PendingAbort>,
    /// Memory of the peer's packets that wait, in bytes.
    pub(crate) deferred_bytes: usize,
    /// Messages to the peer that it reads in part by RDMA.
    pub(crate) read_based: ReadBased,
    /// The back-off after receiver-not-ready errors of the peer.
    pub(crate) backoff: PeerBackoff,
}

impl Conversation {
    /// Returns whether nothing is in flight in either direction.
    pub(crate) fn is_idle(&self) -> bool {
        self.sequence.is_idle() && self.deferred_bytes == 0 && self.backoff.is_idle()
    }

    /// Accepts a message whose turn it is, if no HANDSHAKE to the peer is due and none of its
    /// packets wait. Otherwise returns false, and changes nothing.
    #[inline(always)]
    pub(crate) fn takes_at_once(&mut self, msg_id: MsgId) -> bool {
        let is_plain = self.failure.is_none() && self.handshake.is_sent();
        let taken = is_plain && self.window.advance_past(msg_id);
        self.heard |= taken;
        taken
    }
}

impl From<MsgId> for Conversation {
    /// The state at the start of a conversation, in which both sides count messages from `first`
    /// on.
    fn from(first: MsgId) -> Self {
        Conversation {
            sequence: Sequence::new(first),
            handshake: HandshakeState::default(),
            failure: None,
            heard: false,
            window: ReorderWindow::new(first),
            pending_aborts: Vec::new(),
            deferred_bytes: 0,
            read_based: ReadBased::default(),
            backoff: PeerBackoff::default(),
        }
    }
}

/// The effect of a lost message or atomic on the sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AfterLoss {
    /// No packet has to be sent now.
    Nothing,
    /// A no-op request must fill a gap in the sequence.
    Fill,
    /// Messages and atomics to the peer can no longer be sent.
    BrokenOff,
}

/// The conversations with all peers.
impl Peers<Conversation> {
    /// If an operation can start now, returns the destination of packets to a peer, and the peer's
    /// state if any packet was ever exchanged.
    ///
    /// # Errors
    /// The operation cannot start.
    #[inline]
    pub(crate) fn check(
        &self,
        peer: PeerId,
    ) -> Result<(Destination, Option<&Conversation>), EndpointError> {
        match self.lookup(peer) {
            None => Err(EndpointError::UnknownPeer(peer)),
            Some((_, Some(state))) if state.failure.is_some() => {
                Err(EndpointError::PeerFailed(peer))
            }
            Some((_, Some(state))) if state.backoff.is_active() => Err(EndpointError::TryAgain),
            Some(known) => Ok(known),
        }
    }

    /// As [`Peers::check`], for an operation that takes a `msg_id`.
    #[inline]
    pub(crate) fn check_sequence(
        &self,
        peer: PeerId,
    ) -> Result<(Destination, Option<&Conversation>), EndpointError> {
        match self.check(peer)? {
            (_, Some(state)) if state.sequence.is_broken() => Err(EndpointError::PeerFailed(peer)),
            (_, Some(state)) if state.sequence.is_too_far_ahead() => Err(EndpointError::TryAgain),
            known => Ok(known),
        }
    }

    /// Checks that there is such a source of messages.
    #[inline]
    pub(crate) fn check_source(&self, source: SourceFilter) -> Result<(), EndpointError> {
        match source {
            SourceFilter::Peer(peer) if !self.addresses().contains(peer) => {
                Err(EndpointError::UnknownPeer(peer))
            }
            SourceFilter::Peer(_) | SourceFilter::Any => Ok(()),
        }
    }

    /// The features that a peer announced. `None` until its HANDSHAKE has arrived.
    pub(crate) fn features(&self, peer: PeerId) -> Option<&PeerFeatures> {
        self.state(peer)?.handshake.features()
    }

    /// The id of the next message or atomic to a peer; `state` is `None` before the first one.
    #[inline]
    pub(crate) fn next_msg_id(&self, state: Option<&Conversation>) -> MsgId {
        state.map_or(self.first_msg_id(), |state| state.sequence.next())
    }

    /// The reason why operations with a peer fail, if they do: the peer was removed or given up.
    #[inline]
    pub(crate) fn failure_of(&self, peer: PeerId) -> Option<Failure> {
        match self.state(peer) {
            Some(state) => state.failure,
            None => Some(Failure::CANCELED),
        }
    }

    /// Returns whether a peer was removed or given up, so that its packets are dropped.
    pub(crate) fn is_given_up(&self, peer: PeerId) -> bool {
        self.failure_of(peer).is_some()
    }

    /// Marks a peer as given up. Returns false if it was already.
    pub(crate) fn give_up(&mut self, peer: PeerId, failure: Failure) -> bool {
        let Some(state) = self.state_mut(peer) else {
            return false;
        };
        let is_first = state.failure.is_none();
        state.failure.get_or_insert(failure);
        is_first
    }

    /// Records that a request with the next `msg_id` was posted to a peer. Returns whether earlier
    /// requests were lost while the peer was unreachable, and their gaps must be filled.
    #[inline]
    pub(crate) fn request_posted(&mut self, peer: PeerId) -> bool {
        let Some(state) = self.state_mut(peer) else {
            return false;
        };
        state.sequence.used();
        state.handshake.request_sent();
        state.sequence.has_gaps()
    }

    /// Records the arrival of a packet, which started the message or atomic `sequenced`, if that is
    /// present. Returns the reason why operations with the peer fail, if they do: the peer may have
    /// been removed or given up since.
    #[inline(always)]
    pub(crate) fn arrived(&mut self, peer: PeerId, sequenced: Option<MsgId>) -> Option<Failure> {
        let Some(state) = self.existing_state_mut(peer) else {
            self.arrived_after_removal(peer, sequenced);
            return Some(Failure::CANCELED);
        };
        if let Some(msg_id) = sequenced {
            state.sequence.done(msg_id);
        }
        state.failure
    }

    #[cold]
    fn arrived_after_removal(&mut self, peer: PeerId, sequenced: Option<MsgId>) {
        let peer = self.current_id(peer);
        if let (Some(msg_id), Some(state)) = (sequenced, self.existing_state_mut(peer)) {
            state.sequence.done(msg_id);
        }
    }

    /// Records that a message or atomic was lost. If the peer has received no part of it, its id is
    /// reused, because the peer waits for it. Otherwise the id cannot be reused, and sending to the
    /// peer ends, unless the application has cancelled the operation without a loss.
    pub(crate) fn request_lost(
        &mut self,
        peer: PeerId,
        msg_id: MsgId,
        failure: Failure,
        loss: Loss,
    ) -> AfterLoss {
        let Some(state) = self.state_mut(peer) else {
            return AfterLoss::Nothing;
        };
        // The conversation with a peer continues after the application removes it.
        let is_given_up = state.failure.is_some_and(|failure| !failure.is_cancelled());
        if is_given_up || state.sequence.is_broken() {
            return AfterLoss::Nothing;
        }
        match loss {
            Loss::NotDelivered => {
                state.sequence.not_delivered(msg_id);
                // The endpoint contacts a peer that has disappeared again when the application
                // sends something.
                let is_gone = failure.is_peer_gone() && !failure.is_cancelled();
                match state.sequence.has_gaps() && !is_gone {
                    true => AfterLoss::Fill,
                    false => AfterLoss::Nothing,
                }
            }
            Loss::Unknown if failure.is_cancelled() => AfterLoss::Nothing,
            Loss::Unknown => {
                state.sequence.break_off(failure);
                AfterLoss::BrokenOff
            }
        }
    }

    /// Returns whether the conversation with a peer continues after its removal: one exists, and
    /// the peer was not given up.
    pub(crate) fn outlives_removal(&self, peer: PeerId) -> bool {
        self.state(peer)
            .is_some_and(|state| state.failure.is_none())
    }

    /// The oldest id whose gap must be filled by a no-op request.
    pub(crate) fn oldest_gap(&self, peer: PeerId) -> Option<MsgId> {
        let state = self.state(peer)?;
        match state.failure {
            None => state.sequence.oldest_gap(),
            Some(_) => None,
        }
    }

    /// Records that a request was posted for the [oldest gap](Peers::oldest_gap).
    pub(crate) fn gap_filled(&mut self, peer: PeerId) {
        if let Some(state) = self.state_mut(peer) {
            state.sequence.filled();
        }
    }

    /// Records that a PEER_ERROR about a message to the peer was posted.
    pub(crate) fn abort_posted(&mut self, peer: PeerId, msg_id: MsgId) {
        if let Some(state) = self.state_mut(peer) {
            state.sequence.posted_again(msg_id);
        }
    }

    /// Makes an operation wait if its peer's HANDSHAKE has not arrived. The HANDSHAKE shows whether
    /// CTSDATA may have a connection id. Without one the peer cannot distinguish packets of this
    /// endpoint from late packets of an earlier owner of its queue pair number. Stock libfabric
    /// since 1.17 waits as well. Returns whether the operation waits.
    pub(crate) fn waits_for_handshake(&mut self, peer: PeerId, id: OutboundId) -> bool {
        let waiting = self
            .state_mut(peer)
            .and_then(|state| state.handshake.waiting());
        let Some(waiting) = waiting else {
            return false;
        };
        // The operation stays marked as queued, so further windows do not add it again.
        waiting.granted_data.push(id);
        true
    }

    /// Reserves `bytes` of a peer's share of `limit` bytes for waiting packets. Returns false, and
    /// reserves nothing, if the share is too small.
    pub(crate) fn take_share(&mut self, peer: PeerId, bytes: usize, limit: usize) -> bool {
        let Some(state) = self.state_mut(peer) else {
            return false;
        };
        let fits = bytes <= limit.saturating_sub(state.deferred_bytes);
        if fits {
            state.deferred_bytes += bytes;
        }
        fits
    }

    /// Releases bytes of [`Peers::take_share`].
    pub(crate) fn give_share_back(&mut self, peer: PeerId, bytes: usize) {
        if let Some(state) = self.state_mut(peer) {
            state.deferred_bytes -= bytes;
        }
    }

    /// Records that a peer has stopped reading a message with this many bytes in packets.
    pub(crate) fn end_read_based(&mut self, peer: PeerId, runt: u64) {
        if let Some(state) = self.state_mut(peer) {
            state.read_based.end(runt);
        }
    }

    /// Converts a device status to a failure. For an unresponsive peer, the failure records whether
    /// the peer ever responded, as in stock libfabric.
    pub(crate) fn failure_for(&self, peer: PeerId, status: Status) -> Failure {
        let mut failure = Failure::from(status);
        if status == Status::LocalUnresponsiveRemote {
            failure.provider = match self.features(peer) {
                Some(_) => ProviderError::EstablishedUnresponsive,
                None => ProviderError::UnestablishedUnresponsive,
            };
        }
        failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{Ahn, Gid, Qkey, Qpn, RawAddress};
    use crate::endpoint::api::error::Errno;
    use crate::endpoint::base::hash::SeededHasher;
    use crate::endpoint::base::ids::Id;
    use crate::wire::ExtraFeatures;

    const FAILURE: Failure = Failure::new(Errno::EIO, ProviderError::None);

    /// The conversations of an endpoint that counts messages from 5 on, with one peer.
    fn conversations() -> (Peers<Conversation>, PeerId) {
        let mut peers = Peers::new(SeededHasher::new(1), MsgId(5));
        let address = RawAddress::new(Gid([1; 16]), Qpn(7), Qkey(9));
        let addresses = peers.addresses_mut();
        let peer = addresses.insert(address, Ahn(3), true).unwrap();
        (peers, peer)
    }

    fn is_ready(peers: &Peers<Conversation>, peer: PeerId) -> bool {
        peers.check(peer).is_ok()
    }

    #[test]
    fn ids_count_from_the_settings_first_one() {
        let (mut peers, peer) = conversations();
        assert_eq!(peers.next_msg_id(peers.state(peer)), MsgId(5));
        assert!(!peers.request_posted(peer));
        assert_eq!(peers.next_msg_id(peers.state(peer)), MsgId(6));
        assert_eq!(peers.arrived(peer, Some(MsgId(5))), None);
        assert!(peers.state(peer).unwrap().is_idle());
    }

    #[test]
    fn unknown_or_abandoned_peers_start_no_operation() {
        let (mut peers, peer) = conversations();
        let stranger = PeerId::new(99, 0);
        assert!(matches!(
            peers.check(stranger),
            Err(EndpointError::UnknownPeer(unknown)) if unknown == stranger
        ));
        assert!(peers.is_given_up(stranger) && is_ready(&peers, peer));
        assert!(peers.give_up(peer, FAILURE));
        assert!(!peers.give_up(peer, Failure::CANCELED), "once");
        assert_eq!(peers.failure_of(peer), Some(FAILURE));
        assert_eq!(peers.arrived(peer, None), Some(FAILURE));
        assert!(matches!(
            peers.check(peer),
            Err(EndpointError::PeerFailed(_))
        ));
        assert!(!peers.give_up(stranger, FAILURE));
    }

    #[test]
    fn a_lost_request_before_others_leaves_a_gap() {
        let (mut peers, peer) = conversations();
        for _ in 0..3 {
            peers.request_posted(peer);
        }
        let lost = |peers: &mut Peers<_>, id| {
            peers.request_lost(peer, MsgId(id), FAILURE, Loss::NotDelivered)
        };
        assert_eq!(lost(&mut peers, 7), AfterLoss::Nothing, "it was the last");
        assert_eq!(peers.next_msg_id(peers.state(peer)), MsgId(7));
        assert_eq!(lost(&mut peers, 5), AfterLoss::Fill);
        assert_eq!(peers.oldest_gap(peer), Some(MsgId(5)));
        peers.gap_filled(peer);
        assert_eq!(peers.oldest_gap(peer), None);
    }

    #[test]
    fn a_gap_is_filled_with_the_next_request() {
        let (mut peers, peer) = conversations();
        for _ in 0..2 {
            peers.request_posted(peer);
        }
        let gone = Failure::from(Status::RemoteBadDestQpn);
        let follows = peers.request_lost(peer, MsgId(5), gone, Loss::NotDelivered);
        assert_eq!(follows, AfterLoss::Nothing);
        assert!(peers.request_posted(peer), "now it has to be filled");
        peers.give_up(peer, FAILURE);
        assert_eq!(
            peers.oldest_gap(peer),
            None,
            "nobody is left to wait for it"
        );
    }

    #[test]
    fn a_possibly_delivered_request_breaks_the_sequence() {
        let (mut peers, peer) = conversations();
        peers.request_posted(peer);
        let lost =
            |peers: &mut Peers<_>| peers.request_lost(peer, MsgId(5), FAILURE, Loss::Unknown);
        assert_eq!(lost(&mut peers), AfterLoss::BrokenOff);
        assert_eq!(lost(&mut peers), AfterLoss::Nothing, "reported once");
        assert!(peers.check_sequence(peer).is_err());
        assert!(is_ready(&peers, peer), "writes and reads need no id");
    }

    #[test]
    fn requests_before_a_removal_count_after_it() {
        let (mut peers, old) = conversations();
        for _ in 0..3 {
            peers.request_posted(old);
        }
        assert!(peers.outlives_removal(old));
        let cancelled = Failure::CANCELED;
        let given_up = peers.request_lost(old, MsgId(7), cancelled, Loss::Unknown);
        assert_eq!(given_up, AfterLoss::Nothing, "the peer has a part of it");
        let new = peers.addresses_mut().retire(old).unwrap();
        peers.follow(old, new);
        assert_eq!(peers.arrived(old, Some(MsgId(5))), Some(cancelled));
        let lost = peers.request_lost(new, MsgId(6), cancelled, Loss::NotDelivered);
        assert_eq!(
            (lost, peers.oldest_gap(new)),
            (AfterLoss::Fill, Some(MsgId(6)))
        );
        assert_eq!(peers.next_msg_id(peers.state(new)), MsgId(8));
        peers.gap_filled(new);
        for msg_id in [6, 6, 7] {
            assert!(!peers.state(new).unwrap().is_idle());
            peers.arrived(old, Some(MsgId(msg_id)));
        }
        assert!(peers.state(new).unwrap().is_idle());
        assert!(peers.check(old).is_err() && is_ready(&peers, new));
        peers.give_up(new, FAILURE);
        assert!(!peers.outlives_removal(new));
    }

    #[test]
    fn each_peer_has_its_share_of_deferral_memory() {
        let (mut peers, peer) = conversations();
        assert!(peers.take_share(peer, 60, 100));
        assert!(!peers.take_share(peer, 41, 100));
        assert!(peers.take_share(peer, 40, 100));
        assert!(!peers.state(peer).unwrap().is_idle());
        peers.give_share_back(peer, 100);
        assert!(peers.state(peer).unwrap().is_idle());
    }

    #[test]
    fn a_silent_peer_was_or_never_was_reached() {
        let (mut peers, peer) = conversations();
        let status = Status::LocalUnresponsiveRemote;
        let provider = |peers: &Peers<_>| peers.failure_for(peer, status).provider;
        assert_eq!(provider(&peers), ProviderError::UnestablishedUnresponsive);
        let id = OutboundId::from_wire(1);
        assert!(peers.waits_for_handshake(peer, id));
        let features = PeerFeatures {
            extra: ExtraFeatures::empty(),
            device_version: None,
            user_recv_qp: None,
            peer_to_peer: true,
        };
        let state = peers.state_mut(peer).unwrap();
        assert_eq!(state.handshake.receive(features).granted_data, [id]);
        assert_eq!(provider(&peers), ProviderError::EstablishedUnresponsive);
        assert!(!peers.waits_for_handshake(peer, id));
    }
}
