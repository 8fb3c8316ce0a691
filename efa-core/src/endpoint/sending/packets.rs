//! The next packet or RDMA write of an operation, and the progress once it is posted.

use crate::endpoint::api::operation::IoVec;
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::ids::OutboundId;
use crate::endpoint::memory::rdma::next_part;
use crate::wire::Connid;

use super::Sending;
use super::results::{NextRequest, PendingPost};
use super::stream::{NextPacket, Progress, Stream};

impl Sending {
    /// Records that an operation may have packets or requests to post. Returns whether it must be
    /// queued.
    #[must_use]
    pub(crate) fn enqueue(&mut self, id: OutboundId) -> bool {
        let Some((operation, bulk)) = self.with_bulk(id) else {
            return false;
        };
        let due = operation.failure.is_none() && !bulk.queued && bulk.has_work();
        bulk.queued |= due;
        due
    }

    /// Records that an operation is no longer queued.
    pub(crate) fn dequeue(&mut self, id: OutboundId) {
        if let Some((_, bulk)) = self.with_bulk(id) {
            bulk.queued = false;
        }
    }

    /// Whether a queued operation has something to post. If not, it leaves the queue.
    pub(crate) fn due(&mut self, id: OutboundId) -> PendingPost {
        let Some((operation, bulk)) = self.with_bulk(id) else {
            return PendingPost::Nothing;
        };
        if operation.failure.is_some() || !bulk.has_work() {
            bulk.queued = false;
            return PendingPost::Nothing;
        }
        match bulk.stream {
            Stream::CtsData(_) => PendingPost::Data(operation.peer),
            _ => PendingPost::Post,
        }
    }

    /// The next packet or RDMA write of an operation. RDMA writes have at most `rdma_limit` bytes.
    /// `connid` is the local connection id; `data_connid` is the one for CTSDATA, `None` if the
    /// peer does not expect one.
    pub(crate) fn next(
        &self,
        id: OutboundId,
        rdma_limit: usize,
        connid: Connid,
        data_connid: Option<Connid>,
    ) -> Option<NextRequest> {
        let operation = self.operations.get(id)?;
        let bulk = self.bulk_of(operation)?;
        if let Stream::RdmaWrite(target, immediate) = &bulk.stream {
            let (source, end) = (bulk.source.as_slice(), bulk.to_move);
            return Some(
                match next_part(source, target, bulk.moved, end, rdma_limit) {
                    Some(part) => NextRequest::Write(part, *immediate),
                    None => NextRequest::Unregistered,
                },
            );
        }
        let progress = Progress {
            length: operation.length,
            moved: bulk.moved,
            allowed: bulk.allowed - bulk.moved,
            to_move: bulk.to_move,
        };
        let mut next = bulk
            .stream
            .next_packet(id, progress, self.headers, connid, data_connid)?;
        next.sequenced = operation.msg_id.filter(|_| !operation.request_posted);
        Some(NextRequest::Packet(next))
    }

    /// The source of an operation, the offset of the next packet's data in it, and the protocol to
    /// count it under.
    pub(crate) fn data(&self, id: OutboundId) -> Option<(&[IoVec], u64, Protocol)> {
        let bulk = self.bulk_of(self.operations.get(id)?)?;
        Some((bulk.source.as_slice(), bulk.moved, bulk.protocol))
    }

    /// Records that the packet of [`Sending::next`] was posted.
    pub(crate) fn packet_posted(&mut self, id: OutboundId, packet: &NextPacket) {
        if let Some((operation, bulk)) = self.with_bulk(id) {
            operation.outstanding += 1;
            operation.request_posted = true;
            bulk.moved += packet.size as u64;
            bulk.allowed = bulk.allowed.max(bulk.moved);
            bulk.stream = packet.then;
        }
    }

    /// Records that the RDMA write of [`Sending::next`], of this many bytes, was posted.
    pub(crate) fn write_posted(&mut self, id: OutboundId, length: u64) {
        if let Some((operation, bulk)) = self.with_bulk(id) {
            operation.outstanding += 1;
            bulk.moved += length;
        }
    }
}
