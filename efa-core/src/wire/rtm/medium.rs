//! Medium messages (spec section 3.2).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{parse_receipt, parse_tag, receipt_len, tag_len, write_receipt, write_tag};
use crate::wire::codec::{Cursor, Repr, Writer, sealed};
use crate::wire::error::ParseError;
use crate::wire::flags::ReqFlags;
use crate::wire::ids::{MsgId, SendId};
use crate::wire::packet_type::PacketType;
use crate::wire::req::ReqOptions;

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

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawSegment {
    msg_length: U64,
    seg_offset: U64,
}

impl MediumRtm {
    pub(in crate::wire) fn parse(cursor: &mut Cursor<'_>) -> Result<MediumRtm, ParseError> {
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
            options: ReqOptions::parse(cursor, ReqFlags::implied_by_rtm(tag.is_some()))?,
        })
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
        self.options
            .wire_flags(ReqFlags::implied_by_rtm(self.tag.is_some()))
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
