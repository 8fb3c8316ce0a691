//! Records: the messages in a ring, and their byte layout.
//!
//! A record is a header of one cache line and a payload padded to whole cache lines.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | commit: sequence number of the record in its ring plus 1; written last |
//! | 8 | 4 | length of the record in bytes, header and padding included |
//! | 12 | 1 | kind (low 4 bits), operation (high 4 bits): 0 send, 1 datagram, 2 read, 3 write, 4 packet of a connection |
//! | 13 | 1 | flags: 1 immediate, 2 the answer may be an acknowledgement, 4 answer "receiver not ready", 8 last part; retries, at most 15 (high 4 bits) |
//! | 14 | 2 | path |
//! | 16 / 18 | 2 / 2 | source / destination QPN |
//! | 20 | 4 | Q-key |
//! | 24 | 4 | sequence number of the request in its queue pair |
//! | 28 | 4 | immediate |
//! | 32 / 40 | 8 / 4 | RDMA: remote address / remote key |
//! | 44 | 4 | bytes of data of the whole request |
//! | 48 | 8 | delivery time, nanoseconds of `CLOCK_MONOTONIC`, 0 for at once |
//! | 56 | 4 | offset of the payload in the request's data; for kind "direct" the claim word |
//! | 60 | 4 | payload length in bytes |

use efa_core::address::{Qkey, Qpn};
use efa_core::nic::Status;

use efa_device_model::link::{HostSegment, Operation, RemoteRange, RequestHeader};

/// Length of the header, and the unit of record lengths.
pub const LINE: usize = 64;

/// Offset of the word with the payload's offset and length. [`super::claim`] changes the offset.
pub const AT_CLAIM: usize = 56;

/// The header after the commit word, in words of 8 bytes.
pub type Fields = [u64; LINE / 8 - 1];

/// The kind of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RecordKind {
    /// Fills the rest of the ring up to its end. The receiver skips it.
    Pad = 0,
    /// A request with its data or a part of it as the payload: sends, datagrams and RDMA writes.
    Data,
    /// An RDMA request for which the target itself copies between the two processes. The payload
    /// lists the initiator's memory.
    Direct,
    /// An RDMA read whose data returns in records of the kind `ReadData`. `offset` is the
    /// initiator's name for the read.
    Pull,
    /// Data for an RDMA read of the receiver of this record. The sequence number is the receiver's
    /// name for the read.
    ReadData,
    /// The outcome of a request whose record was answered with [`Answer::Deferred`]: `sequence` and
    /// `offset` are the lower and the upper half of that record's number, the immediate is the
    /// status.
    Outcome,
}

impl RecordKind {
    #[inline(always)]
    fn from_code(code: u8) -> Option<RecordKind> {
        Some(match code {
            0 => RecordKind::Pad,
            1 => RecordKind::Data,
            2 => RecordKind::Direct,
            3 => RecordKind::Pull,
            4 => RecordKind::ReadData,
            5 => RecordKind::Outcome,
            _ => return None,
        })
    }
}

#[inline]
fn operation_code(operation: Operation) -> u8 {
    match operation {
        Operation::Send => 0,
        Operation::Datagram => 1,
        Operation::RdmaRead => 2,
        Operation::RdmaWrite => 3,
        Operation::Connected => CONNECTED,
    }
}

#[inline(always)]
fn operation_from_code(code: u8) -> Option<Operation> {
    Some(match code {
        0 => Operation::Send,
        1 => Operation::Datagram,
        2 => Operation::RdmaRead,
        3 => Operation::RdmaWrite,
        CONNECTED => Operation::Connected,
        _ => return None,
    })
}

/// The operation code of packets of connections.
const CONNECTED: u8 = 4;

const FLAG_IMMEDIATE: u8 = 1;
const FLAG_ACKNOWLEDGE: u8 = 2;
const FLAG_NOT_READY: u8 = 4;
const FLAG_LAST: u8 = 8;
const RETRIES_SHIFT: u32 = 4;

/// A record's header without its commit word, as words like in the ring. It is consistent: it was
/// checked when it was read ([`Record::from_fields`]), or made by a function of this module. Fields
/// are decoded on access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record(Fields);

/// A header that no honest sender writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("record field {field} has the impossible value {value:#x}")]
pub struct BadRecord {
    /// The name of the field, for messages.
    pub field: &'static str,
    /// Its content.
    pub value: u64,
}

fn bad(field: &'static str, value: impl Into<u64>) -> BadRecord {
    BadRecord {
        field,
        value: value.into(),
    }
}

/// Length in bytes of a record with `payload` bytes of payload.
#[inline]
pub const fn record_length(payload: usize) -> usize {
    LINE + payload.next_multiple_of(LINE)
}

/// A word of two halves.
#[inline(always)]
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// The upper half of a word.
#[inline(always)]
fn upper(word: u64) -> u32 {
    (word >> 32) as u32
}

/// The first word of a record.
mod first {
    use super::{FLAG_LAST, FLAG_NOT_READY, RecordKind};

    pub(crate) const CODE: u32 = 32;
    pub(crate) const FLAGS: u32 = 40;
    pub(crate) const PATH: u32 = 48;
    pub(crate) const NOT_READY: u64 = (FLAG_NOT_READY as u64) << FLAGS;
    pub(crate) const LAST: u64 = (FLAG_LAST as u64) << FLAGS;
    /// Kind, operation and the two flags above.
    pub(crate) const ROLE: u64 = 0xff << CODE | NOT_READY | LAST;
    /// The role of a whole send without RNR.
    pub(crate) const MESSAGE: u64 = (RecordKind::Data as u64) << CODE | LAST;
    /// The role of a packet of a connection.
    pub(crate) const PACKET: u64 = MESSAGE | (super::CONNECTED as u64) << (CODE + 4);
    /// The bits in which the two agree.
    pub(crate) const COMMON_ROLE: u64 = ROLE & !(MESSAGE ^ PACKET);
}

impl Record {
    /// The header of records between the two links, which belong to no queue pair.
    pub const NO_REQUEST: RequestHeader = RequestHeader {
        operation: Operation::Send,
        source_qpn: Qpn(0),
        destination_qpn: Qpn(0),
        qkey: Qkey(0),
        sequence: 0,
        retries: 0,
        immediate: None,
        remote: None,
        length: 0,
    };

    /// A record with a request and all of its data, or the list of the data's memory.
    #[inline(always)]
    pub fn whole(kind: RecordKind, header: &RequestHeader, payload: u32) -> Record {
        let flags = (u8::from(header.immediate.is_some()) * FLAG_IMMEDIATE)
            | FLAG_LAST
            | (header.retries.min(RequestHeader::MOST_CARRIED_RETRIES) as u8) << RETRIES_SHIFT;
        let code = kind as u8 | operation_code(header.operation) << 4;
        let (address, key) = match header.remote {
            Some(remote) => (remote.address, remote.key),
            None => (0, 0),
        };
        Record([
            u64::from(record_length(payload as usize) as u32)
                | u64::from(code) << first::CODE
                | u64::from(flags) << first::FLAGS,
            u64::from(header.source_qpn.0)
                | u64::from(header.destination_qpn.0) << 16
                | u64::from(header.qkey.0) << 32,
            pair(header.sequence, header.immediate.unwrap_or(0)),
            address,
            pair(key, header.length),
            0,
            pair(0, payload),
        ])
    }

    /// A record between the two links, which contains no request.
    fn between_links(
        kind: RecordKind,
        sequence: u32,
        immediate: Option<u32>,
        payload: u32,
    ) -> Record {
        let header = RequestHeader {
            sequence,
            immediate,
            ..Record::NO_REQUEST
        };
        Record::whole(kind, &header, payload)
    }

    /// The `length` bytes from `offset` on of a read of `total` bytes. The initiator has given the
    /// read this name.
    #[inline]
    pub fn read_data(name: u32, total: u32, offset: u32, length: u32) -> Record {
        let header = RequestHeader {
            operation: Operation::RdmaRead,
            sequence: name,
            remote: Some(RemoteRange::new(0, 0)),
            length: total,
            ..Record::NO_REQUEST
        };
        Record::whole(RecordKind::ReadData, &header, length).at(offset)
    }

    /// The outcome of the request in the record with this number.
    pub fn outcome(number: u64, status: Status) -> Record {
        let code = Some(status.code().into());
        Record::between_links(RecordKind::Outcome, number as u32, code, 0).at((number >> 32) as u32)
    }

    /// The filler for `length` bytes at the end of a ring.
    pub fn pad(length: usize) -> Record {
        Record::between_links(RecordKind::Pad, 0, None, (length - LINE) as u32)
    }

    /// Sets the payload's offset in the request's data, or for kinds that use the offset as a name,
    /// that name.
    #[inline]
    pub fn at(mut self, offset: u32) -> Record {
        self.0[6] = pair(offset, self.payload());
        self
    }

    /// Clears the flag that the payload ends the request's data.
    #[inline]
    pub fn not_last(mut self) -> Record {
        self.0[0] &= !first::LAST;
        self
    }

    /// Sets the path.
    #[inline]
    pub fn on_path(mut self, path: u16) -> Record {
        self.0[0] = self.0[0] & !(0xffff << first::PATH) | u64::from(path) << first::PATH;
        self
    }

    /// Sets the delivery time, in nanoseconds of `CLOCK_MONOTONIC`; 0 for immediately.
    #[inline]
    pub fn due_at(mut self, due: u64) -> Record {
        self.0[5] = due;
        self
    }

    /// Makes the receiver answer with "receiver not ready", as the network model decided.
    #[inline]
    pub fn with_rnr(mut self) -> Record {
        self.0[0] |= first::NOT_READY;
        self
    }

    /// Sets whether the record may be answered with [`Answer::Acknowledged`].
    #[inline]
    pub fn acknowledged(mut self, may_be: bool) -> Record {
        let flag = u64::from(FLAG_ACKNOWLEDGE) << first::FLAGS;
        self.0[0] = (self.0[0] & !flag) | (u64::from(may_be) * flag);
        self
    }

    /// Whether the sender accepts [`Answer::Acknowledged`].
    #[inline]
    pub fn may_be_acknowledged(&self) -> bool {
        self.flags() & FLAG_ACKNOWLEDGE != 0
    }

    /// What the record contains.
    #[inline(always)]
    pub fn kind(&self) -> RecordKind {
        // The code was checked before.
        RecordKind::from_code(self.code() & 15).unwrap_or(RecordKind::Pad)
    }

    /// Whether the record contains a whole send that can be passed to the device immediately.
    #[inline(always)]
    pub fn is_message(&self) -> bool {
        self.0[0] & first::ROLE == first::MESSAGE
    }

    /// Whether the record contains a packet of a connection that is due immediately and without
    /// RNR.
    #[inline]
    pub fn is_packet(&self) -> bool {
        self.0[0] & first::ROLE == first::PACKET && self.due() == 0
    }

    /// The operation that the record requests.
    #[inline(always)]
    pub fn operation(&self) -> Operation {
        // The code was checked before.
        operation_from_code(self.code() >> 4).unwrap_or(Operation::Connected)
    }

    /// The request of the record, for the device.
    #[inline]
    pub fn header(&self) -> RequestHeader {
        let operation = self.operation();
        let is_rdma = matches!(operation, Operation::RdmaRead | Operation::RdmaWrite);
        RequestHeader {
            operation,
            remote: is_rdma.then_some(RemoteRange::new(self.0[3], self.0[4] as u32)),
            ..self.message_header()
        }
    }

    /// As [`Record::header`], for a record that [contains a message](Record::is_message).
    #[inline(always)]
    pub fn message_header(&self) -> RequestHeader {
        let [_, peers, numbers, ..] = self.0;
        RequestHeader {
            operation: Operation::Send,
            source_qpn: Qpn(peers as u16),
            destination_qpn: Qpn((peers >> 16) as u16),
            qkey: Qkey(upper(peers)),
            sequence: self.sequence(),
            retries: u32::from(self.flags() >> RETRIES_SHIFT),
            immediate: (self.flags() & FLAG_IMMEDIATE != 0).then_some(upper(numbers)),
            remote: None,
            length: self.request_length(),
        }
    }

    /// The number of the request in its queue pair.
    #[inline(always)]
    pub fn sequence(&self) -> u32 {
        self.0[2] as u32
    }

    /// Bytes of data of the whole request.
    #[inline(always)]
    pub fn request_length(&self) -> u32 {
        upper(self.0[4])
    }

    /// Whether the network model makes this attempt fail with "receiver not ready".
    #[inline(always)]
    pub fn is_rnr(&self) -> bool {
        self.0[0] & first::NOT_READY != 0
    }

    /// Whether the payload ends the request's data.
    #[inline(always)]
    pub fn is_last(&self) -> bool {
        self.0[0] & first::LAST != 0
    }

    /// The path that the request takes through the network.
    #[inline]
    pub fn path(&self) -> u16 {
        (self.0[0] >> first::PATH) as u16
    }

    /// Delivery time in nanoseconds of `CLOCK_MONOTONIC`; 0 for immediately.
    #[inline(always)]
    pub fn due(&self) -> u64 {
        self.0[5]
    }

    /// Offset of the payload in the request's data.
    #[inline(always)]
    pub fn offset(&self) -> u32 {
        self.0[6] as u32
    }

    /// Bytes of payload.
    #[inline(always)]
    pub fn payload(&self) -> u32 {
        upper(self.0[6])
    }

    /// Length of the record in bytes.
    #[inline(always)]
    pub fn length(&self) -> usize {
        self.0[0] as u32 as usize
    }

    #[inline(always)]
    fn code(&self) -> u8 {
        (self.0[0] >> first::CODE) as u8
    }

    #[inline(always)]
    fn flags(&self) -> u8 {
        (self.0[0] >> first::FLAGS) as u8
    }

    /// The header after the commit word.
    #[inline(always)]
    pub fn fields(&self) -> Fields {
        // The layout is little-endian, independent of the processor.
        self.0.map(u64::to_le)
    }

    /// Reads and checks a header. The returned record is consistent: its length matches the
    /// payload; it has a remote range if and only if it is RDMA; the part lies within the request's
    /// data.
    #[inline(always)]
    pub fn from_fields(fields: &Fields) -> Result<Record, BadRecord> {
        let record = Record(fields.map(u64::from_le));
        let is_plain = record.0[0] & first::COMMON_ROLE == first::MESSAGE;
        let is_whole = record.0[6] == pair(0, record.request_length());
        let has_its_length = record.length() == record_length(record.payload() as usize);
        if !(is_plain & is_whole & has_its_length) {
            record.check_other()?;
        }
        Ok(record)
    }

    /// Checks records other than whole messages and packets of connections.
    #[cold]
    fn check_other(self) -> Result<(), BadRecord> {
        let code = self.code();
        let kind = RecordKind::from_code(code & 15).ok_or_else(|| bad("kind", code))?;
        let operation = operation_from_code(code >> 4).ok_or_else(|| bad("operation", code))?;
        if self.length() != record_length(self.payload() as usize) {
            return Err(bad("length", self.0[0] as u32));
        }
        let is_rdma = matches!(operation, Operation::RdmaRead | Operation::RdmaWrite);
        let allowed = match kind {
            RecordKind::Pad => true,
            RecordKind::Data => operation != Operation::RdmaRead,
            RecordKind::Direct => is_rdma,
            RecordKind::Pull | RecordKind::ReadData => operation == Operation::RdmaRead,
            RecordKind::Outcome => operation == Operation::Send,
        };
        if !allowed {
            return Err(bad("operation", code));
        }
        if matches!(kind, RecordKind::Data | RecordKind::ReadData) {
            let end = u64::from(self.offset()) + u64::from(self.payload());
            let whole = u64::from(self.request_length());
            if end > whole || (self.is_last() && kind == RecordKind::Data && end != whole) {
                return Err(bad("payload length", self.payload()));
            }
            if kind == RecordKind::Data && !is_rdma && !(self.offset() == 0 && self.is_last()) {
                return Err(bad("offset", self.offset()));
            }
        }
        Ok(())
    }
}

/// Most pieces of initiator memory in a direct RDMA record.
pub const MAX_SEGMENTS: usize = 4;
/// Bytes of one piece in the list: address 8, length 4, zero 4.
pub const SEGMENT: usize = 16;

/// The payload of a direct RDMA record: a buffer and its used length.
pub fn segments_to_bytes(segments: &[HostSegment]) -> ([u8; MAX_SEGMENTS * SEGMENT], usize) {
    let mut bytes = [0; MAX_SEGMENTS * SEGMENT];
    for (segment, bytes) in segments.iter().zip(bytes.chunks_exact_mut(SEGMENT)) {
        bytes[..8].copy_from_slice(&segment.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&segment.length.to_le_bytes());
    }
    (bytes, segments.len().min(MAX_SEGMENTS) * SEGMENT)
}

/// The inverse of [`segments_to_bytes`]. The pieces must add up to `total` bytes.
pub fn segments_from_bytes(
    bytes: &[u8],
    total: u32,
) -> Result<([HostSegment; MAX_SEGMENTS], usize), BadRecord> {
    let empty = HostSegment::new(0, 0);
    let mut segments = [empty; MAX_SEGMENTS];
    let count = bytes.len() / SEGMENT;
    if !bytes.len().is_multiple_of(SEGMENT) || count > MAX_SEGMENTS {
        return Err(bad("payload length", bytes.len() as u64));
    }
    let mut sum = 0u64;
    for (segment, bytes) in segments.iter_mut().zip(bytes.chunks_exact(SEGMENT)) {
        let mut address = [0; 8];
        address.copy_from_slice(&bytes[..8]);
        let mut length = [0; 4];
        length.copy_from_slice(&bytes[8..12]);
        *segment = HostSegment::new(u64::from_le_bytes(address), u32::from_le_bytes(length));
        if segment
            .address
            .checked_add(u64::from(segment.length))
            .is_none()
        {
            return Err(bad("segment address", segment.address));
        }
        sum += u64::from(segment.length);
    }
    if sum != u64::from(total) {
        return Err(bad("segment lengths", sum));
    }
    Ok((segments, count))
}

/// The receiver's answer to a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The request ended with this status.
    Status(Status),
    /// The target cannot access the initiator's memory. The initiator must repeat the request with
    /// its data in the rings.
    UseRings,
    /// The initiator withdrew the request.
    Withdrawn,
    /// The receiver has moved the request out of the ring: a fault defers it, or it is a read whose
    /// data returns through the rings. The outcome follows in a record of the kind
    /// [`RecordKind::Outcome`].
    Deferred,
    /// The device has accepted the packet of a connection, and acknowledges it. Only for records
    /// that [may be acknowledged](Record::may_be_acknowledged) so.
    Acknowledged,
}

impl Answer {
    const USE_RINGS: u8 = 0x3e;
    const WITHDRAWN: u8 = 0x3f;
    const DEFERRED: u8 = 0x3d;
    const ACKNOWLEDGED: u8 = 0x3c;

    /// A code below 0x40.
    #[inline]
    pub fn to_code(self) -> u8 {
        match self {
            Answer::Status(status) => status.code(),
            Answer::UseRings => Self::USE_RINGS,
            Answer::Withdrawn => Self::WITHDRAWN,
            Answer::Deferred => Self::DEFERRED,
            Answer::Acknowledged => Self::ACKNOWLEDGED,
        }
    }

    /// The inverse; unknown codes are a bad status of the remote side.
    #[inline(always)]
    pub fn from_code(code: u8) -> Answer {
        match code == Status::Ok.code() {
            true => Answer::Status(Status::Ok),
            false => Answer::from_other_code(code),
        }
    }

    #[cold]
    fn from_other_code(code: u8) -> Answer {
        match code {
            Self::USE_RINGS => Answer::UseRings,
            Self::WITHDRAWN => Answer::Withdrawn,
            Self::DEFERRED => Answer::Deferred,
            Self::ACKNOWLEDGED => Answer::Acknowledged,
            code => Answer::Status(Status::from_code(code).unwrap_or(Status::RemoteBadStatus)),
        }
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        pub(in crate) fn any_record()(
            kind in prop::sample::select(vec![RecordKind::Data, RecordKind::Direct, RecordKind::Pull, RecordKind::ReadData, RecordKind::Outcome]),
            is_write in any::<bool>(),
            send in prop::sample::select(vec![Operation::Send, Operation::Datagram, Operation::RdmaWrite, Operation::Connected]),
            qpns in any::<(u16, u16)>(), qkey in any::<u32>(), sequence in any::<u32>(),
            immediate in any::<Option<u32>>(), address in any::<u64>(), key in any::<u32>(),
            length in 0u32..20_000, cut in any::<(u16, u16)>(),
            retries in 0..=RequestHeader::MOST_CARRIED_RETRIES, is_rnr in any::<bool>(), path in any::<u16>(), due in any::<u64>(),
        ) -> Record {
            let operation = match kind {
                RecordKind::Data => send,
                RecordKind::Direct if is_write => Operation::RdmaWrite,
                RecordKind::Outcome => Operation::Send,
                _ => Operation::RdmaRead,
            };
            let is_rdma = matches!(operation, Operation::RdmaRead | Operation::RdmaWrite);
            let parts = is_rdma && matches!(kind, RecordKind::Data | RecordKind::ReadData);
            let offset = if parts { u32::from(cut.0) % (length + 1) } else { 0 };
            let payload = match kind {
                RecordKind::Direct => SEGMENT as u32,
                RecordKind::Pull | RecordKind::Outcome => 0,
                _ if parts => u32::from(cut.1) % (length - offset + 1),
                _ => length,
            };
            let header = RequestHeader {
                operation,
                source_qpn: Qpn(qpns.0),
                destination_qpn: Qpn(qpns.1),
                qkey: Qkey(qkey),
                sequence,
                retries,
                immediate,
                remote: is_rdma.then_some(RemoteRange { address, key }),
                length,
            };
            let mut record = Record::whole(kind, &header, payload).at(offset).on_path(path).due_at(due);
            if offset + payload != length && parts {
                record = record.not_last();
            }
            if is_rnr {
                record = record.with_rnr();
            }
            assert_eq!(record.header(), header);
            assert_eq!((record.kind(), record.payload()), (kind, payload));
            assert_eq!((record.offset(), record.path(), record.due()), (offset, path, due));
            assert_eq!(record.is_rnr(), is_rnr);
            assert_eq!(record.is_last(), offset + payload == length || !parts);
            record
        }
    }

    proptest! {
        #[test]
        fn records_round_trip(record in any_record()) {
            prop_assert_eq!(Record::from_fields(&record.fields()), Ok(record));
        }

        #[test]
        fn hostile_headers_are_refused_or_consistent(
            random in prop::array::uniform7(any::<u64>()),
            record in any_record(),
            damage in prop::collection::vec((0..7usize, 0..64u32, any::<u8>()), 0..4),
        ) {
            let mut mutated = record.fields();
            for (word, shift, value) in damage {
                mutated[word] ^= u64::from(value) << shift;
            }
            for fields in [random, mutated] {
                if let Ok(record) = Record::from_fields(&fields) {
                    if record.kind() == RecordKind::Data {
                        let end = u64::from(record.offset()) + u64::from(record.payload());
                        prop_assert!(end <= record.request_length().into());
                    }
                    prop_assert_eq!(record.length() % LINE, 0);
                    prop_assert!(record.length() >= LINE + record.payload() as usize);
                    // Unknown codes are rejected: reading is the inverse of writing.
                    prop_assert_eq!(record.code(), record.kind() as u8 | operation_code(record.operation()) << 4);
                }
            }
        }

        #[test]
        fn hostile_segment_lists_never_exceed_the_request(
            bytes in prop::collection::vec(any::<u8>(), 0..100), total in any::<u32>(),
        ) {
            if let Ok((segments, count)) = segments_from_bytes(&bytes, total) {
                let sum: u64 = segments[..count].iter().map(|s| u64::from(s.length)).sum();
                prop_assert_eq!(sum, u64::from(total));
            }
        }
    }

    #[test]
    fn header_has_the_documented_layout() {
        let header = RequestHeader {
            operation: Operation::RdmaWrite,
            source_qpn: Qpn(0x0102),
            destination_qpn: Qpn(0x0304),
            qkey: Qkey(0x0506_0708),
            sequence: 9,
            retries: 3,
            immediate: Some(0x0a0b_0c0d),
            remote: Some(RemoteRange::new(0x1112_1314_1516_1718, 0x2122_2324)),
            length: 0x70,
        };
        let record = Record::whole(RecordKind::Data, &header, 0x50)
            .at(0x20)
            .on_path(3)
            .due_at(0x31);
        #[rustfmt::skip]
        let bytes = [
            0xc0, 0, 0, 0,                                  // record length: 64 + 128
            0x31, 0x39, 3, 0,                               // kind and operation, flags, path
            2, 1, 4, 3,                                     // QPNs
            8, 7, 6, 5,                                     // Q-key
            9, 0, 0, 0,                                     // sequence
            0x0d, 0x0c, 0x0b, 0x0a,                         // immediate
            0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, // remote address
            0x24, 0x23, 0x22, 0x21,                         // remote key
            0x70, 0, 0, 0,                                  // request length
            0x31, 0, 0, 0, 0, 0, 0, 0,                      // due
            0x20, 0, 0, 0,                                  // offset
            0x50, 0, 0, 0,                                  // payload length
        ];
        let fields: Vec<u8> = record
            .fields()
            .into_iter()
            .flat_map(u64::to_ne_bytes)
            .collect();
        assert_eq!(fields, bytes);
    }

    #[test]
    fn answers_round_trip() {
        let statuses = Status::ALL.map(Answer::Status);
        for answer in statuses.into_iter().chain([
            Answer::UseRings,
            Answer::Withdrawn,
            Answer::Deferred,
            Answer::Acknowledged,
        ]) {
            assert!(answer.to_code() < 0x40);
            assert_eq!(Answer::from_code(answer.to_code()), answer);
        }
        assert_eq!(
            Answer::from_code(0x30),
            Answer::Status(Status::RemoteBadStatus)
        );
    }

    #[test]
    fn segments_round_trip() {
        let list = [
            HostSegment::new(0x1000, 5),
            HostSegment::new(u64::MAX - 7, 7),
        ];
        let (bytes, length) = segments_to_bytes(&list);
        let (found, count) = segments_from_bytes(&bytes[..length], 12).unwrap();
        assert_eq!(&found[..count], list);
        assert!(segments_from_bytes(&bytes[..length], 13).is_err());
        assert!(segments_from_bytes(&bytes[..length - 1], 12).is_err());
        assert!(segments_from_bytes(&[0; 80], 0).is_err());
    }
}
