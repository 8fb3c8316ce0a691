//! RDMA: reads into, and writes from, memory of the application; registrations made for them.
//!
//! A transfer is cut where a piece of either side's memory ends, and at the largest size that the
//! device or the settings allow. The parts are posted as the device has room and complete in any
//! order.

use crate::nic::{Access, Nic, NicError, Region, RemoteKey};
use crate::wire::{RmaIov, RmaIovs};

use crate::endpoint::Endpoint;
use crate::endpoint::api::error::{EndpointError, Failure};
use crate::endpoint::api::operation::IoVec;
use crate::endpoint::base::ids::{OutboundId, PeerId, ReceiveId};
use crate::endpoint::memory::iov::{Iov, parts};
use crate::endpoint::posting::QUANTUM;
use crate::endpoint::posting::{Owner, RdmaPart};
use crate::endpoint::receiving::table::Inbound;
use crate::endpoint::receiving::transfer::Transfer;
use crate::endpoint::sending::outbound::BulkKey;

/// How the rest of a transfer is read.
pub(crate) struct ReadPlan {
    /// The peer's memory.
    remote: RmaIovs,
    /// Bytes from the start of the message: the next one to be read, and the end.
    next: u64,
    end: u64,
    /// Reads that the device has.
    outstanding: u32,
    /// The peer waits for EOR.
    tells_peer: bool,
    /// Registrations made for the target.
    pub(crate) own_regions: Option<Box<[Region]>>,
}

/// The data of an operation in memory that is registered for it.
pub(crate) struct Registered {
    pub(crate) source: Iov,
    /// Registrations made for the operation.
    pub(crate) own_regions: Option<Box<[Region]>>,
}

/// Names a [`ReadPlan`] in [`Endpoint::read_plans`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlanKey(u32);

/// The next part of a transfer between `local` and `remote`, of at most `limit` bytes, from byte
/// `offset` to byte `end`.
fn next_part(
    local: &[IoVec],
    remote: &RmaIovs,
    offset: u64,
    end: u64,
    limit: usize,
) -> Option<RdmaPart> {
    let target = remote.part_at(offset)?;
    let length = (end.checked_sub(offset)?)
        .min(target.len())
        .min(limit as u64);
    let piece = parts(local, offset, length).next()?;
    Some(RdmaPart {
        local: piece.memory,
        local_key: piece.region.map(|region| region.local_key)?,
        remote_address: target.addr(),
        remote_key: RemoteKey(target.key()),
    })
}

impl<N: Nic> Endpoint<N> {
    fn rdma_limit(&self) -> usize {
        self.config
            .read_segment_size
            .min(self.posting.nic().attributes().max_rdma_size)
            .max(1)
    }

    /// Registers those pieces that are not registered, for one operation. Returns what has to be
    /// deregistered at its end.
    ///
    /// # Errors
    /// The device refused; then nothing is registered.
    pub(crate) fn register_pieces(
        &mut self,
        iov: &mut Iov,
        access: Access,
    ) -> Result<Option<Box<[Region]>>, NicError> {
        let mut own = Vec::new();
        let lacking = |piece: &IoVec| piece.region.is_none() && piece.memory.length > 0;
        for piece in iov.as_slice().iter().filter(|piece| lacking(piece)) {
            match self.posting.nic_mut().register(piece.memory, access) {
                Ok(region) => own.push(region),
                Err(error) => {
                    self.deregister_own(Some(own.into()));
                    return Err(error);
                }
            }
        }
        // Only now: after a failure the pieces go without registrations.
        let pieces = iov.as_mut_slice().iter_mut().filter(|piece| lacking(piece));
        for (piece, region) in pieces.zip(&own) {
            piece.region = Some(*region);
        }
        Ok((!own.is_empty()).then(|| own.into()))
    }

    /// Registers the data of an operation as far as it is not registered. `None` if the device
    /// refuses.
    ///
    /// # Errors
    /// There are too many pieces.
    pub(crate) fn register_source(
        &mut self,
        data: &[IoVec],
        access: Access,
    ) -> Result<Option<Registered>, EndpointError> {
        let mut source = Iov::new(data)?;
        let own_regions = self.register_pieces(&mut source, access).ok();
        Ok(own_regions.map(|own_regions| Registered {
            source,
            own_regions,
        }))
    }

    /// Ends registrations that were made for one operation.
    pub(crate) fn deregister_own(&mut self, regions: Option<Box<[Region]>>) {
        for region in regions.iter().flatten() {
            if let Err(error) = self.posting.nic_mut().deregister(*region) {
                self.reports
                    .event(crate::endpoint::Event::DeregistrationFailed(error));
            }
        }
    }

    /// The memory that a peer is to read: all pieces that have bytes.
    pub(crate) fn readable_pieces(iov: &Iov) -> RmaIovs {
        let with_bytes = iov
            .as_slice()
            .iter()
            .filter(|piece| piece.memory.length > 0);
        RmaIovs::first_of(with_bytes.map(|piece| {
            RmaIov::new(
                piece.memory.address,
                piece.memory.length as u64,
                piece.region.map_or(0, |region| region.remote_key.0),
            )
        }))
    }

    /// Posts the next part of a write.
    pub(crate) fn post_rdma_write(
        &mut self,
        id: OutboundId,
        peer: PeerId,
        BulkKey(key): BulkKey,
        target: &RmaIovs,
        immediate: Option<u32>,
    ) -> Result<u64, EndpointError> {
        let limit = self.posting.nic().attributes().max_rdma_size.max(1);
        let bulk = &self.bulks[key as usize];
        let part = next_part(
            bulk.source.as_slice(),
            target,
            bulk.moved,
            bulk.to_move,
            limit,
        )
        .ok_or(EndpointError::Unsupported(
            "an RDMA write of unregistered memory",
        ))?;
        let length = part.local.length as u64;
        self.post_rdma(
            peer,
            Owner::Outbound(id),
            part,
            crate::endpoint::posting::Rdma::Write(immediate),
        )?;
        Ok(length)
    }

    /// Plans to read the bytes from `next` on of a transfer. The bytes beyond its buffer count as
    /// received.
    ///
    /// # Errors
    /// The target could not be registered; nothing changed.
    pub(crate) fn plan_reads(
        &mut self,
        id: ReceiveId,
        remote: RmaIovs,
        next: u64,
        tells_peer: bool,
    ) -> Result<(), NicError> {
        let Some(transfer) = self.transfer_mut(id) else {
            return Ok(());
        };
        let mut target = core::mem::replace(&mut transfer.target, Iov::NONE);
        let registered = self.register_pieces(&mut target, Access::LOCAL_WRITE);
        let Some(transfer) = self.transfer_mut(id) else {
            return Ok(());
        };
        transfer.target = target;
        let own_regions = registered?;
        let end = transfer.length.min(transfer.capacity).max(next);
        transfer.received += transfer.length - end;
        transfer.to_read = end - next;
        let plan = ReadPlan {
            remote,
            next,
            end,
            outstanding: 0,
            tells_peer,
            own_regions,
        };
        let key = PlanKey(self.read_plans.insert(plan) as u32);
        if let Some(transfer) = self.transfer_mut(id) {
            transfer.plan = Some(key);
        }
        self.queue_inbound(id);
        Ok(())
    }

    /// Whether reads of a transfer remain to be posted.
    pub(crate) fn has_reads_to_post(&self, transfer: &Transfer) -> bool {
        transfer.failure.is_none()
            && transfer.plan.is_some_and(|PlanKey(key)| {
                let plan = &self.read_plans[key as usize];
                plan.next < plan.end
            })
    }

    /// Whether the device has reads of a transfer.
    pub(crate) fn has_reads_in_flight(&self, transfer: &Transfer) -> bool {
        transfer
            .plan
            .is_some_and(|PlanKey(key)| self.read_plans[key as usize].outstanding > 0)
    }

    /// Posts reads of a transfer, up to [`QUANTUM`]. Returns whether there are more.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`]; other errors end the transfer.
    pub(crate) fn post_reads(&mut self, id: ReceiveId) -> Result<bool, EndpointError> {
        let limit = self.rdma_limit();
        for _ in 0..QUANTUM {
            let Some(Inbound::Active(transfer)) = self.inbound.get(id) else {
                return Ok(false);
            };
            if !self.has_reads_to_post(transfer) {
                return Ok(false);
            }
            let (peer, target) = (transfer.peer, transfer.target.as_slice());
            let Some(PlanKey(key)) = transfer.plan else {
                return Ok(false);
            };
            let plan = &self.read_plans[key as usize];
            let part = next_part(target, &plan.remote, plan.next, plan.end, limit);
            let Some(part) = part else {
                // The peer's memory is shorter than its message.
                self.fail_inbound(id, crate::endpoint::subprotocols::long_cts::SIZE_MISMATCH);
                return Ok(false);
            };
            let length = part.local.length as u64;
            match self.post_rdma(
                peer,
                Owner::Inbound(id),
                part,
                crate::endpoint::posting::Rdma::Read,
            ) {
                Ok(()) => {
                    let plan = &mut self.read_plans[key as usize];
                    plan.next += length;
                    plan.outstanding += 1;
                }
                Err(EndpointError::TryAgain) => return Err(EndpointError::TryAgain),
                Err(error) => {
                    self.fail_inbound(id, Failure::of_post(&error));
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The device finished a read.
    pub(crate) fn on_read_done(&mut self, id: ReceiveId, length: u64, failure: Option<Failure>) {
        let Some(Inbound::Active(transfer)) = self.inbound.get_mut(id) else {
            return;
        };
        let Some(PlanKey(key)) = transfer.plan else {
            return;
        };
        self.read_plans[key as usize].outstanding -= 1;
        match failure {
            None => {
                transfer.received += length;
                transfer.to_read -= length;
                self.go_on_with(id);
            }
            Some(failure) => self.fail_inbound(id, failure),
        }
    }

    /// Ends a transfer's reads; the last one has completed. Returns whether the peer waits for EOR.
    pub(crate) fn end_reads(&mut self, PlanKey(key): PlanKey) -> bool {
        let plan = self.read_plans.remove(key as usize);
        self.deregister_own(plan.own_regions);
        plan.tells_peer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::{LocalKey, UserSlice};

    fn local(lengths: &[usize]) -> Vec<IoVec> {
        let region = Region {
            local_key: LocalKey(5),
            remote_key: RemoteKey(6),
        };
        lengths
            .iter()
            .enumerate()
            .map(|(index, length)| IoVec {
                memory: UserSlice {
                    address: 1000 * (index as u64 + 1),
                    length: *length,
                },
                region: Some(region),
            })
            .collect()
    }

    #[test]
    fn parts_end_where_either_side_or_the_limit_does() {
        let local = local(&[100, 50]);
        let remote = RmaIovs::first_of([
            RmaIov::new(7000, 30, 1),
            RmaIov::new(0, 0, 2),
            RmaIov::new(9000, 120, 3),
        ]);
        let mut offset = 0;
        let mut seen = Vec::new();
        while let Some(part) = next_part(&local, &remote, offset, 140, 60) {
            seen.push((
                part.local.address,
                part.local.length,
                part.remote_address,
                part.remote_key.0,
            ));
            offset += part.local.length as u64;
            if offset == 140 {
                break;
            }
        }
        assert_eq!(
            seen,
            [
                (1000, 30, 7000, 1),
                (1030, 60, 9000, 3),
                (1090, 10, 9060, 3),
                (2000, 40, 9070, 3),
            ]
        );
        assert!(next_part(&local, &remote, 150, 200, 60).is_none());
    }
}
