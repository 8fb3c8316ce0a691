//! Frames in the order of time.
//!
//! Several processes append to one capture, each with a delay, and captures of several hosts may be
//! concatenated. A frame is held back until enough frames follow it that no earlier one is
//! expected.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use crate::capture::CapturedPacket;

/// The bytes of frames that are held back.
const DEFERRED_BYTES: usize = 32 << 20;
/// The bytes of a frame besides its payload.
const FRAME_BYTES: usize = size_of::<CapturedPacket>();

/// In a box, so that it is not moved.
struct TimeOrdered(Box<CapturedPacket>);

impl TimeOrdered {
    fn key(&self) -> (Duration, u64) {
        (self.0.time, self.0.number)
    }
}

impl PartialEq for TimeOrdered {
    fn eq(&self, other: &TimeOrdered) -> bool {
        self.key() == other.key()
    }
}

impl Eq for TimeOrdered {}

impl PartialOrd for TimeOrdered {
    fn partial_cmp(&self, other: &TimeOrdered) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TimeOrdered {
    /// The earliest frame is the greatest.
    fn cmp(&self, other: &TimeOrdered) -> Ordering {
        other.key().cmp(&self.key())
    }
}

/// The error of a frame that is in the capture after a later one that had already been judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "packet {number} was captured before packets that stand more than {} MiB further up in the file; \
     sort the capture by time first: `reordercap IN OUT`",
    DEFERRED_BYTES >> 20
)]
pub struct OutOfOrder {
    /// The frame's number.
    pub number: u64,
}

/// Sorts frames by time.
#[derive(Default)]
pub(super) struct TimeSorter {
    /// Frames that arrived in the order of time. This is the usual case.
    orderly: VecDeque<TimeOrdered>,
    /// Frames that arrived after a later one.
    late: BinaryHeap<TimeOrdered>,
    bytes: usize,
    released: Duration,
}

impl TimeSorter {
    /// Adds a frame. Returns the earliest one once enough frames are held back.
    pub(super) fn push(
        &mut self,
        frame: Box<CapturedPacket>,
    ) -> Result<Option<Box<CapturedPacket>>, OutOfOrder> {
        if frame.time < self.released {
            return Err(OutOfOrder {
                number: frame.number,
            });
        }
        self.bytes += FRAME_BYTES + frame.payload.len();
        let held = TimeOrdered(frame);
        match self.orderly.back() {
            Some(last) if last.key() > held.key() => self.late.push(held),
            _ => self.orderly.push_back(held),
        }
        if self.bytes <= DEFERRED_BYTES {
            return Ok(None);
        }
        Ok(self.pop())
    }

    /// The earliest frame that is held back.
    pub(super) fn pop(&mut self) -> Option<Box<CapturedPacket>> {
        // The greatest one is the earliest.
        let is_late = self.late.peek() > self.orderly.front();
        let TimeOrdered(frame) = match is_late {
            true => self.late.pop()?,
            false => self.orderly.pop_front()?,
        };
        self.bytes -= FRAME_BYTES + frame.payload.len();
        self.released = frame.time;
        Some(frame)
    }
}
