//! What a ring needs in tests and models: memory, in place of memory that processes share, and a
//! receiver.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::ring::{ANSWERS, Line, Receiver, RingMemory};
use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicU8, AtomicU64};

const LINE: usize = size_of::<[u64; 8]>();

/// Words and bytes at the same address are separate here. A ring uses words only for headers, and
/// bytes only for payloads and answers.
#[derive(Clone, Debug)]
pub(crate) struct TestMemory(Arc<Content>);

#[derive(Debug)]
struct Content {
    answers: [AtomicU8; ANSWERS],
    lines: Vec<Line>,
    payloads: Vec<UnsafeCell<[u8; LINE]>>,
}

// SAFETY: the ring gives one thread at a time access to a payload, which loom checks in models.
unsafe impl Sync for Content {}

impl RingMemory for TestMemory {
    const RECORDS: usize = 128;

    fn capacity(&self) -> usize {
        LINE * self.0.lines.len()
    }

    fn line(&self, offset: usize) -> &Line {
        &self.0.lines[(offset - Self::RECORDS) / LINE]
    }

    fn answers(&self) -> &[AtomicU8; ANSWERS] {
        &self.0.answers
    }
}

impl TestMemory {
    /// A ring with room for `count` lines of records.
    pub(crate) fn of_lines(count: usize) -> TestMemory {
        let line = |_| std::array::from_fn(|_| AtomicU64::new(0));
        TestMemory(Arc::new(Content {
            answers: std::array::from_fn(|_| AtomicU8::new(0)),
            lines: (0..count).map(line).collect(),
            payloads: (0..count).map(|_| UnsafeCell::new([0; LINE])).collect(),
        }))
    }

    fn payload(&self, offset: usize) -> *mut u8 {
        let at = offset - Self::RECORDS;
        let line: *mut u8 = self.0.payloads[at / LINE].get().cast();
        line.wrapping_add(at % LINE)
    }

    /// Writes bytes of a payload.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        for (at, byte) in bytes.iter().enumerate() {
            // SAFETY: within the line; in models the cell checks that nobody else has access now.
            unsafe { *self.payload(offset + at) = *byte };
        }
    }

    /// Reads bytes of a payload.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) {
        for (at, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: as above.
            *byte = unsafe { *self.payload(offset + at) };
        }
    }
}

/// A receiver that polls. Contains whether the sender has given the ring up.
#[derive(Clone, Debug, Default)]
pub(crate) struct PollingReceiver(pub(crate) Arc<AtomicBool>);

impl Receiver for PollingReceiver {
    fn announce(&self) {}

    fn is_refused(&self) -> bool {
        false
    }

    fn give_up(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
