//! RDMA reads by peers whose data returns through the rings.

use efa_core::nic::Status;
use slab::Slab;

use super::in_ring::DeferredRecord;
use crate::link::outbound::{BulkTable, PullName};

/// Bytes of data in one part.
pub(super) const PART: u32 = 16 << 10;

/// Most parts of one read that are sent in one turn.
pub(super) const PARTS_PER_TURN: u32 = 8;

/// Maximum number of reads of one initiator that are served outside of its ring: the number that
/// its device can have outstanding. Further ones stay in the ring.
pub(crate) const MOST_READS: usize = BulkTable::LIMIT;

/// A read in progress.
#[derive(Debug)]
pub(super) struct Pull {
    /// The request. The initiator receives its outcome after all data has arrived.
    pub(super) of: DeferredRecord,
    /// The request has left its ring.
    pub(super) has_left: bool,
    serial: u32,
    /// Bytes sent.
    pub(super) sent: u32,
    /// The device has completed the read.
    pub(super) is_delivered: bool,
    /// Parts that are not answered.
    pub(super) in_flight: u32,
    pub(super) failed: Option<Status>,
}

impl Pull {
    pub(super) fn new(of: DeferredRecord, has_left: bool) -> Pull {
        Pull {
            of,
            has_left,
            serial: 0,
            sent: 0,
            is_delivered: false,
            in_flight: 0,
            failed: None,
        }
    }

    /// Whether no more data will be sent.
    pub(super) fn is_over(&self) -> bool {
        self.is_delivered || self.failed.is_some()
    }
}

/// The reads that a device serves.
#[derive(Debug, Default)]
pub(super) struct PullTable {
    pulls: Slab<Pull>,
    serial: u32,
}

impl PullTable {
    pub(super) fn is_empty(&self) -> bool {
        self.pulls.is_empty()
    }

    pub(super) fn insert(&mut self, mut pull: Pull) {
        self.serial = self.serial.wrapping_add(1);
        pull.serial = self.serial;
        self.pulls.insert(pull);
    }

    pub(super) fn get_mut(&mut self, name: PullName) -> Option<&mut Pull> {
        self.pulls
            .get_mut(name.0 as u32 as usize)
            .filter(|pull| pull.serial == (name.0 >> 32) as u32)
    }

    pub(super) fn remove(&mut self, name: PullName) {
        if self.get_mut(name).is_some() {
            self.pulls.remove(name.0 as u32 as usize);
        }
    }

    /// Processes the answer to a part. Answers for finished reads are ignored.
    pub(super) fn settle(&mut self, name: PullName, status: Status) {
        if let Some(pull) = self.get_mut(name) {
            pull.in_flight = pull.in_flight.saturating_sub(1);
            if status != Status::Ok {
                pull.failed.get_or_insert(status);
            }
        }
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Pull) -> bool) {
        self.pulls.retain(|_, pull| keep(pull));
    }

    pub(super) fn names(&self) -> Vec<PullName> {
        self.pulls
            .iter()
            .map(|(index, pull)| PullName(u64::from(pull.serial) << 32 | index as u64))
            .collect()
    }
}
