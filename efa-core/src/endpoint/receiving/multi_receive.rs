//! Multi-receive: one buffer for several messages (libfabric's `FI_MULTI_RECV`).
//!
//! Each message gets the next part of the buffer and its own completion. The buffer is closed when
//! the remaining space is less than the application's minimum for a message. The completion of its
//! last message allows the application to reuse the buffer.

use core::num::NonZeroU32;

use slab::Slab;

use crate::endpoint::api::operation::IoVec;
use crate::nic::UserSlice;

/// Names a buffer in [`MultiBuffers`]: its place and 1, so that receives without one are small.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MultiKey(NonZeroU32);

impl MultiKey {
    fn new(place: usize) -> Self {
        MultiKey(NonZeroU32::MIN.saturating_add(place as u32))
    }

    fn place(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The part of a buffer that a message gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    buffer: MultiKey,
    pub(crate) address: u64,
}

/// A buffer for several messages.
struct MultiBuffer {
    piece: IoVec,
    /// Bytes allocated to messages, from the start of the buffer.
    used: usize,
    min_free: usize,
    /// Messages that are not complete.
    incomplete: usize,
    /// Whether it accepts no more messages.
    closed: bool,
}

/// Buffers that accept messages or have incomplete ones.
#[derive(Default)]
pub(super) struct MultiBuffers(Slab<MultiBuffer>);

impl MultiBuffers {
    /// Adds a buffer, which accepts messages while at least `min_free` bytes are left.
    pub(super) fn insert(&mut self, piece: IoVec, min_free: usize) -> MultiKey {
        MultiKey::new(self.0.insert(MultiBuffer {
            piece,
            used: 0,
            min_free,
            incomplete: 0,
            closed: false,
        }))
    }

    /// Allocates the next part of a buffer to a message of `length` bytes. Also returns whether the
    /// buffer accepts no more messages.
    pub(super) fn next_part(
        &mut self,
        buffer: MultiKey,
        length: u64,
    ) -> Option<(Part, IoVec, bool)> {
        let multi = self.0.get_mut(buffer.place())?;
        let memory = multi.piece.memory;
        let free = memory.length - multi.used;
        let taken = usize::try_from(length).map_or(free, |length| length.min(free));
        let address = memory.address.wrapping_add(multi.used as u64);
        multi.used += taken;
        multi.incomplete += 1;
        multi.closed |= memory.length - multi.used < multi.min_free;
        let target = IoVec {
            memory: UserSlice::new(address, taken),
            region: multi.piece.region,
        };
        Some((Part { buffer, address }, target, multi.closed))
    }

    /// Records that a message of a buffer is complete. Returns whether the application may use the
    /// buffer again.
    pub(super) fn end_part(&mut self, part: Part) -> bool {
        let Some(multi) = self.0.get_mut(part.buffer.place()) else {
            return false;
        };
        multi.incomplete -= 1;
        self.release(part.buffer)
    }

    /// Closes a buffer for further messages. Returns whether the application may reuse it.
    pub(super) fn close(&mut self, buffer: MultiKey) -> bool {
        if let Some(multi) = self.0.get_mut(buffer.place()) {
            multi.closed = true;
        }
        self.release(buffer)
    }

    fn release(&mut self, buffer: MultiKey) -> bool {
        let released = self
            .0
            .get(buffer.place())
            .is_some_and(|multi| multi.closed && multi.incomplete == 0);
        if released {
            self.0.remove(buffer.place());
        }
        released
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(buffers: &mut MultiBuffers) -> MultiKey {
        let memory = UserSlice::new(1000, 100);
        buffers.insert(IoVec::new(memory), 20)
    }

    #[test]
    fn messages_are_packed_until_too_little_remains() {
        let mut buffers = MultiBuffers::default();
        let key = buffer(&mut buffers);
        let (first, target, closed) = buffers.next_part(key, 60).unwrap();
        assert_eq!((target.memory.address, target.memory.length), (1000, 60));
        assert!(!closed);
        // The second message is longer than the remaining space: it is truncated, and is the last.
        let (second, target, closed) = buffers.next_part(key, 60).unwrap();
        assert_eq!((target.memory.address, target.memory.length), (1060, 40));
        assert!(closed);
        assert!(!buffers.end_part(second));
        assert!(buffers.end_part(first));
        assert!(buffers.next_part(key, 0).is_none());
    }

    #[test]
    fn a_cancelled_buffer_returns_after_its_messages() {
        let mut buffers = MultiBuffers::default();
        let key = buffer(&mut buffers);
        let (part, ..) = buffers.next_part(key, 1).unwrap();
        assert!(!buffers.close(key));
        assert!(buffers.end_part(part));
        let unused = buffer(&mut buffers);
        assert!(buffers.close(unused));
    }
}
