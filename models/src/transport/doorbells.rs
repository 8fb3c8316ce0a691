//! How the owner of a segment learns of records: no record is left lying while it sleeps.

use loom::sync::Arc;
use loom::thread;

use super::doorbell;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What sender and owner share of a slot.
struct Shared {
    wake: AtomicU32,
    summary: AtomicU64,
    words: [AtomicU64; 2],
    attention: [AtomicU32; 2],
    /// The slots' descriptors: 1 once the slot is in use.
    descriptors: [AtomicU32; 2],
    /// Stand for the rings: records that were committed.
    records: [AtomicU32; 2],
    stop: AtomicU32,
}

/// The slots of the two senders, in one word of doorbells: the owner may find the bit of one before
/// that sender has told the summary.
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

    /// What a sender does first: `Segment::claim_ring`.
    fn claim(&self, sender: usize) {
        self.descriptors[sender].store(1, Ordering::Relaxed);
        self.ring(sender);
    }

    fn ring(&self, sender: usize) {
        let slot = SLOTS[sender];
        doorbell::ring(&self.words[slot / 64], &self.summary, slot);
        doorbell::wake(&self.wake);
    }

    /// What a sender does with a record: `Producer::push`, `Segment::announce`.
    fn send(&self, sender: usize) {
        let count = self.records[sender].load(Ordering::Relaxed);
        self.records[sender].store(count + 1, Ordering::Release);
        if doorbell::is_wanted(&self.attention[sender]) {
            self.ring(sender);
        }
    }
}

/// The owner, as `Inbound` and the worker are.
struct Owner {
    shared: Arc<Shared>,
    polled: [bool; 2],
    taken: [u32; 2],
}

impl Owner {
    fn has_record(&self, sender: usize) -> bool {
        self.shared.records[sender].load(Ordering::Acquire) > self.taken[sender]
    }

    /// One turn. Returns whether there was anything.
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

    /// As `Inbound::prepare_to_sleep` and what the worker does around it.
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

/// Senders send so many records each, and the owner sleeps whenever it finds nothing: it gets all
/// of them, or the model finds that nobody is left to wake it.
pub fn no_record_is_left_while_the_owner_sleeps(records: &[u32]) {
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

/// The owner's own process ends its thread, asleep or not.
pub fn a_sleeping_owner_is_stopped() {
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
