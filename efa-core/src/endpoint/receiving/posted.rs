//! Posted receives: those that wait for a message, and the choice of the receive for a message.

use crate::endpoint::api::completion::CompletionFlags;
use crate::endpoint::api::operation::IoVec;
use crate::endpoint::base::by_peer::{PeerLinks, PeerLists, PeerNodes};
use crate::endpoint::base::hash::SeededHasher;
use crate::endpoint::base::ids::{Arena, PeerId, ReceiveId};
use crate::endpoint::memory::iov::Iov;

use super::ending::{ReportRecipient, TransferEnding, message_flags, receive_flags};
use super::matching::{Filter, MatchedReceive, PostedEntry, ReceiveQueues, Receives};
use super::multi_receive::{MultiBuffers, MultiKey, Part};

/// A receive to post.
pub(crate) struct NewReceive {
    pub(crate) context: u64,
    /// Whether a success is reported, not only a failure.
    pub(crate) report_success: bool,
    pub(crate) tagged: bool,
    pub(crate) filter: Filter,
    pub(crate) target: Iov,
}

/// A posted receive.
pub(crate) struct PostedReceive {
    context: u64,
    report_success: bool,
    pub(crate) target: Iov,
    /// Whether it matches tagged messages, and which; its position among the receives of its kind.
    tagged: bool,
    tag: u64,
    entry: PostedEntry,
    /// The multi-receive buffer, if it is one.
    multi: Option<MultiKey>,
    /// Its links among the receives that name the same source, if it names one.
    links: PeerLinks,
}

impl PostedReceive {
    /// How the end of a message that the receive matches is reported.
    #[inline]
    pub(crate) fn ending(&self, tag: Option<u64>, cq_data: Option<u64>) -> TransferEnding {
        TransferEnding {
            context: self.context,
            report_success: self.report_success,
            flags: receive_flags(self.tagged, cq_data),
            tag: tag.unwrap_or(0),
            cq_data,
            recipient: ReportRecipient::Starter,
            part: None,
        }
    }

    /// Length of the target in bytes.
    #[inline(always)]
    pub(crate) fn capacity(&self) -> u64 {
        self.target.length()
    }

    /// The sort key of receives: untagged ones first, then by age.
    fn age(&self) -> (bool, u64) {
        (self.tagged, self.entry.order())
    }
}

/// The posted receives.
pub(crate) struct PostedReceives {
    receives: Arena<PostedReceive, ReceiveId>,
    untagged: ReceiveQueues,
    tagged: ReceiveQueues,
    /// Those that name a source, by peer; each by its slot.
    by_source: PeerLists,
    multi_buffers: MultiBuffers,
}

impl PostedReceives {
    /// Makes room for at most `limit` receives.
    pub(super) fn new(limit: usize, hasher: SeededHasher) -> Self {
        PostedReceives {
            receives: Arena::new(limit),
            untagged: ReceiveQueues::new(hasher),
            tagged: ReceiveQueues::new(hasher),
            by_source: PeerLists::default(),
            multi_buffers: MultiBuffers::default(),
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.receives.len()
    }

    /// The queues of tagged or of untagged receives, and the receives.
    #[inline]
    fn queues(
        &mut self,
        tagged: bool,
    ) -> (&mut ReceiveQueues, &mut Arena<PostedReceive, ReceiveId>) {
        match tagged {
            true => (&mut self.tagged, &mut self.receives),
            false => (&mut self.untagged, &mut self.receives),
        }
    }

    /// Posts a receive. `None` if there are too many.
    #[inline(always)]
    pub(super) fn post(&mut self, receive: NewReceive) -> Option<ReceiveId> {
        self.insert(receive, None)
    }

    /// Posts a buffer for several messages. `None` if there are too many receives.
    pub(super) fn post_multi(
        &mut self,
        receive: NewReceive,
        piece: IoVec,
        min_free: usize,
    ) -> Option<ReceiveId> {
        if self.receives.is_full() {
            return None;
        }
        let multi = self.multi_buffers.insert(piece, min_free);
        self.insert(receive, Some(multi))
    }

    #[inline(always)]
    fn insert(&mut self, receive: NewReceive, multi: Option<MultiKey>) -> Option<ReceiveId> {
        let NewReceive {
            context,
            report_success,
            tagged,
            filter,
            target,
        } = receive;
        let entry = self.queues(tagged).0.new_entry(&filter, multi.is_some());
        let posted = PostedReceive {
            context,
            report_success,
            target,
            tagged,
            tag: filter.tag.tag,
            entry,
            multi,
            links: PeerLinks::NONE,
        };
        let id = self.receives.insert(posted).ok()?;
        if let Some(peer) = entry.source() {
            self.by_source.push(&mut self.receives, peer, id.slot());
        }
        let (queues, receives) = self.queues(tagged);
        queues.post(receives, id.slot(), entry);
        Some(id)
    }

    /// Skips the next id, for a receive that is not posted because its message has arrived. `None`
    /// if there are too many receives.
    pub(crate) fn skip_id(&mut self) -> Option<ReceiveId> {
        self.receives.skip_id()
    }

    /// Finds the oldest receive that accepts a message. Removes it from the queues unless it
    /// matches several messages: the caller [ends](PostedReceives::end_matched) or
    /// [takes](PostedReceives::take_matched) it.
    #[inline(always)]
    pub(crate) fn match_message(
        &mut self,
        peer: PeerId,
        tag: Option<u64>,
    ) -> Option<MatchedReceive> {
        let (queues, receives) = self.queues(tag.is_some());
        queues.take_oldest(receives, peer, tag.unwrap_or(0))
    }

    /// The id of a receive that [`PostedReceives::match_message`] found.
    pub(crate) fn id(&self, slot: u32) -> Option<ReceiveId> {
        self.receives.at(slot as usize).map(|(id, _)| id)
    }

    /// A receive that [`PostedReceives::match_message`] found.
    #[inline(always)]
    pub(crate) fn matched(&self, slot: u32) -> Option<&PostedReceive> {
        self.receives.at(slot as usize).map(|(_, posted)| posted)
    }

    /// Ends a receive that [`PostedReceives::match_message`] found.
    #[inline(always)]
    pub(crate) fn end_matched(&mut self, slot: u32) {
        let ended = self.receives.end_at(slot as usize, |posted| {
            posted.entry.source().is_none().then_some(())
        });
        if ended.is_none() {
            self.take_matched(slot);
        }
    }

    /// Removes a receive that [`PostedReceives::match_message`] found.
    #[inline(never)]
    pub(super) fn take_matched(&mut self, slot: u32) -> Option<PostedReceive> {
        let (id, posted) = self.receives.at(slot as usize)?;
        if let Some(peer) = posted.entry.source() {
            self.by_source.remove(&mut self.receives, peer, slot);
        }
        self.receives.remove(id)
    }

    /// Allocates the next part of a multi-receive buffer to a message. After its last part the
    /// buffer is no longer posted. Returns `None` if no such buffer is posted.
    pub(crate) fn next_part(
        &mut self,
        id: ReceiveId,
        length: u64,
        cq_data: Option<u64>,
    ) -> Option<(IoVec, TransferEnding)> {
        let posted = self.receives.get(id)?;
        let mut ending = posted.ending(None, cq_data);
        let (part, target, is_last) = self.multi_buffers.next_part(posted.multi?, length)?;
        if is_last {
            self.remove(id);
        }
        ending.part = Some(part);
        Some((target, ending))
    }

    /// Records that a message of a multi-receive buffer is complete. Returns whether the
    /// application may use the buffer again.
    pub(crate) fn end_part(&mut self, part: Part) -> bool {
        self.multi_buffers.end_part(part)
    }

    /// Removes a receive that is in a queue.
    fn remove(&mut self, id: ReceiveId) -> Option<PostedReceive> {
        let tagged = self.receives.get(id)?.tagged;
        let (queues, receives) = self.queues(tagged);
        queues.remove(receives, id.slot());
        self.take_matched(id.slot())
    }

    /// Removes a receive that no message has matched. Returns its context, the flags of its
    /// completion, and its tag, which is 0 if it is untagged.
    pub(crate) fn withdraw(&mut self, id: ReceiveId) -> Option<(u64, CompletionFlags, u64)> {
        let posted = self.remove(id)?;
        let mut flags = message_flags(posted.tagged, CompletionFlags::RECV);
        if let Some(multi) = posted.multi {
            flags.set(CompletionFlags::MULTI_RECV, self.multi_buffers.close(multi));
        }
        Some((posted.context, flags, posted.tag))
    }

    /// The oldest receive that was posted with a context. Takes time in proportion to the number of
    /// posted receives.
    pub(crate) fn oldest_with_context(&self, context: u64) -> Option<ReceiveId> {
        let with_context = self
            .receives
            .iter()
            .filter(|(_, posted)| posted.context == context);
        with_context
            .min_by_key(|(_, posted)| posted.age())
            .map(|(id, _)| id)
    }

    /// The receives that name a peer as their source, oldest first.
    pub(crate) fn naming(&self, peer: PeerId) -> Vec<ReceiveId> {
        let slots = self.by_source.of(&self.receives, peer);
        let receives = slots
            .into_iter()
            .map(|slot| self.receives.at(slot as usize));
        receives.flatten().map(|(id, _)| id).collect()
    }

    /// Returns whether no receive names a peer as its source.
    pub(super) fn is_none_naming(&self, peer: PeerId) -> bool {
        self.by_source.is_empty(peer)
    }
}

impl PeerNodes for Arena<PostedReceive, ReceiveId> {
    fn links(&self, slot: u32) -> &PeerLinks {
        &self[slot].links
    }

    fn links_mut(&mut self, slot: u32) -> &mut PeerLinks {
        &mut self[slot].links
    }
}

impl Receives for Arena<PostedReceive, ReceiveId> {
    #[inline]
    fn entry(&self, slot: u32) -> &PostedEntry {
        &self[slot].entry
    }

    #[inline]
    fn entry_mut(&mut self, slot: u32) -> &mut PostedEntry {
        &mut self[slot].entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::base::ids::Id;
    use crate::endpoint::{SourceFilter, TagFilter};
    use crate::nic::UserSlice;

    fn peer(number: u32) -> PeerId {
        PeerId::new(number, 0)
    }

    fn posted() -> PostedReceives {
        PostedReceives::new(4, SeededHasher::new(1))
    }

    fn piece() -> IoVec {
        IoVec::new(UserSlice::new(1000, 100))
    }

    fn receive(context: u64, tag: Option<u64>, source: SourceFilter) -> NewReceive {
        NewReceive {
            context,
            report_success: true,
            tagged: tag.is_some(),
            filter: Filter {
                source,
                tag: TagFilter::exact(tag.unwrap_or(0)),
            },
            target: Iov::One(piece()),
        }
    }

    fn post(posted: &mut PostedReceives, context: u64, tag: Option<u64>) -> ReceiveId {
        let receive = receive(context, tag, SourceFilter::Any);
        posted.post(receive).unwrap()
    }

    #[test]
    fn a_posted_receive_takes_few_cache_lines() {
        let slot = size_of::<(u32, Option<PostedReceive>)>();
        assert!(slot <= 128, "{slot} bytes");
    }

    #[test]
    fn a_message_takes_the_oldest_matching_receive() {
        let mut posted = posted();
        let untagged = post(&mut posted, 1, None);
        let first = post(&mut posted, 2, Some(7));
        let second = post(&mut posted, 3, Some(7));
        assert_eq!(posted.match_message(peer(1), Some(8)), None);
        for (tag, expected) in [(Some(7), first), (None, untagged), (Some(7), second)] {
            let found = posted.match_message(peer(1), tag).unwrap();
            assert_eq!((found.slot, found.stays), (expected.slot(), false));
            posted.end_matched(found.slot);
            assert!(posted.matched(found.slot).is_none());
        }
        assert_eq!(posted.match_message(peer(1), Some(7)), None);
        assert_eq!(posted.len(), 0);
    }

    #[test]
    fn a_receive_that_was_withdrawn_takes_no_message() {
        let mut posted = posted();
        let first = post(&mut posted, 1, Some(7));
        let second = post(&mut posted, 2, Some(7));
        let flags = CompletionFlags::RECV | CompletionFlags::TAGGED;
        assert_eq!(posted.withdraw(first), Some((1, flags, 7)));
        assert_eq!(posted.withdraw(first), None);
        let found = posted.match_message(peer(1), Some(7)).unwrap();
        assert_eq!(found.slot, second.slot());
    }

    #[test]
    fn receives_are_found_by_context_and_source() {
        let mut posted = posted();
        let from = |number| SourceFilter::Peer(peer(number));
        let tagged = post(&mut posted, 5, Some(1));
        let untagged = posted.post(receive(5, None, from(1))).unwrap();
        let other = posted.post(receive(6, None, from(2))).unwrap();
        assert_eq!(posted.oldest_with_context(5), Some(untagged));
        assert_eq!(posted.naming(peer(1)), [untagged]);
        posted.withdraw(untagged).unwrap();
        assert_eq!(posted.oldest_with_context(5), Some(tagged));
        assert!(posted.is_none_naming(peer(1)) && !posted.is_none_naming(peer(2)));
        // A match ends the link to the source as well.
        posted.match_message(peer(2), None).unwrap();
        posted.end_matched(other.slot());
        assert!(posted.is_none_naming(peer(2)));
    }

    #[test]
    fn ids_of_receives_are_not_reused() {
        let mut posted = posted();
        let none = posted.skip_id().unwrap();
        assert_eq!(posted.len(), 0);
        let later = post(&mut posted, 1, None);
        assert_ne!(none, later);
        assert_eq!(posted.withdraw(none), None);
        assert!(posted.withdraw(later).is_some());
    }

    #[test]
    fn a_used_up_multi_receive_leaves_the_queue() {
        let mut posted = posted();
        let receive = receive(5, None, SourceFilter::Any);
        let id = posted.post_multi(receive, piece(), 50).unwrap();
        let found = posted.match_message(peer(1), None).unwrap();
        assert_eq!((found.slot, found.stays), (id.slot(), true));
        let (target, ending) = posted.next_part(id, 40, None).unwrap();
        assert_eq!((target.memory.address, target.memory.length), (1000, 40));
        assert!(ending.is_remote());
        assert!(posted.match_message(peer(1), None).is_some());
        let (_, last) = posted.next_part(id, 11, None).unwrap();
        assert_eq!(posted.match_message(peer(1), None), None);
        assert!(posted.withdraw(id).is_none());
        assert!(!posted.end_part(last.part.unwrap()));
        assert!(posted.end_part(ending.part.unwrap()));
    }
}
