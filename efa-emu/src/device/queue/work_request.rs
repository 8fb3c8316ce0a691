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
    /// The entry's words and how many of them are used.
    pub(super) fn encode(&self, phase: bool) -> (Words, usize) {
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
    pub(super) fn decode(words: &Words, size: WqeSize) -> Result<WorkRequest, BadWorkRequest> {
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
