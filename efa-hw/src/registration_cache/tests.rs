//! The cache over a model of a device, of its memory, and of a kernel that reports changes.

use super::*;
use efa_core::nic::RemoteKey;
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

/// Bytes of a page of the model.
const PAGE: u64 = 16;
const PAGES: usize = 12;
/// The memory from this page on is shared with others: its changes are not reported.
const SHARED: usize = 10;
const READ: Access = Access::REMOTE_READ;
const WRITE: Access = Access::LOCAL_WRITE;

#[derive(Debug, Default)]
struct World {
    /// The content of each page: a number that was never used before, or none.
    pages: Vec<Option<u32>>,
    /// Pages whose changes are reported.
    watched: Vec<bool>,
    next: u32,
    /// The pages that registrations were made of, with their access.
    registered: BTreeMap<u32, (UserSlice, Access, Vec<u32>)>,
    /// The number of registrations that the device has room for.
    room: usize,
    /// Whether the device refuses to end registrations.
    refuses: bool,
    /// Changes that were reported, and changes that happened without a report yet.
    reported: Vec<Change>,
    pending: Vec<Change>,
    /// Pages that will be removed later, as was reported.
    going: Vec<usize>,
}

type Shared = Rc<RefCell<World>>;

fn page_numbers(memory: UserSlice) -> std::ops::Range<usize> {
    let (start, end) = bounds(memory);
    (start / PAGE) as usize..end.div_ceil(PAGE) as usize
}

impl World {
    fn new() -> World {
        World {
            pages: (0..PAGES as u32).map(Some).collect(),
            watched: vec![false; PAGES],
            next: PAGES as u32,
            room: usize::MAX,
            ..World::default()
        }
    }

    fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn are_mapped(&self, memory: UserSlice) -> bool {
        page_numbers(memory).all(|page| self.pages[page].is_some())
    }

    fn pages_of(&self, memory: UserSlice) -> Vec<u32> {
        let pages = page_numbers(memory).map(|page| self.pages[page]);
        pages.collect::<Option<_>>().expect("the memory is mapped")
    }

    /// Removes a page, and may put another one in its place. The report is delivered immediately,
    /// or pending.
    fn replace(&mut self, page: usize, with_another: bool, at_once: bool) {
        let change = Change {
            start: page as u64 * PAGE,
            end: (page as u64 + 1) * PAGE,
            kind: ChangeKind::Done,
        };
        if self.watched[page] {
            match at_once {
                true => self.reported.push(change),
                false => self.pending.push(change),
            }
        }
        self.watched[page] = false;
        self.going.retain(|going| *going != page);
        self.pages[page] = with_another.then(|| self.fresh());
    }

    /// Starts to replace a page of a mapping that remains.
    fn discard(&mut self, page: usize) {
        if self.pages[page].is_none() {
            return;
        }
        if !self.watched[page] {
            // The kernel continues immediately, without releasing its lock.
            self.pages[page] = Some(self.fresh());
            return;
        }
        self.reported.push(Change {
            start: page as u64 * PAGE,
            end: (page as u64 + 1) * PAGE,
            kind: ChangeKind::Coming,
        });
        self.going.push(page);
    }

    fn finish_discards(&mut self) {
        for page in std::mem::take(&mut self.going) {
            self.pages[page] = Some(self.fresh());
        }
    }
}

struct Device(Shared);

impl Registrar for Device {
    type Registration = u32;

    fn register(&self, memory: UserSlice, access: Access) -> Result<u32, NicError> {
        let mut world = self.0.borrow_mut();
        if world.registered.len() >= world.room {
            return Err(NicError::Exhausted("memory region"));
        }
        let key = world.fresh();
        let pages = world.pages_of(memory);
        world.registered.insert(key, (memory, access, pages));
        Ok(key)
    }

    fn keys(registration: &u32) -> Region {
        Region {
            local_key: LocalKey(*registration),
            remote_key: RemoteKey(u64::from(*registration)),
        }
    }

    fn end(&self, registration: u32) -> Result<(), (u32, NicError)> {
        let mut world = self.0.borrow_mut();
        if world.refuses {
            return Err((registration, NicError::QueueFull));
        }
        world
            .registered
            .remove(&registration)
            .expect("it ends once");
        Ok(())
    }
}

struct Kernel(Shared);

impl MemoryMonitor for Kernel {
    fn watch(&mut self, memory: UserSlice) -> bool {
        let mut world = self.0.borrow_mut();
        let is_private = page_numbers(memory).all(|page| page < SHARED);
        if is_private {
            page_numbers(memory).for_each(|page| world.watched[page] = true);
        }
        is_private
    }

    fn changes(&mut self, report: impl FnMut(Change)) -> bool {
        let mut world = self.0.borrow_mut();
        std::mem::take(&mut world.reported)
            .into_iter()
            .for_each(report);
        world.pending.is_empty()
    }
}

struct Bench {
    world: Shared,
    device: Device,
    cache: RegistrationCache<Device, Kernel>,
    leased: Vec<LocalKey>,
}

impl Bench {
    fn new(registrations: usize, bytes: u64) -> Bench {
        let world = Rc::new(RefCell::new(World::new()));
        let limits = CacheLimits {
            registrations,
            bytes,
        };
        Bench {
            device: Device(Rc::clone(&world)),
            cache: RegistrationCache::new(Kernel(Rc::clone(&world)), limits),
            world,
            leased: Vec::new(),
        }
    }

    /// Leases memory, and compares the registration's pages with the current ones.
    fn try_lease(
        &mut self,
        address: u64,
        length: usize,
        access: Access,
    ) -> Result<LocalKey, NicError> {
        let memory = UserSlice { address, length };
        let key = self.cache.lease(&self.device, memory, access)?.local_key;
        let world = self.world.borrow();
        let (covered, granted, pages) = &world.registered[&key.0];
        let ((start, end), (first, last)) = (bounds(memory), bounds(*covered));
        assert!(first <= start && end <= last, "{covered:?} for {memory:?}");
        assert!(granted.contains(access), "{granted:?} for {access:?}");
        let begin = page_numbers(memory).start - page_numbers(*covered).start;
        let now = world.pages_of(memory);
        assert_eq!(pages[begin..begin + now.len()], now, "stale pages");
        drop(world);
        self.leased.push(key);
        Ok(key)
    }

    fn lease(&mut self, address: u64, length: usize, access: Access) -> LocalKey {
        self.try_lease(address, length, access).unwrap()
    }

    /// Leases memory and ends the lease. Returns the key.
    fn touch(&mut self, address: u64, length: usize, access: Access) -> LocalKey {
        let key = self.lease(address, length, access);
        self.end(key);
        key
    }

    fn end(&mut self, key: LocalKey) {
        let place = self.leased.iter().position(|leased| *leased == key);
        self.leased.swap_remove(place.expect("it is leased"));
        self.cache.end_lease(&self.device, key).unwrap();
    }

    fn registered(&self) -> usize {
        self.world.borrow().registered.len()
    }
}

#[test]
fn a_second_lease_reuses_the_registration() {
    let mut bench = Bench::new(8, 1000);
    let key = bench.touch(0, 64, READ);
    assert_eq!(bench.touch(0, 64, READ), key);
    assert_eq!(bench.touch(13, 20, READ), key, "a part of it");
    assert_eq!(bench.touch(13, 20, Access::empty()), key, "less access");
    let other = bench.touch(13, 20, WRITE);
    assert_ne!(other, key, "another access");
    assert_ne!(bench.touch(60, 10, READ), key, "not all of it");
    let both = bench.lease(0, 64, READ);
    assert_eq!(bench.lease(0, 64, READ), both, "two operations at a time");
    bench.end(both);
    bench.end(both);
    let again = bench.cache.end_lease(&bench.device, both);
    assert!(matches!(again, Err(NicError::Invalid { .. })));
    let statistics = bench.cache.statistics();
    assert_eq!(
        (statistics.hits, statistics.misses, statistics.bypasses),
        (5, 3, 0)
    );
    assert_eq!((statistics.kept, statistics.kept_bytes), (3, 64 + 20 + 10));
}

#[test]
fn the_least_recently_used_is_evicted() {
    let mut bench = Bench::new(2, 1000);
    let (first, second) = (bench.touch(0, 16, READ), bench.touch(16, 16, READ));
    assert_eq!(bench.touch(0, 16, READ), first);
    bench.touch(32, 16, READ);
    assert_eq!(bench.registered(), 2);
    assert_eq!(bench.touch(0, 16, READ), first);
    assert_ne!(bench.touch(16, 16, READ), second, "it was ended");
    assert_eq!(bench.cache.statistics().evictions, 2);
    // Registrations in use are not ended; a registration beyond the limit is for one operation
    // only.
    let (one, two) = (bench.lease(0, 4, WRITE), bench.lease(16, 4, WRITE));
    let beyond = bench.touch(32, 4, WRITE);
    assert_eq!(bench.registered(), 2);
    assert_eq!(
        (bench.lease(0, 4, WRITE), bench.lease(16, 4, WRITE)),
        (one, two)
    );
    assert_ne!(bench.touch(32, 4, WRITE), beyond);
}

#[test]
fn bytes_are_limited_and_larger_registrations_replace_covered() {
    let mut bench = Bench::new(100, 96);
    bench.touch(16, 16, READ);
    bench.touch(40, 8, READ);
    let in_use = bench.lease(0, 8, READ);
    let whole = bench.touch(0, 64, READ);
    assert_eq!(bench.registered(), 2, "the whole one, and that in use");
    assert_eq!(bench.touch(0, 8, READ), whole);
    bench.end(in_use);
    assert_eq!(bench.registered(), 1);
    assert_eq!(bench.cache.statistics().kept_bytes, 64);
    bench.touch(64, 33, READ);
    assert_eq!(
        bench.cache.statistics().kept_bytes,
        33,
        "64 more are too many"
    );
    bench.touch(0, 97, READ);
    let statistics = bench.cache.statistics();
    assert_eq!(
        (statistics.kept, statistics.kept_bytes),
        (0, 0),
        "never enough room"
    );
    assert_eq!(bench.registered(), 0);
}

#[test]
fn a_full_device_reclaims_idle_registrations() {
    let mut bench = Bench::new(100, 1000);
    let in_use = bench.lease(0, 16, READ);
    bench.touch(16, 16, READ);
    bench.touch(32, 16, READ);
    bench.world.borrow_mut().room = 3;
    bench.touch(48, 16, READ);
    assert_eq!(bench.registered(), 3);
    bench.lease(16, 16, WRITE);
    bench.lease(32, 16, WRITE);
    let refused = bench.try_lease(48, 16, WRITE);
    assert!(
        matches!(refused, Err(NicError::Exhausted(_))),
        "{refused:?}"
    );
    assert_eq!(bench.lease(0, 16, READ), in_use);
}

#[test]
fn a_failed_deregistration_is_repeated_later() {
    let mut bench = Bench::new(1, 1000);
    bench.touch(0, 16, READ);
    bench.world.borrow_mut().refuses = true;
    bench.touch(16, 16, READ);
    assert_eq!(bench.registered(), 2);
    let all = UserSlice::new(0, PAGES * PAGE as usize);
    let refused = bench.cache.end_all_in(&bench.device, all);
    assert!(refused.is_err(), "the memory is still in use");
    bench.world.borrow_mut().refuses = false;
    bench.touch(32, 16, READ);
    assert_eq!(bench.registered(), 1);
    bench.cache.end_all_in(&bench.device, all).unwrap();
    assert_eq!(bench.registered(), 0);
}

#[test]
fn unmonitored_memory_is_not_cached() {
    let mut bench = Bench::new(8, 1000);
    bench.touch(0, 32, READ);
    bench.world.borrow_mut().discard(1);
    let during = bench.touch(0, 32, READ);
    bench.world.borrow_mut().finish_discards();
    assert_ne!(bench.touch(0, 32, READ), during);
    let beside = bench.touch(0, 16, READ);
    assert_eq!(bench.touch(0, 16, READ), beside, "only that memory");
    bench.world.borrow_mut().replace(1, true, true);
    let kept = bench.touch(0, 32, READ);
    assert_eq!(bench.touch(0, 32, READ), kept, "after it was unmapped");
}

#[test]
fn while_a_change_is_pending_nothing_is_served() {
    let mut bench = Bench::new(8, 1000);
    let key = bench.touch(0, 16, READ);
    bench.world.borrow_mut().replace(5, true, false);
    assert_eq!(bench.touch(0, 16, READ), key, "nobody watches that page");
    bench.touch(80, 16, READ);
    bench.world.borrow_mut().replace(5, true, false);
    assert_ne!(bench.touch(0, 16, READ), key);
    assert_eq!(bench.cache.statistics().bypasses, 1);
}

#[derive(Clone, Debug)]
enum Step {
    Lease(u64, usize, Access),
    End(usize),
    Replace(usize, bool, bool),
    Report,
    Discard(usize),
    FinishDiscards,
    Room(usize),
    Refuse(bool),
    Revoke(u64, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let access = prop_oneof![
        Just(Access::empty()),
        Just(READ),
        Just(WRITE),
        Just(READ | WRITE)
    ];
    let address = 0..PAGES as u64 * PAGE;
    let page = 0..PAGES;
    // Few ranges of memory, so that the cache has hits.
    let usual = (0..4_u64, 1..4_usize)
        .prop_map(|(number, pages)| (number * 2 * PAGE, pages * PAGE as usize));
    prop_oneof![
        8 => usual.prop_map(|(at, length)| Step::Lease(at, length, READ)),
        4 => (address.clone(), 1..80_usize, access).prop_map(|(at, length, access)| {
            let rest = (PAGES as u64 * PAGE - at) as usize;
            Step::Lease(at, length.min(rest), access)
        }),
        6 => (0..8_usize).prop_map(Step::End),
        2 => (page.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(page, another, at_once)| Step::Replace(page, another, at_once)),
        2 => Just(Step::Report),
        2 => page.prop_map(Step::Discard),
        2 => Just(Step::FinishDiscards),
        1 => prop_oneof![Just(usize::MAX), 1..6_usize].prop_map(Step::Room),
        1 => any::<bool>().prop_map(Step::Refuse),
        1 => (address, 1..40_usize).prop_map(|(at, length)| Step::Revoke(at, length)),
    ]
}

fn play(steps: Vec<Step>) {
    let mut bench = Bench::new(4, 200);
    for step in steps {
        match step {
            Step::Lease(address, length, access) => {
                let memory = UserSlice { address, length };
                if !bench.world.borrow().are_mapped(memory) {
                    continue;
                }
                let leased = bench.try_lease(address, length, access);
                let has_room = bench.world.borrow().room == usize::MAX;
                assert!(leased.is_ok() || !has_room, "{leased:?}");
            }
            Step::End(number) => {
                if let Some(key) = bench.leased.get(number).copied() {
                    bench.leased.swap_remove(number);
                    let ended = bench.cache.end_lease(&bench.device, key);
                    assert!(ended.is_ok() || bench.world.borrow().refuses);
                }
            }
            Step::Replace(page, another, at_once) => {
                bench.world.borrow_mut().replace(page, another, at_once);
            }
            Step::Report => {
                let mut world = bench.world.borrow_mut();
                let mut pending = std::mem::take(&mut world.pending);
                world.reported.append(&mut pending);
            }
            Step::Discard(page) => bench.world.borrow_mut().discard(page),
            Step::FinishDiscards => bench.world.borrow_mut().finish_discards(),
            Step::Room(room) => bench.world.borrow_mut().room = room,
            Step::Refuse(refuses) => bench.world.borrow_mut().refuses = refuses,
            Step::Revoke(address, length) => {
                let memory = UserSlice { address, length };
                let revoked = bench.cache.end_all_in(&bench.device, memory);
                let Bench {
                    world,
                    cache,
                    leased,
                    ..
                } = &mut bench;
                let world = world.borrow();
                assert!(revoked.is_ok() || world.refuses);
                if revoked.is_ok() {
                    let mut registered = world.registered.values();
                    assert!(!registered.any(|(inside, ..)| overlap(*inside, memory)));
                }
                leased.retain(|key| cache.has(*key));
            }
        }
        let (world, statistics) = (bench.world.borrow(), bench.cache.statistics());
        let mut leased = bench.leased.iter();
        assert!(
            leased.all(|key| world.registered.contains_key(&key.0)),
            "in use"
        );
        assert!(statistics.kept <= 4 && statistics.kept_bytes <= 200);
        let alive = statistics.kept + bench.leased.len() + bench.cache.refused.len();
        assert!(world.registered.len() <= alive, "a registration is lost");
    }
    bench.world.borrow_mut().refuses = false;
    while let Some(key) = bench.leased.last().copied() {
        bench.end(key);
    }
    let all = UserSlice::new(0, PAGES * PAGE as usize);
    bench.cache.end_all_in(&bench.device, all).unwrap();
    assert_eq!(bench.registered(), 0);
    let statistics = bench.cache.statistics();
    assert_eq!((statistics.kept, statistics.kept_bytes), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(1000)
    })]

    /// No operation ever gets a registration of old pages, no registration in use is ended except
    /// by revoking its memory, and none is lost.
    #[test]
    fn no_stale_pages_are_ever_served(steps in proptest::collection::vec(step(), 1..80)) {
        play(steps);
    }

    #[test]
    fn ranges_are_sets(steps in proptest::collection::vec((any::<bool>(), 0..40_u64, 1..12_u64), 0..40)) {
        let (mut ranges, mut set) = (Ranges::default(), [false; 64]);
        for (adds, start, length) in steps {
            let end = start + length;
            match adds {
                true => ranges.add(start, end),
                false => ranges.remove(start, end),
            }
            set[start as usize..end as usize].fill(adds);
            for at in 0..60 {
                for length in 1..4 {
                    let slice = UserSlice { address: at, length };
                    let expected = set[at as usize..at as usize + length].contains(&true);
                    assert_eq!(ranges.overlap(slice), expected);
                }
            }
        }
    }
}
