//! The receive queue's entries and ring. Entries are descriptors of 16 bytes, one or more for each
//! receive.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | buffer address |
//! | 8 | 2 | request id (the receive's first descriptor counts) |
//! | 10 | 2 | buffer length |
//! | 12 | 4 | lkey in bits 23:0, first in 30, last in 31 |

use std::sync::atomic::{AtomicU64, Ordering};

use super::RingError;
use super::lent::LentMemory;
use super::memory::{Doorbell, RingMemory};
use super::work_request::Buffer;
use crate::prefetch;

const LKEY_MASK: u32 = 0x00ff_ffff;
const FIRST: u32 = 1 << 30;
const LAST: u32 = 1 << 31;
const WORDS: usize = 2;

/// One entry of a receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceiveDescriptor {
    /// The id for the completion. The device does not interpret it.
    pub request_id: u16,
    /// Whether it is the first descriptor of a receive.
    pub first: bool,
    /// Whether it is the last descriptor of a receive.
    pub last: bool,
    /// The memory for the data. The length has 16 bits: longer buffers are truncated to 65535
    /// bytes.
    pub buffer: Buffer,
}

impl ReceiveDescriptor {
    #[inline(always)]
    fn encode(&self) -> [u64; WORDS] {
        let length = self.buffer.length.min(u32::from(u16::MAX));
        let mut control = self.buffer.lkey & LKEY_MASK;
        if self.first {
            control |= FIRST;
        }
        if self.last {
            control |= LAST;
        }
        [
            self.buffer.address,
            u64::from(self.request_id) | u64::from(length) << 16 | u64::from(control) << 32,
        ]
    }

    #[inline(always)]
    fn decode(words: [u64; WORDS]) -> Self {
        let control = (words[1] >> 32) as u32;
        ReceiveDescriptor {
            request_id: words[1] as u16,
            first: control & FIRST != 0,
            last: control & LAST != 0,
            buffer: Buffer {
                address: words[0],
                length: u32::from((words[1] >> 16) as u16),
                lkey: control & LKEY_MASK,
            },
        }
    }
}

/// A receive queue's ring and doorbell. The doorbell contains the 16-bit producer counter, in
/// descriptors.
pub struct ReceiveRing {
    memory: RingMemory<WORDS>,
    doorbell: Doorbell,
    entries: u32,
}

impl ReceiveRing {
    /// The size of an entry in bytes.
    pub const ENTRY_SIZE: usize = 16;

    /// Makes a ring of `entries` descriptors: 0, or a power of two up to 32768.
    pub fn new(entries: u32) -> Result<Self, RingError> {
        super::check_entries("receive queue depth", entries)?;
        Ok(ReceiveRing {
            memory: RingMemory::new(entries as usize)?,
            doorbell: Doorbell::default(),
            entries,
        })
    }

    /// As [`ReceiveRing::new`], in memory that the client has lent.
    ///
    /// # Errors
    /// [`RingError::Lent`] if the memory has no room for the descriptors.
    pub fn over(lent: LentMemory, entries: u32) -> Result<Self, RingError> {
        super::check_entries("receive queue depth", entries)?;
        Ok(ReceiveRing {
            memory: RingMemory::over(lent, entries as usize)?,
            doorbell: Doorbell::default(),
            entries,
        })
    }

    /// Number of descriptors: 0 or a power of two.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// The ring's memory.
    pub fn memory(&self) -> &RingMemory<2> {
        &self.memory
    }

    /// The doorbell register.
    pub fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    #[inline(always)]
    fn slot(&self, counter: u16) -> &[AtomicU64; WORDS] {
        self.memory.entry(counter.into())
    }

    /// Writes the descriptor at the producer counter. The doorbell publishes it.
    #[inline(always)]
    pub fn write(&self, counter: u16, descriptor: &ReceiveDescriptor) {
        for (slot, word) in self.slot(counter).iter().zip(descriptor.encode()) {
            slot.store(word, Ordering::Relaxed);
        }
    }

    /// Prefetches the descriptor at a counter.
    pub(crate) fn prefetch(&self, counter: u16) {
        if self.entries > 0 {
            prefetch::for_write(self.slot(counter).as_ptr().cast());
        }
    }

    /// Reads the descriptor at the consumer counter.
    #[inline(always)]
    pub fn read(&self, counter: u16) -> ReceiveDescriptor {
        let slot = self.slot(counter);
        ReceiveDescriptor::decode([
            slot[0].load(Ordering::Relaxed),
            slot[1].load(Ordering::Relaxed),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESCRIPTOR: ReceiveDescriptor = ReceiveDescriptor {
        request_id: 0x0102,
        first: true,
        last: false,
        buffer: Buffer::new(0x1817_1615_1413_1211, 0x2221, 0x0033_3231),
    };

    #[test]
    fn a_descriptor_has_16_bytes() {
        let ring = ReceiveRing::new(4).unwrap();
        ring.write(6, &DESCRIPTOR);
        #[rustfmt::skip]
        let bytes = [
            0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, // address
            0x02, 0x01,                                     // request id
            0x21, 0x22,                                     // length
            0x31, 0x32, 0x33, 0x40,                         // lkey, first
        ];
        assert_eq!(ring.memory().bytes(32..48), bytes);
        assert_eq!(ring.read(6), DESCRIPTOR);
        let last = ReceiveDescriptor {
            first: false,
            last: true,
            ..DESCRIPTOR
        };
        ring.write(6, &last);
        assert_eq!(ring.memory().bytes(47..48), [0x80]);
        assert_eq!(ring.read(6), last);
    }

    #[test]
    fn lengths_and_keys_are_capped_to_their_fields() {
        let ring = ReceiveRing::new(1).unwrap();
        let mut descriptor = DESCRIPTOR;
        descriptor.buffer.length = 0x1_0000;
        descriptor.buffer.lkey = 0xffff_ffff;
        ring.write(0, &descriptor);
        let read = ring.read(0);
        assert_eq!(
            (read.buffer.length, read.buffer.lkey),
            (0xffff, 0x00ff_ffff)
        );
        assert!(!read.last);
    }
}
