//! The entries of completion queues.

use std::collections::VecDeque;
use std::ffi::{CString, c_void};
use std::hint::cold_path;
use std::sync::Arc;

use efa_core::endpoint::{CompletionEntry, Errno, ErrorEntry};

use crate::ffi::result::{EAVAIL, Result};
use crate::ffi::{fi_addr_t, fi_cq_data_entry, fi_cq_entry, fi_cq_msg_entry, fi_cq_tagged_entry};
use crate::state::wait::WaitFd;

/// The format of entries (`enum fi_cq_format`). Each begins with the fields of those before it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Format {
    Context,
    Message,
    Data,
    Tagged,
}

/// Memory of a call that reads entries.
#[derive(Debug)]
pub(crate) struct Reader {
    format: Format,
    buffer: *mut c_void,
    /// Null if the call does not request the senders.
    sources: *mut fi_addr_t,
    /// The number of entries that there is room for.
    room: usize,
    count: usize,
}

impl Reader {
    /// # Safety
    /// As long as this exists, `buffer` has room for `room` entries of the format, and `sources`,
    /// unless null, for `room` addresses.
    pub(crate) unsafe fn new(
        format: Format,
        buffer: *mut c_void,
        sources: *mut fi_addr_t,
        room: usize,
    ) -> Reader {
        Reader {
            format,
            buffer,
            sources,
            room,
            count: 0,
        }
    }

    /// The number of entries that were written.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Writes an entry. Returns whether there was room.
    #[inline(always)]
    pub(crate) fn put(&mut self, entry: &fi_cq_tagged_entry, source: fi_addr_t) -> bool {
        if self.count == self.room {
            return false;
        }
        // A length that is known is copied without a call.
        macro_rules! write {
            ($entry:ty) => {
                std::ptr::copy_nonoverlapping(
                    std::ptr::from_ref(entry).cast::<$entry>(),
                    self.buffer.cast::<$entry>().add(self.count),
                    1,
                )
            };
        }
        // SAFETY: there is room, by the contract of `new`; the formats are prefixes of each other.
        unsafe {
            // The usual format is checked first, without a jump table.
            if let Format::Tagged = self.format {
                write!(fi_cq_tagged_entry);
            } else {
                cold_path();
                match self.format {
                    Format::Tagged => write!(fi_cq_tagged_entry),
                    Format::Data => write!(fi_cq_data_entry),
                    Format::Message => write!(fi_cq_msg_entry),
                    Format::Context => write!(fi_cq_entry),
                }
            }
            if !self.sources.is_null() {
                self.sources.add(self.count).write(source);
            }
        }
        self.count += 1;
        true
    }
}

/// Unread completions.
#[derive(Debug, Default)]
pub(crate) struct Completions {
    /// The call that currently reads and delivers, which gets the next entries.
    pub(crate) reader: Option<Reader>,
    done: VecDeque<(fi_cq_tagged_entry, fi_addr_t)>,
    /// The number of successes that the application has read.
    taken: u64,
    /// Failures, with the number of all earlier successes.
    failed: VecDeque<(u64, ErrorEntry)>,
    /// With this many entries, successes and failures, no operation is started that completes here.
    limit: usize,
    /// The text about the failure that was read last.
    pub(crate) detail: CString,
    wait_fd: Option<Arc<WaitFd>>,
    /// A thread sleeps until there is another entry.
    armed: bool,
}

impl Completions {
    /// An empty queue for `limit` entries, whose sleepers wait for `wait_fd`.
    pub(crate) fn new(limit: usize, wait_fd: Option<Arc<WaitFd>>) -> Completions {
        Completions {
            limit,
            wait_fd,
            ..Completions::default()
        }
    }

    /// Returns whether the application must read entries before it starts other operations. Entries
    /// of operations in progress, and of peers' operations, are still accepted.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.done.len() + self.failed.len() >= self.limit
    }

    /// The number of successes before the next failure, or `None` without a failure.
    #[inline]
    fn before_failure(&self) -> Option<usize> {
        let (before, _) = self.failed.front()?;
        Some((before - self.taken) as usize)
    }

    /// Adds a success. Returns whether the queue [is full](Completions::is_full) now.
    #[inline(always)]
    pub(crate) fn add(&mut self, entry: &CompletionEntry, source: fi_addr_t) -> bool {
        let done = fi_cq_tagged_entry {
            op_context: entry.context as *mut c_void,
            flags: entry.flags.bits(),
            len: entry.length as usize,
            buf: entry.buffer as *mut c_void,
            data: entry.data,
            tag: entry.tag,
        };
        self.push(done, source)
    }

    /// As [`Completions::add`], for an entry in C's representation.
    #[inline(always)]
    pub(crate) fn push(&mut self, entry: fi_cq_tagged_entry, source: fi_addr_t) -> bool {
        if let Some(reader) = &mut self.reader
            && self.done.is_empty()
            && self.failed.is_empty()
            && reader.put(&entry, source)
        {
            self.taken += 1;
            return false;
        }
        self.done.push_back((entry, source));
        self.notify();
        self.is_full()
    }

    /// Adds a failure.
    pub(crate) fn add_failure(&mut self, entry: ErrorEntry) {
        let before = self.taken + self.done.len() as u64;
        self.failed.push_back((before, entry));
        self.notify();
    }

    /// Wakes threads that wait for an entry.
    #[inline]
    fn notify(&mut self) {
        if self.armed
            && let Some(wait_fd) = &self.wait_fd
        {
            self.armed = false;
            wait_fd.eventfd.notify();
        }
    }

    /// The number of successes that can be read.
    ///
    /// # Errors
    /// `FI_EAGAIN` if there are fewer than `least` and no failure after them, `FI_EAVAIL` if the
    /// next entry is a failure.
    #[inline]
    pub(crate) fn available(&self, least: usize) -> Result<usize> {
        match self.before_failure() {
            // No more entries are returned before the failure was read.
            Some(0) => Err(EAVAIL),
            Some(before) => Ok(before),
            None if self.done.len() < least => Err(Errno::EAGAIN),
            None => Ok(self.done.len()),
        }
    }

    /// Removes the given number of successes, all of which must be available.
    #[inline]
    pub(crate) fn take(
        &mut self,
        count: usize,
    ) -> impl Iterator<Item = (fi_cq_tagged_entry, fi_addr_t)> {
        self.taken += count as u64;
        self.done.drain(..count)
    }

    /// Removes and returns the next failure, unless successes precede it.
    pub(crate) fn take_failure(&mut self) -> Option<ErrorEntry> {
        match self.before_failure() {
            Some(0) => self.failed.pop_front().map(|(_, entry)| entry),
            _ => None,
        }
    }

    /// Requests a notification at the next entry. Returns `false` if there are already `enough`
    /// successes, or a failure; threads that wait for more are notified nevertheless.
    pub(crate) fn arm(&mut self, enough: usize) -> bool {
        let waits = self.done.len() < enough && self.failed.is_empty();
        self.armed |= waits;
        waits
    }
}

#[cfg(test)]
mod tests {
    use efa_core::endpoint::CompletionFlags;

    use super::*;

    #[test]
    fn a_second_waiter_keeps_the_first_armed() {
        let mut completions = Completions::default();
        let entry = CompletionEntry {
            context: 0,
            flags: CompletionFlags::RECV,
            length: 0,
            data: 0,
            tag: 0,
            source: None,
            buffer: 0,
        };
        completions.add(&entry, 0);
        assert!(completions.arm(2), "one of two");
        assert!(!completions.arm(1), "there is one");
        assert!(completions.armed);
    }
}
