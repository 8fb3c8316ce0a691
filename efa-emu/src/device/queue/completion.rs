//! Completion queue: entries of 32 bytes (the extended format; rdma-core asks for no other).
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 2 | request id |
//! | 2 | 1 | status |
//! | 3 | 1 | bit 0 phase (1 in the first lap), 2:1 queue (1 send, 2 receive), 3 has immediate, 6:4 operation, 7 unsolicited |
//! | 4 | 2 | local QPN |
//! | 6 | 2 | receive: length bits 15:0 |
//! | 6 | 6 | send: upper 48 bits of the request id |
//! | 8 | 2 | receive: address handle number of the sender, 0xFFFF unknown |
//! | 10 | 2 | receive: sender's QPN |
//! | 12 | 4 | receive: immediate |
//! | 16 | 16 | receive of an unknown sender: its GID |
//! | 16 | 2 | write with immediate: length bits 31:16 |

use std::sync::atomic::{AtomicU64, Ordering};

use efa_core::address::{Ahn, Gid, Qpn};

use super::memory::{Doorbell, RingMemory};
use super::work_request::WqeOperation;
use crate::device::Error;
use crate::prefetch;

const PHASE: u8 = 1 << 0;
const QUEUE_SHIFT: u8 = 1;
const QUEUE_MASK: u8 = 0b11;
const QUEUE_SEND: u8 = 1;
const QUEUE_RECEIVE: u8 = 2;
const HAS_IMMEDIATE: u8 = 1 << 3;
const OPERATION_SHIFT: u8 = 4;
const OPERATION_MASK: u8 = 0b111;
const UNSOLICITED: u8 = 1 << 7;
const WORDS: usize = 4;

/// What only the completion of a send queue entry has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendDetail {
    /// Upper 48 bits of the request id.
    pub request_id_upper: u64,
}

/// What only the completion of a receive has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceiveDetail {
    /// Bytes received, or written by an RDMA write with immediate.
    pub length: u32,
    /// The sender's address handle number in this device's address book, if it has one.
    pub ahn: Option<Ahn>,
    /// The sender's queue pair.
    pub source_qpn: Qpn,
    /// The sender's GID; reported for unknown senders by devices that can.
    pub source_gid: Option<Gid>,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// A write with immediate that consumed no receive; the request id means nothing.
    pub unsolicited: bool,
}

/// Which queue of the queue pair completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueSide {
    /// The send queue.
    Send(SendDetail),
    /// The receive queue.
    Receive(ReceiveDetail),
}

/// One entry of a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompletionEntry {
    /// The request id of the work request.
    pub request_id: u16,
    /// The status code; [`efa_core::nic::Status`] names the known ones.
    pub status: u8,
    /// The operation: what was requested (send side), or what arrived (receive side).
    pub operation: WqeOperation,
    /// The local queue pair.
    pub qpn: Qpn,
    /// The rest.
    pub side: QueueSide,
}

impl CompletionEntry {
    #[inline(always)]
    fn encode(&self, phase: bool) -> [u64; WORDS] {
        let mut flags = u8::from(phase) | self.operation.code() << OPERATION_SHIFT;
        let mut words = [0; WORDS];
        match &self.side {
            QueueSide::Send(detail) => {
                flags |= QUEUE_SEND << QUEUE_SHIFT;
                words[0] = detail.request_id_upper << 48;
                words[1] = detail.request_id_upper >> 16 & 0xffff_ffff;
            }
            QueueSide::Receive(detail) => {
                flags |= QUEUE_RECEIVE << QUEUE_SHIFT;
                if detail.immediate.is_some() {
                    flags |= HAS_IMMEDIATE;
                }
                if detail.unsolicited {
                    flags |= UNSOLICITED;
                }
                words[0] = u64::from(detail.length as u16) << 48;
                words[1] = u64::from(detail.ahn.map_or(Ahn::UNKNOWN, |ahn| ahn.0))
                    | u64::from(detail.source_qpn.0) << 16
                    | u64::from(detail.immediate.unwrap_or(0)) << 32;
                if self.operation == WqeOperation::RdmaWrite {
                    words[2] = u64::from(detail.length >> 16);
                } else if let Some(Gid(gid)) = detail.source_gid {
                    let gid = u128::from_le_bytes(gid);
                    words[2] = gid as u64;
                    words[3] = (gid >> 64) as u64;
                }
            }
        }
        words[0] |= u64::from(self.request_id)
            | u64::from(self.status) << 16
            | u64::from(flags) << 24
            | u64::from(self.qpn.0) << 32;
        words
    }
}

/// An entry as a client has read it: copied out of the ring, known to be an entry, each field taken
/// out when it is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawCompletion([u64; WORDS]);

impl RawCompletion {
    /// `None` if the queue or operation code is unknown.
    #[inline(always)]
    fn new(words: [u64; WORDS]) -> Option<Self> {
        let flags = (words[0] >> 24) as u8;
        let queue = flags >> QUEUE_SHIFT & QUEUE_MASK;
        let is_known = WqeOperation::from_code(flags >> OPERATION_SHIFT & OPERATION_MASK).is_some()
            && (queue == QUEUE_SEND || queue == QUEUE_RECEIVE);
        is_known.then_some(RawCompletion(words))
    }

    #[inline(always)]
    fn flags(&self) -> u8 {
        (self.0[0] >> 24) as u8
    }

    /// The request id of the work request.
    #[inline(always)]
    pub fn request_id(&self) -> u16 {
        self.0[0] as u16
    }

    /// The status code; [`efa_core::nic::Status`] names the known ones.
    #[inline(always)]
    pub fn status(&self) -> u8 {
        (self.0[0] >> 16) as u8
    }

    /// The operation: what was requested (send side), or what arrived (receive side).
    #[inline(always)]
    pub fn operation(&self) -> WqeOperation {
        let code = self.flags() >> OPERATION_SHIFT & OPERATION_MASK;
        // Known, as checked when the entry was read.
        WqeOperation::from_code(code).unwrap_or(WqeOperation::Send)
    }

    /// Whether the entry is of the receive queue; otherwise it is of the send queue.
    #[inline(always)]
    pub fn is_receive(&self) -> bool {
        self.flags() >> QUEUE_SHIFT & QUEUE_MASK == QUEUE_RECEIVE
    }

    /// The local queue pair.
    #[inline(always)]
    pub fn qpn(&self) -> Qpn {
        Qpn((self.0[0] >> 32) as u16)
    }

    /// Send queue: upper 48 bits of the request id.
    #[inline]
    pub fn request_id_upper(&self) -> u64 {
        self.0[0] >> 48 | (self.0[1] & 0xffff_ffff) << 16
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

    /// Receive queue: a write with immediate that consumed no receive.
    #[inline(always)]
    pub fn is_unsolicited(&self) -> bool {
        self.flags() & UNSOLICITED != 0
    }

    /// All fields.
    #[inline]
    pub fn decode(&self) -> CompletionEntry {
        let side = if self.is_receive() {
            QueueSide::Receive(ReceiveDetail {
                length: self.length(),
                ahn: self.ahn(),
                source_qpn: self.source_qpn(),
                source_gid: self.source_gid(),
                immediate: self.immediate(),
                unsolicited: self.is_unsolicited(),
            })
        } else {
            QueueSide::Send(SendDetail {
                request_id_upper: self.request_id_upper(),
            })
        };
        CompletionEntry {
            request_id: self.request_id(),
            status: self.status(),
            operation: self.operation(),
            qpn: self.qpn(),
            side,
        }
    }
}

/// The value of a completion queue's doorbell register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqDoorbell {
    /// The consumer counter (bits 15:0).
    pub consumer: u16,
    /// Changes with each event that the client has received (bits 30:29), so that the device can
    /// tell a new request for an event from an old one.
    pub sequence: u8,
    /// Asks for an event when there are entries beyond `consumer` (bit 31).
    pub arm: bool,
}

impl CqDoorbell {
    /// The register's value.
    pub const fn to_bits(self) -> u32 {
        self.consumer as u32 | (self.sequence as u32 & 3) << 29 | (self.arm as u32) << 31
    }

    /// Reads a register's value.
    pub const fn from_bits(bits: u32) -> Self {
        CqDoorbell {
            consumer: bits as u16,
            sequence: (bits >> 29 & 3) as u8,
            arm: bits >> 31 != 0,
        }
    }
}

/// What a client finds at its consumer counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// The device has not written the entry yet.
    Empty,
    /// An entry.
    Entry(RawCompletion),
    /// Bytes that are no entry: the client's own memory was overwritten.
    Garbage,
}

/// A completion queue's ring and doorbell ([`CqDoorbell`]).
pub struct CompletionRing {
    memory: RingMemory,
    doorbell: Doorbell,
    entries: u32,
}

impl CompletionRing {
    /// Bytes of an entry.
    pub const ENTRY_SIZE: usize = 32;

    /// A ring of `entries` entries: a power of two up to 32768.
    pub(crate) fn new(entries: u32) -> Result<Self, Error> {
        if entries == 0 {
            return Err(Error::invalid("completion queue depth", entries));
        }
        super::check_entries("completion queue depth", entries)?;
        Ok(CompletionRing {
            memory: RingMemory::new(entries as usize, Self::ENTRY_SIZE)?,
            doorbell: Doorbell::default(),
            entries,
        })
    }

    /// Number of entries, a power of two.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// The ring's memory.
    pub fn memory(&self) -> &RingMemory {
        &self.memory
    }

    /// The doorbell register.
    pub fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    /// The phase bit of the lap that `counter` is in: true in the first.
    #[inline(always)]
    fn phase(&self, counter: u16) -> bool {
        super::lap(counter, self.entries) & 1 == 0
    }

    #[inline(always)]
    fn slot(&self, counter: u16) -> &[AtomicU64; WORDS] {
        self.memory
            .entry((u32::from(counter) & (self.entries - 1)) as usize)
    }

    /// Has the entry that a counter names brought into the caches.
    pub(crate) fn prefetch(&self, counter: u16) {
        prefetch::for_write(self.slot(counter).as_ptr().cast());
    }

    /// Writes the entry that the producer counter names; its phase bit publishes it. An entry that
    /// the client has not read is lost: the device does not know how far the client is.
    #[inline(always)]
    pub fn write(&self, counter: u16, entry: &CompletionEntry) {
        let words = entry.encode(self.phase(counter));
        let slot = self.slot(counter);
        for index in 1..WORDS {
            slot[index].store(words[index], Ordering::Relaxed);
        }
        slot[0].store(words[0], Ordering::Release);
    }

    /// Reads what the consumer counter names.
    #[inline(always)]
    pub fn read(&self, counter: u16) -> Slot {
        let slot = self.slot(counter);
        let head = slot[0].load(Ordering::Acquire);
        if ((head >> 24) as u8 & PHASE != 0) != self.phase(counter) {
            return Slot::Empty;
        }
        let mut words = [head, 0, 0, 0];
        for index in 1..WORDS {
            words[index] = slot[index].load(Ordering::Relaxed);
        }
        RawCompletion::new(words).map_or(Slot::Garbage, Slot::Entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(ring: &CompletionRing, counter: u16) -> Option<CompletionEntry> {
        match ring.read(counter) {
            Slot::Entry(entry) => Some(entry.decode()),
            Slot::Empty | Slot::Garbage => None,
        }
    }

    fn literal(counter: u16, entry: &CompletionEntry) -> Vec<u8> {
        let ring = CompletionRing::new(4).unwrap();
        ring.write(counter, entry);
        assert_eq!(read(&ring, counter), Some(*entry));
        let start = usize::from(counter & 3) * 32;
        ring.memory().bytes(start..start + 32)
    }

    const RECEIVED: ReceiveDetail = ReceiveDetail {
        length: 0x2221,
        ahn: Some(Ahn(0x3231)),
        source_qpn: Qpn(0x4241),
        source_gid: None,
        immediate: Some(0x5453_5251),
        unsolicited: false,
    };

    fn received(operation: WqeOperation, detail: ReceiveDetail) -> CompletionEntry {
        CompletionEntry {
            request_id: 0x0102,
            status: 0,
            operation,
            qpn: Qpn(0x1211),
            side: QueueSide::Receive(detail),
        }
    }

    #[test]
    fn completion_of_a_request() {
        let entry = CompletionEntry {
            request_id: 0x0102,
            status: 10,
            operation: WqeOperation::RdmaRead,
            qpn: Qpn(0x1211),
            side: QueueSide::Send(SendDetail {
                request_id_upper: 0xa6a5_a4a3_a2a1,
            }),
        };
        #[rustfmt::skip]
        let bytes = [
            0x02, 0x01,                         // request id
            10,                                 // status
            0x13,                               // read, send queue, phase 1
            0x11, 0x12,                         // QPN
            0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, // request id, upper part
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(literal(1, &entry), bytes);
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
        assert_eq!(literal(3, &received(WqeOperation::Send, RECEIVED)), bytes);
    }

    #[test]
    fn completion_of_a_receive_from_an_unknown_sender_names_its_gid() {
        let detail = ReceiveDetail {
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
        assert_eq!(literal(4, &received(WqeOperation::Send, detail)), bytes);
    }

    #[test]
    fn completion_of_a_write_has_a_32_bit_length() {
        let detail = ReceiveDetail {
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
            literal(0, &received(WqeOperation::RdmaWrite, detail)),
            bytes
        );
    }

    #[test]
    fn an_entry_is_seen_once_in_each_lap() {
        let ring = CompletionRing::new(2).unwrap();
        let entry = received(WqeOperation::Send, RECEIVED);
        for counter in (0..=u16::MAX).chain(0..8) {
            assert_eq!(ring.read(counter), Slot::Empty, "{counter}");
            ring.write(counter, &entry);
            assert_eq!(read(&ring, counter), Some(entry), "{counter}");
        }
    }

    #[test]
    fn bytes_that_are_no_entry_are_garbage() {
        let ring = CompletionRing::new(1).unwrap();
        for flags in [0x01, 0x07, 0x75, 0x33] {
            ring.memory().word(0).store(flags << 24, Ordering::Release);
            assert_eq!(ring.read(0), Slot::Garbage, "{flags:#x}");
        }
    }

    #[test]
    fn doorbell_bits() {
        let doorbell = CqDoorbell {
            consumer: 0x1234,
            sequence: 2,
            arm: true,
        };
        assert_eq!(doorbell.to_bits(), 0xc000_1234);
        assert_eq!(CqDoorbell::from_bits(0xc000_1234), doorbell);
        assert!(!CqDoorbell::from_bits(0x4000_0000).arm);
    }
}
