//! The slots of this device's segment: rings are added and dropped, and polled or left to
//! doorbells.

use std::sync::Arc;

use super::deferred::DeferredRequest;
use super::in_ring::InRing;
use super::state::Inbound;
use crate::link::outbound::Outbound;
use crate::link::peer::refuse_slot;
use crate::transport::segment::{Address, SLOTS, SlotContent};

/// Number of rings that are polled even while idle.
const ALWAYS_POLLED: usize = 4;

impl Inbound {
    /// Makes every sender ring the doorbell from now on. Returns whether no record arrived before
    /// that took effect.
    pub(crate) fn prepare_to_sleep(&mut self) -> bool {
        for slot in &self.polled {
            self.segment.stop_polling(*slot);
        }
        let rings = &mut self.rings;
        self.polled.retain(|slot| {
            let Some(ring) = rings[*slot].as_mut() else {
                return false;
            };
            ring.polled = ring.consumer.has_record();
            match ring.polled {
                true => self.segment.start_polling(*slot),
                false => ring.wake_answered(),
            }
            ring.polled
        });
        self.polled.is_empty() && !self.segment.doorbell_rung()
    }

    /// Frees the slots of dead senders.
    pub(crate) fn check_peers(&mut self) {
        for slot in 0..SLOTS {
            let is_over = self.rings[slot].as_ref().is_some_and(|ring| {
                // Records that a process sent before it was killed must still be handled.
                !ring.consumer.has_record()
                    && ring.consumer.unanswered() == 0
                    && !ring.peer.is_alive()
            });
            if is_over {
                tracing::info!(slot, "the process at the other end of a ring has ended");
                self.drop_ring(slot);
                self.segment.free(slot);
            }
        }
    }

    #[cold]
    pub(super) fn answer_doorbells(&mut self, outbound: &mut Outbound) {
        let segment = Arc::clone(&self.segment);
        let mut adopted = false;
        let is_full = segment.take_doorbells(|slot| {
            adopted |= self.inspect_slot(slot, outbound);
        });
        if adopted || is_full {
            self.check_peers();
        }
        if is_full {
            self.free_abandoned_claims(outbound);
        }
    }

    /// Inspects a slot whose doorbell was rung. Returns whether it contains a new ring.
    fn inspect_slot(&mut self, slot: usize, outbound: &mut Outbound) -> bool {
        match self.segment.inspect(slot) {
            SlotContent::Free | SlotContent::Pending { .. } => false,
            SlotContent::GivenUp => {
                self.drop_ring(slot);
                self.segment.free(slot);
                false
            }
            SlotContent::Nonsense => {
                self.refuse(slot, &"the slot's descriptor makes no sense");
                false
            }
            SlotContent::InUse { sender, capacity } => {
                let is_new = self.rings[slot].is_none();
                if is_new && !self.adopt(slot, sender, capacity, outbound) {
                    return false;
                }
                if let Some(ring) = &mut self.rings[slot]
                    && !ring.polled
                {
                    ring.polled = true;
                    ring.idle_polls = 0;
                    self.polled.push(slot);
                    // The next poll finds the records that were committed before.
                    self.segment.start_polling(slot);
                }
                is_new
            }
        }
    }

    fn adopt(
        &mut self,
        slot: usize,
        sender: Address,
        capacity: usize,
        outbound: &mut Outbound,
    ) -> bool {
        let adopted = outbound.peers().adopt_ring(slot, sender, capacity);
        let Some((peer, consumer)) = adopted else {
            return false;
        };
        self.serials += 1;
        self.rings[slot] = Some(Box::new(InRing {
            consumer,
            from: sender.gid,
            peer,
            serial: self.serials,
            polled: false,
            idle_polls: 0,
            answered: false,
            reads: 0,
        }));
        true
    }

    pub(super) fn refuse(&mut self, slot: usize, reason: &dyn std::fmt::Display) {
        refuse_slot(&self.segment, slot, reason);
        if let Some(ring) = &self.rings[slot] {
            ring.peer.segment.wake();
        }
        self.drop_ring(slot);
    }

    fn drop_ring(&mut self, slot: usize) {
        self.rings[slot] = None;
        self.polled.retain(|polled| *polled != slot);
        self.scheduled.retain(|task| task.of.slot != slot);
        self.copies.retain(|copying| copying.of.slot != slot);
        self.pulls.retain(|pull| pull.of.slot != slot);
        self.deferred.retain(|deferred| match deferred {
            DeferredRequest::InRing(later) => later.slot != slot,
            DeferredRequest::Copied(_) => true,
        });
    }

    /// Frees slots whose claimants died, whether or not they had set up a ring.
    fn free_abandoned_claims(&mut self, outbound: &mut Outbound) {
        let Ok(participants) = outbound.peers().fabric().participants() else {
            return;
        };
        for slot in 0..SLOTS {
            if let SlotContent::Pending { claim } = self.segment.inspect(slot)
                && !participants
                    .iter()
                    .any(|(gid, id)| Address { gid: *gid, id: *id }.claim() == claim)
            {
                self.drop_ring(slot);
                self.segment.free(slot);
            }
        }
    }

    /// Returns a ring to doorbells if many are polled.
    #[cold]
    pub(super) fn give_turn_up(&mut self, slot: usize) {
        if self.polled.len() <= ALWAYS_POLLED {
            return;
        }
        let Some(ring) = &mut self.rings[slot] else {
            return;
        };
        ring.wake_answered();
        self.segment.stop_polling(slot);
        if ring.consumer.has_record() {
            self.segment.start_polling(slot);
        } else {
            ring.polled = false;
            self.polled.retain(|polled| *polled != slot);
        }
    }
}
