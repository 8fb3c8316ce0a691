//! Limits on the requests of peers that are served at a time.
//!
//! Peers can request an unlimited amount of work: writes and reads of our memory, answers. Each
//! request occupies memory until it is finished, and a peer that accepts no packets delays that.
//! Two limits bound the memory:
//!
//! * *Pending requests*: each peer has a share
//!   ([`EndpointConfig::peer_operations`](crate::endpoint::EndpointConfig::peer_operations)). A
//!   peer that requests more is given up, so that it does not starve the others.
//! * *Running operations*: emulated writes and reads, and messages for multi-receive buffers. A
//!   peer may use as many as are still free (a dynamic threshold, as switches divide a buffer among
//!   their ports). So a few busy peers do not use all the room, and a peer without running
//!   operations can start one. Further operations wait. This only delays the peer, which waits for
//!   a response anyway.
//!
//! [`Quota`] counts for all peers together and for each peer. `W` is an operation that waits.

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashMap;

use crate::endpoint::base::ids::PeerId;

/// Requests of one peer.
struct PeerRequests<W> {
    /// Pending requests, including answers that wait to be sent.
    pending: usize,
    /// Running operations.
    running: usize,
    /// Operations that wait to run, oldest first.
    waiting: VecDeque<W>,
    /// The peer's position in [`Quota::turns`], while it has operations that wait.
    turn: u64,
}

impl<W> PeerRequests<W> {
    const NONE: Self = PeerRequests {
        pending: 0,
        running: 0,
        waiting: VecDeque::new(),
        turn: 0,
    };

    fn is_idle(&self) -> bool {
        self.pending == 0 && self.running == 0 && self.waiting.is_empty()
    }
}

/// Requests of all peers.
pub(crate) struct Quota<W> {
    /// The limit of [`PeerRequests::pending`].
    max_pending: usize,
    /// The limit of [`Quota::running`] plus the peer's own [`PeerRequests::running`].
    max_running: usize,
    /// Pending requests, including responses that wait to be sent; the responses alone.
    pending: usize,
    answers: usize,
    running: usize,
    waiting: usize,
    /// The peers with a share that is not idle. The share of a removed peer ends with its
    /// operations.
    shares: HashMap<PeerId, PeerRequests<W>>,
    /// Peers with operations that wait, by turn.
    turns: BTreeMap<u64, PeerId>,
    next_turn: u64,
    /// Whether a review of the waiting operations is queued.
    review_due: bool,
}

impl<W> Quota<W> {
    /// At most `max_pending` requests of each peer may be pending, and `max_running` operations of
    /// all peers may run.
    pub(crate) fn new(max_pending: usize, max_running: usize) -> Self {
        Quota {
            max_pending,
            max_running,
            pending: 0,
            answers: 0,
            running: 0,
            waiting: 0,
            shares: HashMap::new(),
            turns: BTreeMap::new(),
            next_turn: 0,
            review_due: false,
        }
    }

    fn share(&mut self, peer: PeerId) -> &mut PeerRequests<W> {
        self.shares.entry(peer).or_insert(PeerRequests::NONE)
    }

    /// Changes the share of a peer, and removes it if it becomes idle.
    fn end(&mut self, peer: PeerId, end: impl FnOnce(&mut PeerRequests<W>)) {
        if let Some(share) = self.shares.get_mut(&peer) {
            end(share);
            if share.is_idle() {
                self.shares.remove(&peer);
            }
        }
    }

    /// Returns whether a peer has nothing pending, running or waiting.
    pub(crate) fn is_idle(&self, peer: PeerId) -> bool {
        !self.shares.contains_key(&peer)
    }

    /// Counts a pending request of a peer. Returns false, and does not count it, if the peer has
    /// too many.
    #[must_use]
    pub(crate) fn begin_request(&mut self, peer: PeerId) -> bool {
        let max_pending = self.max_pending;
        // No share may be made for nothing: shares are not idle.
        if max_pending == 0 {
            return false;
        }
        let share = self.share(peer);
        if share.pending >= max_pending {
            return false;
        }
        share.pending += 1;
        self.pending += 1;
        true
    }

    /// Records that a request was carried out or given up.
    pub(crate) fn end_request(&mut self, peer: PeerId) {
        self.pending -= 1;
        self.end(peer, |share| share.pending -= 1);
    }

    /// Counts an answer to a peer that waits to be sent, as [`Quota::begin_request`] counts a
    /// request.
    #[must_use]
    pub(crate) fn begin_answer(&mut self, peer: PeerId) -> bool {
        let begun = self.begin_request(peer);
        self.answers += usize::from(begun);
        begun
    }

    /// Records that an answer was sent, or that its peer was removed.
    pub(crate) fn end_answer(&mut self, peer: PeerId) {
        self.answers -= 1;
        self.end_request(peer);
    }

    /// Returns whether a new operation of a peer may run now.
    pub(crate) fn admits(&self, peer: PeerId) -> bool {
        match self.shares.get(&peer) {
            Some(share) => share.waiting.is_empty() && self.has_room(share.running),
            None => self.has_room(0),
        }
    }

    /// Returns whether one more operation may run for a peer with `running` operations.
    fn has_room(&self, running: usize) -> bool {
        self.running + running < self.max_running
    }

    /// Records that an operation of a peer runs.
    pub(crate) fn begin_operation(&mut self, peer: PeerId) {
        self.running += 1;
        self.share(peer).running += 1;
    }

    /// Records that an operation of a peer ended. Returns whether a [`Quota::review`] of the
    /// waiting operations must be queued.
    #[must_use]
    pub(crate) fn end_operation(&mut self, peer: PeerId) -> bool {
        self.running -= 1;
        self.end(peer, |share| share.running -= 1);
        let becomes_due = self.waiting > 0 && !self.review_due;
        self.review_due |= becomes_due;
        becomes_due
    }

    /// Appends an operation to the waiting ones of its peer.
    pub(crate) fn defer(&mut self, peer: PeerId, operation: W) {
        if self.share(peer).waiting.is_empty() {
            self.line_up(peer);
        }
        self.share(peer).waiting.push_back(operation);
        self.waiting += 1;
    }

    /// Moves a peer to the end of the rotation.
    fn line_up(&mut self, peer: PeerId) {
        let turn = self.next_turn;
        self.share(peer).turn = turn;
        self.turns.insert(turn, peer);
        self.next_turn += 1;
    }

    /// Begins a review of the waiting operations: the caller calls [`Quota::next_admitted`] until
    /// it returns `None`.
    pub(crate) fn review(&mut self) {
        self.review_due = false;
    }

    /// Removes and returns the next waiting operation for which there is room, one of each peer in
    /// turn. It counts as running only after [`Quota::begin_operation`].
    pub(crate) fn next_admitted(&mut self) -> Option<(PeerId, W)> {
        for _ in 0..self.turns.len() {
            let (_, peer) = self.turns.pop_first()?;
            let running = self.share(peer).running;
            if !self.has_room(running) {
                self.line_up(peer);
                continue;
            }
            let Some(operation) = self.share(peer).waiting.pop_front() else {
                continue;
            };
            if self.share(peer).waiting.is_empty() {
                self.end(peer, |_| ());
            } else {
                self.line_up(peer);
            }
            self.waiting -= 1;
            return Some((peer, operation));
        }
        None
    }

    /// The waiting operations of a peer, oldest first.
    pub(crate) fn waiting_of(&self, peer: PeerId) -> impl Iterator<Item = &W> {
        let share = self.shares.get(&peer);
        share.into_iter().flat_map(|share| &share.waiting)
    }

    /// Removes all waiting operations of a peer.
    pub(crate) fn withdraw(&mut self, peer: PeerId) -> VecDeque<W> {
        let mut waiting = VecDeque::new();
        if let Some(share) = self.shares.get_mut(&peer) {
            waiting = core::mem::take(&mut share.waiting);
            if !waiting.is_empty() {
                self.turns.remove(&share.turn);
                self.waiting -= waiting.len();
            }
        }
        self.end(peer, |_| ());
        waiting
    }

    /// The number of pending requests, including answers that wait to be sent.
    pub(crate) fn pending(&self) -> usize {
        self.pending
    }

    /// The number of answers that wait to be sent.
    pub(crate) fn answers(&self) -> usize {
        self.answers
    }

    /// The number of operations that wait to run.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }
}

#[cfg(test)]
mod tests;
