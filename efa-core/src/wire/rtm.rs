//! Requests To Message: two-sided communication (spec sections 3.2, 4.1, 4.2 and 4.5).
//!
//! Lengths and offsets that describe the whole message (`msg_length`, `seg_offset`, `runt_length`)
//! are the sender's claims: parsing does not relate them to each other or to the payload.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::codec::{Cursor, Repr, Writer, sealed};
use super::error::ParseError;
use super::ids::{MsgId, SendId};
use super::iov::RmaIovs;
use super::packet_type::PacketType;
use super::req::ReqOptions;

/// EAGER_MSGRTM, EAGER_TAGRTM (spec table 3.3), DC_EAGER_MSGRTM and DC_EAGER_TAGRTM: a whole message
/// in one packet.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | msg_id |
/// | 8 | 4 + 4 | send_id and padding, DC types only |
/// | 8 or 16 | 8 | tag, tagged types only |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct EagerRtm {
    /// The message's place in the sequence.
    pub msg_id: MsgId,
    /// The tag, for a tagged message.
    pub tag: Option<u64>,
    /// Makes it a DC type: the operation that RECEIPT has to name.
    pub receipt: Option<SendId>,
    /// The optional headers.
    pub options: ReqOptions,
}

/// MEDIUM_MSGRTM, MEDIUM_TAGRTM (spec table 3.4), DC_MEDIUM_MSGRTM and DC_MEDIUM_TAGRTM: a segment of
/// a message that is sent without flow control.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | msg_id |
/// | 8 | 4 + 4 | send_id and padding, DC types only |
/// | 8 or 16 | 8 | msg_length |
/// | 16 or 24 | 8 | seg_offset |
/// | 24 or 32 | 8 | tag, tagged types only |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MediumRtm {
    /// The message's place in the sequence; the same in all its segments.
    pub msg_id: MsgId,
    /// Length of the whole message in bytes. The spec calls the field `seg_length` and describes it
    /// as the length of this segment, but every stock libfabric sends the length of the message.
    pub msg_length: u64,
    /// Where in the message the payload belongs, in bytes.
    pub seg_offset: u64,
    /// The tag, for a tagged message.
    pub tag: Option<u64>,
    /// Makes it a DC type: the operation that RECEIPT has to name.
    pub receipt: Option<SendId>,
    /// The optional headers.
    pub options: ReqOptions,
}

/// LONGCTS_MSGRTM, LONGCTS_TAGRTM (spec table 3.5), DC_LONGCTS_MSGRTM and DC_LONGCTS_TAGRTM: the start
/// of a message that is sent in windows granted by CTS.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | msg_id |
/// | 8 | 8 | msg_length |
/// | 16 | 4 | send_id |
/// | 20 | 4 | credit_request |
/// | 24 | 8 | tag, tagged types only |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct LongctsRtm {
    /// The message's place in the sequence. With
    /// [`ReqFlags::READ_NACK`](super::ReqFlags::READ_NACK) it repeats that of the refused request.
    pub msg_id: MsgId,
    /// Length of the whole message in bytes.
    pub msg_length: u64,
    /// The operation that CTS has to name.
    pub send_id: SendId,
    /// How many CTSDATA packets the sender would like to send; stock receivers ignore it.
    pub credit_request: u32,
    /// The tag, for a tagged message.
    pub tag: Option<u64>,
    /// Whether it is a DC type.
    pub delivery_complete: bool,
    /// The optional headers.
    pub options: ReqOptions,
}

/// LONGREAD_MSGRTM and LONGREAD_TAGRTM (spec table 4.1): a message that the receiver reads by RDMA.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | msg_id |
/// | 8 | 8 | msg_length |
/// | 16 | 4 | send_id |
/// | 20 | 4 | read_iov_count |
/// | 24 | 8 | tag, tagged types only |
/// | behind the optional headers | 24 each | read_iov |
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LongreadRtm<'a> {
    /// The message's place in the sequence.
    pub msg_id: MsgId,
    /// Length of the whole message in bytes.
    pub msg_length: u64,
    /// The operation that EOR or READ_NACK has to name.
    pub send_id: SendId,
    /// The tag, for a tagged message.
    pub tag: Option<u64>,
    /// The sender's buffer.
    pub read_iov: RmaIovs<'a>,
    /// The optional headers.
    pub options: ReqOptions,
}

/// RUNTREAD_MSGRTM and RUNTREAD_TAGRTM (spec section 4.5): a segment of the first part of a message
/// whose rest the receiver reads by RDMA.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | msg_id |
/// | 8 | 8 | msg_length |
/// | 16 | 4 | send_id |
/// | 20 | 4 | read_iov_count |
/// | 24 | 8 | seg_offset |
/// | 32 | 8 | runt_length |
/// | 40 | 8 | tag, tagged types only |
/// | behind the optional headers | 24 each | read_iov |
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RuntreadRtm<'a> {
    /// The message's place in the sequence; the same in all its segments.
    pub msg_id: MsgId,
    /// Length of the whole message in bytes.
    pub msg_length: u64,
    /// The operation that EOR or READ_NACK has to name.
    pub send_id: SendId,
    /// Where in the message the payload belongs, in bytes.
    pub seg_offset: u64,
    /// Bytes of the message that are sent in RUNTREAD packets. The spec describes it as the length
    /// of this packet's data, but every stock libfabric sends the total in each packet.
    pub runt_length: u64,
    /// The tag, for a tagged message.
    pub tag: Option<u64>,
    /// The sender's whole buffer, also the part that is sent in packets.
    pub read_iov: RmaIovs<'a>,
    /// The optional headers.
    pub options: ReqOptions,
}

/// RUNTCTS_MSGRTM and RUNTCTS_TAGRTM: defined by stock libfabric since 1.16.0 but never sent, and
/// refused by its receivers. The spec does not describe them.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | msg_id |
/// | 8 | 8 | msg_length |
/// | 16 | 4 | send_id |
/// | 20 | 4 | credit_request |
/// | 24 | 8 | seg_offset |
/// | 32 | 8 | runt_length |
/// | 40 | 8 | tag, tagged types only |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RuntctsRtm {
    /// The message's place in the sequence; the same in all its segments.
    pub msg_id: MsgId,
    /// Length of the whole message in bytes.
    pub msg_length: u64,
    /// The operation that CTS has to name.
    pub send_id: SendId,
    /// How many CTSDATA packets the sender would like to send.
    pub credit_request: u32,
    /// Where in the message the payload belongs, in bytes.
    pub seg_offset: u64,
    /// Bytes of the message that are sent in RUNTCTS packets.
    pub runt_length: u64,
    /// The tag, for a tagged message.
    pub tag: Option<u64>,
    /// The optional headers.
    pub options: ReqOptions,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawReceipt {
    send_id: U32,
    padding: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawSegment {
    msg_length: U64,
    seg_offset: U64,
}

/// LONGCTS and LONGREAD; `count` is credit_request or read_iov_count.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawLong {
    msg_id: U32,
    msg_length: U64,
    send_id: U32,
    count: U32,
}

/// RUNTCTS and RUNTREAD.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRunt {
    long: RawLong,
    seg_offset: U64,
    runt_length: U64,
}

/// Where read_iov_count is, in LONGREAD and RUNTREAD alike.
const READ_IOV_COUNT_OFFSET: usize = 20;

impl EagerRtm {
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<EagerRtm, ParseError> {
        let msg_id = MsgId(cursor.take::<U32>()?.get());
        let receipt = parse_receipt(cursor)?;
        let tag = parse_tag(cursor)?;
        Ok(EagerRtm {
            msg_id,
            tag,
            receipt,
            options: ReqOptions::parse(cursor)?,
        })
    }
}

impl MediumRtm {
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<MediumRtm, ParseError> {
        let msg_id = MsgId(cursor.take::<U32>()?.get());
        let receipt = parse_receipt(cursor)?;
        let segment: &RawSegment = cursor.take()?;
        let tag = parse_tag(cursor)?;
        Ok(MediumRtm {
            msg_id,
            msg_length: segment.msg_length.get(),
            seg_offset: segment.seg_offset.get(),
            tag,
            receipt,
            options: ReqOptions::parse(cursor)?,
        })
    }
}

impl LongctsRtm {
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<LongctsRtm, ParseError> {
        let raw: &RawLong = cursor.take()?;
        let tag = parse_tag(cursor)?;
        Ok(LongctsRtm {
            msg_id: MsgId(raw.msg_id.get()),
            msg_length: raw.msg_length.get(),
            send_id: SendId(raw.send_id.get()),
            credit_request: raw.count.get(),
            tag,
            delivery_complete: cursor.packet_type().is_delivery_complete(),
            options: ReqOptions::parse(cursor)?,
        })
    }
}

impl<'a> LongreadRtm<'a> {
    pub(super) fn parse(cursor: &mut Cursor<'a>) -> Result<LongreadRtm<'a>, ParseError> {
        let raw: &RawLong = cursor.take()?;
        let tag = parse_tag(cursor)?;
        let options = ReqOptions::parse(cursor)?;
        Ok(LongreadRtm {
            msg_id: MsgId(raw.msg_id.get()),
            msg_length: raw.msg_length.get(),
            send_id: SendId(raw.send_id.get()),
            tag,
            read_iov: parse_read_iov(cursor, raw.count.get())?,
            options,
        })
    }
}

impl<'a> RuntreadRtm<'a> {
    pub(super) fn parse(cursor: &mut Cursor<'a>) -> Result<RuntreadRtm<'a>, ParseError> {
        let raw: &RawRunt = cursor.take()?;
        let tag = parse_tag(cursor)?;
        let options = ReqOptions::parse(cursor)?;
        Ok(RuntreadRtm {
            msg_id: MsgId(raw.long.msg_id.get()),
            msg_length: raw.long.msg_length.get(),
            send_id: SendId(raw.long.send_id.get()),
            seg_offset: raw.seg_offset.get(),
            runt_length: raw.runt_length.get(),
            tag,
            read_iov: parse_read_iov(cursor, raw.long.count.get())?,
            options,
        })
    }
}

impl RuntctsRtm {
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<RuntctsRtm, ParseError> {
        let raw: &RawRunt = cursor.take()?;
        let tag = parse_tag(cursor)?;
        Ok(RuntctsRtm {
            msg_id: MsgId(raw.long.msg_id.get()),
            msg_length: raw.long.msg_length.get(),
            send_id: SendId(raw.long.send_id.get()),
            credit_request: raw.long.count.get(),
            seg_offset: raw.seg_offset.get(),
            runt_length: raw.runt_length.get(),
            tag,
            options: ReqOptions::parse(cursor)?,
        })
    }
}

impl Repr for EagerRtm {
    fn packet_type(&self) -> PacketType {
        match (self.tag, self.receipt) {
            (None, None) => PacketType::EagerMsgRtm,
            (Some(_), None) => PacketType::EagerTagRtm,
            (None, Some(_)) => PacketType::DcEagerMsgRtm,
            (Some(_), Some(_)) => PacketType::DcEagerTagRtm,
        }
    }

    fn wire_flags(&self) -> u16 {
        self.options.wire_flags(self.packet_type())
    }

    fn header_len(&self) -> usize {
        (8 + receipt_len(self.receipt) + tag_len(self.tag)).saturating_add(self.options.wire_len())
    }
}

impl sealed::Fields for EagerRtm {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&U32::new(self.msg_id.0));
        write_receipt(self.receipt, writer);
        write_tag(self.tag, writer);
        self.options.write(writer);
    }
}

impl Repr for MediumRtm {
    fn packet_type(&self) -> PacketType {
        match (self.tag, self.receipt) {
            (None, None) => PacketType::MediumMsgRtm,
            (Some(_), None) => PacketType::MediumTagRtm,
            (None, Some(_)) => PacketType::DcMediumMsgRtm,
            (Some(_), Some(_)) => PacketType::DcMediumTagRtm,
        }
    }

    fn wire_flags(&self) -> u16 {
        self.options.wire_flags(self.packet_type())
    }

    fn header_len(&self) -> usize {
        (24 + receipt_len(self.receipt) + tag_len(self.tag)).saturating_add(self.options.wire_len())
    }
}

impl sealed::Fields for MediumRtm {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&U32::new(self.msg_id.0));
        write_receipt(self.receipt, writer);
        writer.put(&RawSegment {
            msg_length: U64::new(self.msg_length),
            seg_offset: U64::new(self.seg_offset),
        });
        write_tag(self.tag, writer);
        self.options.write(writer);
    }
}

impl Repr for LongctsRtm {
    fn packet_type(&self) -> PacketType {
        match (self.tag, self.delivery_complete) {
            (None, false) => PacketType::LongctsMsgRtm,
            (Some(_), false) => PacketType::LongctsTagRtm,
            (None, true) => PacketType::DcLongctsMsgRtm,
            (Some(_), true) => PacketType::DcLongctsTagRtm,
        }
    }

    fn wire_flags(&self) -> u16 {
        self.options.wire_flags(self.packet_type())
    }

    fn header_len(&self) -> usize {
        (24 + tag_len(self.tag)).saturating_add(self.options.wire_len())
    }
}

impl sealed::Fields for LongctsRtm {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&RawLong {
            msg_id: U32::new(self.msg_id.0),
            msg_length: U64::new(self.msg_length),
            send_id: U32::new(self.send_id.0),
            count: U32::new(self.credit_request),
        });
        write_tag(self.tag, writer);
        self.options.write(writer);
    }
}

impl Repr for LongreadRtm<'_> {
    fn packet_type(&self) -> PacketType {
        match self.tag {
            None => PacketType::LongreadMsgRtm,
            Some(_) => PacketType::LongreadTagRtm,
        }
    }

    fn wire_flags(&self) -> u16 {
        self.options.wire_flags(self.packet_type())
    }

    fn header_len(&self) -> usize {
        (24 + tag_len(self.tag) + self.read_iov.wire_len()).saturating_add(self.options.wire_len())
    }
}

impl sealed::Fields for LongreadRtm<'_> {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&RawLong {
            msg_id: U32::new(self.msg_id.0),
            msg_length: U64::new(self.msg_length),
            send_id: U32::new(self.send_id.0),
            count: U32::new(self.read_iov.count()),
        });
        write_tag(self.tag, writer);
        self.options.write(writer);
        writer.put(self.read_iov.as_slice());
    }
}

impl Repr for RuntreadRtm<'_> {
    fn packet_type(&self) -> PacketType {
        match self.tag {
            None => PacketType::RuntreadMsgRtm,
            Some(_) => PacketType::RuntreadTagRtm,
        }
    }

    fn wire_flags(&self) -> u16 {
        self.options.wire_flags(self.packet_type())
    }

    fn header_len(&self) -> usize {
        (40 + tag_len(self.tag) + self.read_iov.wire_len()).saturating_add(self.options.wire_len())
    }
}

impl sealed::Fields for RuntreadRtm<'_> {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&RawRunt {
            long: RawLong {
                msg_id: U32::new(self.msg_id.0),
                msg_length: U64::new(self.msg_length),
                send_id: U32::new(self.send_id.0),
                count: U32::new(self.read_iov.count()),
            },
            seg_offset: U64::new(self.seg_offset),
            runt_length: U64::new(self.runt_length),
        });
        write_tag(self.tag, writer);
        self.options.write(writer);
        writer.put(self.read_iov.as_slice());
    }
}

impl Repr for RuntctsRtm {
    fn packet_type(&self) -> PacketType {
        match self.tag {
            None => PacketType::RuntctsMsgRtm,
            Some(_) => PacketType::RuntctsTagRtm,
        }
    }

    fn wire_flags(&self) -> u16 {
        self.options.wire_flags(self.packet_type())
    }

    fn header_len(&self) -> usize {
        (40 + tag_len(self.tag)).saturating_add(self.options.wire_len())
    }
}

impl sealed::Fields for RuntctsRtm {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&RawRunt {
            long: RawLong {
                msg_id: U32::new(self.msg_id.0),
                msg_length: U64::new(self.msg_length),
                send_id: U32::new(self.send_id.0),
                count: U32::new(self.credit_request),
            },
            seg_offset: U64::new(self.seg_offset),
            runt_length: U64::new(self.runt_length),
        });
        write_tag(self.tag, writer);
        self.options.write(writer);
    }
}

fn parse_receipt(cursor: &mut Cursor<'_>) -> Result<Option<SendId>, ParseError> {
    if cursor.packet_type().is_delivery_complete() {
        let raw: &RawReceipt = cursor.take()?;
        Ok(Some(SendId(raw.send_id.get())))
    } else {
        Ok(None)
    }
}

const fn receipt_len(receipt: Option<SendId>) -> usize {
    if receipt.is_some() { 8 } else { 0 }
}

fn write_receipt(receipt: Option<SendId>, writer: &mut Writer<'_>) {
    if let Some(send_id) = receipt {
        writer.put(&RawReceipt {
            send_id: U32::new(send_id.0),
            padding: U32::ZERO,
        });
    }
}

fn parse_tag(cursor: &mut Cursor<'_>) -> Result<Option<u64>, ParseError> {
    if cursor.packet_type().is_tagged() {
        Ok(Some(cursor.take::<U64>()?.get()))
    } else {
        Ok(None)
    }
}

const fn tag_len(tag: Option<u64>) -> usize {
    if tag.is_some() { 8 } else { 0 }
}

fn write_tag(tag: Option<u64>, writer: &mut Writer<'_>) {
    if let Some(tag) = tag {
        writer.put(&U64::new(tag));
    }
}

fn parse_read_iov<'a>(cursor: &mut Cursor<'a>, count: u32) -> Result<RmaIovs<'a>, ParseError> {
    cursor.take_iovs("read_iov_count", READ_IOV_COUNT_OFFSET, count)
}
