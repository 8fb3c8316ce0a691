//! How much is done for peers at a time.
//!
//! A peer can ask for work without end: writes and reads to be carried out, answers to be sent. Each
//! takes memory until it is done, and a peer that lets nothing through makes it last. Two limits keep
//! that in bounds:
//!
//! * *Pending requests*: each peer has a share
//!   ([`EndpointConfig::peer_operations`](crate::endpoint::EndpointConfig::peer_operations)). A peer
//!   that asks for more is given up instead of starving the others.
//! * *Running operations*: emulated writes and reads, and messages for multi-receive buffers. If each
//!   peer took what it wants, a few busy ones would take all the room that there is, and the others
//!   would find none. So a peer may have as many as are left over for others (a dynamic threshold, as
//!   switches divide a buffer among their ports): whoever has little, or has only just come, finds
//!   room. What finds none waits, as the peer waits for an answer anyway.
//!
//! [`Quota`] counts for all peers together, a [`Share`] for one. `W` is an operation that waits.

use std::collections::{BTreeMap, VecDeque};

use crate::endpoint::base::ids::PeerId;

/// What is done for one peer.
pub(crate) struct Share<W> {
    /// Requests that are pending, and answers that wait to be sent.
    pending: usize,
    /// Operations that run.
    running: usize,
    /// Operations that wait to run.
    waiting: VecDeque<W>,
    /// The peer's turn, while something waits.
    turn: u64,
}

impl<W> Default for Share<W> {
    fn default() -> Self {
        Share {
            pending: 0,
            running: 0,
            waiting: VecDeque::new(),
            turn: 0,
        }
    }
}

impl<W> Share<W> {
    /// Returns whether nothing is done for the peer.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending == 0 && self.running == 0 && self.waiting.is_empty()
    }
}

/// What is done for all peers together.
pub(crate) struct Quota {
    /// Limit of [`Share::pending`].
    max_pending: usize,
    /// Limit of `running` plus a peer's own [`Share::running`].
    max_running: usize,
    /// Requests that are pending, and answers that wait to be sent; the answers alone.
    pending: usize,
    answers: usize,
    running: usize,
    waiting: usize,
    /// Peers of which something waits, by their turns.
    turns: BTreeMap<u64, PeerId>,
    next_turn: u64,
    /// Waiting operations are about to be looked at.
    review_due: bool,
}

impl Quota {
    /// At most `max_pending` requests of each peer, and `max_running` operations of all.
    pub(crate) fn new(max_pending: usize, max_running: usize) -> Self {
        Quota {
            max_pending,
            max_running,
            pending: 0,
            answers: 0,
            running: 0,
            waiting: 0,
            turns: BTreeMap::new(),
            next_turn: 0,
            review_due: false,
        }
    }

    /// Notes that a request of a peer is pending. Returns false, and notes nothing, if it is one too
    /// many.
    #[must_use]
    pub(crate) fn begin_request<W>(&mut self, share: &mut Share<W>) -> bool {
        if share.pending >= self.max_pending {
            return false;
        }
        share.pending += 1;
        self.pending += 1;
        true
    }

    /// Notes that a request was carried out or given up. There is no share if the peer is gone.
    pub(crate) fn end_request<W>(&mut self, share: Option<&mut Share<W>>) {
        self.pending -= 1;
        if let Some(share) = share {
            share.pending -= 1;
        }
    }

    /// Notes that an answer to a peer waits to be sent, as [`Quota::begin_request`] does a request.
    #[must_use]
    pub(crate) fn begin_answer<W>(&mut self, share: &mut Share<W>) -> bool {
        let begun = self.begin_request(share);
        self.answers += usize::from(begun);
        begun
    }

    /// Notes that an answer was sent, or that there is nobody to send it to.
    pub(crate) fn end_answer<W>(&mut self, share: Option<&mut Share<W>>) {
        self.answers -= 1;
        self.end_request(share);
    }

    /// Returns whether an operation of a peer that has just come may run now.
    pub(crate) fn admits<W>(&self, share: &Share<W>) -> bool {
        share.waiting.is_empty() && self.has_room(share)
    }

    fn has_room<W>(&self, share: &Share<W>) -> bool {
        self.running + share.running < self.max_running
    }

    /// Notes that an operation of a peer runs.
    pub(crate) fn begin_operation<W>(&mut self, share: &mut Share<W>) {
        self.running += 1;
        share.running += 1;
    }

    /// Notes that an operation of a peer ended. Returns whether the waiting ones have to be looked
    /// at with [`Quota::review`].
    #[must_use]
    pub(crate) fn end_operation<W>(&mut self, share: Option<&mut Share<W>>) -> bool {
        self.running -= 1;
        if let Some(share) = share {
            share.running -= 1;
        }
        let becomes_due = self.waiting > 0 && !self.review_due;
        self.review_due |= becomes_due;
        becomes_due
    }

    /// Makes an operation wait behind the others of its peer.
    pub(crate) fn postpone<W>(&mut self, peer: PeerId, share: &mut Share<W>, operation: W) {
        if share.waiting.is_empty() {
            self.line_up(peer, share);
        }
        share.waiting.push_back(operation);
        self.waiting += 1;
    }

    /// Gives a peer the last turn.
    fn line_up<W>(&mut self, peer: PeerId, share: &mut Share<W>) {
        share.turn = self.next_turn;
        self.turns.insert(self.next_turn, peer);
        self.next_turn += 1;
    }

    /// Starts to look at the waiting operations: [`Quota::next_admitted`] until there is none.
    pub(crate) fn review(&mut self) {
        self.review_due = false;
    }

    /// The next waiting operation that has room now, one of each peer in turn. It waits no more, and
    /// runs only when the caller says so.
    pub(crate) fn next_admitted<P: ?Sized, W>(
        &mut self,
        peers: &mut P,
        share_of: impl for<'a> Fn(&'a mut P, PeerId) -> Option<&'a mut Share<W>>,
    ) -> Option<(PeerId, W)> {
        for _ in 0..self.turns.len() {
            let (_, peer) = self.turns.pop_first()?;
            let Some(share) = share_of(peers, peer) else {
                continue;
            };
            if !self.has_room(share) {
                self.line_up(peer, share);
                continue;
            }
            let Some(operation) = share.waiting.pop_front() else {
                continue;
            };
            if !share.waiting.is_empty() {
                self.line_up(peer, share);
            }
            self.waiting -= 1;
            return Some((peer, operation));
        }
        None
    }

    /// Takes out all waiting operations of a peer.
    pub(crate) fn withdraw<W>(&mut self, share: &mut Share<W>) -> VecDeque<W> {
        let waiting = core::mem::take(&mut share.waiting);
        if !waiting.is_empty() {
            self.turns.remove(&share.turn);
            self.waiting -= waiting.len();
        }
        waiting
    }

    /// Requests that are pending, and answers that wait to be sent.
    pub(crate) fn pending(&self) -> usize {
        self.pending
    }

    /// Answers that wait to be sent.
    pub(crate) fn answers(&self) -> usize {
        self.answers
    }

    /// Operations that wait to run.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::base::ids::Id;

    fn peer(number: u32) -> PeerId {
        PeerId::new(number, 0)
    }

    fn next_admitted(
        quota: &mut Quota,
        shares: &mut [Share<&'static str>],
    ) -> Option<(PeerId, &'static str)> {
        quota.next_admitted(shares, |shares, id| shares.get_mut(id.index()))
    }

    /// Takes what has room now, and lets it run.
    fn admit(quota: &mut Quota, shares: &mut [Share<&'static str>]) -> Vec<(usize, &'static str)> {
        quota.review();
        let mut admitted = Vec::new();
        while let Some((id, name)) = next_admitted(quota, shares) {
            admitted.push((id.index(), name));
        }
        for (index, _) in &admitted {
            quota.begin_operation(&mut shares[*index]);
        }
        admitted
    }

    #[test]
    fn a_peer_has_as_many_pending_requests_as_its_share_and_answers_count() {
        let mut quota = Quota::new(2, 9);
        let (mut one, mut other) = (Share::<()>::default(), Share::<()>::default());
        assert!(quota.begin_request(&mut one));
        assert!(quota.begin_answer(&mut one));
        assert!(!quota.begin_request(&mut one));
        assert!(!quota.begin_answer(&mut one));
        assert!(quota.begin_request(&mut other));
        assert_eq!((quota.pending(), quota.answers()), (3, 1));
        quota.end_answer(Some(&mut one));
        assert_eq!((quota.pending(), quota.answers()), (2, 0));
        assert!(quota.begin_request(&mut one));
        // The peer is gone, what was done for it ends.
        quota.end_request(None::<&mut Share<()>>);
        assert_eq!(quota.pending(), 2);
    }

    #[test]
    fn a_busy_peer_leaves_room_for_the_next() {
        let mut quota = Quota::new(9, 8);
        let mut shares: [Share<()>; 3] = Default::default();
        let fill = |quota: &mut Quota, share: &mut Share<()>| {
            let mut count = 0;
            while quota.admits(share) {
                quota.begin_operation(share);
                count += 1;
            }
            count
        };
        let [first, second, third] = &mut shares;
        assert_eq!(fill(&mut quota, first), 4);
        assert_eq!(fill(&mut quota, second), 2);
        assert_eq!(fill(&mut quota, third), 1);
    }

    #[test]
    fn waiting_operations_run_one_of_each_peer_in_turn_and_none_overtakes_its_own() {
        let mut quota = Quota::new(9, 3);
        let mut shares: [Share<&str>; 2] = Default::default();
        let [a, b] = &mut shares;
        for name in ["a1", "a2", "a3"] {
            quota.postpone(peer(0), a, name);
        }
        // Room alone does not help: others of the peer wait.
        assert!(!quota.admits(a));
        assert!(quota.admits(b));
        quota.postpone(peer(1), b, "b1");
        assert_eq!(quota.waiting(), 4);
        quota.begin_operation(&mut shares[0]);
        quota.begin_operation(&mut shares[1]);
        assert!(admit(&mut quota, &mut shares).is_empty());
        assert!(quota.end_operation(Some(&mut shares[0])));
        // One review is due, not two.
        assert!(!quota.end_operation(Some(&mut shares[1])));
        let order = [(0, "a1"), (1, "b1"), (0, "a2"), (0, "a3")];
        assert_eq!(admit(&mut quota, &mut shares), order);
        assert_eq!(quota.waiting(), 0);
        assert!(!quota.end_operation(Some(&mut shares[0])));
    }

    #[test]
    fn what_waits_of_a_peer_that_goes_is_given_back_and_others_keep_their_turn() {
        let mut quota = Quota::new(9, 1);
        let mut shares: [Share<&str>; 2] = Default::default();
        quota.postpone(peer(0), &mut shares[0], "gone");
        quota.postpone(peer(1), &mut shares[1], "stays");
        assert_eq!(quota.withdraw(&mut shares[0]), ["gone"]);
        assert!(quota.withdraw(&mut shares[0]).is_empty());
        assert_eq!(quota.waiting(), 1);
        assert_eq!(admit(&mut quota, &mut shares), [(1, "stays")]);
    }
}
