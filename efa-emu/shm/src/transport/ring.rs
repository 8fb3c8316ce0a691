//! The ends of a ring in the memory that two processes share.

use std::sync::Arc;

use efa_lock_free::ring::{self, Receiver};

use super::segment::Segment;
use crate::process::shared::SharedMemory;

/// The sending end. Each record has a `T` that is returned with its answer.
pub(crate) type Producer<T> = ring::Producer<T, SharedMemory, ClaimedSlot>;

/// The receiving end.
pub(crate) type Consumer = ring::Consumer<SharedMemory>;

/// A slot that this process has claimed in the segment of the receiver.
pub(crate) struct ClaimedSlot {
    pub(crate) segment: Arc<Segment>,
    pub(crate) slot: usize,
}

impl Receiver for ClaimedSlot {
    #[inline]
    fn announce(&self) {
        self.segment.announce(self.slot);
    }

    fn is_refused(&self) -> bool {
        self.segment.is_refused(self.slot)
    }

    fn give_up(&self) {
        self.segment.give_up(self.slot);
    }
}

#[cfg(test)]
mod tests {
    use efa_core::address::Gid;
    use efa_core::nic::Status;
    use efa_lock_free::qpn::ParticipantId;
    use efa_lock_free::record::Record;

    use super::*;
    use crate::transport::segment::{Address, MIN_RING, SlotContent};

    const SENDER: Address = Address {
        gid: Gid([2; 16]),
        id: ParticipantId(7),
    };

    struct Pair {
        _directory: tempfile::TempDir,
        segment: Arc<Segment>,
        slot: usize,
        producer: Producer<()>,
        consumer: Consumer,
    }

    fn pair() -> Pair {
        let directory = tempfile::tempdir().unwrap();
        let address = Address {
            gid: Gid([1; 16]),
            id: ParticipantId(1),
        };
        let segment =
            Arc::new(Segment::create(&directory.path().join("1.device"), address).unwrap());
        let (slot, memory) = segment.claim_ring(SENDER, MIN_RING).unwrap().unwrap();
        let content = segment.inspect(slot);
        let SlotContent::InUse { sender, capacity } = content else {
            panic!("{content:?}");
        };
        assert_eq!((sender, capacity), (SENDER, MIN_RING));
        let consumer = Consumer::new(segment.adopt_ring(slot, capacity).unwrap());
        let claimed = ClaimedSlot {
            segment: Arc::clone(&segment),
            slot,
        };
        Pair {
            producer: Producer::new(claimed, memory),
            consumer,
            segment,
            slot,
            _directory: directory,
        }
    }

    #[test]
    fn abandoning_frees_the_slot() {
        let mut pair = pair();
        let record = Record::outcome(0, Status::Ok);
        pair.producer.push(&record, (), |_, _| {}).unwrap();
        assert!(pair.consumer.has_record());
        pair.producer.abandon(|(), _, _| {});
        assert_eq!(pair.segment.inspect(pair.slot), SlotContent::GivenUp);
        pair.segment.free(pair.slot);
        assert_eq!(pair.segment.inspect(pair.slot), SlotContent::Free);
        let (slot, memory) = pair.segment.claim_ring(SENDER, MIN_RING).unwrap().unwrap();
        assert_eq!(slot, pair.slot);
        let consumer = Consumer::new(pair.segment.adopt_ring(slot, MIN_RING).unwrap());
        assert!(
            !consumer.has_record(),
            "nothing is left of the earlier ring"
        );
        drop(memory);
    }

    #[test]
    fn refused_and_full_segments_are_reported() {
        let pair = pair();
        assert!(!pair.producer.is_refused());
        pair.segment.refuse(pair.slot);
        assert!(pair.producer.is_refused());
        assert_eq!(
            pair.segment.inspect(pair.slot),
            SlotContent::Pending {
                claim: SENDER.claim()
            },
            "not free before the sender knows"
        );
    }
}
