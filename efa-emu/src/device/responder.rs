//! The responding side: requests of peers.

use efa_core::address::{Ahn, Gid, Qpn};
use efa_core::nic::{Access, DeviceCaps, Status};

use super::completion::CqTable;
use super::keys::RegionTable;
use super::queue::{Buffer, CompletionEntry, Received, WqeOperation};
use super::queue_pair::{QueuePair, Service};
use super::{CqId, Device};
use crate::link::{HostSegment, Operation, RemoteRange, RequestHeader, Transfer};

/// Bytes in front of the data in a UD receive: an InfiniBand global route header.
pub const GRH_LENGTH: usize = 40;

/// More scatter entries than any profile has.
const MAX_BUFFERS: usize = 4;

/// Room for the scatter entries of one receive.
type Buffers = [Buffer; MAX_BUFFERS];

/// A posted receive, read from the ring and not consumed yet.
#[derive(Clone, Copy)]
struct Receive {
    request_id: u16,
    /// Descriptors, and scatter entries.
    count: u16,
    /// Bytes of all scatter entries together.
    capacity: u64,
}

/// The receive queue holds something that is no receive.
pub(super) struct Malformed;

impl QueuePair {
    /// Descriptors that were posted and not consumed; all of them if that is fewer than `wanted`.
    #[inline(always)]
    pub(super) fn posted_descriptors(&mut self, wanted: u16) -> Result<u16, Malformed> {
        let available = self.recv.producer.wrapping_sub(self.recv.consumed);
        if available >= wanted {
            return Ok(available);
        }
        let producer = self.rings.recv.doorbell().read() as u16;
        let available = producer.wrapping_sub(self.recv.consumed);
        if u32::from(available) > self.config.recv_descriptors {
            return Err(Malformed);
        }
        self.recv.producer = producer;
        Ok(available)
    }

    /// The oldest posted receive; its scatter entries are put into `buffers`.
    #[inline(always)]
    fn next_receive(
        &mut self,
        max_sge: u32,
        buffers: &mut Buffers,
    ) -> Result<Option<Receive>, Malformed> {
        if self.posted_descriptors(1)? == 0 {
            return Ok(None);
        }
        let mut receive = Receive {
            request_id: 0,
            count: 0,
            capacity: 0,
        };
        loop {
            if self.posted_descriptors(receive.count + 1)? <= receive.count {
                return Err(Malformed);
            }
            let counter = self.recv.consumed.wrapping_add(receive.count);
            let descriptor = self.rings.recv.read(counter);
            if descriptor.first != (receive.count == 0)
                || u32::from(receive.count) >= max_sge.min(MAX_BUFFERS as u32)
            {
                return Err(Malformed);
            }
            if descriptor.first {
                receive.request_id = descriptor.request_id;
            }
            buffers[usize::from(receive.count)] = descriptor.buffer;
            receive.count += 1;
            receive.capacity += u64::from(descriptor.buffer.length);
            if descriptor.last {
                return Ok(Some(receive));
            }
        }
    }

    #[inline(always)]
    fn consume(&mut self, receive: &Receive) {
        self.recv.consumed = self.recv.consumed.wrapping_add(receive.count);
    }

    /// Completes every posted receive with [`Status::Flushed`].
    pub(super) fn flush_receives(&mut self, qpn: Qpn, cqs: &mut CqTable) {
        let mut buffers = Buffers::default();
        while let Ok(Some(receive)) = self.next_receive(MAX_BUFFERS as u32, &mut buffers) {
            self.consume(&receive);
            let entry = failed_receive(qpn, receive.request_id, Status::Flushed);
            cqs.write(self.config.recv_cq, &entry);
        }
    }
}

fn failed_receive(qpn: Qpn, request_id: u16, status: Status) -> CompletionEntry {
    CompletionEntry::of_receive(
        qpn,
        request_id,
        WqeOperation::Send,
        status.code(),
        &Received::NOTHING,
    )
}

#[cold]
fn write_failed_receive(cqs: &mut CqTable, cq: CqId, qpn: Qpn, request_id: u16, status: Status) {
    cqs.write(cq, &failed_receive(qpn, request_id, status));
}

impl Device {
    /// A request of the host `from`. The answer goes back to the initiator.
    ///
    /// Errors of `transfer` end the request: [`Status::LocalInvalidLkey`] says that this host's
    /// memory could not be reached (the receive fails, the initiator sees an abort), anything else
    /// is the initiator's (no receive is consumed).
    ///
    /// For datagrams the answer says what became of them; the initiator does not care.
    #[inline]
    pub fn deliver(
        &mut self,
        from: Gid,
        header: &RequestHeader,
        transfer: &mut impl Transfer,
    ) -> Status {
        let status = self.respond(from, header, transfer);
        if status == Status::Ok {
            self.counters.rx_pkts += u64::from(transfer.is_last());
        } else {
            self.counters.rx_drops += 1;
        }
        status
    }

    #[inline(always)]
    fn respond(
        &mut self,
        from: Gid,
        header: &RequestHeader,
        transfer: &mut impl Transfer,
    ) -> Status {
        let Some(qp) = self.qps.get_mut(header.destination_qpn) else {
            return Status::RemoteBadDestQpn;
        };
        let service = match header.operation {
            Operation::Datagram => Service::Ud,
            Operation::Send | Operation::RdmaRead | Operation::RdmaWrite => Service::Srd,
        };
        if !qp.receives() || qp.config.service != service || qp.qkey != header.qkey {
            return Status::RemoteBadDestQpn;
        }
        let sender = self.book.sender(qp.config.pd, from);
        let mut responder = Responder {
            qpn: header.destination_qpn,
            qp,
            regions: &self.regions,
            cqs: &mut self.cqs,
            own_gid: self.gid,
            from,
            sender,
            reports_gid: self.profile.caps.contains(DeviceCaps::CQ_WITH_SGID),
            max_sge: self.profile.max_rq_sge,
        };
        let length = u64::from(header.length);
        let status = match header.operation {
            Operation::Send | Operation::Datagram => {
                if header.length > self.profile.mtu {
                    return Status::RemoteBadLength;
                }
                let status = responder.receive(header, transfer);
                if status == Ok(()) {
                    self.counters.rx_bytes += length;
                    self.counters.recv_bytes += length;
                    self.counters.recv_wrs += 1;
                    responder.qp.recv.last_length = header.length;
                    self.last_receiver = Some(header.destination_qpn);
                }
                status
            }
            Operation::RdmaRead | Operation::RdmaWrite => {
                let needed = match header.operation {
                    Operation::RdmaRead => DeviceCaps::RDMA_READ,
                    _ => DeviceCaps::RDMA_WRITE,
                };
                if !self.profile.caps.contains(needed) {
                    return Status::RemoteFeatureMismatch;
                }
                if self.profile.unknown_peer_check && sender.is_none() {
                    return Status::RemoteUnknownPeer;
                }
                if header.length > self.profile.max_rdma_size {
                    return Status::RemoteBadLength;
                }
                let Some(remote) = header.remote else {
                    return Status::RemoteBadAddress;
                };
                let status = match header.operation {
                    Operation::RdmaRead => responder.read(header, remote, transfer),
                    _ => responder.write(header, remote, transfer),
                };
                if status == Ok(()) && transfer.is_last() {
                    match header.operation {
                        Operation::RdmaRead => self.counters.rdma_read_resp_bytes += length,
                        _ => {
                            self.counters.rx_bytes += length;
                            self.counters.rdma_write_recv_bytes += length;
                        }
                    }
                }
                status
            }
        };
        match status {
            Ok(()) => Status::Ok,
            Err(Refusal::Status(status)) => status,
            Err(Refusal::Malformed) => {
                self.fail(header.destination_qpn);
                Status::RemoteAbort
            }
        }
    }
}

#[derive(PartialEq, Eq)]
enum Refusal {
    Status(Status),
    Malformed,
}

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Self {
        Refusal::Malformed
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Refusal::Status(status)
    }
}

/// One request at the queue pair that it is for.
struct Responder<'a> {
    qpn: Qpn,
    qp: &'a mut QueuePair,
    regions: &'a RegionTable,
    cqs: &'a mut CqTable,
    own_gid: Gid,
    from: Gid,
    sender: Option<Ahn>,
    reports_gid: bool,
    max_sge: u32,
}

impl Responder<'_> {
    #[inline(always)]
    fn receive(
        &mut self,
        header: &RequestHeader,
        transfer: &mut impl Transfer,
    ) -> Result<(), Refusal> {
        let mut buffers = Buffers::default();
        let receive = self
            .qp
            .next_receive(self.max_sge, &mut buffers)?
            .ok_or(Status::RemoteRnr)?;
        let grh = match self.qp.config.service {
            Service::Srd => None,
            Service::Ud => Some(global_route_header(self.from, self.own_gid, header.length)),
        };
        let prefix = grh.as_ref().map_or(&[][..], |grh| &grh[..]);
        let length = prefix.len() as u32 + header.length;
        if u64::from(length) > receive.capacity {
            self.fail_receive(&receive, Status::LocalBadLength);
            return Err(Status::RemoteBadLength.into());
        }
        let buffers = &buffers[..usize::from(receive.count)];
        match self.scatter(buffers, prefix, length, transfer) {
            Ok(()) => {}
            Err(Status::LocalInvalidLkey) => {
                self.fail_receive(&receive, Status::LocalInvalidLkey);
                return Err(Status::RemoteAbort.into());
            }
            Err(status) => return Err(status.into()),
        }
        self.qp.consume(&receive);
        self.complete(
            receive.request_id,
            WqeOperation::Send,
            &Received {
                length,
                ahn: self.sender,
                source_qpn: header.source_qpn,
                source_gid: (self.reports_gid && self.sender.is_none()).then_some(self.from),
                immediate: header.immediate,
                unsolicited: false,
            },
        );
        Ok(())
    }

    /// Distributes `prefix` and then the request's data, `length` bytes together.
    #[inline(always)]
    fn scatter(
        &self,
        buffers: &[Buffer],
        prefix: &[u8],
        length: u32,
        transfer: &mut impl Transfer,
    ) -> Result<(), Status> {
        let mut done = 0;
        for buffer in buffers {
            let part = buffer.length.min(length - done);
            if part == 0 {
                continue;
            }
            let mut segment = self
                .regions
                .local(
                    self.qp.config.pd,
                    buffer.lkey,
                    buffer.address,
                    part,
                    Access::LOCAL_WRITE,
                )
                .ok_or(Status::LocalInvalidLkey)?;
            if let Some(rest) = prefix.get(done as usize..)
                && !rest.is_empty()
            {
                let own = rest.len().min(part as usize);
                transfer.fill(segment.address, &rest[..own])?;
                segment.address += own as u64;
                segment.length -= own as u32;
                done += own as u32;
            }
            if segment.length > 0 {
                transfer.fetch(done - prefix.len() as u32, segment)?;
                done += segment.length;
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn read(
        &mut self,
        header: &RequestHeader,
        remote: RemoteRange,
        transfer: &mut impl Transfer,
    ) -> Result<(), Refusal> {
        if let Some(segment) = self.resolve(header, remote, Access::REMOTE_READ)? {
            transfer.store(0, segment).map_err(remote_status)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn write(
        &mut self,
        header: &RequestHeader,
        remote: RemoteRange,
        transfer: &mut impl Transfer,
    ) -> Result<(), Refusal> {
        let segment = self.resolve(header, remote, Access::REMOTE_WRITE)?;
        let unsolicited = self.qp.config.unsolicited_write_recv;
        let receive = match header.immediate {
            Some(_) if !unsolicited => Some(
                self.qp
                    .next_receive(self.max_sge, &mut Buffers::default())?
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
        let Some(immediate) = header.immediate else {
            return Ok(());
        };
        if let Some(receive) = &receive {
            self.qp.consume(receive);
        }
        self.complete(
            receive.map_or(0, |receive| receive.request_id),
            WqeOperation::RdmaWrite,
            &Received {
                length: header.length,
                ahn: self.sender,
                source_qpn: header.source_qpn,
                source_gid: None,
                immediate: Some(immediate),
                unsolicited,
            },
        );
        Ok(())
    }

    /// The memory that an RDMA request names; `None` if it names no bytes, which needs no key.
    #[inline(always)]
    fn resolve(
        &self,
        header: &RequestHeader,
        remote: RemoteRange,
        access: Access,
    ) -> Result<Option<HostSegment>, Status> {
        if header.length == 0 {
            return Ok(None);
        }
        self.regions
            .remote(
                self.qp.config.pd,
                remote.key,
                remote.address,
                header.length,
                access,
            )
            .map(Some)
            .ok_or(Status::RemoteBadAddress)
    }

    #[inline(always)]
    fn complete(&mut self, request_id: u16, operation: WqeOperation, received: &Received) {
        let ok = Status::Ok.code();
        let entry = CompletionEntry::of_receive(self.qpn, request_id, operation, ok, received);
        self.cqs.write(self.qp.config.recv_cq, &entry);
    }

    #[inline(always)]
    fn fail_receive(&mut self, receive: &Receive, status: Status) {
        self.qp.consume(receive);
        let recv_cq = self.qp.config.recv_cq;
        write_failed_receive(self.cqs, recv_cq, self.qpn, receive.request_id, status);
    }
}

/// An RDMA transfer that could not reach this host's memory looks to the initiator like memory that
/// is not registered.
fn remote_status(status: Status) -> Status {
    match status {
        Status::LocalInvalidLkey => Status::RemoteBadAddress,
        other => other,
    }
}

/// The header that an InfiniBand UD receive starts with: IPv6's layout, the transport header and the
/// payload behind it.
fn global_route_header(from: Gid, to: Gid, length: u32) -> [u8; GRH_LENGTH] {
    const VERSION: u8 = 6 << 4;
    /// Next header: an InfiniBand transport header.
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
