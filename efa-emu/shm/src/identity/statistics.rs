//! Statistics of a host's devices, summed in the host's table: the counters of a real device also
//! outlive the processes that use it. Orders for the device use the same mechanism.

use std::sync::Arc;

use efa_core::address::Qpn;

use super::qpn::{HostTable, Incarnation};
use efa_device_model::device::{Device, QueueError, QueueKind, Statistics};

/// The part of one device.
#[derive(Debug)]
pub(crate) struct Publisher {
    table: Arc<HostTable>,
    /// The stay in which this device was opened, if the device was present.
    incarnation: Option<Incarnation>,
    /// The request number at this device's last addition to the statistics.
    known: u32,
    /// Its contributions so far.
    published: Box<[u64; Statistics::COUNT]>,
    /// The number of staged queue errors at the last check.
    orders: u64,
}

impl Publisher {
    /// For a device that is opened now.
    pub(crate) fn new(table: Arc<HostTable>) -> Publisher {
        const { assert!(Statistics::COUNT <= HostTable::MOST_STATISTICS) };
        Publisher {
            incarnation: table.incarnation(),
            known: table.statistics_requests(),
            orders: table.orders(),
            table,
            published: Box::new([0; Statistics::COUNT]),
        }
    }

    /// Whether the statistics were requested since the last [`Publisher::publish`].
    #[inline(always)]
    pub(crate) fn is_requested(&self) -> bool {
        self.table.statistics_requests() != self.known
    }

    /// Makes [`Publisher::is_requested`] true.
    pub(crate) fn look_again(&mut self) {
        self.known = self.known.wrapping_sub(1);
    }

    /// Whether the device was removed since it was opened, even if it has been restored meanwhile.
    pub(crate) fn is_removed(&self) -> bool {
        self.incarnation.is_none() || self.table.incarnation() != self.incarnation
    }

    /// The errors of queues that were staged since the last call.
    pub(crate) fn new_errors(&mut self) -> Vec<QueueError> {
        let end = self.table.orders();
        let first = std::mem::replace(&mut self.orders, end);
        let orders = self.table.kept_orders(first..end);
        orders.map(error_from_order).collect()
    }

    /// Adds the device's counts since the last call.
    #[cold]
    pub(crate) fn publish(&mut self, device: &Device) {
        self.known = self.table.statistics_requests();
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

/// The bits of an order besides the queue pair number.
const OF_ONE: u64 = 1 << 16;
const OF_COMPLETION_QUEUES: u64 = 1 << 17;

/// An error of queues as the host's table has it.
pub(crate) fn order_of_error(error: QueueError) -> u64 {
    let kind = match error.kind {
        QueueKind::QueuePair => 0,
        QueueKind::CompletionQueue => OF_COMPLETION_QUEUES,
    };
    kind | error.qpn.map_or(0, |Qpn(qpn)| OF_ONE | u64::from(qpn))
}

fn error_from_order(order: u64) -> QueueError {
    QueueError {
        kind: match order & OF_COMPLETION_QUEUES {
            0 => QueueKind::QueuePair,
            _ => QueueKind::CompletionQueue,
        },
        qpn: (order & OF_ONE != 0).then_some(Qpn(order as u16)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_in_the_table_round_trip() {
        for kind in [QueueKind::QueuePair, QueueKind::CompletionQueue] {
            for qpn in [None, Some(Qpn(0)), Some(Qpn(7)), Some(Qpn(u16::MAX))] {
                let error = QueueError { kind, qpn };
                assert_eq!(error_from_order(order_of_error(error)), error);
            }
        }
    }
}
