//! The completion queue's entries and ring. Entries have 32 bytes (the extended format). In memory
//! that a client has lent they may have 16, the first ones of these ([`CompletionSize`]).
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 2 | request id |
//! | 2 | 1 | status |
//! | 3 | 1 | bit 0 phase (1 in the first lap), 2:1 queue (1 send, 2 receive), 3 has immediate, 6:4 operation, 7 unsolicited |
//! | 4 | 2 | local QPN |
//! | 6 | 2 | receive: length bits 15:0 |
//! | 6 | 6 | send: upper 48 bits of a 64-bit request id, else 0 ([`RequestIdSize`]) |
//! | 8 | 2 | receive: address handle number of the sender, 0xFFFF unknown |
//! | 10 | 2 | receive: sender's QPN |
//! | 12 | 4 | receive: immediate |
//! | 16 | 16 | receive of an unknown sender: its GID |
//! | 16 | 2 | write with immediate: length bits 31:16 |
//!
//! Connected queue pairs and shared receive queues, which no EFA has, use entries of the queue 3:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | operation, as `ibv_wc_opcode` |
//! | 1 | 1 | flags, as `ibv_wc_flags`; bit 7 solicited |
//! | 2 | 1 | status, as `ibv_wc_status` |
//! | 3 | 1 | bit 0 phase, 2:1 queue (3) |
//! | 4 / 6 | 2 / 2 | local QPN / peer's QPN |
//! | 8 | 8 | work request id |
//! | 16 | 4 | length |
//! | 20 | 4 | immediate, or data of a tag matching header |
//! | 24 | 8 | tag of a tag matching header |

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use efa_core::address::{Ahn, Gid, Qpn};

use super::RingError;
use super::lent::{CompletionSize, LentMemory};
use super::memory::{Doorbell, RingMemory, SharedPages};
use super::work_request::{WorkRequest, WqeOperation};
use crate::device::connected::{ConnectedCompletion, ConnectedFlags};
use crate::prefetch;
use crate::profile::RequestIdSize;

const PHASE_SHIFT: u32 = 24;
const PHASE: u64 = 1 << PHASE_SHIFT;
const QUEUE_SHIFT: u8 = 1;
const QUEUE_MASK: u8 = 0b11;
const QUEUE_SEND: u8 = 1;
const QUEUE_RECEIVE: u8 = 2;
const QUEUE_CONNECTED: u8 = 3;
const HAS_IMMEDIATE: u8 = 1 << 3;
const OPERATION_SHIFT: u8 = 4;
const OPERATION_MASK: u8 = 0b111;
const UNSOLICITED: u8 = 1 << 7;
const WORDS: usize = 4;

/// Fields of a receive's completion only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// Bytes received, or written by an RDMA write with immediate.
    pub length: u32,
    /// The sender's number in this device's address book, if it has an address handle.
    pub ahn: Option<Ahn>,
    /// The sender's queue pair.
    pub source_qpn: Qpn,
    /// The sender's GID, which some generations of the device report for unknown senders.
    pub source_gid: Option<Gid>,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// Whether it is a write with immediate that consumed no receive. The request id is meaningless
    /// then.
    pub unsolicited: bool,
}

impl Received {
    /// The fields for a receive that failed or was flushed.
    pub const NOTHING: Received = Received {
        length: 0,
        ahn: None,
        source_qpn: Qpn(0),
        source_gid: None,
        immediate: None,
        unsolicited: false,
    };
}

/// One entry of a completion queue, as it is in the ring. Fields are decoded on access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompletionEntry([u64; WORDS]);

impl CompletionEntry {
    /// The completion of a request in a send queue with ids of this size.
    #[inline(always)]
    pub fn of_send(qpn: Qpn, ids: RequestIdSize, request: &WorkRequest, status: u8) -> Self {
        let operation = request.operation_code();
        match ids {
            RequestIdSize::Bits16 => {
                Self::of_send_code(qpn, request.request_id() & 0xffff, operation, status)
            }
            RequestIdSize::Bits64 => Self::of_long_send(qpn, request, status),
        }
    }

    /// Separate, so that the common path does not read the upper part of an id.
    #[inline(never)]
    fn of_long_send(qpn: Qpn, request: &WorkRequest, status: u8) -> Self {
        Self::of_send_code(qpn, request.request_id(), request.operation_code(), status)
    }

    /// As [`CompletionEntry::of_send`], with the fields of the send queue entry as arguments.
    #[inline(always)]
    pub fn of_send_id(
        qpn: Qpn,
        ids: RequestIdSize,
        request_id: u64,
        operation: WqeOperation,
        status: u8,
    ) -> Self {
        Self::of_send_code(qpn, ids.of(request_id), operation.code(), status)
    }

    #[inline(always)]
    fn of_send_code(qpn: Qpn, request_id: u64, operation: u8, status: u8) -> Self {
        let flags = operation << OPERATION_SHIFT | QUEUE_SEND << QUEUE_SHIFT;
        CompletionEntry([
            first_word(request_id as u16, status, flags, qpn) | (request_id >> 16) << 48,
            request_id >> 32,
            0,
            0,
        ])
    }

    /// The completion of a receive. `operation` is the operation of the received request.
    #[inline(always)]
    pub fn of_receive(
        qpn: Qpn,
        request_id: u16,
        operation: WqeOperation,
        status: u8,
        received: &Received,
    ) -> Self {
        let mut flags = operation.code() << OPERATION_SHIFT | QUEUE_RECEIVE << QUEUE_SHIFT;
        if received.immediate.is_some() {
            flags |= HAS_IMMEDIATE;
        }
        if received.unsolicited {
            flags |= UNSOLICITED;
        }
        let mut words = [
            first_word(request_id, status, flags, qpn) | u64::from(received.length as u16) << 48,
            u64::from(received.ahn.map_or(Ahn::UNKNOWN, |ahn| ahn.0))
                | u64::from(received.source_qpn.0) << 16
                | u64::from(received.immediate.unwrap_or(0)) << 32,
            0,
            0,
        ];
        if operation == WqeOperation::RdmaWrite {
            words[2] = u64::from(received.length >> 16);
        } else if let Some(Gid(gid)) = received.source_gid {
            let gid = u128::from_le_bytes(gid);
            words[2] = gid as u64;
            words[3] = (gid >> 64) as u64;
        }
        CompletionEntry(words)
    }

    /// Returns whether the queue and operation codes are known.
    #[inline(always)]
    fn is_sound(&self) -> bool {
        let queue = self.flags() >> QUEUE_SHIFT & QUEUE_MASK;
        let operation = self.flags() >> OPERATION_SHIFT & OPERATION_MASK;
        operation <= WqeOperation::RdmaWrite.code() && queue != 0
    }

    /// The completion of a work request of a connected queue pair or a shared receive queue.
    pub fn of_connected(completion: &ConnectedCompletion) -> Self {
        let what = u16::from_le_bytes([completion.operation as u8, completion.flags.bits()]);
        let queue = QUEUE_CONNECTED << QUEUE_SHIFT;
        let peer = u64::from(completion.peer_qpn.0) << 48;
        CompletionEntry([
            first_word(what, completion.status as u8, queue, completion.qpn) | peer,
            completion.wr_id,
            u64::from(completion.length) | u64::from(completion.data) << 32,
            completion.tag,
        ])
    }

    /// Returns whether the entry belongs to a connected queue pair or a shared receive queue.
    #[inline]
    pub fn is_connected(&self) -> bool {
        self.flags() >> QUEUE_SHIFT & QUEUE_MASK == QUEUE_CONNECTED
    }

    /// Connected: the operation (`ibv_wc_opcode`).
    pub fn connected_operation(&self) -> u8 {
        self.0[0] as u8
    }

    /// Connected: the flags (`ibv_wc_flags`).
    pub fn connected_flags(&self) -> u8 {
        (self.0[0] >> 8) as u8 & !ConnectedFlags::SOLICITED.bits()
    }

    /// Whether the entry wakes a client that waits for solicited entries only: the sender of a
    /// connected queue pair requested it, or an operation failed. All datagrams do, because they
    /// have no such flag.
    pub fn is_solicited(&self) -> bool {
        let solicited = u64::from(ConnectedFlags::SOLICITED.bits()) << 8;
        match self.is_connected() {
            true => self.0[0] & solicited != 0 || self.status() != 0,
            false => self.is_receive() || self.status() != 0,
        }
    }

    /// Connected: the peer's queue pair.
    pub fn connected_peer(&self) -> Qpn {
        Qpn((self.0[0] >> 48) as u16)
    }

    /// Connected: the work request id.
    pub fn connected_wr_id(&self) -> u64 {
        self.0[1]
    }

    /// Connected: bytes received or read.
    pub fn connected_length(&self) -> u32 {
        self.0[2] as u32
    }

    /// Connected: the immediate, or data of a tag matching header.
    pub fn connected_data(&self) -> u32 {
        (self.0[2] >> 32) as u32
    }

    /// Connected: the tag of a tag matching header.
    pub fn connected_tag(&self) -> u64 {
        self.0[3]
    }

    #[inline(always)]
    fn flags(&self) -> u8 {
        (self.0[0] >> 24) as u8
    }

    /// The work request's id, or the lower bits of a longer one.
    #[inline(always)]
    pub fn request_id(&self) -> u16 {
        self.0[0] as u16
    }

    /// The status code; [`efa_core::nic::Status`] names the known ones.
    #[inline(always)]
    pub fn status(&self) -> u8 {
        (self.0[0] >> 16) as u8
    }

    /// The requested operation (send queue), or the received one (receive queue).
    #[inline(always)]
    pub fn operation(&self) -> WqeOperation {
        // The code was checked when the entry was read.
        match self.flags() >> OPERATION_SHIFT & OPERATION_MASK {
            0 => WqeOperation::Send,
            1 => WqeOperation::RdmaRead,
            _ => WqeOperation::RdmaWrite,
        }
    }

    /// Returns whether the entry belongs to the receive queue. Otherwise it belongs to the send
    /// queue.
    #[inline(always)]
    pub fn is_receive(&self) -> bool {
        self.flags() >> QUEUE_SHIFT & QUEUE_MASK == QUEUE_RECEIVE
    }

    /// The local queue pair.
    #[inline(always)]
    pub fn qpn(&self) -> Qpn {
        Qpn((self.0[0] >> 32) as u16)
    }

    /// Send queue with 64-bit ids: the request id.
    #[inline]
    pub fn long_request_id(&self) -> u64 {
        self.0[0] & 0xffff | self.0[0] >> 48 << 16 | self.0[1] << 32
    }

    /// Receive queue: bytes received, or written by an RDMA write with immediate.
    #[inline]
    pub fn length(&self) -> u32 {
        let mut length = (self.0[0] >> 48) as u32;
        if self.operation() == WqeOperation::RdmaWrite {
            length |= u32::from(self.0[2] as u16) << 16;
        }
        length
    }

    /// Receive queue: the sender's address handle number, if it has one here.
    #[inline]
    pub fn ahn(&self) -> Option<Ahn> {
        let ahn = Ahn(self.0[1] as u16);
        (ahn.0 != Ahn::UNKNOWN).then_some(ahn)
    }

    /// Receive queue: the sender's queue pair.
    #[inline]
    pub fn source_qpn(&self) -> Qpn {
        Qpn((self.0[1] >> 16) as u16)
    }

    /// Receive queue: the GID of a sender without an address handle, if the device reports it.
    #[inline]
    pub fn source_gid(&self) -> Option<Gid> {
        if self.operation() == WqeOperation::RdmaWrite || self.ahn().is_some() {
            return None;
        }
        let gid = u128::from(self.0[2]) | u128::from(self.0[3]) << 64;
        (gid != 0).then_some(Gid(gid.to_le_bytes()))
    }

    /// Receive queue: immediate data.
    #[inline]
    pub fn immediate(&self) -> Option<u32> {
        (self.flags() & HAS_IMMEDIATE != 0).then_some((self.0[1] >> 32) as u32)
    }

    /// Receive queue: whether it is a write with immediate that consumed no receive.
    #[inline(always)]
    pub fn is_unsolicited(&self) -> bool {
        self.flags() & UNSOLICITED != 0
    }
}

#[inline(always)]
fn first_word(request_id: u16, status: u8, flags: u8, qpn: Qpn) -> u64 {
    u64::from(request_id)
        | u64::from(status) << 16
        | u64::from(flags) << 24
        | u64::from(qpn.0) << 32
}

/// The value of a completion queue's doorbell register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqDoorbell {
    /// The consumer counter (bits 15:0).
    pub consumer: u16,
    /// Changes with each event that the client has received (bits 30:29), so that the device can
    /// distinguish a new request for an event from an old one.
    pub sequence: u8,
    /// Whether the event is requested for solicited entries only (bit 28). EFA has no such bit.
    pub solicited_only: bool,
    /// Whether an event is requested for entries beyond `consumer` (bit 31).
    pub arm: bool,
}

impl CqDoorbell {
    /// The register's value.
    pub const fn to_bits(self) -> u32 {
        self.consumer as u32
            | (self.solicited_only as u32) << 28
            | (self.sequence as u32 & 3) << 29
            | (self.arm as u32) << 31
    }

    /// Reads a register's value.
    pub const fn from_bits(bits: u32) -> Self {
        CqDoorbell {
            consumer: bits as u16,
            sequence: (bits >> 29 & 3) as u8,
            solicited_only: bits & 1 << 28 != 0,
            arm: bits >> 31 != 0,
        }
    }
}

/// The ring entry at the client's consumer counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompletionSlot {
    /// The device has not written the entry yet.
    Empty,
    /// An entry.
    Entry(CompletionEntry),
    /// The bytes are not an entry: the client has overwritten its memory.
    Garbage,
}

/// A completion queue's ring and doorbell ([`CqDoorbell`]).
pub struct CompletionRing {
    memory: RingMemory<WORDS>,
    doorbell: Doorbell,
    entries: u32,
    size: CompletionSize,
    /// The counter of the client's next entry to read, for the device's check for room. A client
    /// that reads the memory without calls does not update it.
    consumer: AtomicU16,
    /// A second mapping of the entries, for a client that reads them without a call.
    direct: OnceLock<SharedPages>,
}

impl CompletionRing {
    /// The size of an entry in bytes.
    pub const ENTRY_SIZE: usize = 32;

    /// Makes a ring of `entries` entries, a power of two up to 32768.
    pub fn new(entries: u32) -> Result<Self, RingError> {
        check_depth(entries)?;
        let memory = RingMemory::shared(entries as usize)?;
        Ok(CompletionRing::of(memory, entries, CompletionSize::Bytes32))
    }

    /// Makes a ring of `entries` entries of this size in memory that the client has lent. The
    /// client does not report its consumer counter. A ring of one short entry uses the space of
    /// two.
    ///
    /// # Errors
    /// [`RingError::Lent`] if the memory has no room for the entries.
    pub fn over(lent: LentMemory, entries: u32, size: CompletionSize) -> Result<Self, RingError> {
        check_depth(entries)?;
        let slots = (entries >> size.slot_shift()).max(1);
        let memory = RingMemory::over(lent, slots as usize)?;
        Ok(CompletionRing::of(memory, entries, size))
    }

    fn of(memory: RingMemory<WORDS>, entries: u32, size: CompletionSize) -> Self {
        CompletionRing {
            memory,
            doorbell: Doorbell::default(),
            entries,
            size,
            consumer: AtomicU16::new(0),
            direct: OnceLock::new(),
        }
    }

    /// Whether the client has lent the memory.
    pub fn is_lent(&self) -> bool {
        self.memory.is_lent()
    }

    /// Number of entries, a power of two.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// The ring's memory.
    pub fn memory(&self) -> &RingMemory<4> {
        &self.memory
    }

    /// The entries for a client that reads them without a call, if it has requested them.
    pub fn direct(&self) -> Option<&SharedPages> {
        self.direct.get()
    }

    /// Maps the entries for a client that reads them without a call, unless they are mapped.
    pub fn make_direct(&self) -> Result<&SharedPages, RingError> {
        if let Some(pages) = self.direct.get() {
            return Ok(pages);
        }
        let pages = self.memory.map_again()?;
        Ok(self.direct.get_or_init(|| pages))
    }

    /// Faults in the page of a counter's entry.
    pub fn touch(&self, counter: u16) {
        std::hint::black_box(self.slot(counter)[0].load(Ordering::Relaxed));
    }

    /// The offset in bytes of a counter's entry in the memory.
    pub fn offset(&self, counter: u16) -> usize {
        (u32::from(counter) & (self.entries - 1)) as usize * CompletionRing::ENTRY_SIZE
    }

    /// The counter of the client's next entry to read.
    #[inline(always)]
    pub(crate) fn consumer(&self) -> u16 {
        self.consumer.load(Ordering::Acquire)
    }

    /// Records that the client has read the entries before this counter.
    #[inline(always)]
    pub(crate) fn set_consumer(&self, counter: u16) {
        self.consumer.store(counter, Ordering::Release);
    }

    /// The doorbell register.
    pub fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    /// The phase bit in the lap of `counter`. It is true in the first lap.
    #[inline(always)]
    fn phase(&self, counter: u16) -> bool {
        u32::from(counter) & self.entries == 0
    }

    #[inline(always)]
    fn slot(&self, counter: u16) -> &[AtomicU64; WORDS] {
        self.memory.entry(counter.into())
    }

    /// Prefetches the entry at a counter.
    pub(crate) fn prefetch(&self, counter: u16) {
        prefetch::for_write(self.slot(counter).as_ptr().cast());
    }

    /// Writes the entry at the producer counter. Its phase bit publishes it. An unread entry is
    /// overwritten.
    #[inline(always)]
    pub fn write(&self, counter: u16, entry: &CompletionEntry) {
        let ([head, rest @ ..], [first, others @ ..]) = (self.slot(counter), &entry.0);
        for (slot, word) in rest.iter().zip(others) {
            slot.store(*word, Ordering::Relaxed);
        }
        let phase = u64::from(self.phase(counter)) << PHASE_SHIFT;
        head.store(first & !PHASE | phase, Ordering::Release);
    }

    /// As [`CompletionRing::write`], for entries of any size.
    pub(crate) fn write_sized(&self, counter: u16, entry: &CompletionEntry) {
        match self.size {
            CompletionSize::Bytes32 => self.write(counter, entry),
            CompletionSize::Bytes16 => {
                let index = u32::from(counter) & (self.entries - 1);
                let slot = self.memory.entry(index >> self.size.slot_shift());
                let (halves, _) = slot.as_chunks::<2>();
                let [head, second] = &halves[(index & 1) as usize];
                second.store(entry.0[1], Ordering::Relaxed);
                let phase = u64::from(self.phase(counter)) << PHASE_SHIFT;
                head.store(entry.0[0] & !PHASE | phase, Ordering::Release);
            }
        }
    }

    /// Returns whether the device has not yet written the entry at the consumer counter. Reads one
    /// word.
    #[inline(always)]
    pub fn is_empty(&self, counter: u16) -> bool {
        let head = self.slot(counter)[0].load(Ordering::Relaxed);
        (head & PHASE != 0) != self.phase(counter)
    }

    /// Reads the entry at the consumer counter.
    #[inline(always)]
    pub fn read(&self, counter: u16) -> CompletionSlot {
        let [head, a, b, c] = self.slot(counter);
        let head = head.load(Ordering::Acquire);
        if (head & PHASE != 0) != self.phase(counter) {
            return CompletionSlot::Empty;
        }
        let [a, b, c] = [a, b, c].map(|word| word.load(Ordering::Relaxed));
        let entry = CompletionEntry([head & !PHASE, a, b, c]);
        match entry.is_sound() {
            true => CompletionSlot::Entry(entry),
            false => CompletionSlot::Garbage,
        }
    }
}

fn check_depth(entries: u32) -> Result<(), RingError> {
    let ring = "completion queue depth";
    match entries {
        0 => Err(RingError::Depth { ring, entries }),
        _ => super::check_entries(ring, entries),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::connected::{ConnectedFlags, WcOperation, WcStatus};

    fn read(ring: &CompletionRing, counter: u16) -> Option<CompletionEntry> {
        match ring.read(counter) {
            CompletionSlot::Entry(entry) => Some(entry),
            CompletionSlot::Empty | CompletionSlot::Garbage => None,
        }
    }

    fn literal(counter: u16, entry: &CompletionEntry) -> Vec<u8> {
        let ring = CompletionRing::new(4).unwrap();
        ring.write(counter, entry);
        assert_eq!(read(&ring, counter), Some(*entry));
        let start = usize::from(counter & 3) * 32;
        ring.memory().bytes(start..start + 32)
    }

    const RECEIVED: Received = Received {
        length: 0x2221,
        ahn: Some(Ahn(0x3231)),
        source_qpn: Qpn(0x4241),
        source_gid: None,
        immediate: Some(0x5453_5251),
        unsolicited: false,
    };

    fn received(operation: WqeOperation, received: &Received) -> CompletionEntry {
        let entry = CompletionEntry::of_receive(Qpn(0x1211), 0x0102, operation, 0, received);
        assert!(entry.is_receive());
        assert_eq!((entry.request_id(), entry.status()), (0x0102, 0));
        assert_eq!((entry.qpn(), entry.operation()), (Qpn(0x1211), operation));
        let found = Received {
            length: entry.length(),
            ahn: entry.ahn(),
            source_qpn: entry.source_qpn(),
            source_gid: entry.source_gid(),
            immediate: entry.immediate(),
            unsolicited: entry.is_unsolicited(),
        };
        assert_eq!(found, *received);
        entry
    }

    #[test]
    fn completion_of_a_request() {
        const ID: u64 = 0xa6a5_a4a3_a2a1_0102;
        #[rustfmt::skip]
        let long = [
            0x02, 0x01,                         // request id
            10,                                 // status
            0x13,                               // read, send queue, phase 1
            0x11, 0x12,                         // QPN
            0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, // request id, upper part
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        let mut short = long;
        short[6..12].fill(0);
        for (ids, bytes, request_id) in [
            (RequestIdSize::Bits64, long, ID),
            (RequestIdSize::Bits16, short, 0x0102),
        ] {
            let entry =
                CompletionEntry::of_send_id(Qpn(0x1211), ids, ID, WqeOperation::RdmaRead, 10);
            assert!(!entry.is_receive());
            assert_eq!((entry.request_id(), entry.status()), (0x0102, 10));
            assert_eq!(
                (entry.long_request_id(), entry.operation()),
                (request_id, WqeOperation::RdmaRead)
            );
            assert_eq!(literal(1, &entry), bytes);
        }
    }

    #[test]
    fn completion_of_a_receive_from_a_known_sender() {
        #[rustfmt::skip]
        let bytes = [
            0x02, 0x01, 0,
            0x0d,                   // send, has immediate, receive queue, phase 1
            0x11, 0x12,
            0x21, 0x22,             // length
            0x31, 0x32,             // AHN
            0x41, 0x42,             // source QPN
            0x51, 0x52, 0x53, 0x54, // immediate
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(literal(3, &received(WqeOperation::Send, &RECEIVED)), bytes);
    }

    #[test]
    fn receives_from_unknown_senders_name_the_gid() {
        let detail = Received {
            ahn: None,
            source_gid: Some(Gid([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16])),
            immediate: None,
            ..RECEIVED
        };
        // In the second lap the phase is 0.
        #[rustfmt::skip]
        let bytes = [
            0x02, 0x01, 0, 0x04, 0x11, 0x12, 0x21, 0x22,
            0xff, 0xff, 0x41, 0x42, 0, 0, 0, 0,
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
        ];
        assert_eq!(literal(4, &received(WqeOperation::Send, &detail)), bytes);
    }

    #[test]
    fn write_completions_have_a_32_bit_length() {
        let detail = Received {
            length: 0x2423_2221,
            unsolicited: true,
            ..RECEIVED
        };
        #[rustfmt::skip]
        let bytes = [
            0x02, 0x01, 0,
            0xad,                   // unsolicited, write, has immediate, receive queue, phase 1
            0x11, 0x12, 0x21, 0x22,
            0x31, 0x32, 0x41, 0x42, 0x51, 0x52, 0x53, 0x54,
            0x23, 0x24,             // length, upper half
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(
            literal(0, &received(WqeOperation::RdmaWrite, &detail)),
            bytes
        );
    }

    #[test]
    fn an_entry_of_a_connection_has_32_bytes() {
        let completion = ConnectedCompletion {
            wr_id: 0x2827_2625_2423_2221,
            status: WcStatus::TagMatching,
            operation: WcOperation::TagRecv,
            flags: ConnectedFlags::TM_MATCH | ConnectedFlags::TM_DATA_VALID,
            qpn: Qpn(0x1211),
            peer_qpn: Qpn(0x1413),
            length: 0x3433_3231,
            data: 0x4443_4241,
            tag: 0x5857_5655_5453_5251,
        };
        let entry = CompletionEntry::of_connected(&completion);
        #[rustfmt::skip]
        let bytes = [
            133, 0x60, 22, 0b111,                           // operation, flags, status, queue, phase
            0x11, 0x12, 0x13, 0x14,                         // QPN, peer's QPN
            0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, // work request id
            0x31, 0x32, 0x33, 0x34,                         // length
            0x41, 0x42, 0x43, 0x44,                         // data
            0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, // tag
        ];
        assert_eq!(literal(0, &entry), bytes);
        assert!(entry.is_connected() && !entry.is_receive());
        let values = (
            entry.connected_operation(),
            entry.connected_flags(),
            entry.status(),
        );
        assert_eq!(values, (133, 0x60, 22));
        assert_eq!(
            (entry.qpn(), entry.connected_peer()),
            (Qpn(0x1211), Qpn(0x1413))
        );
        assert_eq!(entry.connected_wr_id(), completion.wr_id);
        assert_eq!(entry.connected_length(), completion.length);
        assert_eq!(
            (entry.connected_data(), entry.connected_tag()),
            (completion.data, completion.tag)
        );
    }

    #[test]
    fn an_entry_is_seen_once_in_each_lap() {
        let ring = CompletionRing::new(2).unwrap();
        let entry = received(WqeOperation::Send, &RECEIVED);
        for counter in (0..=u16::MAX).chain(0..8) {
            assert!(ring.is_empty(counter), "{counter}");
            assert_eq!(ring.read(counter), CompletionSlot::Empty, "{counter}");
            ring.write(counter, &entry);
            assert!(!ring.is_empty(counter), "{counter}");
            assert_eq!(read(&ring, counter), Some(entry), "{counter}");
        }
    }

    #[test]
    fn bytes_that_are_no_entry_are_garbage() {
        let ring = CompletionRing::new(1).unwrap();
        for flags in [0x01, 0x77, 0x75, 0x33] {
            ring.memory().word(0).store(flags << 24, Ordering::Release);
            assert_eq!(ring.read(0), CompletionSlot::Garbage, "{flags:#x}");
        }
    }

    #[test]
    fn doorbell_bits() {
        let doorbell = CqDoorbell {
            consumer: 0x1234,
            sequence: 2,
            solicited_only: false,
            arm: true,
        };
        assert_eq!(doorbell.to_bits(), 0xc000_1234);
        assert_eq!(CqDoorbell::from_bits(0xc000_1234), doorbell);
        assert!(!CqDoorbell::from_bits(0x4000_0000).arm);
    }
}
