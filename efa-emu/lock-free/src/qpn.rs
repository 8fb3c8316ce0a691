//! The owners of queue pair numbers, in words that every process of a fabric can reach.
//!
//! Numbers are acquired and released by single compare-and-swap operations, so a process that is
//! killed at any moment leaves at worst numbers owned by a dead participant, which the next process
//! to acquire one detects. A slot guards no other memory: the data of its owner is found through
//! files. So the operations need no ordering.

use efa_core::address::Qpn;
use efa_device_model::device::QpnRange;
use efa_device_model::network::{Purpose, Random};
use efa_device_model::qpn_policy::QpnPolicy;

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A number that is unique among the participants of one host, never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ParticipantId(pub u32);

/// The words of a table of queue pair numbers.
#[derive(Clone, Copy, Debug)]
pub struct QpnTable<'a> {
    /// The number of each slot.
    pub range: QpnRange,
    /// Counts released numbers.
    pub clock: &'a AtomicU32,
    /// Owner (low 32 bits, 0 = free), time of the last change (high 32).
    pub slots: &'a [AtomicU64],
}

impl<'a> QpnTable<'a> {
    /// The present owner of the number in a slot.
    pub fn allocation(self, slot: u32) -> Option<QpnAllocation> {
        QpnAllocation::from_slot(self.slot(slot).load(Ordering::Relaxed))
    }

    fn slot(self, index: u32) -> &'a AtomicU64 {
        &self.slots[index as usize]
    }

    /// Makes `owner` the owner of the number in a slot, whoever has it.
    pub fn assign(self, slot: u32, owner: ParticipantId) {
        let taken = slot_value(owner.0, self.tick());
        self.slot(slot).store(taken, Ordering::Relaxed);
    }

    /// All numbers in use.
    pub fn owned(self) -> impl Iterator<Item = (Qpn, ParticipantId)> + 'a {
        (0..self.range.count()).filter_map(move |index| {
            let allocation = self.allocation(index)?;
            Some((self.range.qpn(index), allocation.owner()))
        })
    }

    /// Acquires a free number for `owner`, preferably the given one. `is_alive` checks another
    /// owner; the numbers of a dead owner count as free. `None` if no number is free.
    pub fn take(
        self,
        owner: ParticipantId,
        choice: &mut QpnChoice,
        preferred: Option<Qpn>,
        is_alive: &mut dyn FnMut(ParticipantId) -> bool,
    ) -> Option<Qpn> {
        // Another process may acquire the chosen slot first. Each iteration means that some process
        // acquired a number, so the attempts are bounded by the count of numbers.
        for _ in 0..=self.range.count() {
            let (index, seen) = self.choose(choice, preferred, is_alive)?;
            let stamp = self.tick();
            let taken = slot_value(owner.0, stamp);
            let swapped = self.slot(index).compare_exchange(
                seen,
                taken,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if swapped.is_ok() {
                return Some(self.range.qpn(index));
            }
        }
        None
    }

    fn choose(
        self,
        choice: &mut QpnChoice,
        preferred: Option<Qpn>,
        is_alive: &mut dyn FnMut(ParticipantId) -> bool,
    ) -> Option<(u32, u64)> {
        let mut if_free = |index| {
            let value = self.slot(index).load(Ordering::Relaxed);
            let is_free = match QpnAllocation::from_slot(value) {
                None => true,
                Some(allocation) => !is_alive(allocation.owner()),
            };
            is_free.then_some((index, value))
        };
        if let Some(found) = preferred
            .and_then(|qpn| self.range.slot(qpn))
            .and_then(&mut if_free)
        {
            return Some(found);
        }
        let now = self.clock.load(Ordering::Relaxed);
        let free = self
            .range
            .slots()
            .filter_map(if_free)
            .map(|(index, value)| {
                // Never-used slots carry time 0 and are the oldest until the clock wraps.
                let age = now.wrapping_sub((value >> 32) as u32);
                (self.range.qpn(index), age, (index, value))
            });
        choice.policy.choose(free, choice.random.generator())
    }

    /// Releases `qpn` if `owner` has it.
    pub fn release(self, owner: ParticipantId, qpn: Qpn) {
        let Some(index) = self.range.slot(qpn) else {
            return;
        };
        self.release_slot(index, |id| id == owner);
    }

    /// Releases all numbers of owners that `gone` selects.
    pub fn release_all(self, mut gone: impl FnMut(ParticipantId) -> bool) {
        for index in 0..self.range.count() {
            self.release_slot(index, &mut gone);
        }
    }

    fn release_slot(self, index: u32, mut gone: impl FnMut(ParticipantId) -> bool) {
        let slot = self.slot(index);
        let seen = slot.load(Ordering::Relaxed);
        if QpnAllocation::from_slot(seen).is_some_and(|allocation| gone(allocation.owner())) {
            // If the exchange fails, another process has acquired the number of a dead owner.
            let _ = slot.compare_exchange(
                seen,
                slot_value(0, self.tick()),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    fn tick(self) -> u32 {
        self.clock.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}

const fn slot_value(owner: u32, stamp: u32) -> u64 {
    ((stamp as u64) << 32) | owner as u64
}

/// One ownership of a queue pair number, from its acquisition to its release. It changes whenever
/// the number changes hands, even from a participant to itself: it is good for noticing that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpnAllocation(u64);

impl QpnAllocation {
    /// The allocation in the word of a number; `None` if the number is free.
    #[inline(always)]
    pub fn from_slot(value: u64) -> Option<QpnAllocation> {
        (value as u32 != 0).then_some(QpnAllocation(value))
    }

    /// The participant whose number it is.
    #[inline]
    pub fn owner(self) -> ParticipantId {
        ParticipantId(self.0 as u32)
    }
}

/// How the next number is chosen among the free ones.
#[derive(Debug)]
pub struct QpnChoice {
    policy: QpnPolicy,
    random: Random,
}

impl QpnChoice {
    /// The choices of a policy. `seed` decides those at random.
    pub fn new(policy: QpnPolicy, seed: u64) -> QpnChoice {
        QpnChoice {
            policy,
            random: Random::new(seed, Purpose::QueuePairNumber),
        }
    }
}
