//! The packets of an operation that takes more than one: which comes next, and posting them as the
//! device has room.

use crate::endpoint::api::error::Failure;
use crate::nic::Nic;
use crate::wire::{
    CtsData, ExtraFeatures, LongctsRtm, LongctsRtw, LongreadRtm, LongreadRtw, MediumRtm, MsgId,
    ReadRsp, RecvId, Repr, ReqFlags, ReqOptions, RmaIovs, RuntreadRtm, SendId,
};

use crate::endpoint::Endpoint;
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::ids::{OutboundId, PeerId};
use crate::endpoint::posting::QUANTUM;
use crate::endpoint::posting::{Outgoing, Owner};
use crate::endpoint::sending::outbound::{Bulk, BulkKey};

/// What the next packet of an operation looks like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stream {
    /// There is none. What is left of the request is what an answer to READ_NACK needs.
    Silent(Option<Request>),
    /// MEDIUM segments.
    Medium(MessageHead, SegmentSize),
    /// RUNTREAD segments.
    Runt(MessageHead, SegmentSize, RmaIovs),
    /// LONGCTS_RTM or LONGCTS_RTW, then CTSDATA.
    LongCts(Request),
    /// LONGREAD_RTM or LONGREAD_RTW, with the memory that the peer is to read.
    LongRead(Request, RmaIovs),
    /// LONGCTS_RTM in answer to READ_NACK, without data, then CTSDATA.
    NackAnswer(MessageHead),
    /// CTSDATA for the peer's operation; `None` before the first CTS.
    CtsData(Option<RecvId>),
    /// READRSP, then CTSDATA.
    ReadResponse(RecvId),
    /// RDMA writes.
    RdmaWrite(RmaIovs, Option<u32>),
}

/// Bytes of data per segment; the last one may have less.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentSize(pub(crate) usize);

/// What the requests of one operation have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    Message(MessageHead),
    Write(WriteHead),
}

/// The fields of a message's requests. Every segment has the same headers, as the receiver may see
/// any of them first.
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
    /// What its packets belong to, for the counters of copied bytes. A read-based request carries no
    /// data; should it be refused, the data goes in windows.
    pub(crate) fn protocol(&self) -> Protocol {
        match self {
            Stream::Medium(..) => Protocol::Medium,
            Stream::Runt(..) => Protocol::RuntingRead,
            Stream::LongCts(Request::Write(_))
            | Stream::LongRead(Request::Write(_), _)
            | Stream::RdmaWrite(..) => Protocol::LongCtsWrite,
            Stream::ReadResponse(_) => Protocol::EmulatedRead,
            Stream::LongCts(Request::Message(_))
            | Stream::LongRead(Request::Message(_), _)
            | Stream::NackAnswer(_)
            | Stream::CtsData(_)
            | Stream::Silent(_) => Protocol::LongCts,
        }
    }

    /// Whether the next packet is due whether or not data may be moved.
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

/// Bytes per segment: as few segments as possible, of about the same size, which is a multiple of 8
/// so that the receiver's copies are aligned (as stock libfabric 1.17 splits).
pub(crate) fn segment_size(length: u64, capacity: usize) -> SegmentSize {
    let count = length.div_ceil(capacity.max(1) as u64).max(1);
    let size = length.div_ceil(count).next_multiple_of(8);
    SegmentSize(size.min(capacity as u64) as usize)
}

/// The next packet of an operation.
struct Next {
    packet: Outgoing,
    /// Bytes of data behind its header.
    size: usize,
    /// What comes after it.
    then: Stream,
}

impl<N: Nic> Endpoint<N> {
    /// Starts an operation: its first packet goes out now, as the call can still fail, others follow
    /// as the device has room.
    pub(crate) fn start_stream(&mut self, id: OutboundId) -> Result<(), EndpointError> {
        if let Err(error) = self.send_next(id) {
            self.discard_outbound(id);
            return Err(error);
        }
        self.queue_outbound(id);
        Ok(())
    }

    /// Posts packets of an operation, up to [`QUANTUM`]. Returns whether there are more to post.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`]; other errors end the operation.
    pub(crate) fn send_stream(&mut self, id: OutboundId) -> Result<bool, EndpointError> {
        for _ in 0..QUANTUM {
            let failed = self
                .outbound
                .get(id)
                .is_none_or(|outbound| outbound.failure.is_some());
            let Some(bulk) = self.bulk_mut(id) else {
                return Ok(false);
            };
            if failed || !bulk.has_work() {
                bulk.queued = false;
                return Ok(false);
            }
            if matches!(bulk.stream, Stream::CtsData(_)) && self.waits_for_handshake(id) {
                return Ok(false);
            }
            match self.send_next(id) {
                Ok(()) => {}
                Err(EndpointError::TryAgain) => return Err(EndpointError::TryAgain),
                Err(error) => {
                    if let Some(bulk) = self.bulk_mut(id) {
                        bulk.queued = false;
                    }
                    self.fail_outbound(id, Failure::of_post(&error));
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Makes an operation wait if its peer has not sent its HANDSHAKE. Only that says whether CTSDATA
    /// may have a connection id, and without one the peer cannot tell us from an earlier owner of our
    /// queue pair number whose last packets arrive late. Stock libfabric since 1.17 waits as well.
    fn waits_for_handshake(&mut self, id: OutboundId) -> bool {
        let peer = self.outbound.get(id).map(|outbound| outbound.peer);
        let Some(state) = peer.and_then(|peer| self.peers.state_mut(peer)) else {
            return false;
        };
        let Some(waiting) = state.handshake.waiting() else {
            return false;
        };
        // It stays marked as queued: more windows do not put it here again.
        waiting.granted_data.push(id);
        true
    }

    /// Posts one packet of an operation that has something to post.
    fn send_next(&mut self, id: OutboundId) -> Result<(), EndpointError> {
        let Some(outbound) = self.outbound.get(id) else {
            return Ok(());
        };
        let Some(BulkKey(key)) = outbound.bulk else {
            return Ok(());
        };
        let (peer, length) = (outbound.peer, outbound.length);
        let bulk = &self.bulks[key as usize];
        let moved = bulk.moved;
        if let Stream::RdmaWrite(target, immediate) = bulk.stream {
            let size = self.post_rdma_write(id, peer, BulkKey(key), &target, immediate)?;
            return self.note_posted(id, size, Stream::RdmaWrite(target, immediate));
        }
        let Some(next) = self.next_packet(id, peer, length, BulkKey(key))? else {
            return Ok(());
        };
        let mut packet = next.packet;
        let Bulk {
            source, protocol, ..
        } = &self.bulks[key as usize];
        let protocol = *protocol;
        let copied = self
            .posting
            .attach(&mut packet, source.as_slice(), moved, next.size, true)?;
        self.reports.statistics.note_sent(protocol, copied);
        self.post_packet(peer, Owner::Outbound(id), packet)?;
        self.note_posted(id, next.size as u64, next.then)
    }

    fn note_posted(
        &mut self,
        id: OutboundId,
        size: u64,
        then: Stream,
    ) -> Result<(), EndpointError> {
        if let Some(outbound) = self.outbound.get_mut(id) {
            outbound.outstanding += 1;
        }
        if let Some(bulk) = self.bulk_mut(id) {
            bulk.moved += size;
            bulk.allowed = bulk.allowed.max(bulk.moved);
            bulk.stream = then;
        }
        Ok(())
    }

    fn next_packet(
        &mut self,
        id: OutboundId,
        peer: PeerId,
        length: u64,
        BulkKey(key): BulkKey,
    ) -> Result<Option<Next>, EndpointError> {
        let bulk = &self.bulks[key as usize];
        let (stream, moved, to_move) = (bulk.stream, bulk.moved, bulk.to_move);
        let allowed = bulk.allowed - moved;
        let credits = self.config.cts_window_packets;
        let mtu = self.mtu;
        let next = match stream {
            Stream::Silent(_) | Stream::CtsData(None) | Stream::RdmaWrite(..) => return Ok(None),
            Stream::Medium(head, SegmentSize(size)) => Next {
                packet: self.posting.start_packet(&head.medium(id, length, moved))?,
                size: allowed.min(size as u64) as usize,
                then: stream,
            },
            Stream::Runt(head, SegmentSize(size), source) => {
                let size = allowed.min(size as u64);
                let header = head.runt(id, length, moved, to_move, &source);
                Next {
                    packet: self.posting.start_packet(&header)?,
                    size: size as usize,
                    then: match moved + size == to_move {
                        // A READ_NACK may come, to be answered with the same head.
                        true => Stream::Silent(Some(Request::Message(head))),
                        false => stream,
                    },
                }
            }
            Stream::LongRead(request, source) => {
                let packet = match request {
                    Request::Message(head) => self.posting.start_packet(&LongreadRtm {
                        msg_id: head.msg_id,
                        msg_length: length,
                        send_id: SendId(id.to_wire()),
                        tag: head.tag,
                        read_iov: source,
                        options: head.options,
                    })?,
                    Request::Write(head) => self.posting.start_packet(&LongreadRtw {
                        rma_iov: head.target,
                        msg_length: length,
                        send_id: SendId(id.to_wire()),
                        read_iov: source,
                        options: head.options,
                    })?,
                };
                Next {
                    packet,
                    size: 0,
                    then: Stream::Silent(Some(request)),
                }
            }
            Stream::LongCts(Request::Message(head)) => {
                let header = head.long_cts(id, length, credits);
                let size = room(mtu, &header);
                Next {
                    packet: self.posting.start_packet(&header)?,
                    size: size.min(length) as usize,
                    then: Stream::CtsData(None),
                }
            }
            Stream::LongCts(Request::Write(head)) => {
                let header = LongctsRtw {
                    rma_iov: head.target,
                    msg_length: length,
                    send_id: SendId(id.to_wire()),
                    credit_request: credits,
                    delivery_complete: head.delivery_complete,
                    options: head.options,
                };
                let size = room(mtu, &header);
                Next {
                    packet: self.posting.start_packet(&header)?,
                    size: size.min(length) as usize,
                    then: Stream::CtsData(None),
                }
            }
            Stream::NackAnswer(head) => {
                let mut header = head.long_cts(id, length, credits);
                header.options.flags |= ReqFlags::READ_NACK;
                Next {
                    packet: self.posting.start_packet(&header)?,
                    size: 0,
                    then: Stream::CtsData(None),
                }
            }
            Stream::CtsData(Some(recv_id)) => {
                let mut header = CtsData {
                    recv_id,
                    seg_length: 0,
                    seg_offset: moved,
                    // libfabric before 1.14 would take it for data; it does not ask for it.
                    connid: self
                        .peers
                        .state(peer)
                        .filter(|state| state.handshake.has(ExtraFeatures::CONNID_HEADER))
                        .map(|_| self.address.qkey.into()),
                    ..CtsData::default()
                };
                header.seg_length = allowed.min(room(mtu, &header));
                Next {
                    packet: self.posting.start_packet(&header)?,
                    size: header.seg_length as usize,
                    then: stream,
                }
            }
            Stream::ReadResponse(recv_id) => {
                let mut header = ReadRsp {
                    connid: Some(self.address.qkey.into()),
                    recv_id,
                    send_id: SendId(id.to_wire()),
                    seg_length: 0,
                    ..ReadRsp::default()
                };
                header.seg_length = allowed.min(room(mtu, &header));
                Next {
                    packet: self.posting.start_packet(&header)?,
                    size: header.seg_length as usize,
                    then: Stream::CtsData(Some(recv_id)),
                }
            }
        };
        Ok(Some(next))
    }
}

/// Bytes that fit behind a header.
fn room(mtu: usize, header: &impl Repr) -> u64 {
    mtu.saturating_sub(header.header_len()) as u64
}

#[cfg(test)]
mod tests {
    use super::{SegmentSize, segment_size};

    #[test]
    fn segments_are_even_aligned_and_as_few_as_possible() {
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
