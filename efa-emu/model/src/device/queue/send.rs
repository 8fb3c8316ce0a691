//! The send queue's ring.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use zerocopy::IntoBytes;

use super::RingError;
use super::lent::LentMemory;
use super::memory::{Doorbell, DoorbellPage, RingMemory, WORDS_PER_LINE};
use super::work_request::{
    BadWorkRequest, Buffer, EntryHead, HEAD_WORDS, MAX_WORDS, RemoteBuffer, WorkRequest,
    WqeOperation, WqeSize, is_of_lap,
};
use crate::prefetch;

/// A send queue's ring and doorbell. The doorbell contains the 16-bit producer counter.
pub struct SendRing {
    /// The entries. Each has one or two cache lines.
    memory: RingMemory<WORDS_PER_LINE>,
    doorbell: Doorbell,
    entries: u32,
    size: WqeSize,
    /// The doorbell of a client that rings without a call.
    direct_doorbell: OnceLock<DoorbellPage>,
}

impl SendRing {
    /// Makes a ring of `entries` entries: 0, or a power of two up to 32768.
    pub fn new(entries: u32, size: WqeSize) -> Result<Self, RingError> {
        super::check_entries("send queue depth", entries)?;
        SendRing::of(
            RingMemory::new((entries as usize) << size.line_shift())?,
            entries,
            size,
        )
    }

    /// As [`SendRing::new`], in memory that the client has lent.
    ///
    /// # Errors
    /// [`RingError::Lent`] if the memory has no room for the entries.
    pub fn over(lent: LentMemory, entries: u32, size: WqeSize) -> Result<Self, RingError> {
        super::check_entries("send queue depth", entries)?;
        SendRing::of(
            RingMemory::over(lent, (entries as usize) << size.line_shift())?,
            entries,
            size,
        )
    }

    fn of(
        memory: RingMemory<WORDS_PER_LINE>,
        entries: u32,
        size: WqeSize,
    ) -> Result<Self, RingError> {
        Ok(SendRing {
            memory,
            doorbell: Doorbell::default(),
            entries,
            size,
            direct_doorbell: OnceLock::new(),
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
    pub fn memory(&self) -> &RingMemory<8> {
        &self.memory
    }

    /// The doorbell register.
    pub fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    /// The doorbell for clients that ring without a call, if there is one.
    pub fn direct_doorbell(&self) -> Option<&DoorbellPage> {
        self.direct_doorbell.get()
    }

    /// Creates the doorbell for clients that ring without a call, with the current value, unless
    /// there is one.
    pub fn make_direct_doorbell(&self) -> Result<&DoorbellPage, RingError> {
        if let Some(page) = self.direct_doorbell.get() {
            return Ok(page);
        }
        let page = DoorbellPage::new(self.doorbell.read())?;
        Ok(self.direct_doorbell.get_or_init(|| page))
    }

    /// Whether the entry at a counter was written in the counter's lap. Only for a ring that was
    /// empty, or [cleared](SendRing::clear), when the counter was 0.
    pub(crate) fn is_written(&self, counter: u16) -> bool {
        let phase = u32::from(counter) & self.entries != 0;
        let word = self.line(self.first_line(counter))[0].load(Ordering::Acquire);
        is_of_lap(word, phase)
    }

    /// Clears all entries, for a queue that restarts with counter 0.
    pub(crate) fn clear(&self) {
        for counter in 0..self.entries {
            self.line(counter << self.size.line_shift())[0].store(0, Ordering::Relaxed);
        }
    }

    /// Writes the head of the entry at the producer counter, which completes the entry. The
    /// doorbell publishes it.
    #[inline(always)]
    pub fn write_head(&self, counter: u16, head: &EntryHead) {
        let phase = u32::from(counter) & self.entries != 0;
        let line = self.line(self.first_line(counter));
        for (slot, word) in line.iter().zip(head.to_words(phase)) {
            slot.store(word, Ordering::Relaxed);
        }
    }

    /// Writes the remote memory of an RDMA request into the entry.
    #[inline(always)]
    pub fn write_remote(&self, counter: u16, remote: RemoteBuffer) {
        let line = self.line(self.first_line(counter));
        for (slot, word) in line[HEAD_WORDS..].iter().zip(remote.to_words()) {
            slot.store(word, Ordering::Relaxed);
        }
    }

    /// Writes the local buffers of the request with this head, and sets their number in it. Buffers
    /// beyond the end of the entry are dropped.
    #[inline(always)]
    pub fn write_buffers(&self, counter: u16, head: &mut EntryHead, buffers: &[Buffer]) {
        let line = self.line(self.first_line(counter));
        let (places, _) = line[data_start(head)..].as_chunks::<2>();
        for (place, buffer) in places.iter().zip(buffers) {
            let [sizes, address] = buffer.to_words();
            place[0].store(sizes, Ordering::Relaxed);
            place[1].store(address, Ordering::Relaxed);
        }
        head.set_count(false, buffers.len().min(places.len()) as u16);
    }

    /// Writes the inline bytes of the request with this head, and sets their number in it. Returns
    /// `false`, and changes nothing, if they do not fit into the entry.
    pub fn write_inline(&self, counter: u16, head: &mut EntryHead, parts: &[&[u8]]) -> bool {
        let mut words = [0u64; MAX_WORDS];
        let mut length = 0;
        let capacity = match (head.operation(), self.size) {
            (WqeOperation::Send, _) | (_, WqeSize::Bytes128) => self.size.inline_capacity(),
            (_, WqeSize::Bytes64) => 0,
        };
        let room = &mut words.as_mut_bytes()[..capacity];
        for part in parts {
            let Some(place) = room
                .get_mut(length..)
                .and_then(|rest| rest.get_mut(..part.len()))
            else {
                return false;
            };
            place.copy_from_slice(part);
            length += part.len();
        }
        let first = self.first_line(counter);
        let words = &words[..length.div_ceil(8)];
        for (index, word) in (data_start(head)..).zip(words) {
            let line = self.line(first + (index / WORDS_PER_LINE) as u32);
            line[index % WORDS_PER_LINE].store(word.to_le(), Ordering::Relaxed);
        }
        head.set_count(true, length as u16);
        true
    }

    #[inline(always)]
    fn line(&self, index: u32) -> &[AtomicU64; WORDS_PER_LINE] {
        self.memory.entry(index)
    }

    #[inline(always)]
    fn first_line(&self, counter: u16) -> u32 {
        u32::from(counter) << self.size.line_shift()
    }

    /// Prefetches the entry at a counter.
    pub(crate) fn prefetch(&self, counter: u16) {
        if self.entries > 0 {
            let line = self.line(self.first_line(counter));
            prefetch::for_write(line.as_ptr().cast());
        }
    }

    /// Reads the entry at the consumer counter.
    pub fn read(&self, counter: u16) -> Result<WorkRequest, BadWorkRequest> {
        let mut entry = WorkRequest::EMPTY;
        self.read_into(counter, &mut entry)?;
        Ok(entry)
    }

    /// As [`SendRing::read`], into `entry`, whose value is undefined after an error.
    #[inline(always)]
    pub fn read_into(&self, counter: u16, entry: &mut WorkRequest) -> Result<(), BadWorkRequest> {
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
    fn read_line(&self, index: u32, words: &mut [u64; WORDS_PER_LINE]) {
        for (word, slot) in words.iter_mut().zip(self.line(index)) {
            *word = slot.load(Ordering::Relaxed);
        }
    }
}

/// The offset of the request's local buffers or inline bytes, in words.
#[inline(always)]
fn data_start(head: &EntryHead) -> usize {
    match head.operation() {
        WqeOperation::Send => HEAD_WORDS,
        WqeOperation::RdmaRead | WqeOperation::RdmaWrite => HEAD_WORDS + 2,
    }
}

#[cfg(test)]
mod tests {
    use efa_core::address::{Qkey, Qpn};

    use super::*;

    const BUFFERS: [Buffer; 2] = [
        Buffer::new(0x5857_5655_5453_5251, 0x6463_6261, 0x0073_7271),
        Buffer::new(0x8887_8685_8483_8281, 0x9493_9291, 0x00b3_b2b1),
    ];

    fn head(operation: WqeOperation, immediate: Option<u32>) -> EntryHead {
        let mut head = EntryHead::new(operation, immediate).with_request_id(0x0102);
        head.set_destination(0x3231, Qpn(0x2221), Qkey(0x4443_4241));
        head
    }

    /// Writes a send with immediate and two buffers.
    fn write_send(ring: &SendRing, counter: u16) {
        let mut head = head(WqeOperation::Send, Some(0x1413_1211));
        ring.write_buffers(counter, &mut head, &BUFFERS);
        ring.write_head(counter, &head);
    }

    /// Checks the fields that are the same in all requests of these tests.
    fn assert_head(request: &WorkRequest) {
        assert_eq!(
            (request.request_id(), request.destination_qpn()),
            (0x0102, Qpn(0x2221))
        );
        assert_eq!((request.ahn(), request.qkey()), (0x3231, Qkey(0x4443_4241)));
        assert!(request.is_signaled());
    }

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
        0, 0, 0, 0, 0, 0,                               // request id, upper part
        0x61, 0x62, 0x63, 0x64, 0x71, 0x72, 0x73, 0,    // first buffer: length, lkey
        0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, // address
        0x91, 0x92, 0x93, 0x94, 0xb1, 0xb2, 0xb3, 0,    // second buffer
        0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88,
    ];

    #[test]
    fn a_send_with_two_buffers() {
        let ring = SendRing::new(4, WqeSize::Bytes64).unwrap();
        write_send(&ring, 1);
        assert_eq!(ring.memory().bytes(64..128), SEND_BYTES);
        let request = ring.read(1).unwrap();
        assert_head(&request);
        assert!(request.is_send() && !request.is_inline());
        assert_eq!(request.operation(), WqeOperation::Send);
        assert_eq!(request.immediate(), Some(0x1413_1211));
        assert_eq!(request.buffer_count(), 2);
        assert_eq!([request.buffer(0), request.buffer(1)], BUFFERS);
        assert_eq!(request.length(), 0x6463_6261 + 0x9493_9291);
    }

    /// For each operation and both entry sizes: the request id is split, and no other field
    /// changes.
    #[test]
    fn long_request_ids_use_the_heads_last_bytes() {
        const LONG: u64 = 0xa6a5_a4a3_a2a1_0102;
        for size in [WqeSize::Bytes64, WqeSize::Bytes128] {
            for operation in [
                WqeOperation::Send,
                WqeOperation::RdmaRead,
                WqeOperation::RdmaWrite,
            ] {
                let entry = |request_id| {
                    let ring = SendRing::new(1, size).unwrap();
                    let mut head = head(operation, None).with_long_request_id(request_id);
                    ring.write_buffers(0, &mut head, &BUFFERS);
                    ring.write_head(0, &head);
                    assert_eq!(ring.read(0).unwrap().request_id(), request_id);
                    ring.memory().bytes(0..size.bytes())
                };
                let (mut bytes, short) = (entry(LONG), entry(0x0102));
                assert_eq!(bytes[..2], [0x02, 0x01]);
                assert_eq!(bytes[26..32], [0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6]);
                bytes[26..32].fill(0);
                assert_eq!(bytes, short, "{size:?} {operation:?}");
            }
        }
    }

    #[test]
    fn the_phase_bit_changes_with_each_lap() {
        let ring = SendRing::new(4, WqeSize::Bytes64).unwrap();
        for (counter, control) in [(3, 0x1c), (4, 0x1d), (8, 0x1c), (0xffff, 0x1d), (0, 0x1c)] {
            write_send(&ring, counter);
            let at = usize::from(counter & 3) * 64 + 3;
            assert_eq!(ring.memory().bytes(at..at + 1), [control], "{counter}");
            assert_head(&ring.read(counter).unwrap());
        }
    }

    #[test]
    fn inline_data_fills_the_entry_after_the_head() {
        let bytes: Vec<u8> = (1..=80).collect();
        for (size, capacity) in [(WqeSize::Bytes64, 32), (WqeSize::Bytes128, 80)] {
            let ring = SendRing::new(2, size).unwrap();
            let mut head = head(WqeOperation::Send, None);
            let parts = [&bytes[..3], &[], &bytes[3..capacity]];
            assert!(ring.write_inline(1, &mut head, &parts));
            let full = head;
            assert!(!ring.write_inline(1, &mut head, &[parts[0], parts[2], &[0]]));
            assert_eq!(head, full, "nothing was changed");
            ring.write_head(1, &head);
            let start = size.bytes();
            // Kind: meta, inline, send. Control: completion requested, last, first.
            assert_eq!(
                ring.memory().bytes(start..start + 8),
                [0x02, 0x01, 0xa0, 0x1c, 0x21, 0x22, capacity as u8, 0]
            );
            assert_eq!(
                ring.memory().bytes(start + 32..start + 32 + capacity),
                bytes[..capacity]
            );
            let request = ring.read(1).unwrap();
            assert_head(&request);
            assert_eq!((request.immediate(), request.buffer_count()), (None, 0));
            assert_eq!(request.inline_bytes(), &bytes[..capacity]);
            assert_eq!(request.length(), capacity as u64);
        }
    }

    #[test]
    fn rdma_requests_name_remote_before_local_memory() {
        let remote = RemoteBuffer {
            address: 0xc8c7_c6c5_c4c3_c2c1,
            length: 0xd4d3_d2d1,
            rkey: 0xe4e3_e2e1,
        };
        let ring = SendRing::new(1, WqeSize::Bytes64).unwrap();
        let mut read = head(WqeOperation::RdmaRead, None);
        ring.write_remote(0, remote);
        ring.write_buffers(0, &mut read, &BUFFERS);
        ring.write_head(0, &read);
        #[rustfmt::skip]
        let data = [
            0xd1, 0xd2, 0xd3, 0xd4, 0xe1, 0xe2, 0xe3, 0xe4, // remote length, rkey
            0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, // remote address
            0x61, 0x62, 0x63, 0x64, 0x71, 0x72, 0x73, 0,    // local length, lkey
            0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, // local address
        ];
        assert_eq!(ring.memory().bytes(32..64), data);
        assert_eq!(ring.memory().bytes(2..8), [0x81, 0x1c, 0x21, 0x22, 1, 0]);
        let request = ring.read(0).unwrap();
        assert_head(&request);
        assert!(!request.is_send());
        assert_eq!(request.operation(), WqeOperation::RdmaRead);
        assert_eq!((request.remote(), request.buffer(0)), (remote, BUFFERS[0]));
        assert_eq!(request.buffer_count(), 1, "there is no room for a second");

        let ring = SendRing::new(1, WqeSize::Bytes128).unwrap();
        let mut write = head(WqeOperation::RdmaWrite, None);
        ring.write_remote(0, remote);
        assert!(ring.write_inline(0, &mut write, &[b"written inline"]));
        ring.write_head(0, &write);
        assert_eq!(ring.memory().bytes(2..3), [0xa2]);
        assert_eq!(ring.memory().bytes(48..62), b"written inline");
        let request = ring.read(0).unwrap();
        assert_eq!(request.operation(), WqeOperation::RdmaWrite);
        assert_eq!(
            (request.remote(), request.inline_bytes()),
            (remote, &b"written inline"[..])
        );
    }

    #[test]
    fn invalid_entries_are_distinguished() {
        let ring = SendRing::new(1, WqeSize::Bytes64).unwrap();
        let with = |byte: usize, value: u8| {
            write_send(&ring, 0);
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
        // An RDMA request has one local buffer, a send has two.
        assert_eq!(
            with(2, 0x81),
            Err(BadWorkRequest::Length {
                request_id,
                count: 2
            })
        );
        // A read is never inline, and a write only in 128 bytes.
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
