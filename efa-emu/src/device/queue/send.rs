//! Send queue: work requests of 64 or 128 bytes.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 2 | request id, returned in the completion |
//! | 2 | 1 | bits 3:0 operation (0 send, 1 read, 2 write), 4 has immediate, 5 inline, 6 extension (0), 7 meta descriptor (1) |
//! | 3 | 1 | bit 0 phase (0 in the first lap), 2 first, 3 last, 4 completion requested |
//! | 4 | 2 | destination QPN |
//! | 6 | 2 | number of buffers, or number of inline bytes |
//! | 8 | 4 | immediate, host byte order |
//! | 12 | 2 | address handle number |
//! | 14 | 2 | processing hints in bits 1:0, reserved |
//! | 16 | 4 | Q-key |
//! | 20 | 6 | reserved |
//! | 26 | 6 | upper 48 bits of a 64-bit request id |
//! | 32 | 16 each | send: up to two buffers `{length 4, lkey 4, address 8}`, or inline bytes |
//! | 32 | 16 | RDMA: remote memory `{length 4, rkey 4, address 8}` |
//! | 48 | 16 | RDMA: one local buffer, or (write, 128-byte form) inline bytes |

use std::sync::atomic::Ordering;

use efa_core::address::{Qkey, Qpn};

use super::memory::{Doorbell, RingMemory};
use crate::device::Error;
use crate::profile::INLINE_SIZE_WIDE;

const OPERATION: u8 = 0x0f;
const HAS_IMMEDIATE: u8 = 1 << 4;
const INLINE: u8 = 1 << 5;
const EXTENSION: u8 = 1 << 6;
const META: u8 = 1 << 7;

const FIRST: u8 = 1 << 2;
const LAST: u8 = 1 << 3;
const COMPLETION_REQUESTED: u8 = 1 << 4;

const LKEY_MASK: u32 = 0x00ff_ffff;
const HEAD_WORDS: usize = 4;
const MAX_WORDS: usize = 16;

/// The size of a send queue's entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WqeSize {
    /// 64 bytes: 32 inline bytes.
    Bytes64,
    /// 128 bytes: 80 inline bytes, also for writes.
    Bytes128,
}

impl WqeSize {
    /// Bytes per entry.
    pub const fn bytes(self) -> usize {
        match self {
            WqeSize::Bytes64 => 64,
            WqeSize::Bytes128 => 128,
        }
    }

    /// Inline bytes that a send of this size can carry.
    pub const fn inline_capacity(self) -> usize {
        match self {
            WqeSize::Bytes64 => 32,
            WqeSize::Bytes128 => INLINE_SIZE_WIDE as usize,
        }
    }
}

/// What a work request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WqeOperation {
    /// A send.
    Send,
    /// An RDMA read.
    RdmaRead,
    /// An RDMA write.
    RdmaWrite,
}

impl WqeOperation {
    /// The device's code.
    pub const fn code(self) -> u8 {
        match self {
            WqeOperation::Send => 0,
            WqeOperation::RdmaRead => 1,
            WqeOperation::RdmaWrite => 2,
        }
    }

    /// The operation of a code, if the device knows it.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(WqeOperation::Send),
            1 => Some(WqeOperation::RdmaRead),
            2 => Some(WqeOperation::RdmaWrite),
            _ => None,
        }
    }
}

/// A piece of registered memory, laid out as an `ibv_sge`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Buffer {
    /// First byte, in the region's I/O virtual addresses.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key, 24 bits.
    pub lkey: u32,
}

/// The peer's memory of an RDMA request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemoteBuffer {
    /// First byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// The peer's key.
    pub rkey: u32,
}

/// Bytes that travel inside the work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InlineData {
    length: u8,
    bytes: [u8; INLINE_SIZE_WIDE as usize],
}

impl InlineData {
    /// No bytes.
    pub const EMPTY: InlineData = InlineData {
        length: 0,
        bytes: [0; INLINE_SIZE_WIDE as usize],
    };

    /// Appends `bytes`; false (and nothing changed) if they do not fit.
    #[must_use]
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        let start = usize::from(self.length);
        let Some(room) = self.bytes.get_mut(start..start + bytes.len()) else {
            return false;
        };
        room.copy_from_slice(bytes);
        self.length += bytes.len() as u8;
        true
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// The local side of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload {
    /// Bytes inside the work request.
    Inline(InlineData),
    /// Registered memory; the first `count` of the buffers are used.
    Buffers {
        /// 0, 1 or 2.
        count: u8,
        /// The buffers.
        buffers: [Buffer; 2],
    },
}

impl Payload {
    /// Gathers up to two buffers.
    pub fn from_buffers(list: &[Buffer]) -> Option<Self> {
        let mut buffers = [Buffer::default(); 2];
        buffers.get_mut(..list.len())?.copy_from_slice(list);
        let count = list.len() as u8;
        Some(Payload::Buffers { count, buffers })
    }

    /// Total length in bytes.
    pub fn length(&self) -> u64 {
        match self {
            Payload::Inline(data) => u64::from(data.length),
            Payload::Buffers { count, buffers } => buffers[..usize::from(*count)]
                .iter()
                .map(|buffer| u64::from(buffer.length))
                .sum(),
        }
    }
}

/// One entry of a send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkRequest {
    /// Returned in the completion; the device does not interpret it.
    pub request_id: u16,
    /// Upper 48 bits of a 64-bit request id, likewise.
    pub request_id_upper: u64,
    /// What to do.
    pub operation: WqeOperation,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// The peer's queue pair.
    pub destination_qpn: Qpn,
    /// The peer's raw address handle number.
    pub ahn: u16,
    /// The Q-key of the peer's queue pair.
    pub qkey: Qkey,
    /// The peer's memory; `Some` exactly for RDMA.
    pub remote: Option<RemoteBuffer>,
    /// The local memory or bytes.
    pub payload: Payload,
    /// Whether a successful request writes a completion.
    pub signaled: bool,
}

/// Why a work request in the ring cannot be executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadWorkRequest {
    /// The operation code is unknown.
    #[error("operation code {code} is unknown")]
    Operation {
        /// The request id, to complete the request with an error.
        request_id: u16,
        /// The code.
        code: u8,
    },
    /// More inline bytes or buffers than fit the entry.
    #[error("{count} inline bytes or buffers do not fit")]
    Length {
        /// The request id.
        request_id: u16,
        /// The number in the entry.
        count: u16,
    },
    /// Not a whole request in one meta descriptor.
    #[error("control bytes {control:#06x} do not describe a whole request")]
    Control {
        /// The request id.
        request_id: u16,
        /// Bytes 2 and 3 of the entry.
        control: u16,
    },
}

type Words = [u64; MAX_WORDS];

impl WorkRequest {
    /// The entry's words and how many of them are used.
    fn encode(&self, phase: bool) -> (Words, usize) {
        let mut words = [0; MAX_WORDS];
        let mut kind = self.operation.code() | META;
        if self.immediate.is_some() {
            kind |= HAS_IMMEDIATE;
        }
        let mut control = FIRST | LAST | u8::from(phase);
        if self.signaled {
            control |= COMPLETION_REQUESTED;
        }
        let mut data = HEAD_WORDS;
        if let Some(remote) = self.remote {
            words[data] = u64::from(remote.length) | u64::from(remote.rkey) << 32;
            words[data + 1] = remote.address;
            data += 2;
        }
        let (count, used) = match &self.payload {
            Payload::Inline(inline) => {
                kind |= INLINE;
                let bytes = inline.as_slice();
                for (word, chunk) in words[data..].iter_mut().zip(bytes.chunks(8)) {
                    let mut padded = [0; 8];
                    padded[..chunk.len()].copy_from_slice(chunk);
                    *word = u64::from_le_bytes(padded);
                }
                (bytes.len() as u64, data + bytes.len().div_ceil(8))
            }
            Payload::Buffers { count, buffers } => {
                for buffer in &buffers[..usize::from(*count)] {
                    words[data] =
                        u64::from(buffer.length) | u64::from(buffer.lkey & LKEY_MASK) << 32;
                    words[data + 1] = buffer.address;
                    data += 2;
                }
                (u64::from(*count), data)
            }
        };
        words[0] = u64::from(self.request_id)
            | u64::from(kind) << 16
            | u64::from(control) << 24
            | u64::from(self.destination_qpn.0) << 32
            | count << 48;
        words[1] = u64::from(self.immediate.unwrap_or(0)) | u64::from(self.ahn) << 32;
        words[2] = u64::from(self.qkey.0);
        words[3] = self.request_id_upper << 16;
        (words, used)
    }

    /// Reads an entry's words. The phase bit is not looked at: the doorbell says what is valid.
    fn decode(words: &Words, size: WqeSize) -> Result<WorkRequest, BadWorkRequest> {
        let request_id = words[0] as u16;
        let kind = (words[0] >> 16) as u8;
        let control = (words[0] >> 24) as u8;
        let count = (words[0] >> 48) as u16;
        if kind & META == 0 || kind & EXTENSION != 0 || control & (FIRST | LAST) != FIRST | LAST {
            let control = u16::from_le_bytes([kind, control]);
            return Err(BadWorkRequest::Control {
                request_id,
                control,
            });
        }
        let code = kind & OPERATION;
        let operation =
            WqeOperation::from_code(code).ok_or(BadWorkRequest::Operation { request_id, code })?;
        let bad_length = BadWorkRequest::Length { request_id, count };
        let mut data = HEAD_WORDS;
        let mut buffer_limit = 2;
        let mut inline_limit = size.inline_capacity();
        let remote = match operation {
            WqeOperation::Send => None,
            WqeOperation::RdmaRead | WqeOperation::RdmaWrite => {
                let remote = RemoteBuffer {
                    length: words[data] as u32,
                    rkey: (words[data] >> 32) as u32,
                    address: words[data + 1],
                };
                data += 2;
                buffer_limit = 1;
                if operation == WqeOperation::RdmaRead || size == WqeSize::Bytes64 {
                    inline_limit = 0;
                }
                Some(remote)
            }
        };
        let payload = if kind & INLINE != 0 {
            let length = usize::from(count);
            if length > inline_limit {
                return Err(bad_length);
            }
            let mut inline = InlineData::EMPTY;
            for (chunk, word) in inline.bytes[..length].chunks_mut(8).zip(&words[data..]) {
                chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
            }
            inline.length = length as u8;
            Payload::Inline(inline)
        } else {
            if count > buffer_limit {
                return Err(bad_length);
            }
            let mut buffers = [Buffer::default(); 2];
            for (buffer, pair) in buffers[..usize::from(count)]
                .iter_mut()
                .zip(words[data..].chunks_exact(2))
            {
                *buffer = Buffer {
                    length: pair[0] as u32,
                    lkey: (pair[0] >> 32) as u32 & LKEY_MASK,
                    address: pair[1],
                };
            }
            let count = count as u8;
            Payload::Buffers { count, buffers }
        };
        Ok(WorkRequest {
            request_id,
            request_id_upper: words[3] >> 16,
            operation,
            immediate: (kind & HAS_IMMEDIATE != 0).then_some(words[1] as u32),
            destination_qpn: Qpn((words[0] >> 32) as u16),
            ahn: (words[1] >> 32) as u16,
            qkey: Qkey(words[2] as u32),
            remote,
            payload,
            signaled: control & COMPLETION_REQUESTED != 0,
        })
    }
}

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
    #[inline]
    pub fn write(&self, counter: u16, request: &WorkRequest) {
        let (words, used) = request.encode(super::lap(counter, self.entries) & 1 != 0);
        let lines = self.size.bytes() / 64;
        let first = (u32::from(counter) & (self.entries - 1)) as usize * lines;
        for (offset, chunk) in words[..used].chunks(8).take(lines).enumerate() {
            let line = self.memory.line(first + offset);
            for (slot, word) in line.iter().zip(chunk) {
                slot.store(*word, Ordering::Relaxed);
            }
        }
    }

    /// Reads the entry that the consumer counter names.
    ///
    /// # Panics
    /// If the ring has no entries.
    #[inline]
    pub fn read(&self, counter: u16) -> Result<WorkRequest, BadWorkRequest> {
        let mut words = [0; MAX_WORDS];
        let lines = self.size.bytes() / 64;
        let first = (u32::from(counter) & (self.entries - 1)) as usize * lines;
        for (offset, chunk) in words.chunks_mut(8).take(lines).enumerate() {
            let line = self.memory.line(first + offset);
            for (word, slot) in chunk.iter_mut().zip(line) {
                *word = slot.load(Ordering::Relaxed);
            }
        }
        WorkRequest::decode(&words, self.size)
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(ring.read(1), Ok(SEND));
    }

    #[test]
    fn the_phase_bit_changes_with_each_lap() {
        let ring = SendRing::new(4, WqeSize::Bytes64).unwrap();
        for (counter, control) in [(3, 0x1c), (4, 0x1d), (8, 0x1c), (0xffff, 0x1d), (0, 0x1c)] {
            ring.write(counter, &SEND);
            let at = usize::from(counter & 3) * 64 + 3;
            assert_eq!(ring.memory().bytes(at..at + 1), [control], "{counter}");
            assert_eq!(ring.read(counter), Ok(SEND));
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
            assert_eq!(ring.read(1), Ok(request));
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
        assert_eq!(ring.read(0), Ok(read));

        let write = WorkRequest {
            operation: WqeOperation::RdmaWrite,
            payload: inline(b"written inline"),
            ..read
        };
        let ring = SendRing::new(1, WqeSize::Bytes128).unwrap();
        ring.write(0, &write);
        assert_eq!(ring.memory().bytes(2..3), [0xa2]);
        assert_eq!(ring.memory().bytes(48..62), b"written inline");
        assert_eq!(ring.read(0), Ok(write));
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
