//! Data that answers a request: READRSP and ATOMRSP (spec section 3.3).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{check_data_length, further_flags, multiuse, parse_connid, wire_flags};
use crate::wire::codec::{Cursor, Repr, Writer, sealed};
use crate::wire::error::ParseError;
use crate::wire::flags::UniversalFlags;
use crate::wire::ids::{Connid, RecvId, SendId};
use crate::wire::packet_type::PacketType;

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

/// `first_id` is recv_id in READRSP and reserved in ATOMRSP, `second_id` is send_id and recv_id.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawResponse {
    multiuse: U32,
    first_id: U32,
    second_id: U32,
    seg_length: U64,
}

impl ReadRsp {
    pub(in crate::wire) fn parse(cursor: &mut Cursor<'_>) -> Result<ReadRsp, ParseError> {
        let raw: &RawResponse = cursor.take()?;
        check_data_length(cursor, 16, raw.seg_length.get())?;
        Ok(ReadRsp {
            connid: parse_connid(cursor, raw.multiuse),
            recv_id: RecvId(raw.first_id.get()),
            send_id: SendId(raw.second_id.get()),
            seg_length: raw.seg_length.get(),
            flags: further_flags(cursor),
        })
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
        writer.put(&RawResponse {
            multiuse: multiuse(self.connid),
            first_id: U32::new(self.recv_id.0),
            second_id: U32::new(self.send_id.0),
            seg_length: U64::new(self.seg_length),
        });
    }
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

impl AtomRsp {
    pub(in crate::wire) fn parse(cursor: &mut Cursor<'_>) -> Result<AtomRsp, ParseError> {
        let raw: &RawResponse = cursor.take()?;
        check_data_length(cursor, 16, raw.seg_length.get())?;
        Ok(AtomRsp {
            connid: parse_connid(cursor, raw.multiuse),
            recv_id: RecvId(raw.second_id.get()),
            seg_length: raw.seg_length.get(),
            flags: further_flags(cursor),
        })
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
        writer.put(&RawResponse {
            multiuse: multiuse(self.connid),
            first_id: U32::ZERO,
            second_id: U32::new(self.recv_id.0),
            seg_length: U64::new(self.seg_length),
        });
    }
}
