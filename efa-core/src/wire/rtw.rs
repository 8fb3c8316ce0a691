//! Requests To Write: emulated writes (spec sections 3.3, 4.1 and 4.2).
//!
//! Lengths and offsets that describe the whole write (`msg_length`, `seg_offset`, `runt_length`) are
//! the sender's claims: parsing does not relate them to each other, to the iovs or to the payload.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::codec::{Cursor, Repr, Writer, sealed};
use super::error::ParseError;
use super::flags::ReqFlags;
use super::ids::SendId;
use super::iov::RmaIovs;
use super::packet_type::PacketType;
use super::req::ReqOptions;

/// EAGER_RTW (spec table 3.8) and DC_EAGER_RTW: a whole write in one packet.
///
/// Without iovs and payload it is what stock libfabric sends to make a peer answer with HANDSHAKE.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | rma_iov_count |
/// | 8 | 4 + 4 | send_id and padding, DC type only |
/// | 8 or 16 | 24 each | rma_iov |
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EagerRtw {
    /// The target's memory. Stock receivers insist that the lengths add up to the payload.
    pub rma_iov: RmaIovs,
    /// Makes it the DC type: the operation that RECEIPT has to name.
    pub receipt: Option<SendId>,
    /// The optional headers.
    pub options: ReqOptions,
}

/// LONGCTS_RTW (spec table 3.9) and DC_LONGCTS_RTW: the start of a write that is sent in windows
/// granted by CTS.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | rma_iov_count |
/// | 8 | 8 | msg_length |
/// | 16 | 4 | send_id |
/// | 20 | 4 | credit_request |
/// | 24 | 24 each | rma_iov |
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LongctsRtw {
    /// The target's memory.
    pub rma_iov: RmaIovs,
    /// Length of the whole write in bytes.
    pub msg_length: u64,
    /// The operation that CTS has to name.
    pub send_id: SendId,
    /// How many CTSDATA packets the requester would like to send; stock receivers ignore it.
    pub credit_request: u32,
    /// Whether it is the DC type.
    pub delivery_complete: bool,
    /// The optional headers.
    pub options: ReqOptions,
}

/// LONGREAD_RTW (spec table 4.3): a write for which the responder reads the data by RDMA.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | rma_iov_count |
/// | 8 | 8 | msg_length |
/// | 16 | 4 | send_id |
/// | 20 | 4 | read_iov_count |
/// | 24 | 24 each | rma_iov |
/// | behind the optional headers | 24 each | read_iov |
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LongreadRtw {
    /// The target's memory.
    pub rma_iov: RmaIovs,
    /// Length of the whole write in bytes.
    pub msg_length: u64,
    /// The operation that EOR or READ_NACK has to name.
    pub send_id: SendId,
    /// The requester's buffer.
    pub read_iov: RmaIovs,
    /// The optional headers.
    pub options: ReqOptions,
}

/// RUNTCTS_RTW: defined by stock libfabric since 1.16.0 but never sent, and refused by its
/// receivers. The spec does not describe it.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | rma_iov_count |
/// | 8 | 8 | msg_length |
/// | 16 | 4 | send_id |
/// | 20 | 4 | credit_request |
/// | 24 | 8 | seg_offset |
/// | 32 | 8 | runt_length |
/// | 40 | 24 each | rma_iov |
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RuntctsRtw {
    /// The target's memory.
    pub rma_iov: RmaIovs,
    /// Length of the whole write in bytes.
    pub msg_length: u64,
    /// The operation that CTS has to name.
    pub send_id: SendId,
    /// How many CTSDATA packets the requester would like to send.
    pub credit_request: u32,
    /// Where in the write the payload belongs, in bytes.
    pub seg_offset: u64,
    /// Bytes of the write that are sent in RUNTCTS packets.
    pub runt_length: u64,
    /// The optional headers.
    pub options: ReqOptions,
}

/// RUNTREAD_RTW: defined by stock libfabric since 1.16.0 but never sent, and refused by its
/// receivers. The spec does not describe it.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | rma_iov_count |
/// | 8 | 8 | msg_length |
/// | 16 | 4 | send_id |
/// | 20 | 4 | read_iov_count |
/// | 24 | 8 | seg_offset |
/// | 32 | 8 | runt_length |
/// | 40 | 24 each | rma_iov |
/// | behind the optional headers | 24 each | read_iov |
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RuntreadRtw {
    /// The target's memory.
    pub rma_iov: RmaIovs,
    /// Length of the whole write in bytes.
    pub msg_length: u64,
    /// The operation that EOR or READ_NACK has to name.
    pub send_id: SendId,
    /// Where in the write the payload belongs, in bytes.
    pub seg_offset: u64,
    /// Bytes of the write that are sent in RUNTREAD packets.
    pub runt_length: u64,
    /// The requester's buffer. Placed behind the optional headers, as in RUNTREAD_MSGRTM.
    pub read_iov: RmaIovs,
    /// The optional headers.
    pub options: ReqOptions,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawReceipt {
    send_id: U32,
    padding: U32,
}

/// LONGCTS_RTW and LONGREAD_RTW; `count` is credit_request or read_iov_count.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawLong {
    rma_iov_count: U32,
    msg_length: U64,
    send_id: U32,
    count: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRunt {
    long: RawLong,
    seg_offset: U64,
    runt_length: U64,
}

/// Where rma_iov_count is.
const RMA_IOV_COUNT_OFFSET: usize = 4;
/// Where read_iov_count is.
const READ_IOV_COUNT_OFFSET: usize = 20;

impl EagerRtw {
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<EagerRtw, ParseError> {
        let count = cursor.take::<U32>()?.get();
        let receipt = if cursor.packet_type().is_delivery_complete() {
            let raw: &RawReceipt = cursor.take()?;
            Some(SendId(raw.send_id.get()))
        } else {
            None
        };
        Ok(EagerRtw {
            rma_iov: parse_rma_iov(cursor, count)?,
            receipt,
            options: ReqOptions::parse(cursor, ReqFlags::IMPLIED_BY_RMA)?,
        })
    }
}

impl LongctsRtw {
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<LongctsRtw, ParseError> {
        let raw: &RawLong = cursor.take()?;
        Ok(LongctsRtw {
            rma_iov: parse_rma_iov(cursor, raw.rma_iov_count.get())?,
            msg_length: raw.msg_length.get(),
            send_id: SendId(raw.send_id.get()),
            credit_request: raw.count.get(),
            delivery_complete: cursor.packet_type().is_delivery_complete(),
            options: ReqOptions::parse(cursor, ReqFlags::IMPLIED_BY_RMA)?,
        })
    }
}

impl LongreadRtw {
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<LongreadRtw, ParseError> {
        let raw: &RawLong = cursor.take()?;
        let rma_iov = parse_rma_iov(cursor, raw.rma_iov_count.get())?;
        let options = ReqOptions::parse(cursor, ReqFlags::IMPLIED_BY_RMA)?;
        Ok(LongreadRtw {
            rma_iov,
            msg_length: raw.msg_length.get(),
            send_id: SendId(raw.send_id.get()),
            read_iov: parse_read_iov(cursor, raw.count.get())?,
            options,
        })
    }
}

impl RuntctsRtw {
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<RuntctsRtw, ParseError> {
        let raw: &RawRunt = cursor.take()?;
        Ok(RuntctsRtw {
            rma_iov: parse_rma_iov(cursor, raw.long.rma_iov_count.get())?,
            msg_length: raw.long.msg_length.get(),
            send_id: SendId(raw.long.send_id.get()),
            credit_request: raw.long.count.get(),
            seg_offset: raw.seg_offset.get(),
            runt_length: raw.runt_length.get(),
            options: ReqOptions::parse(cursor, ReqFlags::IMPLIED_BY_RMA)?,
        })
    }
}

impl RuntreadRtw {
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<RuntreadRtw, ParseError> {
        let raw: &RawRunt = cursor.take()?;
        let rma_iov = parse_rma_iov(cursor, raw.long.rma_iov_count.get())?;
        let options = ReqOptions::parse(cursor, ReqFlags::IMPLIED_BY_RMA)?;
        Ok(RuntreadRtw {
            rma_iov,
            msg_length: raw.long.msg_length.get(),
            send_id: SendId(raw.long.send_id.get()),
            seg_offset: raw.seg_offset.get(),
            runt_length: raw.runt_length.get(),
            read_iov: parse_read_iov(cursor, raw.long.count.get())?,
            options,
        })
    }
}

impl Repr for EagerRtw {
    fn packet_type(&self) -> PacketType {
        match self.receipt {
            None => PacketType::EagerRtw,
            Some(_) => PacketType::DcEagerRtw,
        }
    }

    fn wire_flags(&self) -> u16 {
        self.options.wire_flags(ReqFlags::IMPLIED_BY_RMA)
    }

    fn header_len(&self) -> usize {
        let receipt = if self.receipt.is_some() { 8 } else { 0 };
        (8 + receipt + self.rma_iov.wire_len()).saturating_add(self.options.wire_len())
    }
}

impl sealed::Fields for EagerRtw {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&U32::new(self.rma_iov.count()));
        if let Some(send_id) = self.receipt {
            writer.put(&RawReceipt {
                send_id: U32::new(send_id.0),
                padding: U32::ZERO,
            });
        }
        writer.put(self.rma_iov.as_slice());
        self.options.write(writer);
    }
}

impl Repr for LongctsRtw {
    fn packet_type(&self) -> PacketType {
        if self.delivery_complete {
            PacketType::DcLongctsRtw
        } else {
            PacketType::LongctsRtw
        }
    }

    fn wire_flags(&self) -> u16 {
        self.options.wire_flags(ReqFlags::IMPLIED_BY_RMA)
    }

    fn header_len(&self) -> usize {
        (24 + self.rma_iov.wire_len()).saturating_add(self.options.wire_len())
    }
}

impl sealed::Fields for LongctsRtw {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&RawLong {
            rma_iov_count: U32::new(self.rma_iov.count()),
            msg_length: U64::new(self.msg_length),
            send_id: U32::new(self.send_id.0),
            count: U32::new(self.credit_request),
        });
        writer.put(self.rma_iov.as_slice());
        self.options.write(writer);
    }
}

impl Repr for LongreadRtw {
    fn packet_type(&self) -> PacketType {
        PacketType::LongreadRtw
    }

    fn wire_flags(&self) -> u16 {
        self.options.wire_flags(ReqFlags::IMPLIED_BY_RMA)
    }

    fn header_len(&self) -> usize {
        (24 + self.rma_iov.wire_len() + self.read_iov.wire_len())
            .saturating_add(self.options.wire_len())
    }
}

impl sealed::Fields for LongreadRtw {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&RawLong {
            rma_iov_count: U32::new(self.rma_iov.count()),
            msg_length: U64::new(self.msg_length),
            send_id: U32::new(self.send_id.0),
            count: U32::new(self.read_iov.count()),
        });
        writer.put(self.rma_iov.as_slice());
        self.options.write(writer);
        writer.put(self.read_iov.as_slice());
    }
}

impl Repr for RuntctsRtw {
    fn packet_type(&self) -> PacketType {
        PacketType::RuntctsRtw
    }

    fn wire_flags(&self) -> u16 {
        self.options.wire_flags(ReqFlags::IMPLIED_BY_RMA)
    }

    fn header_len(&self) -> usize {
        (40 + self.rma_iov.wire_len()).saturating_add(self.options.wire_len())
    }
}

impl sealed::Fields for RuntctsRtw {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&RawRunt {
            long: RawLong {
                rma_iov_count: U32::new(self.rma_iov.count()),
                msg_length: U64::new(self.msg_length),
                send_id: U32::new(self.send_id.0),
                count: U32::new(self.credit_request),
            },
            seg_offset: U64::new(self.seg_offset),
            runt_length: U64::new(self.runt_length),
        });
        writer.put(self.rma_iov.as_slice());
        self.options.write(writer);
    }
}

impl Repr for RuntreadRtw {
    fn packet_type(&self) -> PacketType {
        PacketType::RuntreadRtw
    }

    fn wire_flags(&self) -> u16 {
        self.options.wire_flags(ReqFlags::IMPLIED_BY_RMA)
    }

    fn header_len(&self) -> usize {
        (40 + self.rma_iov.wire_len() + self.read_iov.wire_len())
            .saturating_add(self.options.wire_len())
    }
}

impl sealed::Fields for RuntreadRtw {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&RawRunt {
            long: RawLong {
                rma_iov_count: U32::new(self.rma_iov.count()),
                msg_length: U64::new(self.msg_length),
                send_id: U32::new(self.send_id.0),
                count: U32::new(self.read_iov.count()),
            },
            seg_offset: U64::new(self.seg_offset),
            runt_length: U64::new(self.runt_length),
        });
        writer.put(self.rma_iov.as_slice());
        self.options.write(writer);
        writer.put(self.read_iov.as_slice());
    }
}

fn parse_rma_iov(cursor: &mut Cursor<'_>, count: u32) -> Result<RmaIovs, ParseError> {
    cursor.take_iovs("rma_iov_count", RMA_IOV_COUNT_OFFSET, count)
}

fn parse_read_iov(cursor: &mut Cursor<'_>, count: u32) -> Result<RmaIovs, ParseError> {
    cursor.take_iovs("read_iov_count", READ_IOV_COUNT_OFFSET, count)
}
