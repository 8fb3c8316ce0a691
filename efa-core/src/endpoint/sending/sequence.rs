//! The ids of messages and atomics to one peer (spec section 3.2). They are consecutive, because
//! the peer processes a request only after all earlier ones.
//!
//! A request that did not arrive leaves a gap, at which the peer would wait forever. If no later id
//! was used, the id is used again. Otherwise a request that does nothing fills the gap.

use crate::endpoint::api::error::Failure;
use crate::nic::Status;
use crate::wire::MsgId;

/// The number of ids in a span, a power of two. A span begins only when all requests of the span
/// before the last have arrived, so no request is two spans ahead of one that has not arrived:
/// libfabric 1.11 and 1.17 lose a packet that is 16,384 ahead, or abort.
const SPAN: u32 = 4096;

/// Whether the peer may have a packet that the device could not deliver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loss {
    /// The peer does not have it.
    NotDelivered,
    /// It may have it.
    Unknown,
}

impl From<Status> for Loss {
    fn from(status: Status) -> Self {
        match status {
            Status::LocalUnsupportedOp
            | Status::LocalInvalidAh
            | Status::LocalInvalidLkey
            | Status::LocalBadLength
            | Status::RemoteBadAddress
            | Status::RemoteAbort
            | Status::RemoteBadDestQpn
            | Status::RemoteRnr
            | Status::RemoteBadLength
            | Status::RemoteUnknownPeer
            | Status::RemoteFeatureMismatch => Loss::NotDelivered,
            Status::Ok
            | Status::Flushed
            | Status::LocalQpInternalError
            | Status::RemoteBadStatus
            | Status::LocalUnresponsiveRemote
            | Status::LocalUnreachableRemote => Loss::Unknown,
        }
    }
}

/// The ids of messages and atomics to one peer.
pub(crate) struct Sequence {
    next: MsgId,
    /// Requests of the even and of the odd spans that have not arrived.
    pending: [u32; 2],
    /// Ids of gaps, oldest last.
    gaps: Vec<MsgId>,
    /// The failure of a request whose id cannot be used again, and for which the peer may wait.
    broken: Option<Failure>,
}

fn span(id: MsgId) -> usize {
    (id.0 / SPAN % 2) as usize
}

impl Sequence {
    /// Makes a sequence that starts with `first`.
    pub(crate) fn new(first: MsgId) -> Self {
        Sequence {
            next: first,
            pending: [0; 2],
            gaps: Vec::new(),
            broken: None,
        }
    }

    /// The id of the next request.
    #[inline]
    pub(crate) fn next(&self) -> MsgId {
        self.next
    }

    /// Returns whether the next id must wait until earlier requests have arrived.
    #[inline]
    pub(crate) fn is_too_far_ahead(&self) -> bool {
        self.next.0.is_multiple_of(SPAN) && self.pending[span(self.next)] > 0
    }

    /// Records that a request with the next id was posted.
    #[inline]
    pub(crate) fn used(&mut self) {
        self.pending[span(self.next)] += 1;
        self.next = self.next.next();
    }

    /// Records that the device has completed a request, successfully or not.
    #[inline]
    pub(crate) fn done(&mut self, id: MsgId) {
        let pending = &mut self.pending[span(id)];
        *pending = pending.saturating_sub(1);
    }

    /// Records that the peer has no request with this id.
    pub(crate) fn not_delivered(&mut self, id: MsgId) {
        let place = self.gaps.partition_point(|gap| gap.distance_from(id) > 0);
        self.gaps.insert(place, id);
        // Newest first.
        let mut last = 0;
        while self
            .gaps
            .get(last)
            .is_some_and(|gap| gap.next() == self.next)
        {
            self.next = self.gaps[last];
            last += 1;
        }
        self.gaps.drain(..last);
    }

    /// Returns whether there are gaps to fill.
    #[inline]
    pub(crate) fn has_gaps(&self) -> bool {
        !self.gaps.is_empty()
    }

    /// The oldest id of a gap.
    pub(crate) fn oldest_gap(&self) -> Option<MsgId> {
        self.gaps.last().copied()
    }

    /// Records that a request was posted that fills the oldest gap.
    pub(crate) fn filled(&mut self) {
        if let Some(id) = self.gaps.pop() {
            self.posted_again(id);
        }
    }

    /// Records that a packet was posted that the peer may need before it can proceed to requests
    /// after this id.
    pub(crate) fn posted_again(&mut self, id: MsgId) {
        self.pending[span(id)] += 1;
    }

    /// Records that the sequence is blocked. Returns false if it already was.
    pub(crate) fn break_off(&mut self, failure: Failure) -> bool {
        self.gaps.clear();
        self.broken.replace(failure).is_none()
    }

    /// Unblocks the sequence: the application accepts the risk that the peer waits for a lost
    /// request.
    pub(crate) fn mend(&mut self) {
        self.broken = None;
    }

    /// Returns whether the sequence is blocked.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Returns whether no request is in flight and there are no gaps.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending == [0; 2] && self.gaps.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::{Errno, ProviderError};

    fn used(first: u32, count: u32) -> Sequence {
        let mut sequence = Sequence::new(MsgId(first));
        for _ in 0..count {
            assert!(!sequence.is_too_far_ahead());
            sequence.used();
        }
        sequence
    }

    #[test]
    fn the_last_allocated_id_can_be_reused() {
        // Across the wrap-around.
        let first = u32::MAX - 1;
        let mut sequence = used(first, 4);
        sequence.not_delivered(MsgId(1));
        assert_eq!(sequence.next(), MsgId(1));
        // Earlier ids are used again when their requests are lost too, in any order.
        sequence.not_delivered(MsgId(first));
        assert_eq!(sequence.oldest_gap(), Some(MsgId(first)));
        sequence.not_delivered(MsgId(u32::MAX));
        assert_eq!(sequence.next(), MsgId(1));
        sequence.not_delivered(MsgId(0));
        assert_eq!(sequence.next(), MsgId(first));
        assert!(!sequence.has_gaps());
    }

    #[test]
    fn gaps_are_filled_oldest_first() {
        let mut sequence = used(0, 5);
        for id in [3, 1] {
            sequence.not_delivered(MsgId(id));
        }
        for id in [1, 3] {
            assert_eq!(sequence.oldest_gap(), Some(MsgId(id)));
            sequence.filled();
        }
        assert!(!sequence.has_gaps());
        assert_eq!(sequence.next(), MsgId(5));
    }

    #[test]
    fn requests_stay_within_two_spans_of_lost_ones() {
        let mut sequence = used(SPAN - 1, SPAN + 1);
        // The first of all is missing.
        for id in SPAN..2 * SPAN {
            sequence.done(MsgId(id));
        }
        assert!(sequence.is_too_far_ahead());
        sequence.done(MsgId(SPAN - 1));
        assert!(!sequence.is_too_far_ahead());
    }

    #[test]
    fn a_sequence_breaks_once_with_the_first_reason() {
        let failure = Failure::new(Errno::EIO, ProviderError::None);
        let mut sequence = used(0, 2);
        sequence.not_delivered(MsgId(0));
        assert!(sequence.break_off(failure));
        assert!(!sequence.break_off(failure));
        assert!(sequence.is_broken() && !sequence.has_gaps());
        sequence.mend();
        assert!(!sequence.is_broken());
        assert_eq!(sequence.next(), MsgId(2));
    }
}
