//! Requests that fault rules defer.
//!
//! A send, or a write in one piece, is copied out of the ring and its space is released, so that
//! later records can pass it, and so that it outlives its sender. Its answer is sent in a separate
//! record. RDMA that accesses the initiator's memory keeps its place in the ring.

use efa_core::nic::Status;

use super::in_ring::DeferredRecord;
use crate::link::memory;
use crate::transport::segment::Address;
use efa_device_model::link::{HostSegment, Transfer};
use efa_lock_free::record::Record;

/// A deferred request.
#[derive(Debug)]
pub(super) enum DeferredRequest {
    /// It is still in its ring.
    InRing(DeferredRecord),
    /// It was copied out of its ring.
    Copied(CopiedRequest),
}

/// A copied request with its data.
#[derive(Debug)]
pub(super) struct CopiedRequest {
    pub(super) from: Address,
    /// The number of its record in the ring.
    pub(super) number: u64,
    pub(super) record: Record,
    pub(super) data: Vec<u8>,
}

/// The outcome of a request that has left its ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutcomeNotice {
    pub(super) to: Address,
    pub(super) number: u64,
    pub(super) status: Status,
}

/// A transfer whose data is in this process.
pub(super) struct FromCopy<'a> {
    pub(super) request: &'a CopiedRequest,
}

impl Transfer for FromCopy<'_> {
    fn fetch(&mut self, offset: u32, to: HostSegment) -> Result<(), Status> {
        let start = offset as usize;
        let part = self.request.data.get(start..);
        let part = part.and_then(|rest| rest.get(..to.length as usize));
        memory::fill(to.address, part.ok_or(Status::RemoteAbort)?);
        Ok(())
    }

    fn fill(&mut self, to: u64, bytes: &[u8]) -> Result<(), Status> {
        memory::fill(to, bytes);
        Ok(())
    }

    fn peek(&mut self, offset: u32, into: &mut [u8]) -> Result<(), Status> {
        let part = self.request.data.get(offset as usize..);
        let part = part.and_then(|rest| rest.get(..into.len()));
        into.copy_from_slice(part.ok_or(Status::RemoteAbort)?);
        Ok(())
    }

    fn update(&mut self, at: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, Status> {
        Ok(memory::update(at, change))
    }
}
