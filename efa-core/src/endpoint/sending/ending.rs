//! Packets that arrived or were lost, and the end of operations.

use crate::endpoint::api::error::Failure;
use crate::endpoint::base::ids::OutboundId;
use crate::endpoint::memory::registration::OwnRegions;

use super::Sending;
use super::outbound::{AwaitedPacket, Bulk, Outbound};
use super::results::EndedOperation;
use super::sequence::Loss;

impl Sending {
    /// Records that a packet or RDMA write of an operation arrived.
    #[inline]
    pub(crate) fn done(&mut self, id: OutboundId) {
        if let Some(operation) = self.operations.get_mut(id) {
            operation.outstanding -= 1;
            operation.reached = Loss::Unknown;
        }
    }

    /// Records that a packet or RDMA write of an operation was lost. The operation fails.
    pub(crate) fn lost(&mut self, id: OutboundId, failure: Failure, loss: Loss) {
        if let Some(operation) = self.operations.get_mut(id) {
            operation.outstanding -= 1;
            if loss == Loss::Unknown {
                operation.reached = loss;
                // A loss takes precedence over a cancellation: a cancelled failure does not show
                // that the peer may be waiting for the message.
                operation.failure = operation.failure.filter(|known| !known.is_cancelled());
            }
        }
        self.fail(id, failure);
    }

    /// Returns whether an operation is a peer's read of local memory.
    pub(crate) fn is_peers_read(&self, id: OutboundId) -> bool {
        let operation = self.operations.get(id);
        operation.is_some_and(|operation| operation.report.is_none())
    }

    /// Returns whether an operation waits for a packet of its peer.
    pub(crate) fn waits(&self, id: OutboundId) -> bool {
        self.operations.get(id).is_some_and(|operation| {
            let bulk = self.bulk_of(operation);
            operation.awaited != AwaitedPacket::Nothing
                || bulk.is_some_and(|bulk| !bulk.is_moved() && !bulk.has_work())
        })
    }

    /// Records that an operation failed. It ends when the device no longer uses its memory.
    pub(crate) fn fail(&mut self, id: OutboundId, failure: Failure) {
        if let Some(operation) = self.operations.get_mut(id) {
            operation.failure.get_or_insert(failure);
        }
    }

    /// Removes an operation if it has ended.
    #[inline]
    pub(crate) fn take_ended(&mut self, id: OutboundId) -> Option<EndedOperation> {
        let operation = self.operations.get(id)?;
        // The device still uses the memory.
        if operation.outstanding > 0 {
            return None;
        }
        if operation.failure.is_none() {
            let moved = self.bulk_of(operation).is_none_or(Bulk::is_moved);
            if !moved || operation.awaited != AwaitedPacket::Nothing {
                return None;
            }
        }
        // A peer that has abandoned the operation does not wait for it.
        let is_lost = operation.failure.is_some() && !operation.peer_aborted;
        let abandoned = match is_lost {
            true => operation.abandoned(self.bulk_of(operation)),
            false => None,
        };
        let Outbound {
            peer,
            report,
            length,
            failure,
            bulk,
            msg_id,
            reached,
            ..
        } = self.remove(id)?;
        if report.is_none() {
            self.operations.narrow();
        }
        Some(EndedOperation {
            peer,
            report,
            length,
            failure,
            lost: msg_id.filter(|_| is_lost).map(|id| (id, reached)),
            abandoned,
            resources: self.take_resources(bulk),
        })
    }

    /// Removes and returns the registrations of all operations, when the endpoint is closed.
    pub(crate) fn take_registrations(&mut self) -> Vec<OwnRegions> {
        self.bulks.drain().map(|bulk| bulk.own_regions).collect()
    }
}
