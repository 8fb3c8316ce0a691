//! Messages that no receive has matched: those that wait for a receive, those that the application
//! claimed, and those that wait for room. This module also finds the destination of a message's
//! further packets.

use slab::Slab;

use crate::endpoint::api::error::Failure;
use crate::endpoint::api::operation::{IoVec, MessageInfo, SourceFilter, TagFilter};
use crate::endpoint::base::by_peer::{PeerLinks, PeerLists, PeerNodes};
use crate::endpoint::base::hash::SeededHasher;
use crate::endpoint::base::ids::{Arena, ClaimId, InboundId, PeerId};
use crate::endpoint::posting::DeferredPacketId;
use crate::wire::MsgId;

use super::arrived::{Insertion, RangePool, ReceivedRanges};
use super::assembly::{Assemblies, Assembly};
use super::ending::{ReportRecipient, TransferEnding, receive_flags};
use super::matching::{Filter, MessageQueues};

/// A message that no receive has matched yet.
pub(crate) struct UnexpectedMessage {
    pub(crate) msg_id: MsgId,
    /// Length of the whole message in bytes.
    pub(crate) length: u64,
    pub(crate) cq_data: Option<u64>,
    /// Whether it consists of several packets with the same `msg_id`.
    pub(crate) segmented: bool,
    /// Its packets so far.
    pub(crate) head: DeferredPacketId,
    /// The data in them.
    pub(crate) arrived: ReceivedRanges,
    /// The reason why the rest will not arrive, if that is known. The packets were dropped.
    pub(crate) lost: Option<Failure>,
}

impl UnexpectedMessage {
    /// Records `length` bytes of data from `offset` on. Returns false if they are a duplicate.
    #[inline]
    pub(crate) fn takes(&mut self, offset: u64, length: u64) -> bool {
        self.arrived.add(offset, length, self.length) != Insertion::Repeated
    }

    /// Returns whether the message is complete.
    pub(crate) fn is_whole(&self) -> bool {
        self.arrived.bytes() >= self.length && self.lost.is_none()
    }
}

#[cfg(test)]
impl UnexpectedMessage {
    /// The first segment of a message of 30 bytes. The packet that waits has the number of the
    /// message.
    pub(super) fn segmented(msg_id: u32) -> Self {
        let mut message = UnexpectedMessage {
            msg_id: MsgId(msg_id),
            length: 30,
            cq_data: None,
            segmented: true,
            head: crate::endpoint::base::ids::Id::new(msg_id, 0),
            arrived: ReceivedRanges::default(),
            lost: None,
        };
        assert!(message.takes(0, 10));
        message
    }
}

/// A message that the application claimed.
pub(crate) struct Claim {
    pub(crate) peer: PeerId,
    tagged: bool,
    tag: u64,
    pub(crate) message: UnexpectedMessage,
    /// Its links among the claims of the same sender.
    links: PeerLinks,
}

impl Claim {
    /// How the end of its receive is reported.
    pub(crate) fn ending(&self) -> TransferEnding {
        TransferEnding {
            context: 0,
            report_success: false,
            flags: receive_flags(self.tagged, self.message.cq_data),
            tag: self.tag,
            cq_data: self.message.cq_data,
            recipient: ReportRecipient::Starter,
            part: None,
        }
    }
}

/// An operation of a peer that waits for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeferredOperation {
    /// A request to write or read; this is its packet, which waits.
    Request(DeferredPacketId),
    /// A message for a part of a multi-receive buffer.
    Part(PartKey),
}

/// Names a [`DeferredPart`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PartKey(u32);

/// A message that has its part of a multi-receive buffer and waits for room.
pub(crate) struct DeferredPart {
    pub(crate) message: UnexpectedMessage,
    pub(crate) target: IoVec,
    pub(crate) ending: TransferEnding,
}

/// The destination of a message's further packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Segment {
    /// To a transfer.
    Transfer(InboundId),
    /// To the message's packets that wait, in front of this one.
    Deferred(DeferredPacketId),
    /// Nowhere: no message lacks it.
    Unknown,
}

/// The messages that no receive has matched.
pub(crate) struct UnexpectedMessages {
    untagged: MessageQueues<UnexpectedMessage>,
    tagged: MessageQueues<UnexpectedMessage>,
    claims: Arena<Claim, ClaimId>,
    /// The claims by peer; each by its slot.
    claims_by_peer: PeerLists,
    parts: Slab<DeferredPart>,
    assemblies: Assemblies,
    ranges: RangePool,
}

impl UnexpectedMessages {
    /// Makes room for at most `max_claims` claims.
    pub(super) fn new(max_claims: usize, hasher: SeededHasher) -> Self {
        UnexpectedMessages {
            untagged: MessageQueues::new(hasher),
            tagged: MessageQueues::new(hasher),
            claims: Arena::new(max_claims),
            claims_by_peer: PeerLists::default(),
            parts: Slab::new(),
            assemblies: Assemblies::new(hasher),
            ranges: RangePool::default(),
        }
    }

    /// The number of messages that wait for a receive.
    pub(crate) fn len(&self) -> usize {
        self.untagged.len() + self.tagged.len()
    }

    /// Returns whether any messages wait for a receive.
    #[inline]
    pub(crate) fn has_any(&self, tagged: bool) -> bool {
        let queues = match tagged {
            true => &self.tagged,
            false => &self.untagged,
        };
        queues.len() > 0
    }

    /// The number of messages that the application claimed.
    pub(crate) fn claims_len(&self) -> usize {
        self.claims.len()
    }

    /// The number of incomplete messages, matched or not.
    pub(crate) fn assemblies_len(&self) -> usize {
        self.assemblies.len()
    }

    #[inline]
    fn queues(&mut self, tagged: bool) -> &mut MessageQueues<UnexpectedMessage> {
        match tagged {
            true => &mut self.tagged,
            false => &mut self.untagged,
        }
    }

    /// Stores a message that no receive accepts.
    pub(crate) fn defer(&mut self, peer: PeerId, tag: Option<u64>, message: UnexpectedMessage) {
        let tagged = tag.is_some();
        let (msg_id, segmented) = (message.msg_id, message.segmented);
        let key = self.queues(tagged).push(peer, tag.unwrap_or(0), message);
        if segmented {
            self.assemblies
                .set(peer, msg_id, Assembly::Unexpected { tagged, key });
        }
    }

    /// The first message to have arrived that a receive with this filter would accept.
    pub(crate) fn first(
        &mut self,
        tagged: bool,
        filter: &Filter,
    ) -> Option<(PeerId, u64, &UnexpectedMessage)> {
        let queues = self.queues(tagged);
        let key = queues.find(filter)?;
        let (peer, tag, message) = queues.get_mut(key);
        Some((peer, tag, message))
    }

    /// Describes the [first](UnexpectedMessages::first) message to the application; `tag` is `None`
    /// for untagged ones.
    pub(crate) fn peek(
        &mut self,
        source: SourceFilter,
        tag: Option<TagFilter>,
    ) -> Option<MessageInfo> {
        let tagged = tag.is_some();
        let (source, tag, message) = self.first(tagged, &Filter::new(source, tag))?;
        Some(MessageInfo {
            source,
            tag: tagged.then_some(tag),
            length: message.length,
            cq_data: message.cq_data,
        })
    }

    /// Removes the first message to have arrived that a receive with this filter accepts. Returns
    /// it with its source and tag.
    pub(crate) fn take(
        &mut self,
        tagged: bool,
        filter: &Filter,
    ) -> Option<(PeerId, u64, UnexpectedMessage)> {
        let queues = self.queues(tagged);
        queues.find(filter).map(|key| queues.remove(key))
    }

    /// Removes all messages of a peer, including claimed ones. Those that wait for room stay.
    pub(crate) fn take_all_of(&mut self, peer: PeerId) -> Vec<UnexpectedMessage> {
        let mut messages = Vec::new();
        for tagged in [false, true] {
            let queues = self.queues(tagged);
            for key in queues.of_source(peer) {
                messages.push(queues.remove(key).2);
            }
        }
        for slot in self.claims_by_peer.of(&self.claims, peer) {
            let id = self.claims.at(slot as usize).map(|(id, _)| id);
            messages.extend(
                id.and_then(|id| self.take_claim(id))
                    .map(|claim| claim.message),
            );
        }
        messages
    }

    /// Returns whether a peer has no messages here that do not wait for room.
    pub(super) fn has_none_of(&self, peer: PeerId) -> bool {
        self.claims_by_peer.is_empty(peer)
            && self.untagged.has_none_from(peer)
            && self.tagged.has_none_from(peer)
    }
}

// Messages that the application claimed, and messages that wait for room.
impl UnexpectedMessages {
    /// Reserves the first message to have arrived that a receive with this filter would accept.
    pub(crate) fn claim(&mut self, tagged: bool, filter: &Filter) -> Option<ClaimId> {
        if self.claims.is_full() {
            return None;
        }
        let (peer, tag, message) = self.take(tagged, filter)?;
        let (msg_id, segmented) = (message.msg_id, message.segmented);
        let claim = Claim {
            peer,
            tagged,
            tag,
            message,
            links: PeerLinks::NONE,
        };
        let id = self.claims.insert(claim).ok()?;
        self.claims_by_peer.push(&mut self.claims, peer, id.slot());
        if segmented {
            self.assemblies.set(peer, msg_id, Assembly::Claimed(id));
        }
        Some(id)
    }

    /// Removes a message that was reserved.
    pub(crate) fn take_claim(&mut self, id: ClaimId) -> Option<Claim> {
        let peer = self.claims.get(id)?.peer;
        self.claims_by_peer
            .remove(&mut self.claims, peer, id.slot());
        self.claims.remove(id)
    }

    /// Makes a message wait for room.
    pub(crate) fn defer_part(&mut self, peer: PeerId, part: DeferredPart) -> DeferredOperation {
        let (msg_id, segmented) = (part.message.msg_id, part.message.segmented);
        let key = PartKey(self.parts.insert(part) as u32);
        if segmented {
            self.assemblies.set(peer, msg_id, Assembly::Waiting(key));
        }
        DeferredOperation::Part(key)
    }

    /// Removes a message of [`UnexpectedMessages::defer_part`].
    pub(crate) fn take_deferred_part(&mut self, PartKey(key): PartKey) -> DeferredPart {
        self.parts.remove(key as usize)
    }
}

// Further packets of messages.
impl UnexpectedMessages {
    /// Directs further packets of a message to a transfer.
    pub(super) fn direct_to(&mut self, transfer: InboundId, peer: PeerId, msg_id: MsgId) {
        self.assemblies
            .set(peer, msg_id, Assembly::Transfer(transfer));
    }

    /// Drops the destination of a message's further packets.
    pub(crate) fn forget_segments(&mut self, peer: PeerId, msg_id: MsgId) {
        self.assemblies.remove(peer, msg_id);
    }

    /// Returns the destination of a message's further packet.
    pub(crate) fn segment(&mut self, peer: PeerId, msg_id: MsgId) -> Segment {
        match self.assemblies.get(peer, msg_id) {
            Some(Assembly::Transfer(id)) => Segment::Transfer(id),
            Some(assembly) => self
                .message_of(assembly)
                .map_or(Segment::Unknown, |message| Segment::Deferred(message.head)),
            None => Segment::Unknown,
        }
    }

    /// Returns whether a packet with `length` bytes of data from `offset` on may be added to a
    /// message that no receive has matched. A duplicate may not. A packet that contradicts the
    /// others is added, so that the receive fails.
    pub(crate) fn admits_segment(
        &mut self,
        peer: PeerId,
        msg_id: MsgId,
        offset: u64,
        length: u64,
    ) -> bool {
        let assembly = self.assemblies.get(peer, msg_id);
        match assembly.and_then(|assembly| self.message_of(assembly)) {
            Some(message) => message.takes(offset, length),
            None => false,
        }
    }

    /// Adds a packet, in front of the waiting ones, to a message that no receive has matched.
    pub(crate) fn add_segment(&mut self, peer: PeerId, msg_id: MsgId, packet: DeferredPacketId) {
        if let Some(assembly) = self.assemblies.get(peer, msg_id)
            && let Some(message) = self.message_of(assembly)
        {
            message.head = packet;
        }
    }

    /// The state of a message of which nothing has arrived.
    #[inline]
    pub(crate) fn nothing_arrived(&mut self, segmented: bool) -> ReceivedRanges {
        let mut arrived = ReceivedRanges::default();
        if segmented {
            self.ranges.lend(&mut arrived);
        }
        arrived
    }

    /// Releases the memory of a message that was removed.
    #[inline]
    pub(crate) fn left(&mut self, mut message: UnexpectedMessage) {
        self.ranges.take_back(&mut message.arrived);
    }

    /// A message that no receive has matched.
    fn message_of(&mut self, assembly: Assembly) -> Option<&mut UnexpectedMessage> {
        match assembly {
            Assembly::Unexpected { tagged, key } => Some(self.queues(tagged).get_mut(key).2),
            Assembly::Claimed(id) => Some(&mut self.claims.get_mut(id)?.message),
            Assembly::Waiting(PartKey(key)) => Some(&mut self.parts.get_mut(key as usize)?.message),
            Assembly::Transfer(_) => None,
        }
    }
}

// Messages whose remaining packets will not arrive.
impl UnexpectedMessages {
    /// Records that the sender of a message has abandoned it. No receive matches it any more; a
    /// receive that has claimed it, or has a part of a buffer for it, fails. `waiting` are the
    /// peer's messages that wait for room. Returns the packets to drop, or `None` for an unknown
    /// message.
    pub(crate) fn abandon(
        &mut self,
        peer: PeerId,
        msg_id: MsgId,
        failure: Failure,
        waiting: impl IntoIterator<Item = PartKey>,
    ) -> Option<DeferredPacketId> {
        // Only messages of several packets are found by their id.
        let assembly = match self.assemblies.get(peer, msg_id) {
            Some(assembly) => assembly,
            None => self.find(peer, msg_id, waiting)?,
        };
        let message = self.message_of(assembly)?;
        message.lost = Some(failure);
        let head = message.head;
        self.assemblies.remove(peer, msg_id);
        if let Assembly::Unexpected { tagged, key } = assembly {
            self.queues(tagged).remove(key);
        }
        Some(head)
    }

    /// Looks for a message that will receive no more packets. Takes time in proportion to the
    /// peer's messages.
    fn find(
        &mut self,
        peer: PeerId,
        msg_id: MsgId,
        waiting: impl IntoIterator<Item = PartKey>,
    ) -> Option<Assembly> {
        let mut all: Vec<Assembly> = Vec::new();
        for tagged in [false, true] {
            let keys = self.queues(tagged).of_source(peer).into_iter();
            all.extend(keys.map(|key| Assembly::Unexpected { tagged, key }));
        }
        let claims = self.claims_by_peer.of(&self.claims, peer).into_iter();
        let claims = claims.filter_map(|slot| self.claims.at(slot as usize));
        all.extend(claims.map(|(id, _)| Assembly::Claimed(id)));
        all.extend(waiting.into_iter().map(Assembly::Waiting));
        all.into_iter().find(|assembly| {
            let message = self.message_of(*assembly);
            message.is_some_and(|message| message.msg_id == msg_id && message.lost.is_none())
        })
    }

    /// As [`UnexpectedMessages::abandon`], of all messages of a peer that are not whole, but for
    /// those that wait for room. Returns the packets to drop.
    pub(crate) fn abandon_unfinished(
        &mut self,
        peer: PeerId,
        failure: Failure,
    ) -> Vec<DeferredPacketId> {
        let mut heads = Vec::new();
        for tagged in [false, true] {
            for key in self.queues(tagged).of_source(peer) {
                let (.., message) = self.queues(tagged).get_mut(key);
                if message.is_whole() {
                    continue;
                }
                let (.., message) = self.queues(tagged).remove(key);
                heads.push(message.head);
                if message.segmented {
                    self.assemblies.remove(peer, message.msg_id);
                }
            }
        }
        for slot in self.claims_by_peer.of(&self.claims, peer) {
            let Some(claim) = self.claims.at_mut(slot as usize) else {
                continue;
            };
            let message = &mut claim.message;
            if message.is_whole() || message.lost.is_some() {
                continue;
            }
            message.lost = Some(failure);
            heads.push(message.head);
            if message.segmented {
                self.assemblies.remove(peer, message.msg_id);
            }
        }
        heads
    }
}

impl PeerNodes for Arena<Claim, ClaimId> {
    fn links(&self, slot: u32) -> &PeerLinks {
        &self[slot].links
    }

    fn links_mut(&mut self, slot: u32) -> &mut PeerLinks {
        &mut self[slot].links
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::base::ids::Id;
    use crate::nic::UserSlice;

    fn messages() -> UnexpectedMessages {
        UnexpectedMessages::new(4, SeededHasher::new(1))
    }

    fn peer(number: u32) -> PeerId {
        PeerId::new(number, 0)
    }

    fn any(tag: u64) -> Filter {
        Filter {
            source: SourceFilter::Any,
            tag: TagFilter::exact(tag),
        }
    }

    /// A packet that waits.
    fn deferred(number: u32) -> DeferredPacketId {
        DeferredPacketId::new(number, 0)
    }

    #[test]
    fn segments_are_found_in_every_message_state() {
        let mut messages = messages();
        let (peer, id) = (peer(1), MsgId(3));
        assert_eq!(messages.segment(peer, id), Segment::Unknown);
        messages.defer(peer, Some(7), UnexpectedMessage::segmented(3));
        assert_eq!(messages.segment(peer, id), Segment::Deferred(deferred(3)));
        assert!(!messages.admits_segment(peer, id, 0, 10), "a second copy");
        assert!(messages.admits_segment(peer, id, 20, 10));
        messages.add_segment(peer, id, deferred(8));
        // Claimed: further packets go to the claim.
        let claim = messages.claim(true, &any(7)).unwrap();
        assert_eq!(messages.segment(peer, id), Segment::Deferred(deferred(8)));
        assert!(messages.first(true, &any(7)).is_none());
        assert!(!messages.admits_segment(peer, id, 20, 10), "a second copy");
        assert!(messages.admits_segment(peer, id, 15, 5));
        messages.add_segment(peer, id, deferred(9));
        let claim = messages.take_claim(claim).unwrap();
        assert_eq!(claim.message.head, deferred(9));
        assert!(!claim.message.is_whole());
        // Waiting for room: they go there.
        let part = DeferredPart {
            ending: claim.ending(),
            message: claim.message,
            target: IoVec::new(UserSlice::new(0, 0)),
        };
        let DeferredOperation::Part(key) = messages.defer_part(peer, part) else {
            panic!("a message waits");
        };
        assert!(!messages.admits_segment(peer, id, 15, 5), "a second copy");
        assert!(messages.admits_segment(peer, id, 10, 5));
        messages.add_segment(peer, id, deferred(10));
        assert_eq!(messages.segment(peer, id), Segment::Deferred(deferred(10)));
        let message = messages.take_deferred_part(key).message;
        assert_eq!(message.head, deferred(10));
        assert!(message.is_whole());
        // Received: they go to the transfer.
        let transfer = InboundId::new(2, 0);
        messages.direct_to(transfer, peer, id);
        assert_eq!(messages.segment(peer, id), Segment::Transfer(transfer));
        assert_eq!(messages.assemblies_len(), 1);
        messages.forget_segments(peer, id);
        assert_eq!(messages.segment(peer, id), Segment::Unknown);
        assert_eq!(messages.assemblies_len(), 0);
    }

    #[test]
    fn unfinished_messages_are_abandoned_and_whole_ones_remain() {
        const FAILURE: Failure = Failure::CANCELED;
        let mut messages = messages();
        for (number, msg_id, tag) in [
            (1, 1, Some(7)),
            (1, 2, None),
            (1, 3, Some(9)),
            (2, 4, Some(7)),
        ] {
            messages.defer(peer(number), tag, UnexpectedMessage::segmented(msg_id));
        }
        assert!(messages.admits_segment(peer(1), MsgId(2), 10, 20));
        messages.add_segment(peer(1), MsgId(2), deferred(12));
        let claim = messages.claim(true, &any(9)).unwrap();
        let heads = messages.abandon_unfinished(peer(1), FAILURE);
        assert_eq!(heads, [deferred(1), deferred(3)]);
        assert_eq!(messages.abandon_unfinished(peer(1), FAILURE), []);
        let (source, _, message) = messages.take(true, &any(7)).unwrap();
        assert_eq!((source, message.msg_id), (peer(2), MsgId(4)));
        assert!(messages.take(false, &any(0)).unwrap().2.is_whole());
        let claim = messages.take_claim(claim).unwrap();
        assert_eq!(claim.message.lost, Some(FAILURE));
        assert_eq!(messages.segment(peer(1), MsgId(1)), Segment::Unknown);
        assert_eq!(messages.segment(peer(1), MsgId(3)), Segment::Unknown);
    }

    #[test]
    fn a_message_is_abandoned_in_every_state() {
        const FAILURE: Failure = Failure::CANCELED;
        let mut messages = messages();
        let peer = peer(1);
        messages.defer(peer, Some(7), UnexpectedMessage::segmented(3));
        assert_eq!(messages.abandon(peer, MsgId(4), FAILURE, []), None);
        assert_eq!(
            messages.abandon(peer, MsgId(3), FAILURE, []),
            Some(deferred(3))
        );
        assert_eq!((messages.len(), messages.assemblies_len()), (0, 0));
        messages.defer(peer, Some(7), UnexpectedMessage::segmented(5));
        let claim = messages.claim(true, &any(7)).unwrap();
        assert_eq!(
            messages.abandon(peer, MsgId(5), FAILURE, []),
            Some(deferred(5))
        );
        assert_eq!(messages.abandon(peer, MsgId(5), FAILURE, []), None, "once");
        let claim = messages.take_claim(claim).unwrap();
        assert_eq!(claim.message.lost, Some(FAILURE));
    }

    #[test]
    fn peer_lookup_includes_claimed_messages_and_no_others() {
        let mut messages = messages();
        for (number, msg_id, tag) in [
            (1, 1, Some(7)),
            (1, 2, None),
            (2, 3, Some(7)),
            (1, 4, Some(9)),
        ] {
            messages.defer(peer(number), tag, UnexpectedMessage::segmented(msg_id));
        }
        messages.claim(true, &any(9)).unwrap();
        assert!(!messages.has_none_of(peer(1)));
        let taken = messages.take_all_of(peer(1));
        let ids: Vec<u32> = taken.iter().map(|message| message.msg_id.0).collect();
        assert_eq!(ids, [2, 1, 4]);
        assert!(messages.has_none_of(peer(1)));
        assert_eq!((messages.len(), messages.claims_len()), (1, 0));
        let (source, tag, message) = messages.take(true, &any(7)).unwrap();
        assert_eq!((source, tag, message.msg_id), (peer(2), 7, MsgId(3)));
    }
}
