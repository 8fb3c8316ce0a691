//! Send queue entries: work requests of 64 or 128 bytes.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 2 | request id, returned in the completion: all of it, or its lower bits ([`RequestIdSize`](crate::profile::RequestIdSize)) |
//! | 2 | 1 | bits 3:0 operation (0 send, 1 read, 2 write), 4 has immediate, 5 inline, 6 extension (0), 7 meta descriptor (1) |
//! | 3 | 1 | bit 0 phase (0 in the first lap), 2 first, 3 last, 4 completion requested |
//! | 4 | 2 | destination QPN |
//! | 6 | 2 | number of buffers, or number of inline bytes |
//! | 8 | 4 | immediate, host byte order |
//! | 12 | 2 | address handle number |
//! | 14 | 2 | processing hints in bits 1:0, reserved |
//! | 16 | 4 | Q-key |
//! | 20 | 6 | reserved |
//! | 26 | 6 | upper 48 bits of a 64-bit request id; reserved in a queue of 16-bit ids |
//! | 32 | 16 each | send: up to two buffers `{length 4, lkey 4, address 8}`, or inline bytes |
//! | 32 | 16 | RDMA: remote memory `{length 4, rkey 4, address 8}` |
//! | 48 | 16 | RDMA: one local buffer, or (write, 128-byte form) inline bytes |

use efa_core::address::{Qkey, Qpn};
use zerocopy::IntoBytes;

use crate::limits::INLINE_SIZE_WIDE;

const OPERATION: u8 = 0x0f;
const HAS_IMMEDIATE: u8 = 1 << 4;
const INLINE: u8 = 1 << 5;
const EXTENSION: u8 = 1 << 6;
const META: u8 = 1 << 7;

const FIRST: u8 = 1 << 2;
const LAST: u8 = 1 << 3;
const COMPLETION_REQUESTED: u8 = 1 << 4;

const LKEY_MASK: u32 = 0x00ff_ffff;
/// The number of words in front of the data.
pub(super) const HEAD_WORDS: usize = 4;
/// The number of words of a 128-byte entry.
pub(super) const MAX_WORDS: usize = 16;

/// The size of a send queue's entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WqeSize {
    /// 64 bytes: 32 inline bytes.
    Bytes64,
    /// 128 bytes: 80 inline bytes, also for writes.
    Bytes128,
}

impl WqeSize {
    /// The size of an entry in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            WqeSize::Bytes64 => 64,
            WqeSize::Bytes128 => 128,
        }
    }

    /// The binary logarithm of the number of cache lines of an entry.
    #[inline(always)]
    pub(super) const fn line_shift(self) -> u32 {
        match self {
            WqeSize::Bytes64 => 0,
            WqeSize::Bytes128 => 1,
        }
    }

    /// The most inline bytes of a send in an entry of this size.
    pub const fn inline_capacity(self) -> usize {
        match self {
            WqeSize::Bytes64 => 32,
            WqeSize::Bytes128 => INLINE_SIZE_WIDE as usize,
        }
    }
}

/// Operation of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum WqeOperation {
    /// A send.
    Send = 0,
    /// An RDMA read.
    RdmaRead = 1,
    /// An RDMA write.
    RdmaWrite = 2,
}

impl WqeOperation {
    /// The device's code.
    #[inline(always)]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The operation with this code. `None` if the code is unknown.
    #[inline(always)]
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
    /// The address of the first byte, in the region's I/O virtual addresses.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key, 24 bits.
    pub lkey: u32,
}

impl Buffer {
    /// The `length` bytes from `address` on, in the region with this key.
    #[inline]
    pub const fn new(address: u64, length: u32, lkey: u32) -> Self {
        Buffer {
            address,
            length,
            lkey,
        }
    }

    /// The words in an entry.
    #[inline(always)]
    pub(super) fn to_words(self) -> [u64; 2] {
        let lkey = self.lkey & LKEY_MASK;
        [u64::from(self.length) | u64::from(lkey) << 32, self.address]
    }
}

/// The remote memory of an RDMA request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemoteBuffer {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// The peer's key.
    pub rkey: u32,
}

impl RemoteBuffer {
    /// The words in an entry.
    #[inline(always)]
    pub(super) fn to_words(self) -> [u64; 2] {
        [
            u64::from(self.length) | u64::from(self.rkey) << 32,
            self.address,
        ]
    }
}

/// The head of an entry, while the client creates it. The client first writes the data into the
/// ring ([`SendRing`](super::SendRing)), and the head when all of it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryHead {
    words: [u64; HEAD_WORDS],
}

impl EntryHead {
    /// A signaled request without an id, without a destination and without data.
    #[inline(always)]
    pub fn new(operation: WqeOperation, immediate: Option<u32>) -> EntryHead {
        let mut kind = operation.code() | META;
        if immediate.is_some() {
            kind |= HAS_IMMEDIATE;
        }
        const CONTROL: u8 = FIRST | LAST | COMPLETION_REQUESTED;
        EntryHead {
            words: [
                u64::from(kind) << 16 | u64::from(CONTROL) << 24,
                u64::from(immediate.unwrap_or(0)),
                0,
                0,
            ],
        }
    }

    /// The operation.
    #[inline(always)]
    pub fn operation(&self) -> WqeOperation {
        operation_of(self.words[0])
    }

    /// Sets the request id, of 16 bits, of a head without one.
    #[inline(always)]
    pub fn with_request_id(mut self, request_id: u16) -> EntryHead {
        self.words[0] |= u64::from(request_id);
        self
    }

    /// Sets the request id, of 64 bits, of a head without one.
    #[inline(always)]
    pub fn with_long_request_id(self, request_id: u64) -> EntryHead {
        let mut head = self.with_request_id(request_id as u16);
        head.words[3] = request_id & !0xffff;
        head
    }

    /// Sets the peer, by its address handle number, queue pair and Q-key.
    #[inline(always)]
    pub fn set_destination(&mut self, ahn: u16, qpn: Qpn, qkey: Qkey) {
        self.words[0] = self.words[0] & !(0xffff << 32) | u64::from(qpn.0) << 32;
        self.words[1] = self.words[1] & 0xffff_ffff | u64::from(ahn) << 32;
        self.words[2] = qkey.0.into();
    }

    /// Sets the number of buffers, or of inline bytes.
    #[inline(always)]
    pub(super) fn set_count(&mut self, is_inline: bool, count: u16) {
        const KIND_INLINE: u64 = (INLINE as u64) << 16;
        let kind = if is_inline { KIND_INLINE } else { 0 };
        let others = self.words[0] & !(0xffff << 48 | KIND_INLINE);
        self.words[0] = others | kind | u64::from(count) << 48;
    }

    /// The words, with the phase bit of the lap.
    #[inline(always)]
    pub(super) fn to_words(self, phase: bool) -> [u64; HEAD_WORDS] {
        let [first, rest @ ..] = self.words;
        let [second, third, fourth] = rest;
        [first | u64::from(phase) << 24, second, third, fourth]
    }
}

/// Whether the first word belongs to an entry that was written in a lap with this phase bit.
pub(super) fn is_of_lap(first_word: u64, phase: bool) -> bool {
    let is_entry = first_word & u64::from(META) << 16 != 0;
    is_entry && (first_word >> 24 & 1 != 0) == phase
}

/// The operation of a known code: it was checked when the entry was read, or the entry was created
/// with it.
#[inline(always)]
fn operation_of(first_word: u64) -> WqeOperation {
    match (first_word >> 16) as u8 & OPERATION {
        0 => WqeOperation::Send,
        1 => WqeOperation::RdmaRead,
        _ => WqeOperation::RdmaWrite,
    }
}

/// An entry that the device has read: copied from the ring, and checked to be one whole request.
/// Fields are decoded on access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkRequest {
    words: Words,
}

/// An entry of either size.
pub(super) type Words = [u64; MAX_WORDS];

/// The reason why a work request in the ring cannot be executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadWorkRequest {
    /// The operation code is unknown.
    #[error("operation code {code} is unknown")]
    Operation {
        /// As [`WorkRequest::request_id`], to complete the request with an error.
        request_id: u64,
        /// The code.
        code: u8,
    },
    /// More inline bytes or buffers than fit the entry.
    #[error("{count} inline bytes or buffers do not fit")]
    Length {
        /// As [`WorkRequest::request_id`].
        request_id: u64,
        /// The number in the entry.
        count: u16,
    },
    /// The entry is not a whole request in one meta descriptor.
    #[error("control bytes {control:#06x} do not describe a whole request")]
    Control {
        /// As [`WorkRequest::request_id`].
        request_id: u64,
        /// Bytes 2 and 3 of the entry.
        control: u16,
    },
}

impl WorkRequest {
    /// A value into which an entry can be read.
    pub const EMPTY: WorkRequest = WorkRequest {
        words: [0; MAX_WORDS],
    };

    /// The words, which the caller overwrites with those of an entry. Words beyond the entry's end
    /// keep their values.
    #[inline(always)]
    pub(super) fn words_mut(&mut self) -> &mut Words {
        &mut self.words
    }

    /// Checks an entry of this size. The phase bit is not checked, because the doorbell determines
    /// the valid entries.
    #[inline(always)]
    pub(super) fn check(&self, size: WqeSize) -> Result<(), BadWorkRequest> {
        /// The bits of the kind and control bytes in nearly every entry: a whole send from buffers.
        const PLAIN: u64 = (META as u64) << 16 | ((FIRST | LAST) as u64) << 24;
        const MASK: u64 = PLAIN | ((OPERATION | INLINE | EXTENSION) as u64) << 16;
        if self.words[0] & MASK == PLAIN && self.count() <= 2 {
            return Ok(());
        }
        self.check_other(size)
    }

    #[cold]
    fn check_other(&self, size: WqeSize) -> Result<(), BadWorkRequest> {
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

    /// The number of buffers, or of inline bytes.
    #[inline(always)]
    fn count(&self) -> u16 {
        (self.words[0] >> 48) as u16
    }

    /// The id for the completion, truncated to the queue's size of ids
    /// ([`RequestIdSize`](crate::profile::RequestIdSize)). The device does not interpret it.
    #[inline(always)]
    pub fn request_id(&self) -> u64 {
        self.words[0] & 0xffff | self.words[3] & !0xffff
    }

    /// The code of the operation.
    #[inline(always)]
    pub(super) fn operation_code(&self) -> u8 {
        self.kind() & OPERATION
    }

    /// The operation.
    #[inline(always)]
    pub fn operation(&self) -> WqeOperation {
        operation_of(self.words[0])
    }

    /// Returns whether it is a send. Otherwise it is RDMA.
    #[inline(always)]
    pub fn is_send(&self) -> bool {
        self.kind() & OPERATION == WqeOperation::Send.code()
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

    /// The number of the peer's address handle.
    #[inline(always)]
    pub fn ahn(&self) -> u16 {
        (self.words[1] >> 32) as u16
    }

    /// The Q-key of the peer's queue pair.
    #[inline(always)]
    pub fn qkey(&self) -> Qkey {
        Qkey(self.words[2] as u32)
    }

    /// Returns whether the request writes a completion if it succeeds.
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

    /// Returns whether the entry contains the data itself.
    #[inline(always)]
    pub fn is_inline(&self) -> bool {
        self.kind() & INLINE != 0
    }

    /// Returns whether the data is in one buffer, as nearly every request's is.
    #[inline(always)]
    pub(in crate::device) fn has_one_buffer(&self) -> bool {
        const COUNT_AND_KIND: u64 = 0xffff << 48 | (INLINE as u64) << 16;
        self.words[0] & COUNT_AND_KIND == 1 << 48
    }

    /// The number of local buffers, 0 to 2. It is 0 if the data is inline.
    #[inline(always)]
    pub fn buffer_count(&self) -> usize {
        if self.is_inline() {
            0
        } else {
            usize::from(self.count())
        }
    }

    /// Local buffer 0 or 1; undefined beyond [`WorkRequest::buffer_count`].
    #[inline(always)]
    pub fn buffer(&self, index: usize) -> Buffer {
        self.buffer_at(self.is_send(), index)
    }

    /// As [`WorkRequest::buffer`], for a caller that has already decoded whether it is a send.
    #[inline(always)]
    pub(in crate::device) fn buffer_at(&self, is_send: bool, index: usize) -> Buffer {
        // Only a send has a second buffer, at the offset of the first buffer of RDMA.
        let (sizes, address) = match (index, is_send) {
            (0, true) => (self.words[HEAD_WORDS], self.words[HEAD_WORDS + 1]),
            _ => (self.words[HEAD_WORDS + 2], self.words[HEAD_WORDS + 3]),
        };
        Buffer::new(address, sizes as u32, (sizes >> 32) as u32 & LKEY_MASK)
    }

    /// The inline bytes. There are none if the data is in buffers.
    pub fn inline_bytes(&self) -> &[u8] {
        if !self.is_inline() {
            return &[];
        }
        let start = match self.is_send() {
            true => HEAD_WORDS,
            false => HEAD_WORDS + 2,
        };
        // Entries are little-endian, like this memory's words.
        let bytes = self.words[start..].as_bytes();
        &bytes[..usize::from(self.count()).min(bytes.len())]
    }

    /// The total length of the local data in bytes.
    #[inline(always)]
    pub fn length(&self) -> u64 {
        self.length_at(self.is_send())
    }

    /// As [`WorkRequest::length`], for a caller that has already decoded whether it is a send.
    #[inline(always)]
    pub(in crate::device) fn length_at(&self, is_send: bool) -> u64 {
        if self.is_inline() {
            return u64::from(self.count());
        }
        let length = |index| u64::from(self.buffer_at(is_send, index).length);
        match self.count() {
            0 => 0,
            1 => length(0),
            _ => length(0) + length(1),
        }
    }
}
