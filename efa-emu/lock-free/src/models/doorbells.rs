//! The doorbells by which the owner of a segment finds records: no record is left unread while it
//! sleeps.

use loom::sync::Arc;
use loom::thread;

use crate::doorbell;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The part of a slot that sender and owner share.
struct Shared {
    wake: AtomicU32,
    summary: AtomicU64,
    words: [AtomicU64; 2],
    attention: [AtomicU32; 2],
    /// The descriptors of the slots: 1 once the slot is in use.
    descriptors: [AtomicU32; 2],
    /// In place of the rings: records that were committed.
    records: [AtomicU32; 2],
    stop: AtomicU32,
}

/// The slots of the two senders, in one word of doorbells: the owner may see the bit of one sender
/// before that sender has set its bit in the summary.
const SLOTS: [usize; 2] = [3, 5];

impl Shared {
    fn new() -> Shared {
        Shared {
            wake: AtomicU32::new(0),
            summary: AtomicU64::new(0),
            words: [AtomicU64::new(0), AtomicU64::new(0)],
            attention: [
                AtomicU32::new(doorbell::WANTED),
                AtomicU32::new(doorbell::WANTED),
            ],
            descriptors: [AtomicU32::new(0), AtomicU32::new(0)],
            records: [AtomicU32::new(0), AtomicU32::new(0)],
            stop: AtomicU32::new(0),
        }
    }

    /// The first step of a sender: `Segment::claim_ring`.
    fn claim(&self, sender: usize) {
        self.descriptors[sender].store(1, Ordering::Relaxed);
        self.ring(sender);
    }

    fn ring(&self, sender: usize) {
        let slot = SLOTS[sender];
        doorbell::ring(&self.words[slot / 64], &self.summary, slot);
        doorbell::wake(&self.wake);
    }

    /// The steps of a sender for a record: `Producer::push`, `Segment::announce`.
    fn send(&self, sender: usize) {
        let count = self.records[sender].load(Ordering::Relaxed);
        self.records[sender].store(count + 1, Ordering::Release);
        if doorbell::is_wanted(&self.attention[sender]) {
            self.ring(sender);
        }
    }
}

/// The owner, with the roles of `Inbound` and the worker.
struct Owner {
    shared: Arc<Shared>,
    polled: [bool; 2],
    taken: [u32; 2],
}

impl Owner {
    fn has_record(&self, sender: usize) -> bool {
        self.shared.records[sender].load(Ordering::Acquire) > self.taken[sender]
    }

    /// One pass. Returns whether there were records.
    fn pass(&mut self) -> bool {
        let mut busy = false;
        if self.shared.summary.load(Ordering::Relaxed) != 0 {
            busy = true;
            let shared = Arc::clone(&self.shared);
            let mut look = |slot| {
                let sender = SLOTS
                    .iter()
                    .position(|other| *other == slot)
                    .expect("a slot");
                let is_in_use = shared.descriptors[sender].load(Ordering::Relaxed) == 1;
                if is_in_use && !self.polled[sender] {
                    self.polled[sender] = true;
                    doorbell::start_polling(&shared.attention[sender]);
                }
            };
            doorbell::take(&shared.summary, 2, |word| &shared.words[word], &mut look);
        }
        for sender in 0..2 {
            while self.polled[sender] && self.has_record(sender) {
                busy = true;
                self.taken[sender] += 1;
            }
        }
        busy
    }

    /// As `Inbound::prepare_to_sleep` and the worker's code around it.
    fn sleep_if_idle(&mut self) {
        let shared = Arc::clone(&self.shared);
        doorbell::fall_asleep(&shared.wake);
        for sender in 0..2 {
            if self.polled[sender] {
                doorbell::stop_polling(&shared.attention[sender]);
                self.polled[sender] = self.has_record(sender);
                if self.polled[sender] {
                    doorbell::start_polling(&shared.attention[sender]);
                }
            }
        }
        let is_idle = self.polled == [false; 2]
            && shared.summary.load(Ordering::Relaxed) == 0
            && shared.stop.load(Ordering::Relaxed) == 0;
        match is_idle {
            true => doorbell::sleep(&shared.wake, None),
            false => doorbell::stay_awake(&shared.wake),
        }
    }
}

/// Each sender sends its number of records, and the owner sleeps whenever it finds none. It gets
/// all records, or the model finds that no thread is left to wake it.
pub(super) fn no_record_is_left_while_the_owner_sleeps(records: &[u32]) {
    let shared = Arc::new(Shared::new());
    let senders: Vec<_> = records
        .iter()
        .enumerate()
        .map(|(sender, count)| {
            let (shared, count) = (Arc::clone(&shared), *count);
            thread::spawn(move || {
                shared.claim(sender);
                (0..count).for_each(|_| shared.send(sender));
            })
        })
        .collect();
    let mut owner = Owner {
        shared,
        polled: [false; 2],
        taken: [0; 2],
    };
    let all: u32 = records.iter().sum();
    while owner.taken.iter().sum::<u32>() < all {
        if !owner.pass() {
            owner.sleep_if_idle();
        }
    }
    for sender in senders {
        sender.join().expect("it does not panic");
    }
}

/// The owner's own process stops its thread, asleep or not.
pub(super) fn a_sleeping_owner_is_stopped() {
    let shared = Arc::new(Shared::new());
    let stopper = Arc::clone(&shared);
    let thread = thread::spawn(move || {
        stopper.stop.store(1, Ordering::Relaxed);
        doorbell::interrupt(&stopper.wake);
    });
    let mut owner = Owner {
        shared,
        polled: [false; 2],
        taken: [0; 2],
    };
    while owner.shared.stop.load(Ordering::Relaxed) == 0 {
        owner.sleep_if_idle();
    }
    thread.join().expect("it does not panic");
}
