//! Packet buffers: keeping the receive queue full without starving the sends.

use crate::nic::{BufferId, Nic, NicError};

use crate::endpoint::Endpoint;
use crate::endpoint::api::completion::Event;

impl<N: Nic> Endpoint<N> {
    /// Gives a buffer back: to the receive queue if that lacks one, else to the pool. Buffers of
    /// packets that wait count as those of the receive queue, so that they never eat into those
    /// for sending.
    #[inline]
    pub(crate) fn recycle(&mut self, buffer: BufferId) {
        let receiving = self.posted_receives + self.to_post.len() + self.held.in_buffers();
        if receiving < self.wanted_receives {
            self.to_post.push(buffer);
        } else {
            self.nic.release_buffer(buffer);
        }
    }

    /// Posts receive buffers.
    pub(crate) fn post_receives(&mut self) {
        while let Some(buffer) = self.to_post.pop() {
            match self.nic.post_recv(buffer) {
                Ok(()) => self.posted_receives += 1,
                Err(NicError::QueueFull) => {
                    self.to_post.push(buffer);
                    return;
                }
                Err(error) => {
                    self.nic.release_buffer(buffer);
                    self.wanted_receives -= 1;
                    self.push_event(Event::ReceivePostFailed(error));
                }
            }
        }
    }
}
