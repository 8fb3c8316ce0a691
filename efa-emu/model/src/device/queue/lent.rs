//! Rings in memory of a client, which the device borrows: a virtual machine's guest, whose driver
//! determines the addresses of its queues.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

/// The size of a completion queue's entries in lent memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompletionSize {
    /// Without the sender's GID, and with 16 bits for the length of a write. rdma-core uses it
    /// unless a client requests that GID.
    Bytes16,
    /// The whole entry.
    Bytes32,
}

impl CompletionSize {
    /// The size of an entry in bytes.
    pub const fn bytes(self) -> usize {
        32 >> self.slot_shift()
    }

    /// The number of entries per 32 bytes, as a power of two.
    pub(super) const fn slot_shift(self) -> u32 {
        match self {
            CompletionSize::Bytes16 => 1,
            CompletionSize::Bytes32 => 0,
        }
    }
}

/// Memory that a client has lent for a ring.
pub struct LentMemory {
    first: NonNull<u8>,
    length: usize,
    #[expect(dead_code, reason = "kept for its drop")]
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: by the contract of `LentMemory::new`, any thread may access the memory, as atomics.
unsafe impl Send for LentMemory {}
// SAFETY: as above.
unsafe impl Sync for LentMemory {}

impl LentMemory {
    /// The required alignment of a ring's start, in bytes.
    pub const ALIGNMENT: usize = 64;

    /// `length` bytes from `first` on, which are valid until `owner` is dropped.
    ///
    /// # Safety
    /// The bytes must stay mapped for reading and writing until `owner` is dropped. This process
    /// must access them only as atomics of 8 bytes or through raw pointers, and have no references
    /// of other types to them. Concurrent writes from outside, such as by the processors of a
    /// virtual machine, only change values.
    pub unsafe fn new(
        first: NonNull<u8>,
        length: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> LentMemory {
        LentMemory {
            first,
            length,
            owner,
        }
    }

    /// The start, if the memory has room for a ring of this many bytes there.
    pub(super) fn ring_of(&self, bytes: usize) -> Option<NonNull<u8>> {
        let is_aligned = self.first.as_ptr().addr().is_multiple_of(Self::ALIGNMENT);
        (is_aligned && bytes <= self.length).then_some(self.first)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use efa_core::address::{Ahn, Qpn};

    use super::*;
    use crate::device::queue::{
        Buffer, CompletionEntry, CompletionRing, ReceiveDescriptor, ReceiveRing, Received,
        RingError, SendRing, WqeOperation, WqeSize,
    };

    #[repr(C, align(64))]
    struct Pages([AtomicU64; 64]);

    impl Pages {
        fn new() -> Arc<Pages> {
            Arc::new(Pages(std::array::from_fn(|_| AtomicU64::new(0))))
        }

        fn lend(self: &Arc<Self>, from: usize, length: usize) -> LentMemory {
            assert!(from + length <= size_of::<Pages>());
            let first = NonNull::from(&self.0).cast::<u8>();
            // SAFETY: `from` is inside of the memory, which consists of atomics and is valid as
            // long as the `Arc`.
            unsafe { LentMemory::new(first.add(from), length, self.clone()) }
        }

        fn bytes(&self, from: usize, length: usize) -> Vec<u8> {
            let words = self.0.iter().map(|word| word.load(Ordering::Relaxed));
            let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            bytes[from..from + length].to_vec()
        }
    }

    fn received() -> CompletionEntry {
        let received = Received {
            length: 0x2221,
            ahn: Some(Ahn(0x3231)),
            source_qpn: Qpn(0x4241),
            source_gid: None,
            immediate: Some(0x5453_5251),
            unsolicited: false,
        };
        CompletionEntry::of_receive(Qpn(0x1211), 0x0102, WqeOperation::Send, 0, &received)
    }

    #[test]
    fn short_entries_are_the_first_16_bytes() {
        let pages = Pages::new();
        let ring = CompletionRing::over(pages.lend(64, 64), 4, CompletionSize::Bytes16).unwrap();
        #[rustfmt::skip]
        let mut bytes = [
            0x02, 0x01, 0,
            0x0d,                   // send, has immediate, receive queue, phase 1
            0x11, 0x12,
            0x21, 0x22,             // length
            0x31, 0x32,             // AHN
            0x41, 0x42,             // source QPN
            0x51, 0x52, 0x53, 0x54, // immediate
        ];
        for counter in 0..4u16 {
            ring.write_sized(counter, &received());
            let written = usize::from(counter + 1) * 16;
            assert_eq!(pages.bytes(64, written), bytes.repeat(counter as usize + 1));
            assert_eq!(
                pages.bytes(64 + written, 128 - written),
                vec![0; 128 - written]
            );
        }
        bytes[3] = 0x0c;
        ring.write_sized(5, &received());
        assert_eq!(pages.bytes(80, 16), bytes, "the second lap's phase is 0");
        assert_eq!(pages.bytes(0, 64), [0; 64]);
    }

    #[test]
    fn long_entries_in_lent_memory_are_whole() {
        let pages = Pages::new();
        let ring = CompletionRing::over(pages.lend(0, 64), 2, CompletionSize::Bytes32).unwrap();
        ring.write_sized(1, &received());
        assert_eq!(pages.bytes(0, 32), [0; 32]);
        assert_eq!(pages.bytes(32, 4), [0x02, 0x01, 0, 0x0d]);
    }

    #[test]
    fn entries_that_a_client_wrote_are_read() {
        let pages = Pages::new();
        let ring = ReceiveRing::over(pages.lend(128, 64), 4).unwrap();
        pages.0[18].store(0x1817_1615_1413_1211, Ordering::Relaxed);
        pages.0[19].store(0xc033_3231_2221_0102, Ordering::Relaxed);
        let expected = ReceiveDescriptor {
            request_id: 0x0102,
            first: true,
            last: true,
            buffer: Buffer::new(0x1817_1615_1413_1211, 0x2221, 0x0033_3231),
        };
        assert_eq!(ring.read(1), expected);
    }

    #[test]
    fn rings_do_not_exceed_the_lent_memory() {
        let pages = Pages::new();
        let error = |result: Result<(), RingError>| result.unwrap_err();
        let send = |from, length| SendRing::over(pages.lend(from, length), 2, WqeSize::Bytes128);
        assert!(send(0, 256).is_ok());
        assert_eq!(error(send(0, 255).map(drop)), RingError::Lent);
        assert_eq!(error(send(8, 256).map(drop)), RingError::Lent);
        let recv = |length| ReceiveRing::over(pages.lend(0, length), 4);
        assert!(recv(64).is_ok());
        assert_eq!(error(recv(63).map(drop)), RingError::Lent);
        let shortest = |length| ReceiveRing::over(pages.lend(0, length), 1);
        assert!(shortest(16).is_ok());
        assert_eq!(error(shortest(15).map(drop)), RingError::Lent);
        let queue = |length, entries| {
            CompletionRing::over(pages.lend(0, length), entries, CompletionSize::Bytes16)
        };
        assert!(queue(64, 4).is_ok());
        assert_eq!(error(queue(63, 4).map(drop)), RingError::Lent);
        assert!(queue(32, 1).is_ok());
        assert_eq!(error(queue(31, 1).map(drop)), RingError::Lent);
        for entries in [0, 3, 1 << 16] {
            let error = error(queue(512, entries).map(drop));
            assert!(
                matches!(error, RingError::Depth { .. }),
                "{entries}: {error}"
            );
        }
    }

    #[test]
    fn lent_memory_is_kept_by_its_ring() {
        let pages = Pages::new();
        let ring = ReceiveRing::over(pages.lend(0, 64), 4).unwrap();
        assert_eq!(Arc::strong_count(&pages), 2);
        drop(ring);
        assert_eq!(Arc::strong_count(&pages), 1);
    }
}
