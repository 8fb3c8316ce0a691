//! What the devices of a host count, added up in the host's table: the counters of a real device outlive
//! the processes that use it, too.

use std::sync::Arc;

use super::qpn::HostTable;
use crate::device::{Device, Statistics};

/// One device's part.
#[derive(Debug)]
pub(super) struct Publisher {
    table: Arc<HostTable>,
    /// What was asked for when this device last added to the statistics.
    known: u32,
    /// What it has added so far.
    published: Box<[u64; Statistics::COUNT]>,
}

impl Publisher {
    pub(super) fn new(table: Arc<HostTable>) -> Publisher {
        const { assert!(Statistics::COUNT <= HostTable::MOST_STATISTICS) };
        Publisher {
            known: table.asked_for_statistics(),
            table,
            published: Box::new([0; Statistics::COUNT]),
        }
    }

    /// Whether somebody wants to know the statistics since the last [`Publisher::publish`].
    #[inline(always)]
    pub(super) fn is_asked(&self) -> bool {
        self.table.asked_for_statistics() != self.known
    }

    /// Makes [`Publisher::is_asked`] true.
    pub(super) fn look_again(&mut self) {
        self.known = self.known.wrapping_sub(1);
    }

    /// Whether the device was removed.
    pub(super) fn is_removed(&self) -> bool {
        self.table.is_removed()
    }

    /// Adds what the device has counted since the last time.
    #[cold]
    pub(super) fn publish(&mut self, device: &Device) {
        self.known = self.table.asked_for_statistics();
        let now = device.statistics().values();
        for (index, (now, before)) in now.iter().zip(&mut *self.published).enumerate() {
            if now != before {
                self.table
                    .add_to_statistic(index, now.wrapping_sub(*before));
                *before = *now;
            }
        }
    }
}
