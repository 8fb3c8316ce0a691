//! A doorbell page shows the owner of many segments which of them have new doorbells. The owner
//! sleeps on one wake word for all of them.
//!
//! A bridge has a proxy for each device of another machine, each with a separate segment (module
//! `segment`). Checking their wake words and doorbells one by one would be slow. So these segments
//! refer to a line of a doorbell page, a file with a name next to that of each segment.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | magic `EFAEMUSB` |
//! | 8 | 4 | layout version |
//! | 64 | 4 | wake word, in the place of those of the segments |
//! | 128 | 8 | doorbell summary: bit w is set when doorbell word w may have bits |
//! | 192 | 504 | doorbell words: bit l of word w requests a check of the doorbells of the segments with line 64 w + l |

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::error::FabricError;
use crate::process::layout::Layout;
use crate::process::opening;
use crate::process::shared::{PAGE, SharedMemory};
use efa_lock_free::doorbell;

const LAYOUT: Layout = Layout {
    magic: u64::from_le_bytes(*b"EFAEMUSB"),
    version: 1,
    foreign: "it does not start with the magic number of a doorbell page",
};

const AT_WAKE: usize = 64;
const AT_SUMMARY: usize = 128;
const AT_DOORBELLS: usize = 192;
const DOORBELL_WORDS: usize = 63;

/// The suffix of `<n>.switchboard`, the file of participant n.
pub(crate) const KIND: &str = "switchboard";

/// Number of lines of a doorbell page. Further segments share lines.
pub(crate) const LINES: usize = 64 * DOORBELL_WORDS;

/// A doorbell page, mapped by its owner and by the senders.
#[derive(Debug)]
pub(crate) struct DoorbellPage(SharedMemory);

impl DoorbellPage {
    /// Creates a doorbell page for the calling process.
    pub(crate) fn create(path: &Path) -> Result<DoorbellPage, FabricError> {
        let (_, page) = LAYOUT.create(opening::options().create_new(true), path, PAGE, PAGE)?;
        LAYOUT.complete(&page);
        Ok(DoorbellPage(page))
    }

    /// Maps the doorbell page of another process; `None` if the file does not exist.
    pub(crate) fn open(path: &Path) -> Result<Option<DoorbellPage>, FabricError> {
        let found = LAYOUT.open(path, PAGE, PAGE)?;
        Ok(found.map(|(_, page)| DoorbellPage(page)))
    }

    fn summary(&self) -> &AtomicU64 {
        self.0.u64_at::<AT_SUMMARY>()
    }

    fn doorbell(&self, word: usize) -> &AtomicU64 {
        self.0.u64(AT_DOORBELLS + 8 * word)
    }

    /// The word on which the owner sleeps.
    pub(crate) fn wake_word(&self) -> &AtomicU32 {
        self.0.u32_at::<AT_WAKE>()
    }

    // --- the sender's side ---

    /// Makes the owner check the doorbells of the segments with this line. The caller may have to
    /// wake the owner afterwards.
    pub(crate) fn ring(&self, line: usize) {
        doorbell::ring(self.doorbell(line / 64), self.summary(), line);
    }

    // --- the owner's side ---

    pub(crate) fn is_rung(&self) -> bool {
        self.summary().load(Ordering::Relaxed) != 0
    }

    /// Calls `look` for each line that was rung.
    pub(crate) fn take(&self, mut look: impl FnMut(usize)) {
        doorbell::take(
            self.summary(),
            DOORBELL_WORDS,
            |word| self.doorbell(word),
            &mut look,
        );
    }

    /// As [`Segment::fall_asleep`](super::segment::Segment::fall_asleep), for all segments.
    pub(crate) fn fall_asleep(&self) {
        doorbell::fall_asleep(self.wake_word());
    }

    /// Revokes [`DoorbellPage::fall_asleep`].
    pub(crate) fn stay_awake(&self) {
        doorbell::stay_awake(self.wake_word());
    }
}

/// The line of a segment in a doorbell page.
#[derive(Clone, Debug)]
pub(crate) struct DoorbellLine {
    pub(crate) page: Arc<DoorbellPage>,
    /// Less than [`LINES`].
    pub(crate) number: usize,
}
