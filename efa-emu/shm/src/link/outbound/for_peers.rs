//! Records for requests of peers: data for their reads, and outcomes.

use efa_core::nic::Status;
use efa_device_model::link::Token;

use super::answers::settle;
use super::bulk::{BulkName, BulkStage};
use super::out_ring::{Pending, PullName, PushError, list};
use super::routes::NoRoute;
use super::state::Outbound;
use crate::link::memory::Window;
use crate::process::shared::SharedMemory;
use crate::transport::segment::Address;
use efa_lock_free::record::{Answer, Record};
use efa_lock_free::ring::RingFull;

impl Outbound {
    /// The device's token for the read of a peer's data. `None` if the read is not from `from`, or
    /// if the part lies outside of it.
    pub(crate) fn read_target(&self, from: Address, record: &Record) -> Option<Token> {
        let bulk = self.bulks.get(BulkName(record.sequence()))?;
        let end = record.offset().checked_add(record.payload())?;
        let is_its = matches!(bulk.stage, BulkStage::Read)
            && self.rings.get(bulk.ring)?.peer.address() == from
            && end <= bulk.header.length;
        is_its.then_some(bulk.token)
    }

    /// Sends data for a peer's read: the bytes of `window`, which `fill` writes.
    pub(crate) fn push_read_data(
        &mut self,
        to: Address,
        read: BulkName,
        total: u32,
        window: Window,
        pull: PullName,
        fill: impl FnOnce(&SharedMemory, usize),
    ) -> Result<(), PushError> {
        let index = match self.routes.ring_to(to, &mut self.rings) {
            Ok(index) => index,
            Err(NoRoute::Busy) => return Err(PushError::Full),
            Err(NoRoute::Failed(_)) => return Err(PushError::Gone),
        };
        let record = Record::read_data(read.0, total, window.offset, window.length);
        let ring = &mut self.rings[index];
        ring.producer
            .push(&record, Pending::ReadData(pull), fill)
            .map_err(|RingFull| PushError::Full)?;
        list(&mut self.waiting, ring, index);
        Ok(())
    }

    /// Sends the outcome of a deferred request to its initiator.
    pub(crate) fn push_outcome(
        &mut self,
        to: Address,
        number: u64,
        status: Status,
    ) -> Result<(), PushError> {
        let index = match self.routes.ring_to(to, &mut self.rings) {
            Ok(index) => index,
            Err(NoRoute::Busy) => return Err(PushError::Full),
            Err(NoRoute::Failed(_)) => return Err(PushError::Gone),
        };
        let ring = &mut self.rings[index];
        let record = Record::outcome(number, status);
        ring.producer
            .push(&record, Pending::Outcome, |_, _| {})
            .map_err(|RingFull| PushError::Full)?;
        list(&mut self.waiting, ring, index);
        Ok(())
    }

    /// The outcome of a request that a peer has deferred. Outcomes of other requests are ignored.
    pub(crate) fn take_outcome(&mut self, from: Address, record: &Record) {
        let Some(index) = self.routes.known_ring(from) else {
            return;
        };
        let number = u64::from(record.sequence()) | u64::from(record.offset()) << 32;
        let mut pending = self.deferred.remove(&(index, number));
        if pending.is_none() {
            // The peer answered that it defers the request before it sent the outcome, but that
            // answer may not have been read.
            self.reap_aside();
            pending = self.deferred.remove(&(index, number));
        }
        let Some(pending) = pending else {
            return;
        };
        if let Some(ring) = self.rings.get_mut(index) {
            ring.deferred = ring.deferred.saturating_sub(1);
        }
        let code = record.header().immediate.unwrap_or(u32::MAX);
        let code = u8::try_from(code).unwrap_or(u8::MAX);
        let status = Status::from_code(code).unwrap_or(Status::RemoteBadStatus);
        match pending {
            Pending::Request(token) => self.completed.push_back((token, Answer::Status(status))),
            Pending::Bulk(name) => settle(
                &mut self.bulks,
                &mut self.working,
                &mut self.completed,
                name,
                Answer::Status(status),
            ),
            // These are never deferred.
            Pending::ReadData(_) | Pending::Outcome => {}
            // It completed when it left.
            Pending::Datagram => {}
        }
    }
}
