//! The send queue's ring.

use std::sync::atomic::Ordering;

use super::memory::{Doorbell, RingMemory, WORDS_PER_LINE};
use super::work_request::{BadWorkRequest, RawWorkRequest, WorkRequest, WqeSize};
use crate::device::Error;
use crate::prefetch;

/// A send queue's ring and doorbell. The doorbell holds the 16-bit producer counter.
pub struct SendRing {
    memory: RingMemory,
    doorbell: Doorbell,
    entries: u32,
    size: WqeSize,
}

impl SendRing {
    /// A ring of `entries` entries: 0, or a power of two up to 32768.
    pub(crate) fn new(entries: u32, size: WqeSize) -> Result<Self, Error> {
        super::check_entries("send queue depth", entries)?;
        Ok(SendRing {
            memory: RingMemory::new(entries as usize, size.bytes())?,
            doorbell: Doorbell::default(),
            entries,
            size,
        })
    }

    /// Number of entries: 0 or a power of two.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Size of an entry.
    pub fn wqe_size(&self) -> WqeSize {
        self.size
    }

    /// The ring's memory.
    pub fn memory(&self) -> &RingMemory {
        &self.memory
    }

    /// The doorbell register.
    pub fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    /// Writes the entry that the producer counter names. The doorbell publishes it. Inline data
    /// beyond the entry's end is cut off.
    ///
    /// # Panics
    /// If the ring has no entries.
    #[inline(always)]
    pub fn write(&self, counter: u16, request: &WorkRequest) {
        let first = self
            .memory
            .entry::<WORDS_PER_LINE>(self.first_line(counter));
        let second = match self.size {
            WqeSize::Bytes64 => &[],
            WqeSize::Bytes128 => &self
                .memory
                .entry::<WORDS_PER_LINE>(self.first_line(counter) + 1)[..],
        };
        request.encode(super::lap(counter, self.entries) & 1 != 0, |index, word| {
            let slot = first
                .get(index)
                .or_else(|| second.get(index - WORDS_PER_LINE));
            if let Some(slot) = slot {
                slot.store(word, Ordering::Relaxed);
            }
        });
    }

    #[inline(always)]
    fn first_line(&self, counter: u16) -> usize {
        let index = (u32::from(counter) & self.entries.wrapping_sub(1)) as usize;
        match self.size {
            WqeSize::Bytes64 => index,
            WqeSize::Bytes128 => 2 * index,
        }
    }

    /// Has the entry that a counter names brought into the caches.
    pub(crate) fn prefetch(&self, counter: u16) {
        if self.entries > 0 {
            let line = self
                .memory
                .entry::<WORDS_PER_LINE>(self.first_line(counter));
            prefetch::for_write(line.as_ptr().cast());
        }
    }

    /// Reads the entry that the consumer counter names.
    ///
    /// # Panics
    /// If the ring has no entries.
    pub fn read(&self, counter: u16) -> Result<RawWorkRequest, BadWorkRequest> {
        let mut entry = RawWorkRequest::EMPTY;
        self.read_into(counter, &mut entry)?;
        Ok(entry)
    }

    /// As [`SendRing::read`], into `entry`, which makes no sense after an error.
    ///
    /// # Panics
    /// If the ring has no entries.
    #[inline(always)]
    pub fn read_into(
        &self,
        counter: u16,
        entry: &mut RawWorkRequest,
    ) -> Result<(), BadWorkRequest> {
        let first = self.first_line(counter);
        let (lines, _) = entry.words_mut().as_chunks_mut::<WORDS_PER_LINE>();
        let [head, tail] = lines else {
            unreachable!("the longest entry has two cache lines");
        };
        self.read_line(first, head);
        if self.size == WqeSize::Bytes128 {
            self.read_line(first + 1, tail);
        }
        entry.check(self.size)
    }

    #[inline(always)]
    fn read_line(&self, index: usize, words: &mut [u64; WORDS_PER_LINE]) {
        let slots = self.memory.entry::<WORDS_PER_LINE>(index);
        for (word, slot) in words.iter_mut().zip(slots) {
            *word = slot.load(Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use efa_core::address::{Qkey, Qpn};

    use super::super::{Buffer, InlineData, Payload, RemoteBuffer, WqeOperation};
    use super::*;

    const SEND: WorkRequest = WorkRequest {
        request_id: 0x0102,
        request_id_upper: 0xa6a5_a4a3_a2a1,
        operation: WqeOperation::Send,
        immediate: Some(0x1413_1211),
        destination_qpn: Qpn(0x2221),
        ahn: 0x3231,
        qkey: Qkey(0x4443_4241),
        remote: None,
        payload: Payload::Buffers {
            count: 2,
            buffers: [
                Buffer {
                    address: 0x5857_5655_5453_5251,
                    length: 0x6463_6261,
                    lkey: 0x0073_7271,
                },
                Buffer {
                    address: 0x8887_8685_8483_8281,
                    length: 0x9493_9291,
                    lkey: 0x00b3_b2b1,
                },
            ],
        },
        signaled: true,
    };

    #[rustfmt::skip]
    const SEND_BYTES: [u8; 64] = [
        0x02, 0x01,                                     // request id
        0x90,                                           // meta, has immediate, send
        0x1c,                                           // completion requested, last, first, phase 0
        0x21, 0x22,                                     // destination QPN
        2, 0,                                           // buffers
        0x11, 0x12, 0x13, 0x14,                         // immediate
        0x31, 0x32,                                     // AHN
        0, 0,                                           // hints, reserved
        0x41, 0x42, 0x43, 0x44,                         // Q-key
        0, 0, 0, 0, 0, 0,                               // reserved
        0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6,             // request id, upper part
        0x61, 0x62, 0x63, 0x64, 0x71, 0x72, 0x73, 0,    // first buffer: length, lkey
        0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, // address
        0x91, 0x92, 0x93, 0x94, 0xb1, 0xb2, 0xb3, 0,    // second buffer
        0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88,
    ];

    #[test]
    fn a_send_with_two_buffers() {
        let ring = SendRing::new(4, WqeSize::Bytes64).unwrap();
        ring.write(1, &SEND);
        assert_eq!(ring.memory().bytes(64..128), SEND_BYTES);
        assert_eq!(ring.read(1).map(|raw| raw.decode()), Ok(SEND));
    }

    #[test]
    fn the_phase_bit_changes_with_each_lap() {
        let ring = SendRing::new(4, WqeSize::Bytes64).unwrap();
        for (counter, control) in [(3, 0x1c), (4, 0x1d), (8, 0x1c), (0xffff, 0x1d), (0, 0x1c)] {
            ring.write(counter, &SEND);
            let at = usize::from(counter & 3) * 64 + 3;
            assert_eq!(ring.memory().bytes(at..at + 1), [control], "{counter}");
            assert_eq!(ring.read(counter).map(|raw| raw.decode()), Ok(SEND));
        }
    }

    fn inline(bytes: &[u8]) -> Payload {
        let mut data = InlineData::EMPTY;
        assert!(data.push(bytes));
        Payload::Inline(data)
    }

    #[test]
    fn inline_data_fills_what_the_head_leaves() {
        let bytes: Vec<u8> = (1..=80).collect();
        for (size, capacity) in [(WqeSize::Bytes64, 32), (WqeSize::Bytes128, 80)] {
            let ring = SendRing::new(2, size).unwrap();
            let request = WorkRequest {
                payload: inline(&bytes[..capacity]),
                immediate: None,
                signaled: false,
                ..SEND
            };
            ring.write(1, &request);
            let start = size.bytes();
            // Kind: meta, inline, send. Control: last, first.
            assert_eq!(
                ring.memory().bytes(start..start + 8),
                [0x02, 0x01, 0xa0, 0x0c, 0x21, 0x22, capacity as u8, 0]
            );
            assert_eq!(
                ring.memory().bytes(start + 32..start + 32 + capacity),
                bytes[..capacity]
            );
            assert_eq!(ring.read(1).map(|raw| raw.decode()), Ok(request));
        }
        let mut full = InlineData::EMPTY;
        assert!(full.push(&bytes) && !full.push(&[0]) && full.as_slice() == bytes);
    }

    #[test]
    fn an_rdma_request_names_the_remote_memory_before_the_local() {
        let remote = RemoteBuffer {
            address: 0xc8c7_c6c5_c4c3_c2c1,
            length: 0xd4d3_d2d1,
            rkey: 0xe4e3_e2e1,
        };
        let Payload::Buffers { buffers, .. } = SEND.payload else {
            unreachable!()
        };
        let read = WorkRequest {
            operation: WqeOperation::RdmaRead,
            immediate: None,
            remote: Some(remote),
            payload: Payload::from_buffers(&buffers[..1]).unwrap(),
            ..SEND
        };
        let ring = SendRing::new(1, WqeSize::Bytes64).unwrap();
        ring.write(0, &read);
        #[rustfmt::skip]
        let data = [
            0xd1, 0xd2, 0xd3, 0xd4, 0xe1, 0xe2, 0xe3, 0xe4, // remote length, rkey
            0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, // remote address
            0x61, 0x62, 0x63, 0x64, 0x71, 0x72, 0x73, 0,    // local length, lkey
            0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, // local address
        ];
        assert_eq!(ring.memory().bytes(32..64), data);
        assert_eq!(ring.memory().bytes(2..8), [0x81, 0x1c, 0x21, 0x22, 1, 0]);
        assert_eq!(ring.read(0).map(|raw| raw.decode()), Ok(read));

        let write = WorkRequest {
            operation: WqeOperation::RdmaWrite,
            payload: inline(b"written inline"),
            ..read
        };
        let ring = SendRing::new(1, WqeSize::Bytes128).unwrap();
        ring.write(0, &write);
        assert_eq!(ring.memory().bytes(2..3), [0xa2]);
        assert_eq!(ring.memory().bytes(48..62), b"written inline");
        assert_eq!(ring.read(0).map(|raw| raw.decode()), Ok(write));
    }

    #[test]
    fn entries_that_make_no_sense_are_told_apart() {
        let ring = SendRing::new(1, WqeSize::Bytes64).unwrap();
        let with = |byte: usize, value: u8| {
            ring.write(0, &SEND);
            let word = ring.memory().word(byte / 8);
            let mut bytes = word.load(Ordering::Relaxed).to_le_bytes();
            bytes[byte % 8] = value;
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
            ring.read(0)
        };
        let request_id = 0x0102;
        for (kind, control) in [(0x10, 0x1c), (0xd0, 0x1c)] {
            let control = u16::from_le_bytes([kind, control]);
            assert_eq!(
                with(2, kind),
                Err(BadWorkRequest::Control {
                    request_id,
                    control
                })
            );
        }
        for control in [0x18, 0x14] {
            let control_word = u16::from_le_bytes([0x90, control]);
            assert_eq!(
                with(3, control),
                Err(BadWorkRequest::Control {
                    request_id,
                    control: control_word
                })
            );
        }
        assert_eq!(
            with(2, 0x83),
            Err(BadWorkRequest::Operation {
                request_id,
                code: 3
            })
        );
        assert_eq!(
            with(6, 3),
            Err(BadWorkRequest::Length {
                request_id,
                count: 3
            })
        );
        assert_eq!(
            with(7, 1),
            Err(BadWorkRequest::Length {
                request_id,
                count: 0x102
            })
        );
        // An RDMA request has one local buffer; SEND has two.
        assert_eq!(
            with(2, 0x81),
            Err(BadWorkRequest::Length {
                request_id,
                count: 2
            })
        );
        // Inline: a read never, a write only in 128 bytes.
        assert_eq!(
            with(2, 0xa1),
            Err(BadWorkRequest::Length {
                request_id,
                count: 2
            })
        );
        assert_eq!(
            with(2, 0xa2),
            Err(BadWorkRequest::Length {
                request_id,
                count: 2
            })
        );
    }

    #[test]
    fn depths_are_zero_or_powers_of_two() {
        for (entries, good) in [
            (0, true),
            (1, true),
            (3, false),
            (4096, true),
            (1 << 16, false),
        ] {
            assert_eq!(
                SendRing::new(entries, WqeSize::Bytes64).is_ok(),
                good,
                "{entries}"
            );
        }
    }
}
