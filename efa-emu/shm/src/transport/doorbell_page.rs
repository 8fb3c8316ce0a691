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
use crate::process::opening;
use crate::process::shared::{self, PAGE, SharedMemory};
use efa_lock_free::doorbell;

const MAGIC: u64 = u64::from_le_bytes(*b"EFAEMUSB");
const VERSION: u32 = 1;

const AT_MAGIC: usize = 0;
const AT_VERSION: usize = 8;
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
        let file = opening::options()
            .create_new(true)
            .open(path)
            .map_err(FabricError::io("create", path))?;
        shared::resize(&file, PAGE).map_err(FabricError::io("resize", path))?;
        shared::reserve(&file, 0, PAGE).map_err(FabricError::io("reserve memory for", path))?;
        let page = SharedMemory::map(&file, 0, PAGE).map_err(FabricError::io("map", path))?;
        page.u32_at::<AT_VERSION>()
            .store(VERSION, Ordering::Relaxed);
        page.u64_at::<AT_MAGIC>().store(MAGIC, Ordering::Release);
        Ok(DoorbellPage(page))
    }

    /// Maps the doorbell page of another process; `None` if the file does not exist.
    pub(crate) fn open(path: &Path) -> Result<Option<DoorbellPage>, FabricError> {
        let found = opening::existing(path).map_err(FabricError::io("open", path))?;
        let Some(file) = found else {
            return Ok(None);
        };
        let page = SharedMemory::map(&file, 0, PAGE).map_err(FabricError::io("map", path))?;
        if page.u64_at::<AT_MAGIC>().load(Ordering::Acquire) != MAGIC {
            return Err(FabricError::Damaged {
                path: path.to_owned(),
                what: "it does not start with the magic number of a doorbell page",
            });
        }
        let version = page.u32_at::<AT_VERSION>().load(Ordering::Relaxed);
        if version != VERSION {
            return Err(FabricError::UnknownLayout {
                path: path.to_owned(),
                found: format!("version {version}"),
                expected: format!("version {VERSION}"),
            });
        }
        Ok(Some(DoorbellPage(page)))
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
