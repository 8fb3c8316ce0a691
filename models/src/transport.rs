//! Stands in for `efa-shm`: the same files, over loom's memory.

#[path = "../../efa-emu/shm/src/claim.rs"]
pub(crate) mod claim;
#[path = "../../efa-emu/shm/src/doorbell.rs"]
pub(crate) mod doorbell;
#[path = "../../efa-emu/shm/src/mutex.rs"]
pub(crate) mod mutex;
#[path = "../../efa-emu/shm/src/record.rs"]
pub(crate) mod record;
#[path = "../../efa-emu/shm/src/ring.rs"]
pub(crate) mod ring;

pub mod counter;
pub mod doorbells;
pub mod rings;

pub(crate) mod segment {
    /// A ring's receiver, which polls.
    #[derive(Debug)]
    pub(crate) struct Segment;

    impl Segment {
        pub(crate) fn announce(&self, _slot: usize) {}

        pub(crate) fn is_refused(&self, _slot: usize) -> bool {
            false
        }

        pub(crate) fn give_up(&self, _slot: usize) {}
    }
}

pub(crate) mod shared {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU8, AtomicU64};

    use crate::sync::UnsafeCell;

    /// Answers of a ring: few, so that models reach the second lap.
    pub(crate) const ANSWERS: usize = 4;
    pub(crate) const PAGE: usize = ANSWERS;
    const LINE: usize = 64;

    pub(crate) type Line = [AtomicU64; 8];

    /// The memory of a ring. Words and bytes at the same address are apart here: only words are
    /// used for headers, and only bytes for payloads and answers.
    #[derive(Clone)]
    pub(crate) struct SharedMemory(Arc<Words>);

    struct Words {
        answers: [AtomicU8; ANSWERS],
        lines: Vec<Line>,
        payloads: Vec<UnsafeCell<[u8; LINE]>>,
    }

    impl SharedMemory {
        /// With room for so many lines of records.
        pub(crate) fn of_lines(count: usize) -> SharedMemory {
            SharedMemory(Arc::new(Words {
                answers: std::array::from_fn(|_| AtomicU8::new(0)),
                lines: (0..count)
                    .map(|_| std::array::from_fn(|_| AtomicU64::new(0)))
                    .collect(),
                payloads: (0..count).map(|_| UnsafeCell::new([0; LINE])).collect(),
            }))
        }

        pub(crate) fn len(&self) -> usize {
            PAGE + LINE * self.0.lines.len()
        }

        pub(crate) fn u64(&self, offset: usize) -> &AtomicU64 {
            let at = offset - PAGE;
            &self.0.lines[at / LINE][at % LINE / 8]
        }

        pub(crate) fn line(&self, offset: usize) -> &Line {
            &self.0.lines[(offset - PAGE) / LINE]
        }

        pub(crate) fn answers(&self) -> &[AtomicU8; ANSWERS] {
            &self.0.answers
        }

        /// Writes a byte of a payload.
        pub(crate) fn put(&self, offset: usize, value: u8) {
            let at = offset - PAGE;
            // SAFETY: the cell checks that nobody else has access now.
            unsafe { (*self.0.payloads[at / LINE].get())[at % LINE] = value };
        }

        /// Reads a byte of a payload.
        pub(crate) fn look(&self, offset: usize) -> u8 {
            let at = offset - PAGE;
            // SAFETY: as above.
            unsafe { (*self.0.payloads[at / LINE].get())[at % LINE] }
        }
    }

    /// The kernel's futex: whoever waits is there before anybody wakes, or has seen the changed
    /// word.
    pub(crate) mod futex {
        use core::time::Duration;

        use loom::sync::atomic::{AtomicU32, Ordering};
        use loom::sync::{Condvar, Mutex};

        loom::lazy_static! {
            static ref QUEUE: (Mutex<u32>, Condvar) = (Mutex::new(0), Condvar::new());
        }

        pub(crate) fn wait(word: &AtomicU32, expected: u32, _timeout: Option<Duration>) {
            let (wakes, woken) = &*QUEUE;
            let mut count = wakes.lock().expect("no thread panicked");
            let before = *count;
            // The kernel looks at the word as it is, not at an older value.
            if word.fetch_add(0, Ordering::Relaxed) != expected {
                return;
            }
            while *count == before {
                count = woken.wait(count).expect("no thread panicked");
            }
        }

        pub(crate) fn wake(_word: &AtomicU32) {
            let (wakes, woken) = &*QUEUE;
            *wakes.lock().expect("no thread panicked") += 1;
            woken.notify_all();
        }
    }
}
