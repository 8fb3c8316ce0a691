//! Runting messages: a first part in packets, the rest announced (spec section 4.5).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{RawLong, parse_read_iov, parse_tag, tag_len, write_tag};
use crate::wire::codec::{Cursor, Repr, Writer, sealed};
use crate::wire::error::ParseError;
use crate::wire::flags::ReqFlags;
use crate::wire::ids::{MsgId, SendId};
use crate::wire::iov::RmaIovs;
use crate::wire::packet_type::PacketType;
use crate::wire::req::ReqOptions;

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
pub struct RuntreadRtm {
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
    pub read_iov: RmaIovs,
    /// The optional headers.
    pub options: ReqOptions,
}

/// RUNTCTS and RUNTREAD.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRunt {
    long: RawLong,
    seg_offset: U64,
    runt_length: U64,
}

impl RuntreadRtm {
    pub(in crate::wire) fn parse(cursor: &mut Cursor<'_>) -> Result<RuntreadRtm, ParseError> {
        let raw: &RawRunt = cursor.take()?;
        let tag = parse_tag(cursor)?;
        let options = ReqOptions::parse(cursor, ReqFlags::implied_by_rtm(tag.is_some()))?;
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

impl Repr for RuntreadRtm {
    fn packet_type(&self) -> PacketType {
        match self.tag {
            None => PacketType::RuntreadMsgRtm,
            Some(_) => PacketType::RuntreadTagRtm,
        }
    }

    fn wire_flags(&self) -> u16 {
        self.options
            .wire_flags(ReqFlags::implied_by_rtm(self.tag.is_some()))
    }

    fn header_len(&self) -> usize {
        (40 + tag_len(self.tag) + self.read_iov.wire_len()).saturating_add(self.options.wire_len())
    }
}

impl sealed::Fields for RuntreadRtm {
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

impl RuntctsRtm {
    pub(in crate::wire) fn parse(cursor: &mut Cursor<'_>) -> Result<RuntctsRtm, ParseError> {
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
            options: ReqOptions::parse(cursor, ReqFlags::implied_by_rtm(tag.is_some()))?,
        })
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
        self.options
            .wire_flags(ReqFlags::implied_by_rtm(self.tag.is_some()))
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
