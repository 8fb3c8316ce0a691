//! Makes a request from a send queue entry, or the completion of an invalid entry.

use efa_core::address::{Ahn, Qpn};
use efa_core::nic::{Access, DeviceCaps, Status};

use super::address_book::AddressBook;
use super::flight::{InFlightRequest, RequestPlace};
use super::ids::PdId;
use super::queue::{BadWorkRequest, Buffer, CompletionEntry, WorkRequest, WqeOperation};
use super::queue_pair::{QpConfig, QueuePair, Service};
use super::regions::RegionTable;
use crate::counters::Counters;
use crate::link::{HostSegment, Operation};
use crate::profile::Profile;

#[inline(always)]
fn local_access(operation: Operation) -> Access {
    match operation {
        Operation::RdmaRead => Access::LOCAL_WRITE,
        Operation::Send | Operation::Datagram | Operation::RdmaWrite | Operation::Connected => {
            Access::empty()
        }
    }
}

pub(super) fn local_still_valid(
    request: &InFlightRequest,
    qp: &QueuePair,
    regions: &RegionTable,
) -> bool {
    let wqe = &request.wqe;
    let access = local_access(request.operation);
    (0..wqe.buffer_count()).all(|index| {
        let buffer = wqe.buffer(index);
        let pd = qp.config.pd;
        let segment = request.segments.get(index).copied();
        buffer.length == 0
            || regions.local(pd, buffer.lkey, buffer.address, buffer.length, access) == segment
    })
}

/// Checks a request whose entry was read, and looks up its destination and its memory.
#[inline(always)]
pub(super) fn prepare(
    request: &mut InFlightRequest,
    qp: &QueuePair,
    regions: &RegionTable,
    book: &AddressBook,
    profile: &Profile,
) -> Result<(), Status> {
    if !request.wqe.is_send() {
        return prepare_rdma(request, qp, regions, book, profile);
    }
    let operation = match qp.config.service {
        Service::Srd => Operation::Send,
        Service::Ud => Operation::Datagram,
    };
    find_out(request, operation, true, profile.mtu, qp, regions, book)
}

#[cold]
fn prepare_rdma(
    request: &mut InFlightRequest,
    qp: &QueuePair,
    regions: &RegionTable,
    book: &AddressBook,
    profile: &Profile,
) -> Result<(), Status> {
    let (operation, needed) = match request.wqe.operation() {
        WqeOperation::RdmaRead => (Operation::RdmaRead, DeviceCaps::RDMA_READ),
        _ => (Operation::RdmaWrite, DeviceCaps::RDMA_WRITE),
    };
    let reads_with_immediate =
        operation == Operation::RdmaRead && request.wqe.immediate().is_some();
    if qp.config.service != Service::Srd || !profile.caps.contains(needed) || reads_with_immediate {
        return Err(Status::LocalUnsupportedOp);
    }
    find_out(
        request,
        operation,
        false,
        profile.max_rdma_size,
        qp,
        regions,
        book,
    )
}

/// The common part of sends and RDMA, which differ only in the offsets in the entry.
#[inline(always)]
fn find_out(
    request: &mut InFlightRequest,
    operation: Operation,
    is_send: bool,
    longest: u32,
    qp: &QueuePair,
    regions: &RegionTable,
    book: &AddressBook,
) -> Result<(), Status> {
    let wqe = &request.wqe;
    let pd = qp.config.pd;
    let to = book
        .destination(pd, Ahn(wqe.ahn()))
        .ok_or(Status::LocalInvalidAh)?;
    let check_length = |length: u64| {
        let is_allowed =
            length <= u64::from(longest) && (is_send || u64::from(wqe.remote().length) == length);
        match is_allowed {
            true => Ok(length as u32),
            false => Err(Status::LocalBadLength),
        }
    };
    let access = local_access(operation);
    let length;
    if wqe.has_one_buffer() {
        let buffer = wqe.buffer_at(is_send, 0);
        length = check_length(buffer.length.into())?;
        request.segments[0] = resolve(regions, pd, buffer, access)?;
    } else {
        length = check_length(wqe.length_at(is_send))?;
        for index in 0..wqe.buffer_count().min(request.segments.len()) {
            let buffer = wqe.buffer_at(is_send, index);
            request.segments[index] = resolve(regions, pd, buffer, access)?;
        }
    }
    request.operation = operation;
    request.sequence = qp.send.sequence;
    request.length = length;
    request.to = *to;
    request.rnr_retries = 0;
    request.place = RequestPlace::Link;
    Ok(())
}

/// The address of a local buffer. An empty buffer needs no key.
#[inline(always)]
fn resolve(
    regions: &RegionTable,
    pd: PdId,
    buffer: Buffer,
    access: Access,
) -> Result<HostSegment, Status> {
    if buffer.length == 0 {
        return Ok(HostSegment::default());
    }
    regions
        .local(pd, buffer.lkey, buffer.address, buffer.length, access)
        .ok_or(Status::LocalInvalidLkey)
}

/// A send queue entry that fails before it is sent.
pub(super) struct LocalFailure {
    request_id: u64,
    operation: WqeOperation,
    pub(super) status: Status,
}

impl LocalFailure {
    pub(super) fn of(wqe: &WorkRequest, status: Status) -> Self {
        LocalFailure {
            request_id: wqe.request_id(),
            operation: wqe.operation(),
            status,
        }
    }

    /// The failure of an entry, with the fields that could be read.
    #[cold]
    pub(super) fn of_entry(
        wqe: &WorkRequest,
        entry: Result<(), BadWorkRequest>,
        status: Status,
    ) -> Self {
        match entry {
            Ok(()) => LocalFailure::of(wqe, status),
            Err(error) => LocalFailure::unreadable(&error),
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

    pub(super) fn entry(&self, qpn: Qpn, config: &QpConfig) -> CompletionEntry {
        CompletionEntry::of_send_id(
            qpn,
            config.request_ids,
            self.request_id,
            self.operation,
            self.status.code(),
        )
    }
}

#[inline(always)]
pub(super) fn send_entry(
    request: &InFlightRequest,
    config: &QpConfig,
    status: Status,
) -> CompletionEntry {
    CompletionEntry::of_send(request.qpn, config.request_ids, &request.wqe, status.code())
}

fn count_failed(counters: &mut Counters, operation: WqeOperation) {
    match operation {
        WqeOperation::Send => {}
        WqeOperation::RdmaRead => counters.rdma_read_wr_err += 1,
        WqeOperation::RdmaWrite => counters.rdma_write_wr_err += 1,
    }
}

#[inline(always)]
pub(super) fn count_completed(counters: &mut Counters, request: &InFlightRequest, status: Status) {
    if status != Status::Ok {
        return count_error(counters, request, status);
    }
    if !matches!(request.operation, Operation::Send | Operation::Datagram) {
        return count_rdma(counters, request);
    }
    counters.send_wrs += 1;
    counters.send_bytes += u64::from(request.length);
}

/// A function of its own, so that sends take a test and no jump table.
#[inline(never)]
fn count_rdma(counters: &mut Counters, request: &InFlightRequest) {
    let bytes = u64::from(request.length);
    match request.operation {
        Operation::RdmaRead => {
            counters.rdma_read_wrs += 1;
            counters.rdma_read_bytes += bytes;
        }
        Operation::RdmaWrite => {
            counters.rdma_write_wrs += 1;
            counters.rdma_write_bytes += bytes;
        }
        // Sends are counted above, and requests of connections are not in this table.
        Operation::Send | Operation::Datagram | Operation::Connected => {}
    }
}

#[cold]
fn count_error(counters: &mut Counters, request: &InFlightRequest, status: Status) {
    tracing::debug!(
        qpn = %request.qpn,
        ahn = request.ahn().0,
        peer = %request.to,
        operation = ?request.operation,
        length = request.length,
        rnr_retries = request.rnr_retries,
        ?status,
        "request failed"
    );
    count_failed(counters, request.wqe.operation());
    match status {
        Status::LocalUnresponsiveRemote => counters.unresponsive_remote_events += 1,
        Status::LocalUnreachableRemote => counters.impaired_remote_conn_events += 1,
        _ => {}
    }
}
