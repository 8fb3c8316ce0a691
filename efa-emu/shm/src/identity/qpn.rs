//! A device's table: its name, and the participants that own its queue pair numbers.
//!
//! The table is one file, mapped by every process that has opened the device and by every process
//! that sends to it. [`efa_lock_free::qpn`] is how the numbers change their owners.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | magic `EFAEMUHT` |
//! | 8 | 4 | layout version |
//! | 12 | 4 | numbers that the host has (a power of two) |
//! | 16 | 16 | GID |
//! | 32 | 4 | 1 once the host was removed (the file is unlinked, or about to be) |
//! | 36 | 4 | number of the last participant |
//! | 40 | 4 | clock: counts released numbers |
//! | 44 | 4 | counts requests for the statistics |
//! | 48 | 4 | index of the device among those of its host |
//! | 52 | 4 | number of devices of the host |
//! | 56 | 4 | counts removals of the device from the host and its returns: odd while it is removed |
//! | 64 | 64 | name of the host, zero-padded |
//! | 128 | 8 | counts staged errors of queues |
//! | 136 | 8 each | the last 32 of them, see `statistics` |
//! | 448 | 64 | name of the device's machine if it is another one, zero-padded |
//! | 65536 | 8 each | slot i: owner (low 32 bits, 0 = free), time of the last change (high 32) |
//! | behind the slots, at the next multiple of 65536 | 8 each | statistics of all devices that the host had, see `device::Statistics` |
//!
//! `device::QpnRange` maps slots to numbers. In the table of a device of another machine, the first
//! slot represents all numbers: the process that represents the device here owns all of them.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use efa_core::address::{Gid, Qpn};

use super::device_name::DeviceName;
use crate::error::FabricError;
use crate::process::layout::{self, Layout};
use crate::process::opening;
use crate::process::shared::{PAGE, SharedMemory};
use efa_device_model::device::QpnRange;
use efa_lock_free::qpn::{ParticipantId, QpnAllocation, QpnChoice, QpnTable};

const LAYOUT: Layout = Layout {
    magic: u64::from_le_bytes(*b"EFAEMUHT"),
    version: 5,
    foreign: "it does not start with the magic number of a host table",
};

const AT_COUNT: usize = 12;
const AT_GID: usize = 16;
const AT_RETIRED: usize = 32;
const AT_PARTICIPANT: usize = 36;
const AT_CLOCK: usize = 40;
const AT_REQUESTS: usize = 44;
const AT_INDEX: usize = 48;
const AT_DEVICES: usize = 52;
const AT_REMOVALS: usize = 56;
const AT_NAME: usize = 64;
const NAME_BYTES: usize = 64;
const AT_ORDERS: usize = 128;
const AT_ORDER: usize = 136;
const KEPT_ORDERS: u64 = 32;
const AT_MACHINE: usize = 448;
const AT_SLOTS: usize = PAGE;

/// The time of a device in its host between two removals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Incarnation(u32);

/// A mapped table.
#[derive(Debug)]
pub(crate) struct HostTable {
    memory: SharedMemory,
    range: QpnRange,
    is_remote: bool,
}

/// The parameters of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TableOwner<'a> {
    /// A device that may have this many queue pairs at a time.
    Own(u32),
    /// A device of the machine with this name.
    Remote(&'a str),
}

impl HostTable {
    /// The number of statistics that the table has room for.
    pub(crate) const MOST_STATISTICS: usize = PAGE / 8;

    /// The length of a table in bytes.
    pub(crate) fn bytes(queue_pairs: u32) -> usize {
        table_length(QpnRange::for_queue_pairs(queue_pairs))
    }

    /// Writes a new table. The caller holds the registry lock and creates `path` as the table's
    /// final path only afterwards, so that a half-written table is never visible.
    pub(crate) fn create(
        path: &Path,
        name: &DeviceName,
        gid: Gid,
        owner: TableOwner<'_>,
    ) -> Result<HostTable, FabricError> {
        let (queue_pairs, machine) = match owner {
            TableOwner::Own(queue_pairs) => (queue_pairs, ""),
            TableOwner::Remote(machine) => (0, machine),
        };
        let range = QpnRange::for_queue_pairs(queue_pairs);
        let length = table_length(range);
        let mut options = opening::options();
        options.create(true).truncate(true);
        let (_, memory) = LAYOUT.create(&options, path, length, length)?;
        memory
            .u32_at::<AT_COUNT>()
            .store(range.count(), Ordering::Relaxed);
        // A host that is created again must not repeat the numbers of its participants: peers may
        // still use earlier ones.
        let first = rand::random::<u32>();
        memory
            .u32_at::<AT_PARTICIPANT>()
            .store(first, Ordering::Relaxed);
        memory.write(AT_GID, &gid.0);
        for (place, value) in [
            (memory.u32_at::<AT_INDEX>(), name.index()),
            (memory.u32_at::<AT_DEVICES>(), name.devices()),
        ] {
            place.store(value, Ordering::Relaxed);
        }
        memory.write(AT_NAME, name.host().as_bytes());
        memory.write(AT_MACHINE, machine.as_bytes());
        LAYOUT.complete(&memory);
        Ok(HostTable::of(memory, range))
    }

    /// Maps the existing table of the host with this GID; `None` if there is none at `path`.
    pub(crate) fn open(path: &Path, gid: Gid) -> Result<Option<HostTable>, FabricError> {
        let Some((file, header)) = LAYOUT.open(path, PAGE, PAGE)? else {
            return Ok(None);
        };
        let count = header.u32_at::<AT_COUNT>().load(Ordering::Relaxed);
        let range = QpnRange::with_count(count).ok_or_else(|| {
            layout::damaged(path, "its count of queue pair numbers is not possible")
        })?;
        let mut found = [0; 16];
        header.read(AT_GID, &mut found);
        if Gid(found) != gid {
            return Err(layout::damaged(path, "it is the table of another host"));
        }
        let length = table_length(range);
        let memory = layout::map(&file, path, length, length)?;
        Ok(Some(HostTable::of(memory, range)))
    }

    fn of(memory: SharedMemory, range: QpnRange) -> HostTable {
        let is_remote = !text(&memory, AT_MACHINE).is_empty();
        HostTable {
            memory,
            range,
            is_remote,
        }
    }

    /// The machine that the device is on, if it is another one.
    pub(crate) fn machine(&self) -> Option<String> {
        self.is_remote.then(|| text(&self.memory, AT_MACHINE))
    }

    pub(crate) fn is_remote(&self) -> bool {
        self.is_remote
    }

    pub(crate) fn name(&self) -> DeviceName {
        DeviceName::new(
            &text(&self.memory, AT_NAME),
            self.memory.u32_at::<AT_INDEX>().load(Ordering::Relaxed),
            self.memory.u32_at::<AT_DEVICES>().load(Ordering::Relaxed),
        )
    }

    /// Whether the host was removed, and the table with it.
    pub(crate) fn is_retired(&self) -> bool {
        self.memory.u32_at::<AT_RETIRED>().load(Ordering::Relaxed) != 0
    }

    /// Marks the host as removed, with all its queue pairs.
    pub(crate) fn retire(&self) {
        self.memory
            .u32_at::<AT_RETIRED>()
            .store(1, Ordering::Relaxed);
        self.numbers().release_all(|_| true);
    }

    /// Removes the device. Processes that have opened it notice, as for
    /// [`HostTable::request_statistics`].
    pub(crate) fn remove(&self) {
        let removals = self.memory.u32_at::<AT_REMOVALS>();
        removals.fetch_or(1, Ordering::Relaxed);
        self.request_statistics();
    }

    /// Returns a removed device to its host: it can be opened again. For processes that had it open
    /// before, it remains removed.
    pub(crate) fn restore(&self) {
        let removals = self.memory.u32_at::<AT_REMOVALS>();
        let returned =
            |removals: u32| (!removals.is_multiple_of(2)).then(|| removals.wrapping_add(1));
        // Without a removal there is nothing to do.
        let _ = removals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, returned);
    }

    /// The current stay of the device in its host; `None` while it is removed. A process that sees
    /// a later request for statistics than the removal sees the removal.
    pub(crate) fn incarnation(&self) -> Option<Incarnation> {
        let removals = self.memory.u32_at::<AT_REMOVALS>().load(Ordering::Relaxed);
        removals.is_multiple_of(2).then_some(Incarnation(removals))
    }

    /// Stores an order for the processes that have opened the device. They detect it as for
    /// [`HostTable::request_statistics`]. The registry is locked.
    pub(crate) fn order(&self, order: u64) {
        let count = self.memory.u64_at::<AT_ORDERS>();
        let number = count.load(Ordering::Relaxed);
        self.order_at(number).store(order, Ordering::Relaxed);
        // Release: with the order.
        count.store(number + 1, Ordering::Release);
        self.request_statistics();
    }

    fn order_at(&self, number: u64) -> &AtomicU64 {
        self.memory
            .u64(AT_ORDER + 8 * (number % KEPT_ORDERS) as usize)
    }

    /// The number of orders. A process that sees a later request for statistics than an order sees
    /// the order.
    pub(crate) fn orders(&self) -> u64 {
        // Acquire: with the orders that are counted.
        self.memory.u64_at::<AT_ORDERS>().load(Ordering::Acquire)
    }

    /// The orders with these numbers that are still stored.
    pub(crate) fn kept_orders(&self, numbers: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        let kept = numbers.start.max(numbers.end.saturating_sub(KEPT_ORDERS));
        (kept..numbers.end).map(|number| self.order_at(number).load(Ordering::Relaxed))
    }

    /// Requests that the host's devices publish their counts to the statistics. Active devices do
    /// so immediately; sleeping devices have published before they went to sleep.
    pub(crate) fn request_statistics(&self) {
        let requests = self.memory.u32_at::<AT_REQUESTS>();
        // Release: with the removal, if that is why.
        requests.fetch_add(1, Ordering::Release);
    }

    /// The number of requests for the statistics.
    #[inline(always)]
    pub(crate) fn statistics_requests(&self) -> u32 {
        // Acquire: with the removal of the device, if that is why.
        self.memory.u32_at::<AT_REQUESTS>().load(Ordering::Acquire)
    }

    fn statistic(&self, index: usize) -> &AtomicU64 {
        self.memory.u64(slots_end(self.range) + 8 * index)
    }

    /// Adds to one of the statistics.
    pub(crate) fn add_to_statistic(&self, index: usize, number: u64) {
        self.statistic(index).fetch_add(number, Ordering::Relaxed);
    }

    /// The first `COUNT` of the statistics.
    pub(crate) fn statistics<const COUNT: usize>(&self) -> [u64; COUNT] {
        std::array::from_fn(|index| self.statistic(index).load(Ordering::Relaxed))
    }

    pub(crate) fn next_participant(&self) -> ParticipantId {
        loop {
            let id = self
                .memory
                .u32_at::<AT_PARTICIPANT>()
                .fetch_add(1, Ordering::Relaxed)
                .wrapping_add(1);
            if id != 0 {
                return ParticipantId(id);
            }
        }
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> &AtomicU64 {
        self.memory.u64(AT_SLOTS + 8 * index as usize)
    }

    /// The place of a number. `None` if the table has no such number.
    pub(crate) fn place(&self, qpn: Qpn) -> Option<TableIndex> {
        match self.is_remote {
            true => Some(TableIndex::ALL),
            false => self.range.slot(qpn).map(TableIndex),
        }
    }

    /// Makes `owner` the owner of all numbers of a device of another machine.
    pub(crate) fn take_all(&self, owner: ParticipantId) {
        self.numbers().assign(TableIndex::ALL.0, owner);
    }

    /// The numbers and their owners.
    pub(crate) fn numbers(&self) -> QpnTable<'_> {
        QpnTable {
            range: self.range,
            clock: self.memory.u32_at::<AT_CLOCK>(),
            slots: self.memory.words(AT_SLOTS, self.range.count() as usize),
        }
    }

    /// The present owner of the number at `place`.
    #[inline(always)]
    pub(crate) fn allocation_at(&self, place: TableIndex) -> Option<QpnAllocation> {
        QpnAllocation::from_slot(self.slot(place.0).load(Ordering::Relaxed))
    }

    /// Acquires a free number for `owner`, preferably the given one. `is_alive` checks another
    /// owner; the numbers of a dead owner count as free.
    pub(crate) fn take(
        &self,
        owner: ParticipantId,
        choice: &mut QpnChoice,
        preferred: Option<Qpn>,
        is_alive: &mut dyn FnMut(ParticipantId) -> bool,
    ) -> Result<Qpn, FabricError> {
        self.numbers()
            .take(owner, choice, preferred, is_alive)
            .ok_or(FabricError::QpnsExhausted {
                limit: self.range.count(),
            })
    }
}

/// A text that is padded with zeros to the length of a name.
fn text(memory: &SharedMemory, at: usize) -> String {
    let mut bytes = [0; NAME_BYTES];
    memory.read(at, &mut bytes);
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(NAME_BYTES)]).into_owned()
}

/// The offset of the page of statistics.
fn slots_end(range: QpnRange) -> usize {
    AT_SLOTS + (8 * range.count() as usize).next_multiple_of(PAGE)
}

fn table_length(range: QpnRange) -> usize {
    slots_end(range) + PAGE
}

/// The position of a queue pair number in a host's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TableIndex(u32);

impl TableIndex {
    /// The position of all numbers of a device of another machine.
    const ALL: TableIndex = TableIndex(0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use efa_device_model::qpn_policy::QpnPolicy;

    fn allocation(table: &HostTable, qpn: Qpn) -> Option<QpnAllocation> {
        table.allocation_at(table.place(qpn)?)
    }

    const ALICE: ParticipantId = ParticipantId(1);
    const BOB: ParticipantId = ParticipantId(2);

    fn table(queue_pairs: u32) -> (tempfile::TempDir, HostTable) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("table");
        let name = DeviceName::new("alpha", 3, 4);
        let table =
            HostTable::create(&path, &name, Gid([7; 16]), TableOwner::Own(queue_pairs)).unwrap();
        let opened = HostTable::open(&path, Gid([7; 16])).unwrap().unwrap();
        assert_eq!(opened.name(), name);
        (directory, table)
    }

    fn take(table: &HostTable, owner: ParticipantId, choice: &mut QpnChoice) -> u16 {
        table.take(owner, choice, None, &mut |_| true).unwrap().0
    }

    #[test]
    fn lowest_gives_a_freed_number_again_at_once() {
        let (_directory, table) = table(8);
        let mut lowest = QpnChoice::new(QpnPolicy::Lowest, 0);
        let taken: Vec<_> = (0..8).map(|_| take(&table, ALICE, &mut lowest)).collect();
        assert_eq!(taken, [2, 3, 4, 5, 6, 7, 8, 9], "0 and 1 are never used");
        let error = table
            .take(BOB, &mut lowest, None, &mut |_| true)
            .unwrap_err();
        assert!(error.to_string().contains("8 are in use"), "{error}");
        table.numbers().release(ALICE, Qpn(4));
        table.numbers().release(ALICE, Qpn(3));
        assert_eq!(take(&table, BOB, &mut lowest), 3);
        table.numbers().release(ALICE, Qpn(3));
        assert_eq!(
            allocation(&table, Qpn(3)).unwrap().owner(),
            BOB,
            "only the owner gives back"
        );
    }

    #[test]
    fn oldest_waits_as_long_as_possible() {
        let (_directory, table) = table(4);
        let mut oldest = QpnChoice::new(QpnPolicy::Oldest, 0);
        assert_eq!(
            [(); 3].map(|()| take(&table, ALICE, &mut oldest)),
            [2, 3, 4]
        );
        table.numbers().release(ALICE, Qpn(3));
        table.numbers().release(ALICE, Qpn(2));
        assert_eq!(
            [(); 3].map(|()| take(&table, ALICE, &mut oldest)),
            [5, 3, 2]
        );
    }

    #[test]
    fn a_free_preferred_number_is_taken() {
        let (_directory, table) = table(8);
        let mut lowest = QpnChoice::new(QpnPolicy::Lowest, 0);
        let mut prefer = |qpn| {
            let taken = table.take(ALICE, &mut lowest, Some(Qpn(qpn)), &mut |_| true);
            taken.unwrap().0
        };
        assert_eq!([7, 7, 0, 100].map(&mut prefer), [7, 2, 3, 4]);
    }

    #[test]
    fn random_is_seeded_and_gives_free_numbers() {
        let draw = |seed| {
            let (_directory, table) = table(64);
            let mut random = QpnChoice::new(QpnPolicy::Random, seed);
            (0..64)
                .map(|_| take(&table, ALICE, &mut random))
                .collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let mut sorted = draw(3);
        sorted.sort_unstable();
        assert_eq!(sorted, (2..66).collect::<Vec<_>>());
    }

    #[test]
    fn dead_processes_free_numbers_with_new_allocations() {
        let (_directory, table) = table(4);
        let mut lowest = QpnChoice::new(QpnPolicy::Lowest, 0);
        let qpn = Qpn(take(&table, ALICE, &mut lowest));
        let first = allocation(&table, qpn).unwrap();
        let again = table
            .take(BOB, &mut lowest, None, &mut |owner| owner != ALICE)
            .unwrap();
        assert_eq!(again, qpn);
        assert_ne!(allocation(&table, qpn).unwrap(), first);
        table.numbers().release_all(|owner| owner == BOB);
        assert_eq!(allocation(&table, qpn), None);
        assert_eq!(table.numbers().owned().count(), 0);
        let same = Qpn(take(&table, ALICE, &mut lowest));
        assert_eq!(same, qpn);
        assert_ne!(
            allocation(&table, qpn).unwrap(),
            first,
            "the same owner again is another allocation"
        );
    }

    #[test]
    fn numbers_outside_the_table_have_no_owner() {
        let (_directory, table) = table(4);
        for qpn in [0, 1, 6, 7, 4095, u16::MAX] {
            assert_eq!(allocation(&table, Qpn(qpn)), None);
            table.numbers().release(ALICE, Qpn(qpn));
        }
    }

    #[test]
    fn concurrent_takers_never_share_a_number() {
        let (_directory, table) = table(256);
        let mut all: Vec<u16> = std::thread::scope(|scope| {
            let takers: Vec<_> = (1..=4)
                .map(|id| {
                    let table = &table;
                    scope.spawn(move || {
                        let mut choice = QpnChoice::new(QpnPolicy::Random, u64::from(id));
                        let mut mine = Vec::new();
                        for round in 0..2000 {
                            if mine.len() < 64 {
                                mine.push(take(table, ParticipantId(id), &mut choice));
                            }
                            if round < 1900 && mine.len() > 32 {
                                table
                                    .numbers()
                                    .release(ParticipantId(id), Qpn(mine.swap_remove(round % 32)));
                            }
                        }
                        mine
                    })
                })
                .collect();
            takers
                .into_iter()
                .flat_map(|taker| taker.join().unwrap())
                .collect()
        });
        assert_eq!(all.len(), 256);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 256);
    }

    #[test]
    fn damaged_tables_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("table");
        let open = || HostTable::open(&path, Gid::default());
        let refused = || open().unwrap_err().to_string();
        assert!(open().unwrap().is_none());
        std::fs::write(&path, b"short").unwrap();
        let error = refused();
        assert!(error.contains("too short"), "{error}");
        std::fs::write(&path, vec![0; 2 * PAGE]).unwrap();
        let error = refused();
        assert!(error.contains("magic"), "{error}");
        for (at, value, complaint) in [
            (AT_GID, 1u32, "another host"),
            (layout::AT_VERSION, LAYOUT.version + 1, "layout"),
            (AT_COUNT, 5, "count"),
            (AT_COUNT, 1 << 15, "short"),
        ] {
            HostTable::create(
                &path,
                &DeviceName::new("x", 0, 1),
                Gid::default(),
                TableOwner::Own(4),
            )
            .unwrap();
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            std::fs::write(&path, bytes).unwrap();
            let error = refused();
            assert!(error.contains(complaint), "{error}");
        }
    }
}
