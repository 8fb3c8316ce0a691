//! From a send queue entry to a request, or to the completion that says why there is none.

use efa_core::address::{Ahn, Qpn};
use efa_core::nic::{Access, DeviceCaps, Status};

use crate::device::Counters;
use crate::device::address_book::AddressBook;
use crate::device::flight::{Place, Request};
use crate::device::keys::RegionTable;
use crate::device::queue::{
    BadWorkRequest, CompletionEntry, QueueSide, RawWorkRequest, SendDetail, WqeOperation,
};
use crate::device::queue_pair::{QueuePair, Service};
use crate::link::{HostSegment, Operation};
use crate::profile::Profile;

#[inline(always)]
fn local_access(operation: WqeOperation) -> Access {
    match operation {
        WqeOperation::RdmaRead => Access::LOCAL_WRITE,
        WqeOperation::Send | WqeOperation::RdmaWrite => Access::empty(),
    }
}

pub(super) fn local_still_valid(request: &Request, qp: &QueuePair, regions: &RegionTable) -> bool {
    let wqe = &request.wqe;
    let access = local_access(wqe.operation());
    (0..wqe.buffer_count()).all(|index| {
        let buffer = wqe.buffer(index);
        let pd = qp.config.pd;
        let segment = request.segments.get(index).copied();
        buffer.length == 0
            || regions.local(pd, buffer.lkey, buffer.address, buffer.length, access) == segment
    })
}

/// Checks a request of which the entry is known, and finds out the rest about it.
#[inline(always)]
pub(super) fn prepare(
    request: &mut Request,
    qp: &QueuePair,
    regions: &RegionTable,
    book: &AddressBook,
    profile: &Profile,
) -> Result<(), Status> {
    let wqe = &request.wqe;
    let caps = profile.caps;
    let service = qp.config.service;
    let (operation, supported, longest) = match wqe.operation() {
        WqeOperation::Send if service == Service::Srd => (Operation::Send, true, profile.mtu),
        WqeOperation::Send => (Operation::Datagram, true, profile.mtu),
        WqeOperation::RdmaRead => (
            Operation::RdmaRead,
            service == Service::Srd
                && caps.contains(DeviceCaps::RDMA_READ)
                && wqe.immediate().is_none(),
            profile.max_rdma_size,
        ),
        WqeOperation::RdmaWrite => (
            Operation::RdmaWrite,
            service == Service::Srd && caps.contains(DeviceCaps::RDMA_WRITE),
            profile.max_rdma_size,
        ),
    };
    if !supported {
        return Err(Status::LocalUnsupportedOp);
    }
    let to = book
        .destination(qp.config.pd, Ahn(wqe.ahn()))
        .ok_or(Status::LocalInvalidAh)?;
    let length = wqe.length();
    if length > u64::from(longest) {
        return Err(Status::LocalBadLength);
    }
    request.length = length as u32;
    if wqe.operation() != WqeOperation::Send && wqe.remote().length != request.length {
        return Err(Status::LocalBadLength);
    }
    let access = local_access(wqe.operation());
    let segments = request.segments.iter_mut().take(wqe.buffer_count());
    for (index, segment) in segments.enumerate() {
        let buffer = wqe.buffer(index);
        *segment = if buffer.length == 0 {
            HostSegment::default()
        } else {
            let pd = qp.config.pd;
            regions
                .local(pd, buffer.lkey, buffer.address, buffer.length, access)
                .ok_or(Status::LocalInvalidLkey)?
        };
    }
    request.operation = operation;
    request.sequence = qp.send.sequence;
    request.to = to;
    request.rnr_retries = 0;
    request.place = Place::Link;
    Ok(())
}

/// A send queue entry that fails before it leaves.
pub(super) struct LocalFailure {
    request_id: u16,
    request_id_upper: u64,
    operation: WqeOperation,
    pub(super) status: Status,
}

impl LocalFailure {
    pub(super) fn of(wqe: &RawWorkRequest, status: Status) -> Self {
        LocalFailure {
            request_id: wqe.request_id(),
            request_id_upper: wqe.request_id_upper(),
            operation: wqe.operation(),
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

#[inline(always)]
pub(super) fn send_entry(request: &Request, status: Status) -> CompletionEntry {
    CompletionEntry {
        request_id: request.wqe.request_id(),
        status: status.code(),
        operation: request.wqe.operation(),
        qpn: request.qpn,
        side: QueueSide::Send(SendDetail {
            request_id_upper: request.wqe.request_id_upper(),
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

#[inline(always)]
pub(super) fn count_completed(counters: &mut Counters, request: &Request, status: Status) {
    let bytes = u64::from(request.length);
    let operation = request.wqe.operation();
    match status {
        Status::Ok => match operation {
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
        _ => count_failed(counters, operation),
    }
    match status {
        Status::LocalUnresponsiveRemote => counters.unresponsive_remote_events += 1,
        Status::LocalUnreachableRemote => counters.impaired_remote_conn_events += 1,
        _ => {}
    }
}
