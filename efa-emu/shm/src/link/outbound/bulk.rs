//! RDMA requests that need more than one step: requests for which the target copies the data, and
//! requests whose data passes through the rings in parts.

use efa_core::nic::Status;

use crate::link::egress::Arrival;
use efa_device_model::link::{Operation, RequestHeader, Token};
use efa_lock_free::ring::Position;

/// Names a [`Bulk`] request, also towards the target of a read. A name is not used again until its
/// slot was reused 65536 times.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct BulkName(pub(crate) u32);

impl BulkName {
    const INDEX_BITS: u32 = 16;

    fn new(index: usize, generation: u16) -> BulkName {
        BulkName(u32::from(generation) << Self::INDEX_BITS | index as u32)
    }

    fn index(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    fn generation(self) -> u16 {
        (self.0 >> Self::INDEX_BITS) as u16
    }
}

/// An RDMA request in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bulk {
    pub(super) token: Token,
    pub(super) header: RequestHeader,
    /// Index of the ring to the target.
    pub(super) ring: usize,
    pub(super) arrival: Arrival,
    pub(super) stage: BulkStage,
}

/// The progress of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum BulkStage {
    /// The target copies.
    Direct(Position),
    /// The target was to copy, and the memory was withdrawn from it.
    TakenBack,
    /// A write whose parts are sent through the ring. The last part, which completes the request at
    /// the target, is sent when all others are answered.
    Write {
        /// Offset of the next part.
        next: u32,
        /// Parts without an answer.
        in_flight: u32,
        /// The first answer other than success.
        failed: Option<Status>,
    },
    /// A read that was not requested yet.
    ReadUnsent,
    /// A read whose data returns through the target's ring.
    Read,
}

impl BulkStage {
    /// The first stage of a request whose data passes through the rings.
    pub(super) fn through_rings(operation: Operation) -> BulkStage {
        match operation {
            Operation::RdmaRead => BulkStage::ReadUnsent,
            Operation::Send | Operation::Datagram | Operation::RdmaWrite | Operation::Connected => {
                BulkStage::Write {
                    next: 0,
                    in_flight: 0,
                    failed: None,
                }
            }
        }
    }
}

#[derive(Debug, Default)]
struct BulkSlot {
    generation: u16,
    bulk: Option<Bulk>,
}

/// The bulk requests of a device.
#[derive(Debug, Default)]
pub(crate) struct BulkTable {
    slots: Vec<BulkSlot>,
    free: Vec<usize>,
}

impl BulkTable {
    /// Most bulk requests at a time; the link is busy beyond.
    pub(crate) const LIMIT: usize = 4096;

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() >= Self::LIMIT
    }

    pub(super) fn insert(&mut self, bulk: Bulk) -> BulkName {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(BulkSlot::default());
            self.slots.len() - 1
        });
        let slot = &mut self.slots[index];
        slot.bulk = Some(bulk);
        BulkName::new(index, slot.generation)
    }

    pub(super) fn get(&self, name: BulkName) -> Option<&Bulk> {
        let slot = self.slots.get(name.index())?;
        slot.bulk
            .as_ref()
            .filter(|_| slot.generation == name.generation())
    }

    pub(super) fn get_mut(&mut self, name: BulkName) -> Option<&mut Bulk> {
        let slot = self.slots.get_mut(name.index())?;
        let generation = slot.generation;
        slot.bulk
            .as_mut()
            .filter(|_| generation == name.generation())
    }

    pub(super) fn remove(&mut self, name: BulkName) -> Option<Bulk> {
        self.get(name)?;
        let slot = &mut self.slots[name.index()];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(name.index());
        slot.bulk.take()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (BulkName, &Bulk)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let bulk = slot.bulk.as_ref()?;
            Some((BulkName::new(index, slot.generation), bulk))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use efa_lock_free::record::Record;

    #[test]
    fn a_name_is_good_for_one_request() {
        let bulk = Bulk {
            token: Token(1),
            header: Record::NO_REQUEST,
            ring: 0,
            arrival: Arrival::default(),
            stage: BulkStage::ReadUnsent,
        };
        let mut table = BulkTable::default();
        assert_eq!(table.iter().count(), 0);
        let first = table.insert(bulk);
        assert!(table.get(first).is_some());
        assert!(table.remove(first).is_some());
        let second = table.insert(bulk);
        assert_ne!(first, second);
        assert!(table.get(first).is_none() && table.remove(first).is_none());
        assert!(table.get_mut(second).is_some());
        assert!(table.get(BulkName(77)).is_none());
        assert_eq!(table.iter().count(), 1);
    }
}
