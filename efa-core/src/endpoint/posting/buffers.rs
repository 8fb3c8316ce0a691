//! The choice of packet buffers for the receive queue: enough to keep it full without starving the
//! sends.

use crate::nic::BufferId;

/// The receive buffers of the endpoint.
pub(super) struct ReceiveBuffers {
    /// The number of buffers that the device has.
    posted: usize,
    /// The number of buffers that the device should have.
    wanted: usize,
    /// Buffers that wait to be posted.
    to_post: Vec<BufferId>,
}

impl ReceiveBuffers {
    /// Makes a receive queue of `wanted` buffers, initially empty.
    pub(super) fn new(wanted: usize) -> Self {
        ReceiveBuffers {
            posted: 0,
            wanted,
            to_post: Vec::with_capacity(wanted),
        }
    }

    /// Returns whether a free buffer must be posted. The `kept` buffers of received packets that
    /// wait count as posted, so that they are not replaced by buffers that sends need.
    #[inline]
    pub(super) fn lacks(&self, kept: usize) -> bool {
        self.posted + self.to_post.len() + kept < self.wanted
    }

    /// Adds a buffer to be posted.
    #[inline]
    pub(super) fn push(&mut self, buffer: BufferId) {
        self.to_post.push(buffer);
    }

    /// Removes and returns a buffer to post.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<BufferId> {
        self.to_post.pop()
    }

    /// Returns whether there are buffers to be posted.
    pub(super) fn has_some(&self) -> bool {
        !self.to_post.is_empty()
    }

    /// Passes the buffers that wait to be posted to `lend`. The device has accepted those that are
    /// missing afterwards.
    #[inline]
    pub(super) fn post<R>(&mut self, lend: impl FnOnce(&mut Vec<BufferId>) -> R) -> R {
        let before = self.to_post.len();
        let result = lend(&mut self.to_post);
        self.posted += before - self.to_post.len();
        result
    }

    /// Records that the device returned a buffer.
    #[inline]
    pub(super) fn returned(&mut self) {
        self.posted = self.posted.saturating_sub(1);
    }

    /// Reduces the number of wanted buffers by one: the device refused a buffer.
    pub(super) fn give_one_up(&mut self) {
        self.wanted -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_posted_and_kept_buffers_all_count() {
        let mut buffers = ReceiveBuffers::new(3);
        buffers.push(BufferId(1));
        buffers.push(BufferId(2));
        assert!(buffers.lacks(0));
        assert!(!buffers.lacks(1));
        assert_eq!(buffers.pop(), Some(BufferId(2)));
        assert!(buffers.lacks(1));
        buffers.push(BufferId(2));
        let taken = buffers.post(|to_post| to_post.pop());
        assert_eq!(taken, Some(BufferId(2)));
        assert!(!buffers.lacks(1), "the device has it");
        buffers.returned();
        assert!(buffers.lacks(1));
        buffers.give_one_up();
        assert!(!buffers.lacks(1));
    }
}
