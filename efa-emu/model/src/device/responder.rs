//! The responder: requests of peers.

use efa_core::address::{Gid, Qpn};
use efa_core::nic::{Access, DeviceCaps, Status};

use super::comp_counter::CountedOps;
use super::cq_table::CqTable;
use super::ids::PdId;
use super::queue::{Buffer, CompletionEntry, ReceiveDescriptor, Received, WqeOperation};
use super::queue_pair::{QueuePair, Service};
use super::regions::RegionTable;
use super::state::Device;
use crate::link::{HostSegment, Operation, RequestHeader, Transfer};

/// Bytes in front of the data in a UD receive: an InfiniBand global route header.
pub const GRH_LENGTH: usize = 40;

/// At least the number of scatter entries of every profile.
const MAX_BUFFERS: usize = 4;

/// A posted receive, read from the ring and not consumed yet.
#[derive(Clone, Copy)]
struct Receive {
    request_id: u16,
    /// The number of descriptors, which are its scatter entries.
    count: u16,
}

/// The scatter entries of a receive that has more than one.
struct ScatterList {
    receive: Receive,
    buffers: [Buffer; MAX_BUFFERS],
}

impl ScatterList {
    fn buffers(&self) -> &[Buffer] {
        &self.buffers[..usize::from(self.receive.count)]
    }
}

/// The receive queue contains invalid descriptors.
pub(super) struct MalformedQueue;

impl QueuePair {
    /// The number of descriptors that were posted and not consumed. Reads the doorbell only if
    /// fewer than `wanted` are already known.
    #[inline(always)]
    pub(super) fn posted_descriptors(&mut self, wanted: u16) -> Result<u16, MalformedQueue> {
        let available = self.recv.producer.wrapping_sub(self.recv.consumed);
        if available >= wanted {
            return Ok(available);
        }
        let producer = self.rings.recv.doorbell().read() as u16;
        let available = producer.wrapping_sub(self.recv.consumed);
        if u32::from(available) > self.config.recv_descriptors {
            return Err(MalformedQueue);
        }
        self.recv.producer = producer;
        Ok(available)
    }

    /// The first descriptor of the oldest posted receive. Nearly every receive has no other.
    #[inline(always)]
    fn first_descriptor(&mut self) -> Result<Option<ReceiveDescriptor>, MalformedQueue> {
        if self.posted_descriptors(1)? == 0 {
            return Ok(None);
        }
        let first = self.rings.recv.read(self.recv.consumed);
        match first.first {
            true => Ok(Some(first)),
            false => Err(MalformedQueue),
        }
    }

    /// The oldest posted receive.
    fn next_receive(&mut self, max_sge: u32) -> Result<Option<Receive>, MalformedQueue> {
        Ok(match self.first_descriptor()? {
            None => None,
            Some(only) if only.last => Some(Receive {
                request_id: only.request_id,
                count: 1,
            }),
            Some(_) => Some(self.scattered(max_sge)?.receive),
        })
    }

    /// Reads the oldest posted receive, which has more than one descriptor.
    #[cold]
    fn scattered(&mut self, max_sge: u32) -> Result<ScatterList, MalformedQueue> {
        let first = self.rings.recv.read(self.recv.consumed);
        let mut buffers = [Buffer::default(); MAX_BUFFERS];
        buffers[0] = first.buffer;
        let mut count = 1;
        loop {
            if self.posted_descriptors(count + 1)? <= count {
                return Err(MalformedQueue);
            }
            let counter = self.recv.consumed.wrapping_add(count);
            let descriptor = self.rings.recv.read(counter);
            if descriptor.first || u32::from(count) >= max_sge.min(MAX_BUFFERS as u32) {
                return Err(MalformedQueue);
            }
            buffers[usize::from(count)] = descriptor.buffer;
            count += 1;
            if descriptor.last {
                let request_id = first.request_id;
                let receive = Receive { request_id, count };
                return Ok(ScatterList { receive, buffers });
            }
        }
    }

    #[inline(always)]
    fn consume(&mut self, receive: Receive) {
        self.recv.consumed = self.recv.consumed.wrapping_add(receive.count);
    }

    /// Completes every posted receive with [`Status::Flushed`].
    pub(super) fn flush_receives(&mut self, qpn: Qpn, cqs: &mut CqTable) {
        while let Ok(Some(receive)) = self.next_receive(MAX_BUFFERS as u32) {
            self.consume(receive);
            let entry = failed_receive(qpn, receive.request_id, Status::Flushed);
            cqs.write(self.config.recv_cq, &entry);
        }
    }
}

#[cold]
fn failed_receive(qpn: Qpn, request_id: u16, status: Status) -> CompletionEntry {
    CompletionEntry::of_receive(
        qpn,
        request_id,
        WqeOperation::Send,
        status.code(),
        &Received::NOTHING,
    )
}

impl Device {
    /// Executes a request of the host `from`. Returns the answer for the initiator.
    ///
    /// An error of `transfer` ends the request. With [`Status::LocalInvalidLkey`] this host's
    /// memory could not be accessed: the receive fails, and the initiator sees an abort. Any other
    /// error belongs to the initiator, and no receive is consumed.
    ///
    /// The initiator ignores the answer to a datagram.
    #[inline(always)]
    pub fn deliver(
        &mut self,
        from: Gid,
        header: &RequestHeader,
        transfer: &mut impl Transfer,
    ) -> Status {
        let answer = match header.operation {
            Operation::Send => {
                self.take_receive(Service::Srd, from, header, header.length, transfer)
            }
            Operation::Datagram => self.receive_datagram(from, header, transfer),
            Operation::RdmaRead | Operation::RdmaWrite => self.access(from, header, transfer),
            Operation::Connected => return self.deliver_connected(from, header, transfer),
        };
        match answer {
            Ok(()) => {
                self.counters.rx_pkts += u64::from(transfer.is_last());
                Status::Ok
            }
            Err(refusal) => {
                let is_dropped = !transfer.is_deferred();
                self.refuse(from, *header, refusal, is_dropped)
            }
        }
    }

    /// Counts a refused request. Returns the status for its initiator. It gets a copy of the
    /// header, because a reference would keep the header of every request in memory.
    #[cold]
    fn refuse(
        &mut self,
        from: Gid,
        header: RequestHeader,
        refusal: Refusal,
        is_dropped: bool,
    ) -> Status {
        let qpn = header.destination_qpn;
        let status = match refusal {
            Refusal::Status(status) => status,
            Refusal::Malformed => Status::RemoteAbort,
        };
        if is_dropped {
            tracing::debug!(
                peer = %from,
                peer_qpn = %header.source_qpn,
                %qpn,
                operation = ?header.operation,
                length = header.length,
                ?status,
                "packet dropped"
            );
        }
        self.counters.rx_drops += u64::from(is_dropped);
        self.diagnostics.rnr_refusals += u64::from(refusal == Refusal::Status(Status::RemoteRnr));
        if refusal == Refusal::Malformed {
            self.fail(qpn);
        }
        status
    }

    /// Delivers a datagram to a posted receive, with the device's own header in front of the data.
    #[cold]
    fn receive_datagram(
        &mut self,
        from: Gid,
        header: &RequestHeader,
        transfer: &mut impl Transfer,
    ) -> Result<(), Refusal> {
        let length = header.length.saturating_add(GRH_LENGTH as u32);
        let grh = global_route_header(from, self.gid, header.length);
        let mut transfer = WithGrh { grh, transfer };
        self.take_receive(Service::Ud, from, header, length, &mut transfer)
    }

    /// Consumes a receive for the `length` bytes of `transfer`.
    #[inline(always)]
    fn take_receive(
        &mut self,
        service: Service,
        from: Gid,
        header: &RequestHeader,
        length: u32,
        transfer: &mut impl Transfer,
    ) -> Result<(), Refusal> {
        let qpn = header.destination_qpn;
        let found = self.qps.get_mut(qpn);
        let Some(qp) = found.filter(|qp| qp.accepts(service, header.qkey)) else {
            return Err(self.no_queue_pair(service, qpn).into());
        };
        let profile = &self.profile;
        if header.length > profile.mtu {
            return Err(Status::RemoteBadLength.into());
        }
        let first = qp.first_descriptor()?.ok_or(Status::RemoteRnr)?;
        let (receive, moved) = if first.last {
            let receive = Receive {
                request_id: first.request_id,
                count: 1,
            };
            let moved = fill(&self.regions, qp.config.pd, first.buffer, length, transfer);
            (receive, moved)
        } else {
            let scattered = qp.scattered(profile.max_rq_sge)?;
            let buffers = scattered.buffers();
            let moved = scatter(&self.regions, qp.config.pd, buffers, length, transfer);
            (scattered.receive, moved)
        };
        match moved {
            Ok(()) => {}
            // The receive fails, and the initiator gets a valid status for that.
            Err(status @ (Status::LocalBadLength | Status::LocalInvalidLkey)) => {
                qp.consume(receive);
                let entry = failed_receive(qpn, receive.request_id, status);
                self.cqs.write(qp.config.recv_cq, &entry);
                return Err(match status {
                    Status::LocalBadLength => Status::RemoteBadLength.into(),
                    _ => Status::RemoteAbort.into(),
                });
            }
            Err(status) => return Err(status.into()),
        }
        qp.consume(receive);
        qp.recv.last_length = header.length;
        let sender = self.book.sender(qp.config.pd, from);
        let reports_gid = profile.caps.contains(DeviceCaps::CQ_WITH_SGID);
        let received = Received {
            length,
            ahn: sender,
            source_qpn: header.source_qpn,
            source_gid: (reports_gid && sender.is_none()).then_some(from),
            immediate: header.immediate,
            unsolicited: false,
        };
        let ok = Status::Ok.code();
        let entry =
            CompletionEntry::of_receive(qpn, receive.request_id, WqeOperation::Send, ok, &received);
        self.cqs.write(qp.config.recv_cq, &entry);
        let bytes = u64::from(header.length);
        self.counters.rx_bytes += bytes;
        self.counters.recv_bytes += bytes;
        self.counters.recv_wrs += 1;
        self.last_receiver = Some(qpn);
        Ok(())
    }

    /// The status of a request that no queue pair accepts.
    #[cold]
    fn no_queue_pair(&self, service: Service, qpn: Qpn) -> Status {
        let statuses = &self.profile.statuses;
        match self.qps.get(qpn) {
            Some(qp) if qp.accepts(service, qp.qkey) => statuses.wrong_qkey,
            _ => statuses.unknown_queue_pair,
        }
    }

    /// Executes an RDMA read or write of registered memory.
    // Marked cold to keep the path of messages short. Here the copy costs more than the calls.
    #[cold]
    fn access(
        &mut self,
        from: Gid,
        header: &RequestHeader,
        transfer: &mut impl Transfer,
    ) -> Result<(), Refusal> {
        let qpn = header.destination_qpn;
        let found = self.qps.get_mut(qpn);
        let Some(qp) = found.filter(|qp| qp.accepts(Service::Srd, header.qkey)) else {
            return Err(self.no_queue_pair(Service::Srd, qpn).into());
        };
        let (needed, access) = match header.operation {
            Operation::RdmaRead => (DeviceCaps::RDMA_READ, Access::REMOTE_READ),
            _ => (DeviceCaps::RDMA_WRITE, Access::REMOTE_WRITE),
        };
        let profile = &self.profile;
        if !profile.caps.contains(needed) {
            return Err(Status::RemoteFeatureMismatch.into());
        }
        let pd = qp.config.pd;
        let sender = self.book.sender(pd, from);
        if profile.unknown_peer_check && sender.is_none() {
            return Err(profile.statuses.unknown_peer.into());
        }
        if header.length > profile.max_rdma_size {
            return Err(Status::RemoteBadLength.into());
        }
        let remote = header.remote.ok_or(Status::RemoteBadAddress)?;
        // A request for no bytes needs no key.
        let segment = match header.length {
            0 => None,
            length => Some(
                self.regions
                    .remote(pd, remote.key, remote.address, length, access)
                    .ok_or_else(|| {
                        let regions = &self.regions;
                        let refused = regions.why_not(pd, remote.key, remote.address, length);
                        refused.status(&profile.statuses)
                    })?,
            ),
        };
        let length = u64::from(header.length);
        if header.operation == Operation::RdmaRead {
            if let Some(segment) = segment {
                transfer.store(0, segment).map_err(remote_status)?;
            }
            if transfer.is_last() {
                self.counters.rdma_read_resp_bytes += length;
                if qp.counted {
                    self.cqs.count(qpn, CountedOps::REMOTE_RDMA_READ);
                }
            }
            return Ok(());
        }
        let unsolicited = qp.config.unsolicited_write_recv;
        let receive = match header.immediate {
            Some(_) if !unsolicited => Some(
                qp.next_receive(profile.max_rq_sge)?
                    .ok_or(Status::RemoteRnr)?,
            ),
            _ => None,
        };
        if let Some(segment) = segment {
            transfer.fetch(0, segment).map_err(remote_status)?;
        }
        if !transfer.is_last() {
            return Ok(());
        }
        self.counters.rx_bytes += length;
        self.counters.rdma_write_recv_bytes += length;
        if qp.counted {
            self.cqs.count(qpn, CountedOps::REMOTE_RDMA_WRITE);
        }
        let Some(immediate) = header.immediate else {
            return Ok(());
        };
        if let Some(receive) = receive {
            qp.consume(receive);
        }
        let received = Received {
            length: header.length,
            ahn: sender,
            source_qpn: header.source_qpn,
            source_gid: None,
            immediate: Some(immediate),
            unsolicited,
        };
        let request_id = receive.map_or(0, |receive| receive.request_id);
        let (write, ok) = (WqeOperation::RdmaWrite, Status::Ok.code());
        let entry = CompletionEntry::of_receive(qpn, request_id, write, ok, &received);
        self.cqs.write(qp.config.recv_cq, &entry);
        Ok(())
    }
}

/// The reason why a request was refused.
#[derive(PartialEq, Eq)]
enum Refusal {
    Status(Status),
    Malformed,
}

impl From<MalformedQueue> for Refusal {
    fn from(_: MalformedQueue) -> Self {
        Refusal::Malformed
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Refusal::Status(status)
    }
}

/// Moves the `length` bytes of `transfer` into the only buffer of a receive.
#[inline(always)]
fn fill(
    regions: &RegionTable,
    pd: PdId,
    buffer: Buffer,
    length: u32,
    transfer: &mut impl Transfer,
) -> Result<(), Status> {
    if length > buffer.length {
        return Err(Status::LocalBadLength);
    }
    if length == 0 {
        return Ok(());
    }
    let segment = regions
        .local(pd, buffer.lkey, buffer.address, length, Access::LOCAL_WRITE)
        .ok_or(Status::LocalInvalidLkey)?;
    transfer.fetch(0, segment)
}

/// Distributes the `length` bytes of `transfer` over the buffers of a receive.
#[cold]
fn scatter(
    regions: &RegionTable,
    pd: PdId,
    buffers: &[Buffer],
    length: u32,
    transfer: &mut impl Transfer,
) -> Result<(), Status> {
    let capacity: u64 = buffers.iter().map(|buffer| u64::from(buffer.length)).sum();
    if u64::from(length) > capacity {
        return Err(Status::LocalBadLength);
    }
    let mut done = 0;
    for buffer in buffers {
        let part = buffer.length.min(length - done);
        if part > 0 {
            let access = Access::LOCAL_WRITE;
            let segment = regions
                .local(pd, buffer.lkey, buffer.address, part, access)
                .ok_or(Status::LocalInvalidLkey)?;
            transfer.fetch(done, segment)?;
            done += part;
        }
    }
    Ok(())
}

/// A datagram with the header of a UD receive.
struct WithGrh<'a, T> {
    grh: [u8; GRH_LENGTH],
    transfer: &'a mut T,
}

impl<T: Transfer> Transfer for WithGrh<'_, T> {
    fn fetch(&mut self, offset: u32, mut to: HostSegment) -> Result<(), Status> {
        let rest = self.grh.get(offset as usize..).unwrap_or_default();
        let own = rest.len().min(to.length as usize);
        if own > 0 {
            self.transfer.fill(to.address, &rest[..own])?;
            to.address += own as u64;
            to.length -= own as u32;
        }
        if to.length == 0 {
            return Ok(());
        }
        self.transfer
            .fetch(offset + own as u32 - GRH_LENGTH as u32, to)
    }

    fn store(&mut self, offset: u32, from: HostSegment) -> Result<(), Status> {
        self.transfer.store(offset, from)
    }

    fn fill(&mut self, to: u64, bytes: &[u8]) -> Result<(), Status> {
        self.transfer.fill(to, bytes)
    }

    fn is_last(&self) -> bool {
        self.transfer.is_last()
    }

    fn is_deferred(&self) -> bool {
        self.transfer.is_deferred()
    }
}

/// The status for the initiator. Memory of this host that could not be accessed is reported like
/// memory that is not registered.
fn remote_status(status: Status) -> Status {
    match status {
        Status::LocalInvalidLkey => Status::RemoteBadAddress,
        other => other,
    }
}

/// The header with which an InfiniBand UD receive starts. It has the layout of an IPv6 header.
fn global_route_header(from: Gid, to: Gid, length: u32) -> [u8; GRH_LENGTH] {
    const VERSION: u8 = 6 << 4;
    /// The next header is an InfiniBand transport header.
    const INFINIBAND: u8 = 0x1b;
    const HOP_LIMIT: u8 = 255;
    let mut bytes = [0; GRH_LENGTH];
    bytes[0] = VERSION;
    bytes[4..6].copy_from_slice(&(length as u16).to_be_bytes());
    bytes[6] = INFINIBAND;
    bytes[7] = HOP_LIMIT;
    bytes[8..24].copy_from_slice(&from.0);
    bytes[24..40].copy_from_slice(&to.0);
    bytes
}
