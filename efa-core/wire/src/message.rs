//! The common view of all requests that carry a message or a write, whatever their subprotocol.

use crate::{Header, MsgId, ReqFlags, RmaIovs, SendId};

/// How the data of a message or write travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// All of it in the request.
    Eager,
    /// In several requests.
    Medium,
    /// The rest in windows.
    LongCts,
    /// By an RDMA read of the receiver.
    LongRead,
    /// The beginning in several requests, the rest by an RDMA read.
    RuntRead,
}

impl Transfer {
    /// Whether several requests may bring the data, each with the offset of its part.
    pub const fn is_segmented(self) -> bool {
        matches!(self, Transfer::Medium | Transfer::RuntRead)
    }

    /// Whether the receiver reads data of the sender by RDMA.
    pub const fn is_read(self) -> bool {
        matches!(self, Transfer::LongRead | Transfer::RuntRead)
    }
}

/// A message or write, as one of its requests states it (spec sections 3.2, 3.3 and 4.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// Absent in writes.
    pub msg_id: Option<MsgId>,
    /// Its subprotocol.
    pub transfer: Transfer,
    /// Bytes of the whole message.
    pub length: u64,
    /// The offset of this request's data in it, in bytes.
    pub offset: u64,
    /// The number of its bytes in requests of this type: all, unless it is a runt or is read. For a
    /// long-CTS request, the bytes of this request.
    pub in_requests: u64,
    /// The tag of a tagged message.
    pub tag: Option<u64>,
    /// The sender's operation, if the receiver's answer has to contain it.
    pub send_id: Option<SendId>,
    /// Whether a RECEIPT ends it.
    pub delivery_complete: bool,
    /// Whether it continues a message whose read was refused.
    pub answers_nack: bool,
    /// The target of a write.
    pub rma_iov: Option<RmaIovs>,
    /// The memory from which the receiver can read the data.
    pub read_iov: Option<RmaIovs>,
}

impl Message {
    /// Reads a header whose packet has `payload` bytes of data. Returns `None` if the request
    /// carries neither a message nor a write.
    #[inline]
    pub fn of(header: &Header, payload: u64) -> Option<Message> {
        let message = Message {
            msg_id: None,
            transfer: Transfer::Eager,
            length: payload,
            offset: 0,
            in_requests: payload,
            tag: None,
            send_id: None,
            delivery_complete: false,
            answers_nack: false,
            rma_iov: None,
            read_iov: None,
        };
        Some(match *header {
            Header::EagerRtm(h) => Message {
                msg_id: Some(h.msg_id),
                tag: h.tag,
                send_id: h.receipt,
                delivery_complete: h.receipt.is_some(),
                ..message
            },
            Header::MediumRtm(h) => Message {
                msg_id: Some(h.msg_id),
                transfer: Transfer::Medium,
                length: h.msg_length,
                offset: h.seg_offset,
                in_requests: h.msg_length,
                tag: h.tag,
                send_id: h.receipt,
                delivery_complete: h.receipt.is_some(),
                ..message
            },
            Header::LongctsRtm(h) => Message {
                msg_id: Some(h.msg_id),
                transfer: Transfer::LongCts,
                length: h.msg_length,
                tag: h.tag,
                send_id: Some(h.send_id),
                delivery_complete: h.delivery_complete,
                answers_nack: h.options.flags.contains(ReqFlags::READ_NACK),
                ..message
            },
            Header::LongreadRtm(h) => Message {
                msg_id: Some(h.msg_id),
                transfer: Transfer::LongRead,
                length: h.msg_length,
                in_requests: 0,
                tag: h.tag,
                send_id: Some(h.send_id),
                read_iov: Some(h.read_iov),
                ..message
            },
            Header::RuntreadRtm(h) => Message {
                msg_id: Some(h.msg_id),
                transfer: Transfer::RuntRead,
                length: h.msg_length,
                offset: h.seg_offset,
                in_requests: h.runt_length,
                tag: h.tag,
                send_id: Some(h.send_id),
                read_iov: Some(h.read_iov),
                ..message
            },
            Header::EagerRtw(h) => Message {
                send_id: h.receipt,
                delivery_complete: h.receipt.is_some(),
                rma_iov: Some(h.rma_iov),
                ..message
            },
            Header::LongctsRtw(h) => Message {
                transfer: Transfer::LongCts,
                length: h.msg_length,
                send_id: Some(h.send_id),
                delivery_complete: h.delivery_complete,
                rma_iov: Some(h.rma_iov),
                ..message
            },
            Header::LongreadRtw(h) => Message {
                transfer: Transfer::LongRead,
                length: h.msg_length,
                in_requests: 0,
                send_id: Some(h.send_id),
                rma_iov: Some(h.rma_iov),
                read_iov: Some(h.read_iov),
                ..message
            },
            _ => return None,
        })
    }

    /// Whether other requests with the same `msg_id` may bring more of it.
    pub fn is_segment(&self) -> bool {
        self.transfer.is_segmented()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::field_of;
    use crate::{Family, Packet, Repr as _};

    /// In the bytes of every format, with the names that its declaration gives to the fields.
    #[test]
    fn views_agree_with_declared_fields() {
        let mut seen = 0;
        for literal in crate::formats::literals() {
            let bytes = literal.bytes();
            let Ok(packet) = Packet::parse(bytes) else {
                continue;
            };
            let payload = packet.payload.length as u64;
            let view = Message::of(&packet.header, payload);
            let packet_type = packet.header.packet_type();
            let brings_data = matches!(packet_type.family(), Family::Rtm | Family::Rtw);
            assert_eq!(view.is_some(), brings_data, "{bytes:02x?}");
            let transfer = view.map(|view| view.transfer);
            assert_eq!(transfer, packet_type.transfer(), "{bytes:02x?}");
            let Some(view) = view else {
                continue;
            };
            let field = |name| field_of(bytes, name)?.value.as_u64();
            let length = field("msg_length").unwrap_or(payload);
            assert_eq!(view.msg_id.map(|id| id.0.into()), field("msg_id"));
            assert_eq!(view.send_id.map(|id| id.0.into()), field("send_id"));
            assert_eq!(view.tag, field("tag"));
            assert_eq!(view.length, length);
            assert_eq!(view.offset, field("seg_offset").unwrap_or(0));
            let iovs = |iovs: Option<RmaIovs>| iovs.map(|iovs| iovs.count() as u64);
            assert_eq!(iovs(view.rma_iov), field("rma_iov_count"));
            assert_eq!(iovs(view.read_iov), field("read_iov_count"));
            let in_requests = match view.transfer {
                Transfer::Eager | Transfer::LongCts => payload,
                Transfer::Medium => length,
                Transfer::LongRead => 0,
                Transfer::RuntRead => field("runt_length").unwrap(),
            };
            assert_eq!(view.in_requests, in_requests);
            seen += 1;
        }
        assert!(seen > 10, "{seen}");
    }
}
