//! The packets of an operation that needs more than one: the next packet, and its header.

use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::ids::OutboundId;
use crate::wire::{
    Connid, CtsData, Header, LongctsRtm, LongctsRtw, LongreadRtm, LongreadRtw, MediumRtm, MsgId,
    ReadRsp, RecvId, Repr, ReqFlags, ReqOptions, RmaIovs, RuntreadRtm, SendId,
};

/// The type of the next packet of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stream {
    /// No packet is due. The request is kept for the response to a READ_NACK.
    Silent(Option<RequestHead>),
    /// MEDIUM segments.
    Medium(MessageHead, SegmentSize),
    /// RUNTREAD segments.
    Runt(MessageHead, SegmentSize, RmaIovs),
    /// LONGCTS_RTM or LONGCTS_RTW, then CTSDATA.
    LongCts(RequestHead),
    /// LONGREAD_RTM or LONGREAD_RTW, with the memory for the peer to read.
    LongRead(RequestHead, RmaIovs),
    /// LONGCTS_RTM in answer to READ_NACK, without data, then CTSDATA.
    NackAnswer(MessageHead),
    /// CTSDATA for the peer's operation; `None` before the first CTS.
    CtsData(Option<RecvId>),
    /// READRSP, then CTSDATA.
    ReadResponse(RecvId),
    /// RDMA writes.
    RdmaWrite(RmaIovs, Option<u32>),
}

/// Bytes of data in each segment but the last, which may have less.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentSize(pub(crate) usize);

/// The fields that all requests of one operation share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RequestHead {
    Message(MessageHead),
    Write(WriteHead),
}

/// The fields of a message's requests. All segments have the same headers, because any of them may
/// arrive first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MessageHead {
    pub(crate) msg_id: MsgId,
    pub(crate) tag: Option<u64>,
    pub(crate) delivery_complete: bool,
    pub(crate) options: ReqOptions,
}

/// The fields of a write's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WriteHead {
    pub(crate) target: RmaIovs,
    pub(crate) delivery_complete: bool,
    pub(crate) options: ReqOptions,
}

impl Stream {
    /// The protocol under which copies are counted. A read-based request carries no data; if it is
    /// refused, the data travels in windows.
    pub(crate) fn protocol(&self) -> Protocol {
        match self {
            Stream::Medium(..) => Protocol::Medium,
            Stream::Runt(..) => Protocol::RuntingRead,
            Stream::LongCts(RequestHead::Write(_))
            | Stream::LongRead(RequestHead::Write(_), _)
            | Stream::RdmaWrite(..) => Protocol::LongCtsWrite,
            Stream::ReadResponse(_) => Protocol::EmulatedRead,
            Stream::LongCts(RequestHead::Message(_))
            | Stream::LongRead(RequestHead::Message(_), _)
            | Stream::NackAnswer(_)
            | Stream::CtsData(_)
            | Stream::Silent(_) => Protocol::LongCts,
        }
    }

    /// The id of the message that the next packet begins or belongs to.
    pub(super) fn msg_id(&self) -> Option<MsgId> {
        match self {
            Stream::Medium(head, _)
            | Stream::Runt(head, ..)
            | Stream::LongCts(RequestHead::Message(head))
            | Stream::LongRead(RequestHead::Message(head), _)
            | Stream::NackAnswer(head) => Some(head.msg_id),
            Stream::LongCts(RequestHead::Write(_))
            | Stream::LongRead(RequestHead::Write(_), _)
            | Stream::Silent(_)
            | Stream::CtsData(_)
            | Stream::ReadResponse(_)
            | Stream::RdmaWrite(..) => None,
        }
    }

    /// Returns whether the next packet may be sent before the peer grants data.
    pub(crate) fn is_request(&self) -> bool {
        matches!(
            self,
            Stream::LongCts(_)
                | Stream::LongRead(..)
                | Stream::NackAnswer(_)
                | Stream::ReadResponse(_)
        )
    }
}

impl MessageHead {
    pub(crate) fn medium(&self, id: OutboundId, length: u64, offset: u64) -> MediumRtm {
        MediumRtm {
            msg_id: self.msg_id,
            msg_length: length,
            seg_offset: offset,
            tag: self.tag,
            receipt: self.delivery_complete.then(|| SendId(id.to_wire())),
            options: self.options,
        }
    }

    pub(crate) fn long_cts(&self, id: OutboundId, length: u64, credits: u32) -> LongctsRtm {
        LongctsRtm {
            msg_id: self.msg_id,
            msg_length: length,
            send_id: SendId(id.to_wire()),
            credit_request: credits,
            tag: self.tag,
            delivery_complete: self.delivery_complete,
            options: self.options,
        }
    }

    pub(crate) fn runt(
        &self,
        id: OutboundId,
        length: u64,
        offset: u64,
        runt_length: u64,
        source: &RmaIovs,
    ) -> RuntreadRtm {
        RuntreadRtm {
            msg_id: self.msg_id,
            msg_length: length,
            send_id: SendId(id.to_wire()),
            seg_offset: offset,
            runt_length,
            tag: self.tag,
            read_iov: *source,
            options: self.options,
        }
    }
}

/// The size of segments: as few segments as possible, of about the same size, which is a multiple
/// of 8 so that the receiver's copies are aligned (as in stock libfabric 1.17).
pub(crate) fn segment_size(length: u64, capacity: usize) -> SegmentSize {
    let count = length.div_ceil(capacity.max(1) as u64).max(1);
    let size = length.div_ceil(count).next_multiple_of(8);
    SegmentSize(size.min(capacity as u64) as usize)
}

/// The next packet of an operation.
pub(crate) struct NextPacket {
    pub(crate) header: Header,
    /// Bytes of data after the header.
    pub(crate) size: usize,
    /// The id of the message that the packet begins.
    pub(crate) sequenced: Option<MsgId>,
    /// The stream after this packet.
    pub(super) then: Stream,
}

/// Settings on which headers depend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HeaderSettings {
    /// Largest packet in bytes.
    pub(crate) mtu: usize,
    /// The window that requests specify, in data packets.
    pub(crate) credits: u32,
}

impl Stream {
    /// The next packet of the operation `id`. READRSP gets the connection id `connid`, CTSDATA gets
    /// `data_connid`, which is `None` if the peer does not expect one. `None` if no packet is due.
    pub(super) fn next_packet(
        &self,
        id: OutboundId,
        progress: Progress,
        headers: HeaderSettings,
        connid: Connid,
        data_connid: Option<Connid>,
    ) -> Option<NextPacket> {
        let Progress {
            length,
            moved,
            allowed,
            to_move,
        } = progress;
        let HeaderSettings { mtu, credits } = headers;
        let (header, size, then): (Header, u64, Stream) = match *self {
            Stream::Silent(_) | Stream::CtsData(None) | Stream::RdmaWrite(..) => return None,
            Stream::Medium(head, SegmentSize(size)) => {
                let header = head.medium(id, length, moved);
                (header.into(), allowed.min(size as u64), *self)
            }
            Stream::Runt(head, SegmentSize(size), source) => {
                let size = allowed.min(size as u64);
                let header = head.runt(id, length, moved, to_move, &source);
                let then = match moved + size == to_move {
                    // A READ_NACK may arrive. The answer has the same fields.
                    true => Stream::Silent(Some(RequestHead::Message(head))),
                    false => *self,
                };
                (header.into(), size, then)
            }
            Stream::LongRead(request, source) => {
                let header = match request {
                    RequestHead::Message(head) => LongreadRtm {
                        msg_id: head.msg_id,
                        msg_length: length,
                        send_id: SendId(id.to_wire()),
                        tag: head.tag,
                        read_iov: source,
                        options: head.options,
                    }
                    .into(),
                    RequestHead::Write(head) => LongreadRtw {
                        rma_iov: head.target,
                        msg_length: length,
                        send_id: SendId(id.to_wire()),
                        read_iov: source,
                        options: head.options,
                    }
                    .into(),
                };
                (header, 0, Stream::Silent(Some(request)))
            }
            Stream::LongCts(request) => {
                let header: Header = match request {
                    RequestHead::Message(head) => head.long_cts(id, length, credits).into(),
                    RequestHead::Write(head) => LongctsRtw {
                        rma_iov: head.target,
                        msg_length: length,
                        send_id: SendId(id.to_wire()),
                        credit_request: credits,
                        delivery_complete: head.delivery_complete,
                        options: head.options,
                    }
                    .into(),
                };
                let size = room(mtu, &header).min(length);
                (header, size, Stream::CtsData(None))
            }
            Stream::NackAnswer(head) => {
                let mut header = head.long_cts(id, length, credits);
                header.options.flags |= ReqFlags::READ_NACK;
                (header.into(), 0, Stream::CtsData(None))
            }
            Stream::CtsData(Some(recv_id)) => {
                let mut header = CtsData {
                    recv_id,
                    seg_length: 0,
                    seg_offset: moved,
                    connid: data_connid,
                    ..CtsData::default()
                };
                header.seg_length = allowed.min(room(mtu, &header));
                (header.into(), header.seg_length, *self)
            }
            Stream::ReadResponse(recv_id) => {
                let mut header = ReadRsp {
                    connid: Some(connid),
                    recv_id,
                    send_id: SendId(id.to_wire()),
                    seg_length: 0,
                    ..ReadRsp::default()
                };
                header.seg_length = allowed.min(room(mtu, &header));
                let then = Stream::CtsData(Some(recv_id));
                (header.into(), header.seg_length, then)
            }
        };
        Some(NextPacket {
            header,
            size: size as usize,
            sequenced: None,
            then,
        })
    }
}

/// The progress of an operation, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Progress {
    /// Length of the data.
    pub(super) length: u64,
    /// Bytes moved so far.
    pub(super) moved: u64,
    /// Bytes that may be moved now, beyond those.
    pub(super) allowed: u64,
    /// Bytes that this side moves in all.
    pub(super) to_move: u64,
}

/// Bytes of data that fit after a header.
fn room(mtu: usize, header: &impl Repr) -> u64 {
    mtu.saturating_sub(header.header_len()) as u64
}

#[cfg(test)]
mod tests {
    use super::{SegmentSize, segment_size};

    #[test]
    fn segments_are_even_aligned_and_minimal() {
        for (length, capacity, expected) in [
            (8193, 8192, 4104),
            (65_536, 8864, 8192),
            (16_384, 8192, 8192),
            (100, 9, 9),
            (20, 16, 16),
            (1, 8192, 8),
        ] {
            let SegmentSize(size) = segment_size(length, capacity);
            assert_eq!(size, expected, "{length} by {capacity}");
            assert_eq!(
                length.div_ceil(size as u64),
                length.div_ceil(capacity as u64)
            );
        }
    }
}
