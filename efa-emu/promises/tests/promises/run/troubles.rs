//! Counts of rare events.

use std::ops::AddAssign;

/// Counts of a run's rare events.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct RareEvents {
    /// Packets beyond the window of their receiver.
    pub(crate) overruns: usize,
    /// Operations whose memory was deregistered.
    pub(crate) orphans: usize,
    /// Messages that could not be read, and whose senders could not be told.
    pub(crate) lost: usize,
    /// Messages that their senders aborted, and that their receivers aborted.
    pub(crate) aborts: [usize; 2],
    /// Messages without headers.
    pub(crate) headerless: usize,
    /// The number of times that a program made operations of its peers wait.
    pub(crate) waits: usize,
    /// Operations that the other release does not support.
    pub(crate) refusals: usize,
    /// Second copies of packets that their receiver recognised.
    pub(crate) copies: usize,
}

impl AddAssign for RareEvents {
    fn add_assign(&mut self, other: RareEvents) {
        self.overruns += other.overruns;
        self.orphans += other.orphans;
        self.lost += other.lost;
        self.aborts[0] += other.aborts[0];
        self.aborts[1] += other.aborts[1];
        self.headerless += other.headerless;
        self.waits += other.waits;
        self.refusals += other.refusals;
        self.copies += other.copies;
    }
}
