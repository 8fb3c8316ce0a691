//! The long-CTS transfer: CTS and CTSDATA (spec section 3.2).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{check_data_length, further_flags, multiuse, parse_connid, universal, wire_flags};
use crate::wire::codec::{Cursor, Repr, Writer, sealed};
use crate::wire::error::ParseError;
use crate::wire::flags::{CtsFlags, UniversalFlags};
use crate::wire::ids::{Connid, RecvId, SendId};
use crate::wire::packet_type::PacketType;

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

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawCts {
    multiuse: U32,
    send_id: U32,
    recv_id: U32,
    recv_length: U64,
}

impl Cts {
    pub(in crate::wire) fn parse(cursor: &mut Cursor<'_>) -> Result<Cts, ParseError> {
        let raw: &RawCts = cursor.take()?;
        let flags = CtsFlags::from_bits_retain(cursor.flags());
        Ok(Cts {
            connid: parse_connid(cursor, raw.multiuse),
            send_id: SendId(raw.send_id.get()),
            recv_id: RecvId(raw.recv_id.get()),
            recv_length: raw.recv_length.get(),
            flags: flags.difference(CtsFlags::CONNID_HDR),
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
        writer.put(&RawCts {
            multiuse: multiuse(self.connid),
            send_id: U32::new(self.send_id.0),
            recv_id: U32::new(self.recv_id.0),
            recv_length: U64::new(self.recv_length),
        });
    }
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

impl CtsData {
    #[inline(always)]
    pub(in crate::wire) fn parse(cursor: &mut Cursor<'_>) -> Result<CtsData, ParseError> {
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
