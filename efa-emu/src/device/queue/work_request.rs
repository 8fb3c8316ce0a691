//! Send queue entries: work requests of 64 or 128 bytes.
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

use efa_core::address::{Qkey, Qpn};
use zerocopy::IntoBytes;

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
/// Of a 128-byte entry.
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
    #[inline]
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

/// An entry of either size; the words beyond its end are 0.
pub(super) type Words = [u64; MAX_WORDS];

impl WorkRequest {
    /// Hands the entry's words to `store`, each with its index. Words that the entry does not need
    /// are left out.
    #[inline(always)]
    pub(super) fn encode(&self, phase: bool, mut store: impl FnMut(usize, u64)) {
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
            store(
                data,
                u64::from(remote.length) | u64::from(remote.rkey) << 32,
            );
            store(data + 1, remote.address);
            data += 2;
        }
        let count = match &self.payload {
            Payload::Inline(inline) => {
                kind |= INLINE;
                let bytes = inline.as_slice();
                for (index, chunk) in bytes.chunks(8).enumerate() {
                    let mut padded = [0; 8];
                    padded[..chunk.len()].copy_from_slice(chunk);
                    store(data + index, u64::from_le_bytes(padded));
                }
                bytes.len() as u64
            }
            Payload::Buffers { count, buffers } => {
                for (index, buffer) in buffers.iter().take(usize::from(*count)).enumerate() {
                    let sizes = u64::from(buffer.length) | u64::from(buffer.lkey & LKEY_MASK) << 32;
                    store(data + 2 * index, sizes);
                    store(data + 2 * index + 1, buffer.address);
                }
                u64::from(*count)
            }
        };
        let head = [
            u64::from(self.request_id)
                | u64::from(kind) << 16
                | u64::from(control) << 24
                | u64::from(self.destination_qpn.0) << 32
                | count << 48,
            u64::from(self.immediate.unwrap_or(0)) | u64::from(self.ahn) << 32,
            u64::from(self.qkey.0),
            self.request_id_upper << 16,
        ];
        for (index, word) in head.into_iter().enumerate() {
            store(index, word);
        }
    }
}

/// An entry as the device has read it: copied out of the ring, known to be one whole request, each
/// field taken out when it is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawWorkRequest {
    words: Words,
}

impl RawWorkRequest {
    /// No entry of any ring: room to read one into.
    pub const EMPTY: RawWorkRequest = RawWorkRequest {
        words: [0; MAX_WORDS],
    };

    /// Where the words of an entry go; those beyond its end stay what they were.
    #[inline(always)]
    pub(super) fn words_mut(&mut self) -> &mut Words {
        &mut self.words
    }

    /// Checks an entry of this size. The phase bit is not looked at: the doorbell says what is valid.
    #[inline(always)]
    pub(super) fn check(&self, size: WqeSize) -> Result<(), BadWorkRequest> {
        let raw = self;
        let (request_id, kind, control) = (raw.request_id(), raw.kind(), raw.control());
        if kind & (META | EXTENSION) != META || control & (FIRST | LAST) != FIRST | LAST {
            let control = u16::from_le_bytes([kind, control]);
            return Err(BadWorkRequest::Control {
                request_id,
                control,
            });
        }
        let code = kind & OPERATION;
        let operation =
            WqeOperation::from_code(code).ok_or(BadWorkRequest::Operation { request_id, code })?;
        let limit = match (operation, raw.is_inline()) {
            (WqeOperation::Send, false) => 2,
            (WqeOperation::RdmaRead | WqeOperation::RdmaWrite, false) => 1,
            (WqeOperation::RdmaRead, true) => 0,
            (WqeOperation::RdmaWrite, true) if size == WqeSize::Bytes64 => 0,
            (WqeOperation::Send | WqeOperation::RdmaWrite, true) => size.inline_capacity(),
        };
        let count = raw.count();
        if usize::from(count) > limit {
            return Err(BadWorkRequest::Length { request_id, count });
        }
        Ok(())
    }

    #[inline(always)]
    fn kind(&self) -> u8 {
        (self.words[0] >> 16) as u8
    }

    #[inline(always)]
    fn control(&self) -> u8 {
        (self.words[0] >> 24) as u8
    }

    /// Buffers, or inline bytes.
    #[inline(always)]
    fn count(&self) -> u16 {
        (self.words[0] >> 48) as u16
    }

    /// Returned in the completion; the device does not interpret it.
    #[inline(always)]
    pub fn request_id(&self) -> u16 {
        self.words[0] as u16
    }

    /// Upper 48 bits of a 64-bit request id, likewise.
    #[inline(always)]
    pub fn request_id_upper(&self) -> u64 {
        self.words[3] >> 16
    }

    /// What to do.
    #[inline(always)]
    pub fn operation(&self) -> WqeOperation {
        // Known, as checked when the entry was read.
        WqeOperation::from_code(self.kind() & OPERATION).unwrap_or(WqeOperation::Send)
    }

    /// Immediate data.
    #[inline(always)]
    pub fn immediate(&self) -> Option<u32> {
        (self.kind() & HAS_IMMEDIATE != 0).then_some(self.words[1] as u32)
    }

    /// The peer's queue pair.
    #[inline(always)]
    pub fn destination_qpn(&self) -> Qpn {
        Qpn((self.words[0] >> 32) as u16)
    }

    /// The peer's raw address handle number.
    #[inline(always)]
    pub fn ahn(&self) -> u16 {
        (self.words[1] >> 32) as u16
    }

    /// The Q-key of the peer's queue pair.
    #[inline(always)]
    pub fn qkey(&self) -> Qkey {
        Qkey(self.words[2] as u32)
    }

    /// Whether a successful request writes a completion.
    #[inline(always)]
    pub fn is_signaled(&self) -> bool {
        self.control() & COMPLETION_REQUESTED != 0
    }

    /// RDMA: the peer's memory.
    #[inline(always)]
    pub fn remote(&self) -> RemoteBuffer {
        RemoteBuffer {
            length: self.words[HEAD_WORDS] as u32,
            rkey: (self.words[HEAD_WORDS] >> 32) as u32,
            address: self.words[HEAD_WORDS + 1],
        }
    }

    /// Whether the entry holds the data itself.
    #[inline(always)]
    pub fn is_inline(&self) -> bool {
        self.kind() & INLINE != 0
    }

    /// The local buffers: 0, 1 or 2. None if the data is inline.
    #[inline(always)]
    pub fn buffer_count(&self) -> usize {
        if self.is_inline() {
            0
        } else {
            usize::from(self.count())
        }
    }

    /// Local buffer 0 or 1; meaningless beyond [`RawWorkRequest::buffer_count`].
    #[inline(always)]
    pub fn buffer(&self, index: usize) -> Buffer {
        let (sizes, address) = match (self.operation(), index) {
            (WqeOperation::Send, 0) => (self.words[HEAD_WORDS], self.words[HEAD_WORDS + 1]),
            _ => (self.words[HEAD_WORDS + 2], self.words[HEAD_WORDS + 3]),
        };
        Buffer {
            length: sizes as u32,
            lkey: (sizes >> 32) as u32 & LKEY_MASK,
            address,
        }
    }

    /// The inline bytes; none if the data is in buffers.
    pub fn inline_bytes(&self) -> &[u8] {
        if !self.is_inline() {
            return &[];
        }
        let start = match self.operation() {
            WqeOperation::Send => HEAD_WORDS,
            WqeOperation::RdmaRead | WqeOperation::RdmaWrite => HEAD_WORDS + 2,
        };
        // Entries are little-endian, as the words of this memory are.
        let bytes = self.words[start..].as_bytes();
        &bytes[..usize::from(self.count()).min(bytes.len())]
    }

    /// Total length of the local side in bytes.
    #[inline(always)]
    pub fn length(&self) -> u64 {
        if self.is_inline() {
            return u64::from(self.count());
        }
        match self.count() {
            0 => 0,
            1 => u64::from(self.buffer(0).length),
            _ => u64::from(self.buffer(0).length) + u64::from(self.buffer(1).length),
        }
    }

    /// All fields.
    pub fn decode(&self) -> WorkRequest {
        let payload = if self.is_inline() {
            let mut inline = InlineData::EMPTY;
            // They are no more than fit, as checked when the entry was read.
            let _ = inline.push(self.inline_bytes());
            Payload::Inline(inline)
        } else {
            let mut buffers = [Buffer::default(); 2];
            for (index, buffer) in buffers.iter_mut().take(self.buffer_count()).enumerate() {
                *buffer = self.buffer(index);
            }
            Payload::Buffers {
                count: self.buffer_count() as u8,
                buffers,
            }
        };
        WorkRequest {
            request_id: self.request_id(),
            request_id_upper: self.request_id_upper(),
            operation: self.operation(),
            immediate: self.immediate(),
            destination_qpn: self.destination_qpn(),
            ahn: self.ahn(),
            qkey: self.qkey(),
            remote: (self.operation() != WqeOperation::Send).then(|| self.remote()),
            payload,
            signaled: self.is_signaled(),
        }
    }
}
