//! The memory of send queues, which belongs to the device. Guests write requests there without
//! traps, and then ring a doorbell.

use std::fs::File;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use efa_device_model::device::queue::LentMemory;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::bars::Bars;
use crate::memory::PAGE;

const LENGTH: usize = Bars::SendQueues.length() as usize;

/// The mapping of the region in this process.
struct Pages(NonNull<u8>);

// SAFETY: the memory is accessed as atomics only, by any thread.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `SendQueues::new`, and no ring in it is left.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), LENGTH) };
    }
}

/// The region of send queues. Unused pages occupy no memory.
pub(super) struct SendQueues {
    file: File,
    pages: Arc<Pages>,
    /// Offset and length of each queue, ordered by offset.
    used: Vec<(u32, u32)>,
}

impl SendQueues {
    pub(super) fn new() -> std::io::Result<SendQueues> {
        let flags = MemfdFlags::CLOEXEC;
        let file = File::from(memfd_create("efa-send-queues", flags)?);
        ftruncate(&file, LENGTH as u64)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address of the system's choice.
        let first = unsafe { mmap(null_mut(), LENGTH, access, MapFlags::SHARED, &file, 0) }?;
        let first = NonNull::new(first.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(SendQueues {
            file,
            pages: Arc::new(Pages(first)),
            used: Vec::new(),
        })
    }

    /// The file that guests map.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Allocates zeroed pages for a queue, in the first gap that is long enough. Zeroing hides the
    /// requests of other programs.
    pub(super) fn take(&mut self, bytes: u32) -> Option<(u32, LentMemory)> {
        let length = bytes.checked_next_multiple_of(PAGE as u32)?;
        let mut start = 0;
        let mut place = self.used.len();
        for (index, (used, used_length)) in self.used.iter().enumerate() {
            if used - start >= length {
                place = index;
                break;
            }
            start = used + used_length;
        }
        if length == 0 || LENGTH as u32 - start < length {
            return None;
        }
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, punch, start.into(), length.into()).ok()?;
        self.used.insert(place, (start, length));
        // SAFETY: `start` is in the mapping.
        let first = unsafe { self.pages.0.add(start as usize) };
        // SAFETY: `length` bytes from there on are in the mapping, which is valid as long as
        // `pages`.
        let lent = unsafe { LentMemory::new(first, length as usize, Arc::clone(&self.pages) as _) };
        Some((start, lent))
    }

    /// Frees the pages of a queue.
    pub(super) fn give_back(&mut self, start: u32) {
        self.used.retain(|(used, _)| *used != start);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn place(queues: &mut SendQueues, bytes: u32) -> Option<u32> {
        queues.take(bytes).map(|(start, _)| start)
    }

    #[test]
    fn queues_get_separate_pages() {
        let mut queues = SendQueues::new().unwrap();
        assert_eq!(place(&mut queues, 4096), Some(0));
        assert_eq!(place(&mut queues, 4097), Some(4096));
        assert_eq!(place(&mut queues, 64), Some(3 * 4096));
        queues.give_back(4096);
        assert_eq!(place(&mut queues, 3 * 4096), Some(4 * 4096));
        assert_eq!(place(&mut queues, 64), Some(4096));
        assert_eq!(place(&mut queues, 64), Some(2 * 4096));
        assert_eq!(place(&mut queues, 64), Some(7 * 4096));
    }

    #[test]
    fn page_counts_match_the_region() {
        let mut queues = SendQueues::new().unwrap();
        assert_eq!(place(&mut queues, 0), None);
        assert_eq!(place(&mut queues, u32::MAX), None);
        assert_eq!(place(&mut queues, LENGTH as u32 + 1), None);
        assert_eq!(place(&mut queues, LENGTH as u32 - 4096), Some(0));
        assert_eq!(place(&mut queues, 4097), None);
        assert_eq!(place(&mut queues, 4096), Some(LENGTH as u32 - 4096));
        assert_eq!(place(&mut queues, 1), None);
    }

    #[test]
    fn nothing_is_left_of_an_earlier_queue() {
        let mut queues = SendQueues::new().unwrap();
        let (start, _) = queues.take(4096).unwrap();
        queues.file.write_all_at(b"secret", 100).unwrap();
        queues.give_back(start);
        assert_eq!(place(&mut queues, 4096), Some(0));
        let mut bytes = [1; 6];
        queues.file.read_exact_at(&mut bytes, 100).unwrap();
        assert_eq!(bytes, [0; 6]);
    }
}
