//! The packets that belong to an operation in progress: neither requests nor HANDSHAKE.
//!
//! Most have a word that holds the sender's connid if the flag CONNID_HDR is set, and is padding
//! otherwise (`multiuse` in the spec's tables). Here it is `connid: Option<Connid>`, and the flag
//! follows from it.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::codec::{Cursor, Repr, Writer, sealed};
use super::error::{ParseError, Reason};
use super::flags::{CtsFlags, UniversalFlags};
use super::ids::{Connid, MsgId, RecvId, SendId};
use super::packet_type::PacketType;

/// CTS (spec table 3.6): the receiver opens a window of a long-CTS transfer.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | connid or padding |
/// | 8 | 4 | send_id |
/// | 12 | 4 | recv_id |
/// | 16 | 8 | recv_length |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Cts {
    /// The sender's connection id.
    pub connid: Option<Connid>,
    /// The operation of the request (or of READRSP).
    pub send_id: SendId,
    /// The operation that CTSDATA has to name.
    pub recv_id: RecvId,
    /// The size of the window in bytes. The peer sends exactly that much.
    pub recv_length: u64,
    /// Flags beyond CONNID_HDR.
    pub flags: CtsFlags,
}

/// CTSDATA (spec table 3.7): a segment of a long-CTS transfer.
///
/// Parsing refuses a packet whose data is not `seg_length` long. If it is longer, the header has a
/// part that the receiver does not know (as the connid is for libfabric 1.11.0), and taking that for
/// data would corrupt the message.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | recv_id |
/// | 8 | 8 | seg_length |
/// | 16 | 8 | seg_offset |
/// | 24 | 4 + 4 | connid and padding, with CONNID_HDR only |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct CtsData {
    /// The operation that CTS named.
    pub recv_id: RecvId,
    /// Length of the payload in bytes.
    pub seg_length: u64,
    /// Where the payload belongs, in bytes from the start of the whole message.
    pub seg_offset: u64,
    /// The sender's connection id.
    pub connid: Option<Connid>,
    /// Flags beyond CONNID_HDR.
    pub flags: UniversalFlags,
}

/// READRSP (spec table 3.11): the data, or the first data, of an emulated read.
///
/// The spec puts send_id before recv_id; every stock libfabric does the opposite, and so does this.
/// Parsing refuses a packet whose data is not `seg_length` long.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | connid or padding |
/// | 8 | 4 | recv_id |
/// | 12 | 4 | send_id |
/// | 16 | 8 | seg_length |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ReadRsp {
    /// The sender's connection id.
    pub connid: Option<Connid>,
    /// The requester's operation, from the RTR.
    pub recv_id: RecvId,
    /// The responder's operation, for CTS.
    pub send_id: SendId,
    /// Length of the payload in bytes. The spec calls it `recv_length`.
    pub seg_length: u64,
    /// Flags beyond CONNID_HDR.
    pub flags: UniversalFlags,
}

/// EOR (spec table 4.2): the receiver has read everything by RDMA.
///
/// libfabric 1.11.0 sends 12 bytes, without the last word. They are accepted if CONNID_HDR is not
/// set; emitting always writes 16.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | send_id |
/// | 8 | 4 | recv_id |
/// | 12 | 4 | connid or padding |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Eor {
    /// The operation of the request.
    pub send_id: SendId,
    /// The receiver's operation.
    pub recv_id: RecvId,
    /// The sender's connection id.
    pub connid: Option<Connid>,
    /// Flags beyond CONNID_HDR.
    pub flags: UniversalFlags,
}

/// READ_NACK (spec section 4.7): the receiver cannot read by RDMA. Laid out as [`Eor`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ReadNack {
    /// The operation of the request.
    pub send_id: SendId,
    /// The receiver's operation.
    pub recv_id: RecvId,
    /// The sender's connection id.
    pub connid: Option<Connid>,
    /// Flags beyond CONNID_HDR.
    pub flags: UniversalFlags,
}

/// ATOMRSP (spec table 3.15): the old values of a fetching atomic.
///
/// Parsing refuses a packet whose data is not `seg_length` long.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | connid or padding |
/// | 8 | 4 | reserved (libfabric 1.11.0: the responder's operation) |
/// | 12 | 4 | recv_id |
/// | 16 | 8 | seg_length |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AtomRsp {
    /// The sender's connection id.
    pub connid: Option<Connid>,
    /// The requester's operation, from the RTA.
    pub recv_id: RecvId,
    /// Length of the payload in bytes.
    pub seg_length: u64,
    /// Flags beyond CONNID_HDR.
    pub flags: UniversalFlags,
}

/// RECEIPT (spec section 4.2): the data of a DC request is where the application wants it.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | send_id |
/// | 8 | 4 | msg_id |
/// | 12 | 4 | connid or padding |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Receipt {
    /// The operation of the request; stock libfabric calls it `tx_id` and looks at nothing else.
    pub send_id: SendId,
    /// The message; 0 for a write or an atomic.
    pub msg_id: MsgId,
    /// The sender's connection id.
    pub connid: Option<Connid>,
    /// Flags beyond CONNID_HDR.
    pub flags: UniversalFlags,
}

/// PEER_ERROR: the sender abandons its half of an operation and asks the receiver to do the same.
///
/// The spec does not know it and no release of libfabric up to 2.6.0 sends it. This is the layout on
/// the development branch after 2.6.0, where it may still change:
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | op_id |
/// | 8 | 4 | ref_kind |
/// | 12 | 4 | prov_errno |
/// | 16 | 4 | connid or padding |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PeerError {
    /// What is abandoned, in the numbering that `ref_kind` says.
    pub op_id: u32,
    /// What `op_id` is.
    pub ref_kind: PeerErrorRefKind,
    /// Why: libfabric's provider error number, which for the EFA provider is the device's completion
    /// status or a code of its own. For messages to people only.
    pub prov_errno: u32,
    /// The sender's connection id.
    pub connid: Option<Connid>,
    /// Flags beyond CONNID_HDR.
    pub flags: UniversalFlags,
}

/// What [`PeerError::op_id`] refers to. Unknown values are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PeerErrorRefKind(pub u32);

impl PeerErrorRefKind {
    /// An operation of the packet's receiver, in that endpoint's numbering.
    pub const OPERATION: PeerErrorRefKind = PeerErrorRefKind(0);
    /// The message id of a message of which some data has arrived.
    pub const MSG_ID: PeerErrorRefKind = PeerErrorRefKind(1);
    /// The message id of a message that will never arrive: the sequence goes on behind it.
    pub const MSG_ID_SKIP: PeerErrorRefKind = PeerErrorRefKind(2);
}

/// CTS, READRSP, ATOMRSP: the multi-use word and two ids, which differ in name.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawWindow {
    multiuse: U32,
    first_id: U32,
    second_id: U32,
    length: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawCtsData {
    recv_id: U32,
    seg_length: U64,
    seg_offset: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawConnid {
    connid: U32,
    padding: U32,
}

/// EOR without its last word.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawPair {
    send_id: U32,
    recv_id: U32,
}

/// READ_NACK and RECEIPT.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawTriple {
    send_id: U32,
    second_id: U32,
    multiuse: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawPeerError {
    op_id: U32,
    ref_kind: U32,
    prov_errno: U32,
    multiuse: U32,
}

impl Cts {
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<Cts, ParseError> {
        let raw: &RawWindow = cursor.take()?;
        let flags = CtsFlags::from_bits_retain(cursor.flags());
        Ok(Cts {
            connid: parse_connid(cursor, raw.multiuse),
            send_id: SendId(raw.first_id.get()),
            recv_id: RecvId(raw.second_id.get()),
            recv_length: raw.length.get(),
            flags: flags.difference(CtsFlags::CONNID_HDR),
        })
    }
}

impl CtsData {
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<CtsData, ParseError> {
        let raw: &RawCtsData = cursor.take()?;
        let connid = if universal(cursor).contains(UniversalFlags::CONNID_HDR) {
            let raw: &RawConnid = cursor.take()?;
            Some(Connid(raw.connid.get()))
        } else {
            None
        };
        check_data_length(cursor, 8, raw.seg_length.get())?;
        Ok(CtsData {
            recv_id: RecvId(raw.recv_id.get()),
            seg_length: raw.seg_length.get(),
            seg_offset: raw.seg_offset.get(),
            connid,
            flags: further_flags(cursor),
        })
    }
}

impl ReadRsp {
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<ReadRsp, ParseError> {
        let raw: &RawWindow = cursor.take()?;
        check_data_length(cursor, 16, raw.length.get())?;
        Ok(ReadRsp {
            connid: parse_connid(cursor, raw.multiuse),
            recv_id: RecvId(raw.first_id.get()),
            send_id: SendId(raw.second_id.get()),
            seg_length: raw.length.get(),
            flags: further_flags(cursor),
        })
    }
}

impl Eor {
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<Eor, ParseError> {
        let raw: &RawPair = cursor.take()?;
        let has_connid = universal(cursor).contains(UniversalFlags::CONNID_HDR);
        let connid = if has_connid || cursor.rest().len() >= size_of::<U32>() {
            let multiuse: &U32 = cursor.take()?;
            parse_connid(cursor, *multiuse)
        } else {
            None
        };
        Ok(Eor {
            send_id: SendId(raw.send_id.get()),
            recv_id: RecvId(raw.recv_id.get()),
            connid,
            flags: further_flags(cursor),
        })
    }
}

impl ReadNack {
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<ReadNack, ParseError> {
        let raw: &RawTriple = cursor.take()?;
        Ok(ReadNack {
            send_id: SendId(raw.send_id.get()),
            recv_id: RecvId(raw.second_id.get()),
            connid: parse_connid(cursor, raw.multiuse),
            flags: further_flags(cursor),
        })
    }
}

impl AtomRsp {
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<AtomRsp, ParseError> {
        let raw: &RawWindow = cursor.take()?;
        check_data_length(cursor, 16, raw.length.get())?;
        Ok(AtomRsp {
            connid: parse_connid(cursor, raw.multiuse),
            recv_id: RecvId(raw.second_id.get()),
            seg_length: raw.length.get(),
            flags: further_flags(cursor),
        })
    }
}

impl Receipt {
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<Receipt, ParseError> {
        let raw: &RawTriple = cursor.take()?;
        Ok(Receipt {
            send_id: SendId(raw.send_id.get()),
            msg_id: MsgId(raw.second_id.get()),
            connid: parse_connid(cursor, raw.multiuse),
            flags: further_flags(cursor),
        })
    }
}

impl PeerError {
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<PeerError, ParseError> {
        let raw: &RawPeerError = cursor.take()?;
        Ok(PeerError {
            op_id: raw.op_id.get(),
            ref_kind: PeerErrorRefKind(raw.ref_kind.get()),
            prov_errno: raw.prov_errno.get(),
            connid: parse_connid(cursor, raw.multiuse),
            flags: further_flags(cursor),
        })
    }
}

impl Repr for Cts {
    fn packet_type(&self) -> PacketType {
        PacketType::Cts
    }

    fn wire_flags(&self) -> u16 {
        let mut flags = self.flags;
        flags.set(CtsFlags::CONNID_HDR, self.connid.is_some());
        flags.bits()
    }

    fn header_len(&self) -> usize {
        24
    }
}

impl sealed::Fields for Cts {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&RawWindow {
            multiuse: multiuse(self.connid),
            first_id: U32::new(self.send_id.0),
            second_id: U32::new(self.recv_id.0),
            length: U64::new(self.recv_length),
        });
    }
}

impl Repr for CtsData {
    fn packet_type(&self) -> PacketType {
        PacketType::CtsData
    }

    fn wire_flags(&self) -> u16 {
        wire_flags(self.flags, self.connid)
    }

    fn header_len(&self) -> usize {
        if self.connid.is_some() { 32 } else { 24 }
    }
}

impl sealed::Fields for CtsData {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&RawCtsData {
            recv_id: U32::new(self.recv_id.0),
            seg_length: U64::new(self.seg_length),
            seg_offset: U64::new(self.seg_offset),
        });
        if let Some(connid) = self.connid {
            writer.put(&RawConnid {
                connid: U32::new(connid.0),
                padding: U32::ZERO,
            });
        }
    }
}

impl Repr for ReadRsp {
    fn packet_type(&self) -> PacketType {
        PacketType::ReadRsp
    }

    fn wire_flags(&self) -> u16 {
        wire_flags(self.flags, self.connid)
    }

    fn header_len(&self) -> usize {
        24
    }
}

impl sealed::Fields for ReadRsp {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&RawWindow {
            multiuse: multiuse(self.connid),
            first_id: U32::new(self.recv_id.0),
            second_id: U32::new(self.send_id.0),
            length: U64::new(self.seg_length),
        });
    }
}

impl Repr for Eor {
    fn packet_type(&self) -> PacketType {
        PacketType::Eor
    }

    fn wire_flags(&self) -> u16 {
        wire_flags(self.flags, self.connid)
    }

    fn header_len(&self) -> usize {
        16
    }
}

impl sealed::Fields for Eor {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&RawTriple {
            send_id: U32::new(self.send_id.0),
            second_id: U32::new(self.recv_id.0),
            multiuse: multiuse(self.connid),
        });
    }
}

impl Repr for ReadNack {
    fn packet_type(&self) -> PacketType {
        PacketType::ReadNack
    }

    fn wire_flags(&self) -> u16 {
        wire_flags(self.flags, self.connid)
    }

    fn header_len(&self) -> usize {
        16
    }
}

impl sealed::Fields for ReadNack {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&RawTriple {
            send_id: U32::new(self.send_id.0),
            second_id: U32::new(self.recv_id.0),
            multiuse: multiuse(self.connid),
        });
    }
}

impl Repr for AtomRsp {
    fn packet_type(&self) -> PacketType {
        PacketType::AtomRsp
    }

    fn wire_flags(&self) -> u16 {
        wire_flags(self.flags, self.connid)
    }

    fn header_len(&self) -> usize {
        24
    }
}

impl sealed::Fields for AtomRsp {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&RawWindow {
            multiuse: multiuse(self.connid),
            first_id: U32::ZERO,
            second_id: U32::new(self.recv_id.0),
            length: U64::new(self.seg_length),
        });
    }
}

impl Repr for Receipt {
    fn packet_type(&self) -> PacketType {
        PacketType::Receipt
    }

    fn wire_flags(&self) -> u16 {
        wire_flags(self.flags, self.connid)
    }

    fn header_len(&self) -> usize {
        16
    }
}

impl sealed::Fields for Receipt {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&RawTriple {
            send_id: U32::new(self.send_id.0),
            second_id: U32::new(self.msg_id.0),
            multiuse: multiuse(self.connid),
        });
    }
}

impl Repr for PeerError {
    fn packet_type(&self) -> PacketType {
        PacketType::PeerError
    }

    fn wire_flags(&self) -> u16 {
        wire_flags(self.flags, self.connid)
    }

    fn header_len(&self) -> usize {
        20
    }
}

impl sealed::Fields for PeerError {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&RawPeerError {
            op_id: U32::new(self.op_id),
            ref_kind: U32::new(self.ref_kind.0),
            prov_errno: U32::new(self.prov_errno),
            multiuse: multiuse(self.connid),
        });
    }
}

fn universal(cursor: &Cursor<'_>) -> UniversalFlags {
    UniversalFlags::from_bits_retain(cursor.flags())
}

fn further_flags(cursor: &Cursor<'_>) -> UniversalFlags {
    universal(cursor).difference(UniversalFlags::CONNID_HDR)
}

fn wire_flags(further: UniversalFlags, connid: Option<Connid>) -> u16 {
    let mut flags = further;
    flags.set(UniversalFlags::CONNID_HDR, connid.is_some());
    flags.bits()
}

fn parse_connid(cursor: &Cursor<'_>, multiuse: U32) -> Option<Connid> {
    universal(cursor)
        .contains(UniversalFlags::CONNID_HDR)
        .then(|| Connid(multiuse.get()))
}

fn multiuse(connid: Option<Connid>) -> U32 {
    U32::new(connid.map_or(0, |connid| connid.0))
}

/// Checks that what follows the header is `seg_length` bytes long.
fn check_data_length(
    cursor: &Cursor<'_>,
    seg_length_offset: usize,
    seg_length: u64,
) -> Result<(), ParseError> {
    let present = cursor.rest().len();
    if seg_length == present as u64 {
        Ok(())
    } else {
        let reason = Reason::DataLength {
            stated: seg_length,
            present,
        };
        Err(cursor.error("seg_length", seg_length_offset, reason))
    }
}
