//! Memory that the threads of a model share, in place of memory that processes share.

use std::fs::File;
use std::io;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use crate::sync::UnsafeCell;

/// The length of the head of a table.
pub(crate) const PAGE: usize = 128;
/// The answers of a ring: few, so that models reach the second lap.
pub(crate) const ANSWERS: usize = 4;
const LINE: usize = 64;

pub(crate) type Line = [AtomicU64; 8];

/// The memory of a table or of a ring. Words and bytes at the same address are separate here. A
/// ring uses words only for headers, and bytes only for payloads and answers. A table has 32-bit
/// words in its head, and 64-bit words after it, except for the first.
#[derive(Clone, Debug)]
pub(crate) struct SharedMemory(Arc<Words>);

#[derive(Debug)]
struct Words {
    magic: AtomicU64,
    head: Vec<AtomicU32>,
    answers: Vec<AtomicU8>,
    lines: Vec<Line>,
    payloads: Vec<UnsafeCell<[u8; LINE]>>,
}

fn lines(count: usize) -> Vec<Line> {
    let line = |_| std::array::from_fn(|_| AtomicU64::new(0));
    (0..count).map(line).collect()
}

impl SharedMemory {
    /// A table of `length` bytes.
    pub(crate) fn map(_: &File, _: usize, length: usize) -> io::Result<SharedMemory> {
        Ok(SharedMemory(Arc::new(Words {
            magic: AtomicU64::new(0),
            head: (0..PAGE / 4).map(|_| AtomicU32::new(0)).collect(),
            answers: Vec::new(),
            lines: lines((length - PAGE) / LINE),
            payloads: Vec::new(),
        })))
    }

    /// A ring with room for `count` lines of records.
    pub(crate) fn of_lines(count: usize) -> SharedMemory {
        SharedMemory(Arc::new(Words {
            magic: AtomicU64::new(0),
            head: Vec::new(),
            answers: (0..ANSWERS).map(|_| AtomicU8::new(0)).collect(),
            lines: lines(count),
            payloads: (0..count).map(|_| UnsafeCell::new([0; LINE])).collect(),
        }))
    }

    pub(crate) fn len(&self) -> usize {
        PAGE + LINE * self.0.lines.len()
    }

    pub(crate) fn u32_at<const OFFSET: usize>(&self) -> &AtomicU32 {
        &self.0.head[OFFSET / 4]
    }

    pub(crate) fn u64_at<const OFFSET: usize>(&self) -> &AtomicU64 {
        assert_eq!(OFFSET, 0);
        &self.0.magic
    }

    pub(crate) fn u64(&self, offset: usize) -> &AtomicU64 {
        &self.line(offset)[offset % LINE / 8]
    }

    pub(crate) fn line(&self, offset: usize) -> &Line {
        &self.0.lines[(offset - PAGE) / LINE]
    }

    pub(crate) fn answers(&self) -> &[AtomicU8; ANSWERS] {
        self.0.answers[..].try_into().expect("it is a ring")
    }

    /// The name and the GID of a table, which no model reads.
    pub(crate) fn write(&self, _: usize, _: &[u8]) {}

    pub(crate) fn read(&self, _: usize, _: &mut [u8]) {}

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

pub(crate) fn resize(_: &File, _: usize) -> io::Result<()> {
    Ok(())
}

pub(crate) fn reserve(_: &File, _: usize, _: usize) -> io::Result<()> {
    Ok(())
}

/// The kernel's futex: a waiter either sleeps before another thread wakes it, or has seen the
/// changed word.
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
        // The kernel reads the current value of the word, not an older one.
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
