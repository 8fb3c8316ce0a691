//! Messages that are announced: long-CTS (spec section 3.2) and long-read (spec section 4.1).

use zerocopy::little_endian::{U32, U64};

use super::{RawLong, parse_read_iov, parse_tag, tag_len, write_tag};
use crate::wire::codec::{Cursor, Repr, Writer, sealed};
use crate::wire::error::ParseError;
use crate::wire::flags::ReqFlags;
use crate::wire::ids::{MsgId, SendId};
use crate::wire::iov::RmaIovs;
use crate::wire::packet_type::PacketType;
use crate::wire::req::ReqOptions;

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
    /// [`ReqFlags::READ_NACK`] it repeats that of the refused request.
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

impl LongctsRtm {
    pub(in crate::wire) fn parse(cursor: &mut Cursor<'_>) -> Result<LongctsRtm, ParseError> {
        let raw: &RawLong = cursor.take()?;
        let tag = parse_tag(cursor)?;
        Ok(LongctsRtm {
            msg_id: MsgId(raw.msg_id.get()),
            msg_length: raw.msg_length.get(),
            send_id: SendId(raw.send_id.get()),
            credit_request: raw.count.get(),
            tag,
            delivery_complete: cursor.packet_type().is_delivery_complete(),
            options: ReqOptions::parse(cursor, ReqFlags::implied_by_rtm(tag.is_some()))?,
        })
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
        self.options
            .wire_flags(ReqFlags::implied_by_rtm(self.tag.is_some()))
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
pub struct LongreadRtm {
    /// The message's place in the sequence.
    pub msg_id: MsgId,
    /// Length of the whole message in bytes.
    pub msg_length: u64,
    /// The operation that EOR or READ_NACK has to name.
    pub send_id: SendId,
    /// The tag, for a tagged message.
    pub tag: Option<u64>,
    /// The sender's buffer.
    pub read_iov: RmaIovs,
    /// The optional headers.
    pub options: ReqOptions,
}

impl LongreadRtm {
    pub(in crate::wire) fn parse(cursor: &mut Cursor<'_>) -> Result<LongreadRtm, ParseError> {
        let raw: &RawLong = cursor.take()?;
        let tag = parse_tag(cursor)?;
        let options = ReqOptions::parse(cursor, ReqFlags::implied_by_rtm(tag.is_some()))?;
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

impl Repr for LongreadRtm {
    fn packet_type(&self) -> PacketType {
        match self.tag {
            None => PacketType::LongreadMsgRtm,
            Some(_) => PacketType::LongreadTagRtm,
        }
    }

    fn wire_flags(&self) -> u16 {
        self.options
            .wire_flags(ReqFlags::implied_by_rtm(self.tag.is_some()))
    }

    fn header_len(&self) -> usize {
        (24 + tag_len(self.tag) + self.read_iov.wire_len()).saturating_add(self.options.wire_len())
    }
}

impl sealed::Fields for LongreadRtm {
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
