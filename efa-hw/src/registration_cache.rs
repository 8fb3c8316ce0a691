//! A cache of registrations, which outlive the operation for which they were created.
//!
//! An operation on memory without a registration leases one. The cache returns a registration that
//! covers the memory and grants the access, or makes a new one and keeps it. Registrations that no
//! operation uses are ended when there are too many (the least recently used first), and when the
//! device has no room for a new one.
//!
//! A kept registration is only returned while its memory has the same pages, which the
//! [monitor](crate::memory_monitor) checks. Where it cannot, each operation gets its own
//! registration.

use crate::memory_monitor::{Change, ChangeKind, MemoryMonitor};
use efa_core::nic::{Access, LocalKey, NicError, Region, UserSlice};
use slab::Slab;
use std::collections::{BTreeMap, HashMap};

/// The device that makes registrations.
pub(crate) trait Registrar {
    /// A registration, which ends when it is dropped.
    type Registration;

    fn register(&self, memory: UserSlice, access: Access) -> Result<Self::Registration, NicError>;

    fn keys(registration: &Self::Registration) -> Region;

    /// Ends a registration, or returns it with the error if the device refuses.
    fn end(&self, registration: Self::Registration) -> Result<(), (Self::Registration, NicError)>;
}

/// The limits of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheLimits {
    /// Registrations, those in use included.
    pub registrations: usize,
    /// The bytes that they pin together.
    pub bytes: u64,
}

impl Default for CacheLimits {
    /// 1024 registrations of 1 GiB in all.
    fn default() -> Self {
        CacheLimits {
            registrations: 1024,
            bytes: 1 << 30,
        }
    }
}

/// Statistics of a domain's cache since its creation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStatistics {
    /// Operations that were served with a kept registration.
    pub hits: u64,
    /// Registrations made, for memory that could be kept.
    pub misses: u64,
    /// Registrations for one operation, of memory that cannot be watched or was changing.
    pub bypasses: u64,
    /// Kept registrations that were ended because there was no room.
    pub evictions: u64,
    /// Kept registrations that were ended, or no longer returned, because their pages changed.
    pub invalidations: u64,
    /// Registrations kept now.
    pub kept: usize,
    /// Bytes that they pin.
    pub kept_bytes: u64,
}

/// A registration with its users.
#[derive(Debug)]
struct CachedRegistration<T> {
    registration: T,
    key: LocalKey,
    memory: UserSlice,
    access: Access,
    /// The number of operations that use it.
    users: usize,
    /// Whether further operations may get it: it is in the index.
    is_kept: bool,
    /// The time at which its last user left; the key in `idle`.
    idle_since: u64,
}

/// Kept registrations that grant the same access, by the address of the first byte.
///
/// None of them covers another one, so their ends rise with their starts.
type Index = BTreeMap<u64, usize>;

/// The registrations of a domain that are leased or kept.
#[derive(Debug)]
pub(crate) struct RegistrationCache<R: Registrar, M> {
    monitor: M,
    limits: CacheLimits,
    entries: Slab<CachedRegistration<R::Registration>>,
    by_key: HashMap<LocalKey, usize>,
    /// Kept registrations by the access that they grant.
    kept: BTreeMap<u32, Index>,
    /// Kept registrations without users, ordered by the time at which they lost the last one.
    idle: BTreeMap<u64, usize>,
    clock: u64,
    /// Registrations that the device refused to end, with their memory. The next lease tries again.
    refused: Vec<(UserSlice, R::Registration)>,
    /// Memory that loses its pages at an unknown time.
    unsettled: Ranges,
    statistics: CacheStatistics,
}

impl<R: Registrar, M: MemoryMonitor> RegistrationCache<R, M> {
    pub(crate) fn new(monitor: M, limits: CacheLimits) -> Self {
        RegistrationCache {
            monitor,
            limits,
            entries: Slab::new(),
            by_key: HashMap::new(),
            kept: BTreeMap::new(),
            idle: BTreeMap::new(),
            clock: 0,
            refused: Vec::new(),
            unsettled: Ranges::default(),
            statistics: CacheStatistics::default(),
        }
    }

    pub(crate) fn statistics(&self) -> CacheStatistics {
        self.statistics
    }

    /// Returns whether a key is that of a leased or kept registration.
    pub(crate) fn has(&self, key: LocalKey) -> bool {
        self.by_key.contains_key(&key)
    }

    /// Returns a registration that covers the memory, grants the access, and was made of the
    /// current pages.
    pub(crate) fn lease(
        &mut self,
        registrar: &R,
        memory: UserSlice,
        access: Access,
    ) -> Result<Region, NicError> {
        for (of, registration) in std::mem::take(&mut self.refused) {
            self.end(registrar, of, registration).ok();
        }
        let is_known = self.settle(registrar);
        if is_known && let Some(place) = self.find(memory, access) {
            self.statistics.hits += 1;
            let entry = &mut self.entries[place];
            if entry.users == 0 {
                self.idle.remove(&entry.idle_since);
            }
            entry.users += 1;
            return Ok(R::keys(&entry.registration));
        }
        // Before the registration, so that a change after it is reported.
        let may_keep = is_known && !self.unsettled.overlap(memory) && self.monitor.watch(memory);
        let registration = loop {
            match registrar.register(memory, access) {
                Err(NicError::Exhausted(_)) if self.evict_one(registrar) => {}
                other => break other?,
            }
        };
        let keys = R::keys(&registration);
        let place = self.entries.insert(CachedRegistration {
            registration,
            key: keys.local_key,
            memory,
            access,
            users: 1,
            is_kept: false,
            idle_since: 0,
        });
        self.by_key.insert(keys.local_key, place);
        match may_keep {
            true => {
                self.statistics.misses += 1;
                self.keep(registrar, place);
            }
            false => self.statistics.bypasses += 1,
        }
        Ok(keys)
    }

    /// Ends the use of a leased registration by one operation.
    pub(crate) fn end_lease(&mut self, registrar: &R, key: LocalKey) -> Result<(), NicError> {
        let leased = self.by_key.get(&key).copied();
        let Some(place) = leased.filter(|place| self.entries[*place].users > 0) else {
            return Err(NicError::invalid("local key", key.0));
        };
        let entry = &mut self.entries[place];
        entry.users -= 1;
        if entry.users > 0 {
            return Ok(());
        }
        if entry.is_kept {
            self.clock += 1;
            entry.idle_since = self.clock;
            self.idle.insert(self.clock, place);
            return Ok(());
        }
        self.remove(registrar, place)
    }

    /// Ends all registrations in a range of memory, including those in use, whose operations fail.
    pub(crate) fn end_all_in(&mut self, registrar: &R, memory: UserSlice) -> Result<(), NicError> {
        let mut result = Ok(());
        for (of, registration) in std::mem::take(&mut self.refused) {
            let ended = self.end(registrar, of, registration);
            if overlap(of, memory) {
                result = result.and(ended);
            }
        }
        let inside = self.entries.iter();
        let inside = inside.filter(|(_, entry)| overlap(entry.memory, memory));
        let places: Vec<usize> = inside.map(|(place, _)| place).collect();
        for place in places {
            self.forget(place);
            result = result.and(self.remove(registrar, place));
        }
        result
    }

    /// Applies the changes of memory that the monitor reports. Returns whether these are all
    /// changes.
    fn settle(&mut self, registrar: &R) -> bool {
        let mut changes = Vec::new();
        let are_all = self.monitor.changes(|change| changes.push(change));
        for Change { start, end, kind } in changes {
            match kind {
                ChangeKind::Coming => self.unsettled.add(start, end),
                ChangeKind::Done => self.unsettled.remove(start, end),
            }
            let kept = &self.entries;
            let mut changed = Vec::new();
            for index in self.kept.values() {
                // The ends decrease with the starts.
                let before = index.range(..end).rev().map(|(_, place)| *place);
                changed.extend(before.take_while(|place| bounds(kept[*place].memory).1 > start));
            }
            for place in changed {
                self.statistics.invalidations += 1;
                self.drop_from_index(registrar, place);
            }
        }
        are_all
    }

    /// Finds a kept registration that covers the memory and grants the access.
    fn find(&self, memory: UserSlice, access: Access) -> Option<usize> {
        let (start, end) = bounds(memory);
        self.kept.iter().find_map(|(granted, index)| {
            if !Access::from_bits_retain(*granted).contains(access) {
                return None;
            }
            // Of the registrations that begin early enough, the last one reaches farthest.
            let (_, place) = index.range(..=start).next_back()?;
            (bounds(self.entries[*place].memory).1 >= end).then_some(*place)
        })
    }

    /// Keeps a new registration, if there is room for it.
    fn keep(&mut self, registrar: &R, place: usize) {
        let entry = &mut self.entries[place];
        entry.is_kept = true;
        let (memory, access) = (entry.memory, entry.access.bits());
        let (start, end) = bounds(memory);
        let index = self.kept.entry(access).or_default();
        let (entries, mut covered) = (&self.entries, Vec::new());
        for (_, other) in index.range(start..end) {
            if bounds(entries[*other].memory).1 <= end {
                covered.push(*other);
            }
        }
        for other in covered {
            self.drop_from_index(registrar, other);
        }
        self.kept.entry(access).or_default().insert(start, place);
        self.statistics.kept += 1;
        self.statistics.kept_bytes += memory.length as u64;
        let limits = self.limits;
        while self.statistics.kept > limits.registrations
            || self.statistics.kept_bytes > limits.bytes
        {
            if !self.evict_one(registrar) {
                // All others are in use, so this one is only for its operation.
                self.forget(place);
                return;
            }
        }
    }

    /// Ends the least recently used kept registration. Returns whether there was one.
    fn evict_one(&mut self, registrar: &R) -> bool {
        let Some((_, &place)) = self.idle.first_key_value() else {
            return false;
        };
        self.statistics.evictions += 1;
        self.drop_from_index(registrar, place);
        true
    }

    /// No longer returns a registration, and ends it once no operation uses it.
    fn drop_from_index(&mut self, registrar: &R, place: usize) {
        self.forget(place);
        if self.entries[place].users == 0 {
            // If the device refuses, the next lease tries again.
            self.remove(registrar, place).ok();
        }
    }

    /// No longer returns a registration.
    fn forget(&mut self, place: usize) {
        let entry = &mut self.entries[place];
        if !std::mem::take(&mut entry.is_kept) {
            return;
        }
        if entry.users == 0 {
            self.idle.remove(&entry.idle_since);
        }
        self.statistics.kept -= 1;
        self.statistics.kept_bytes -= entry.memory.length as u64;
        if let Some(index) = self.kept.get_mut(&entry.access.bits()) {
            index.remove(&entry.memory.address);
        }
    }

    /// Ends a registration that is not kept any more.
    fn remove(&mut self, registrar: &R, place: usize) -> Result<(), NicError> {
        let entry = self.entries.remove(place);
        self.by_key.remove(&entry.key);
        self.end(registrar, entry.memory, entry.registration)
    }

    fn end(
        &mut self,
        registrar: &R,
        memory: UserSlice,
        registration: R::Registration,
    ) -> Result<(), NicError> {
        registrar
            .end(registration)
            .map_err(|(registration, error)| {
                self.refused.push((memory, registration));
                error
            })
    }
}

/// The address of the first byte, and the address after the last one.
fn bounds(memory: UserSlice) -> (u64, u64) {
    let end = memory.address.saturating_add(memory.length as u64);
    (memory.address, end)
}

/// Whether two ranges of memory have a byte in common.
pub(crate) fn overlap(one: UserSlice, other: UserSlice) -> bool {
    let ((first, end), (start, last)) = (bounds(one), bounds(other));
    first < last && start < end
}

/// A set of addresses: disjoint ranges, by their starts.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn overlap(&self, memory: UserSlice) -> bool {
        let (start, end) = bounds(memory);
        let before = self.0.range(..end).next_back();
        before.is_some_and(|(_, last)| *last > start)
    }

    fn add(&mut self, mut start: u64, mut end: u64) {
        // Ranges that touch become one.
        while let Some((&first, &last)) = self.0.range(..=end).next_back()
            && last >= start
        {
            self.0.remove(&first);
            (start, end) = (start.min(first), end.max(last));
        }
        self.0.insert(start, end);
    }

    fn remove(&mut self, start: u64, end: u64) {
        while let Some((&first, &last)) = self.0.range(..end).next_back()
            && last > start
        {
            self.0.remove(&first);
            if last > end {
                self.0.insert(end, last);
            }
            if first < start {
                self.0.insert(first, start);
            }
        }
    }
}

#[cfg(test)]
mod tests;
