//! From a send queue entry to a request, or to the completion that says why there is none.

use efa_core::address::{Ahn, Qpn};
use efa_core::nic::{Access, DeviceCaps, Status};

use crate::device::Counters;
use crate::device::address_book::AddressBook;
use crate::device::flight::{Place, Request, RequestData};
use crate::device::keys::RegionTable;
use crate::device::queue::{
    BadWorkRequest, CompletionEntry, Payload, QueueSide, SendDetail, WorkRequest, WqeOperation,
};
use crate::device::queue_pair::{QueuePair, Service};
use crate::link::{HostSegment, Operation, RemoteRange, RequestHeader};
use crate::profile::Profile;

fn local_access(operation: WqeOperation) -> Access {
    match operation {
        WqeOperation::RdmaRead => Access::LOCAL_WRITE,
        WqeOperation::Send | WqeOperation::RdmaWrite => Access::empty(),
    }
}

pub(super) fn local_still_valid(request: &Request, qp: &QueuePair, regions: &RegionTable) -> bool {
    let RequestData::Segments {
        count,
        segments,
        named,
    } = &request.data
    else {
        return true;
    };
    let access = local_access(request.operation);
    segments[..usize::from(*count)]
        .iter()
        .zip(named)
        .all(|(segment, &(lkey, iova))| {
            segment.length == 0
                || regions.local(qp.config.pd, lkey, iova, segment.length, access) == Some(*segment)
        })
}

/// Checks a work request and resolves its memory.
pub(super) fn prepare(
    wqe: &WorkRequest,
    qpn: Qpn,
    qp: &QueuePair,
    regions: &RegionTable,
    book: &AddressBook,
    profile: &Profile,
) -> Result<Request, LocalFailure> {
    let fail = |status| LocalFailure::of(wqe, status);
    let caps = profile.caps;
    let (operation, supported, longest) = match (wqe.operation, qp.config.service) {
        (WqeOperation::Send, Service::Srd) => (Operation::Send, true, profile.mtu),
        (WqeOperation::Send, Service::Ud) => (Operation::Datagram, true, profile.mtu),
        (WqeOperation::RdmaRead, service) => (
            Operation::RdmaRead,
            service == Service::Srd
                && caps.contains(DeviceCaps::RDMA_READ)
                && wqe.immediate.is_none(),
            profile.max_rdma_size,
        ),
        (WqeOperation::RdmaWrite, service) => (
            Operation::RdmaWrite,
            service == Service::Srd && caps.contains(DeviceCaps::RDMA_WRITE),
            profile.max_rdma_size,
        ),
    };
    if !supported {
        return Err(fail(Status::LocalUnsupportedOp));
    }
    let ahn = Ahn(wqe.ahn);
    let to = book
        .destination(qp.config.pd, ahn)
        .ok_or_else(|| fail(Status::LocalInvalidAh))?;
    let length = u32::try_from(wqe.payload.length())
        .ok()
        .filter(|length| *length <= longest)
        .ok_or_else(|| fail(Status::LocalBadLength))?;
    if wqe.remote.is_some_and(|remote| remote.length != length) {
        return Err(fail(Status::LocalBadLength));
    }
    let data = match &wqe.payload {
        Payload::Inline(data) => RequestData::Inline(*data),
        Payload::Buffers { count, buffers } => {
            let access = local_access(wqe.operation);
            let mut segments = [HostSegment {
                address: 0,
                length: 0,
            }; 2];
            let mut named = [(0, 0); 2];
            for (position, buffer) in buffers[..usize::from(*count)].iter().enumerate() {
                named[position] = (buffer.lkey, buffer.address);
                if buffer.length == 0 {
                    continue;
                }
                segments[position] = regions
                    .local(
                        qp.config.pd,
                        buffer.lkey,
                        buffer.address,
                        buffer.length,
                        access,
                    )
                    .ok_or_else(|| fail(Status::LocalInvalidLkey))?;
            }
            RequestData::Segments {
                count: *count,
                segments,
                named,
            }
        }
    };
    Ok(Request {
        qpn,
        request_id: wqe.request_id,
        request_id_upper: wqe.request_id_upper,
        operation: wqe.operation,
        signaled: wqe.signaled,
        to,
        ahn,
        header: RequestHeader {
            operation,
            source_qpn: qpn,
            destination_qpn: wqe.destination_qpn,
            qkey: wqe.qkey,
            sequence: qp.send.sequence,
            immediate: wqe.immediate,
            remote: wqe.remote.map(|remote| RemoteRange {
                address: remote.address,
                key: remote.rkey,
            }),
            length,
        },
        data,
        rnr_retries: 0,
        place: Place::Link,
    })
}

/// A send queue entry that fails before it leaves.
pub(super) struct LocalFailure {
    request_id: u16,
    request_id_upper: u64,
    operation: WqeOperation,
    pub(super) status: Status,
}

impl LocalFailure {
    pub(super) fn of(wqe: &WorkRequest, status: Status) -> Self {
        LocalFailure {
            request_id: wqe.request_id,
            request_id_upper: wqe.request_id_upper,
            operation: wqe.operation,
            status,
        }
    }

    pub(super) fn unreadable(error: &BadWorkRequest) -> Self {
        let (request_id, status) = match *error {
            BadWorkRequest::Operation { request_id, .. } => {
                (request_id, Status::LocalUnsupportedOp)
            }
            BadWorkRequest::Length { request_id, .. } => (request_id, Status::LocalBadLength),
            BadWorkRequest::Control { request_id, .. } => {
                (request_id, Status::LocalQpInternalError)
            }
        };
        LocalFailure {
            request_id,
            request_id_upper: 0,
            operation: WqeOperation::Send,
            status,
        }
    }

    pub(super) fn with_status(self, status: Status) -> Self {
        LocalFailure { status, ..self }
    }

    pub(super) fn count(&self, counters: &mut Counters) {
        count_failed(counters, self.operation);
    }

    pub(super) fn entry(&self, qpn: Qpn) -> CompletionEntry {
        CompletionEntry {
            request_id: self.request_id,
            status: self.status.code(),
            operation: self.operation,
            qpn,
            side: QueueSide::Send(SendDetail {
                request_id_upper: self.request_id_upper,
            }),
        }
    }
}

pub(super) fn send_entry(request: &Request, status: Status) -> CompletionEntry {
    CompletionEntry {
        request_id: request.request_id,
        status: status.code(),
        operation: request.operation,
        qpn: request.qpn,
        side: QueueSide::Send(SendDetail {
            request_id_upper: request.request_id_upper,
        }),
    }
}

fn count_failed(counters: &mut Counters, operation: WqeOperation) {
    match operation {
        WqeOperation::Send => {}
        WqeOperation::RdmaRead => counters.rdma_read_wr_err += 1,
        WqeOperation::RdmaWrite => counters.rdma_write_wr_err += 1,
    }
}

pub(super) fn count_completed(counters: &mut Counters, request: &Request, status: Status) {
    let bytes = u64::from(request.header.length);
    match status {
        Status::Ok => match request.operation {
            WqeOperation::Send => {
                counters.send_wrs += 1;
                counters.send_bytes += bytes;
            }
            WqeOperation::RdmaRead => {
                counters.rdma_read_wrs += 1;
                counters.rdma_read_bytes += bytes;
            }
            WqeOperation::RdmaWrite => {
                counters.rdma_write_wrs += 1;
                counters.rdma_write_bytes += bytes;
            }
        },
        _ => count_failed(counters, request.operation),
    }
    match status {
        Status::LocalUnresponsiveRemote => counters.unresponsive_remote_events += 1,
        Status::LocalUnreachableRemote => counters.impaired_remote_conn_events += 1,
        _ => {}
    }
}
