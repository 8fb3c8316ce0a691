//! Work requests that have not completed.

use super::memory::Buffers;

/// The least capacity of a queue that is not empty.
const FEWEST: usize = 64;

/// A work request and its memory.
#[derive(Clone)]
struct PostedRequest {
    wr_id: u64,
    /// Whether it was removed.
    is_taken: bool,
    buffers: Buffers,
}

/// Work requests in the order in which they were posted. Entries are written and read in place:
/// copies would cost more than everything else that is done with them.
#[derive(Default)]
pub(crate) struct PostedRequests {
    /// The length is a power of two, or 0.
    entries: Vec<PostedRequest>,
    /// The numbers of entries removed from the front, and added. Both wrap.
    head: usize,
    tail: usize,
}

impl PostedRequests {
    #[inline(always)]
    fn place(&self, position: usize) -> usize {
        position & self.entries.len().wrapping_sub(1)
    }

    fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Adds a work request, whose memory the caller sets.
    #[inline(always)]
    pub(crate) fn add(&mut self, wr_id: u64) -> &mut Buffers {
        if self.tail.wrapping_sub(self.head) == self.entries.len() {
            self.grow();
        }
        let place = self.place(self.tail);
        self.tail = self.tail.wrapping_add(1);
        let entry = &mut self.entries[place];
        entry.wr_id = wr_id;
        entry.is_taken = false;
        &mut entry.buffers
    }

    #[cold]
    fn grow(&mut self) {
        let room = (2 * self.entries.len()).max(FEWEST);
        let start = self.place(self.head);
        let mut entries = Vec::with_capacity(room);
        entries.extend_from_slice(&self.entries[start..]);
        entries.extend_from_slice(&self.entries[..start]);
        (self.head, self.tail) = (0, entries.len());
        let empty = PostedRequest {
            wr_id: 0,
            is_taken: true,
            buffers: Buffers::NONE,
        };
        entries.resize(room, empty);
        self.entries = entries;
    }

    /// Removes the first work request with this id. Returns whether it existed, and stores its
    /// memory in `into`.
    #[inline(always)]
    pub(crate) fn take(&mut self, wr_id: u64, into: &mut Buffers) -> bool {
        let place = self.place(self.head);
        if self.is_empty() {
            return false;
        }
        let first = &self.entries[place];
        if first.wr_id != wr_id || first.is_taken {
            return self.take_further(wr_id, into);
        }
        into.set_to(&first.buffers);
        self.head = self.head.wrapping_add(1);
        let next = self.place(self.head);
        if !self.is_empty() && self.entries[next].is_taken {
            self.drop_taken();
        }
        true
    }

    /// As [`PostedRequests::take`], if it is not the first of all.
    #[cold]
    fn take_further(&mut self, wr_id: u64, into: &mut Buffers) -> bool {
        let mut position = self.head;
        while position != self.tail {
            let place = self.place(position);
            let entry = &mut self.entries[place];
            if entry.wr_id == wr_id && !entry.is_taken {
                entry.is_taken = true;
                into.set_to(&entry.buffers);
                self.drop_taken();
                return true;
            }
            position = position.wrapping_add(1);
        }
        false
    }

    /// Removes the last work request with this id, which was not posted.
    pub(crate) fn forget_last(&mut self, wr_id: u64) {
        let mut position = self.tail;
        while position != self.head {
            position = position.wrapping_sub(1);
            let place = self.place(position);
            let entry = &mut self.entries[place];
            if entry.wr_id == wr_id && !entry.is_taken {
                entry.is_taken = true;
                break;
            }
        }
        self.drop_taken();
    }

    /// Removes all.
    pub(crate) fn clear(&mut self) {
        *self = PostedRequests::default();
    }

    /// Drops removed entries from the front.
    fn drop_taken(&mut self) {
        while !self.is_empty() && self.entries[self.place(self.head)].is_taken {
            self.head = self.head.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(posts: &mut PostedRequests, wr_id: u64, address: u64) {
        *posts.add(wr_id) = Buffers::one(address, 1, 0);
    }

    fn take(posts: &mut PostedRequests, wr_id: u64) -> Option<u64> {
        let mut buffers = Buffers::NONE;
        posts.take(wr_id, &mut buffers).then(|| buffers.first())
    }

    #[test]
    fn requests_sharing_an_id_keep_their_order() {
        let mut posts = PostedRequests::default();
        assert_eq!(take(&mut posts, 7), None);
        for (wr_id, address) in [(7, 10), (8, 20), (7, 30)] {
            add(&mut posts, wr_id, address);
        }
        let taken = [8, 7, 7, 7].map(|wr_id| take(&mut posts, wr_id));
        assert_eq!(taken, [Some(20), Some(10), Some(30), None]);
        assert!(posts.is_empty());
    }

    #[test]
    fn unposted_requests_are_forgotten_from_the_end() {
        let mut posts = PostedRequests::default();
        for (wr_id, address) in [(7, 10), (7, 20), (7, 30)] {
            add(&mut posts, wr_id, address);
        }
        posts.forget_last(7);
        posts.forget_last(7);
        posts.forget_last(8);
        assert_eq!(
            [7, 7].map(|wr_id| take(&mut posts, wr_id)),
            [Some(10), None]
        );
        assert!(posts.is_empty());
    }

    /// The test adds the entries of a full receive queue, at all positions of the queue, some of
    /// them out of order.
    #[test]
    fn a_queue_grows_where_it_is_full() {
        let mut posts = PostedRequests::default();
        // The first one is in the middle of the memory when it is full.
        for wr_id in 0..FEWEST as u64 / 2 {
            add(&mut posts, wr_id, wr_id);
            assert_eq!(take(&mut posts, wr_id), Some(wr_id));
        }
        for round in 0..3_u64 {
            for wr_id in 0..1000 {
                add(&mut posts, wr_id, round * 1000 + wr_id);
                // One of three remains for the next time.
                if wr_id % 3 > 0 {
                    assert_eq!(take(&mut posts, wr_id), Some(round * 1000 + wr_id));
                }
            }
        }
        for round in 0..3 {
            for wr_id in (0..334_u64).rev().map(|index| 3 * index) {
                assert_eq!(take(&mut posts, wr_id), Some(round * 1000 + wr_id));
            }
        }
        assert!(posts.is_empty());
        add(&mut posts, 1, 1);
        posts.clear();
        assert_eq!(take(&mut posts, 1), None);
    }
}
