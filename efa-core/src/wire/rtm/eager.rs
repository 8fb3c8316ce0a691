//! Eager messages (spec section 3.2).

use zerocopy::little_endian::U32;

use super::{parse_receipt, parse_tag, receipt_len, tag_len, write_receipt, write_tag};
use crate::wire::codec::{Cursor, Repr, Writer, sealed};
use crate::wire::error::ParseError;
use crate::wire::flags::ReqFlags;
use crate::wire::ids::{MsgId, SendId};
use crate::wire::packet_type::PacketType;
use crate::wire::req::ReqOptions;

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

impl EagerRtm {
    #[inline(always)]
    pub(in crate::wire) fn parse(cursor: &mut Cursor<'_>) -> Result<EagerRtm, ParseError> {
        let msg_id = MsgId(cursor.take::<U32>()?.get());
        let receipt = parse_receipt(cursor)?;
        let tag = parse_tag(cursor)?;
        Ok(EagerRtm {
            msg_id,
            tag,
            receipt,
            options: ReqOptions::parse(cursor, ReqFlags::implied_by_rtm(tag.is_some()))?,
        })
    }
}

impl Repr for EagerRtm {
    #[inline]
    fn packet_type(&self) -> PacketType {
        match (self.tag, self.receipt) {
            (None, None) => PacketType::EagerMsgRtm,
            (Some(_), None) => PacketType::EagerTagRtm,
            (None, Some(_)) => PacketType::DcEagerMsgRtm,
            (Some(_), Some(_)) => PacketType::DcEagerTagRtm,
        }
    }

    #[inline]
    fn wire_flags(&self) -> u16 {
        self.options
            .wire_flags(ReqFlags::implied_by_rtm(self.tag.is_some()))
    }

    #[inline]
    fn header_len(&self) -> usize {
        (8 + receipt_len(self.receipt) + tag_len(self.tag)).saturating_add(self.options.wire_len())
    }
}

impl sealed::Fields for EagerRtm {
    #[inline]
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&U32::new(self.msg_id.0));
        write_receipt(self.receipt, writer);
        write_tag(self.tag, writer);
        self.options.write(writer);
    }
}
