//! Reports memory whose pages were replaced to the cache of registrations.
//!
//! A registration pins the pages that an address has at that time. If a program unmaps the memory
//! and maps other memory in its place, the address has other pages, and the device still uses the
//! old ones. A cache of registrations must therefore detect each such change, by any thread, before
//! the first operation on the new memory.
//!
//! # Why userfaultfd
//!
//! | way | reasons for or against it |
//! |---|---|
//! | interception of `munmap`, `mmap`, `madvise`, `brk`, `shmdt` | calls within the C library, system calls without it, and statically linked programs are not intercepted: stale pages without an error |
//! | validation of the mapping at each use | `/proc/self/maps` looks the same after `munmap` and `mmap` of the same size; the numbers of page frames are hidden from programs without rights |
//! | userfaultfd | the kernel reports each change of watched memory, by any call, and lets that call return only once the report was read |
//!
//! Memory is watched in the mode for write protection and never protected, so no access to it
//! faults.
//!
//! # What makes it exact
//!
//! * The kernel counts a change as pending before other threads can see its effect, and until its
//!   report was read. While one is pending, the zero-length `UFFDIO_ZEROPAGE` fails with `EAGAIN`,
//!   otherwise with `EINVAL`. The cache checks before each use; while a change is pending it
//!   returns no registration. So a thread that uses an address which another thread is currently
//!   unmapping finds no stale registration.
//! * `madvise(MADV_DONTNEED)` is reported *before* the pages are removed, and the removal itself is
//!   not reported. A registration that was made in between would be stale soon. Such memory is not
//!   served from the cache until it is unmapped.
//! * Only private anonymous memory is watched. Pages of files and of shared memory can be replaced
//!   by `ftruncate` or `fallocate` on the file, from any process, and pages of System V memory by
//!   `shmdt`: userfaultfd reports none of these.
//!
//! After `fork` the parent keeps its pinned pages, and the child gets copies, since Linux 5.12;
//! before, programs call `ibv_fork_init`.
//!
//! Memory that is not watched is registered for each operation, and so is all memory where the
//! kernel or its administrator does not permit userfaultfd. `MADV_GUARD_INSTALL` (Linux 6.13)
//! replaces pages without a report: programs must not use it on memory from which they send.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use efa_core::nic::UserSlice;
use rustix::event::{PollFd, PollFlags, poll};

/// Reports memory whose pages were replaced.
pub(crate) trait MemoryMonitor {
    /// Starts to watch memory. Returns whether each change of its pages from now on will be
    /// reported.
    fn watch(&mut self, memory: UserSlice) -> bool;

    /// Reports the changes since the last call. Returns false if others are in progress whose
    /// memory is not known yet.
    fn changes(&mut self, report: impl FnMut(Change)) -> bool;
}

/// A range of addresses whose pages change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) kind: ChangeKind,
}

/// The time at which the pages change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChangeKind {
    /// They have changed.
    Done,
    /// They change at some time after the report.
    Coming,
}

/// Watches memory of this process by userfaultfd.
#[derive(Debug)]
pub(crate) struct Userfault {
    shared: Arc<Shared>,
    /// Stops the thread.
    stop: io::PipeWriter,
    thread: Option<JoinHandle<()>>,
    /// The process in which the thread runs.
    home: u32,
    /// Changes read from the thread.
    taken: Vec<Change>,
}

#[derive(Debug)]
struct Shared {
    userfault: OwnedFd,
    /// Reports are only read with this lock held.
    reported: Mutex<ReportedChanges>,
}

/// The reports that the cache has not processed.
///
/// The capacity does not grow: the allocator could unmap watched memory for that, and would then
/// wait for its own thread to read the report.
#[derive(Debug)]
struct ReportedChanges {
    changes: Box<[Change; ROOM]>,
    count: usize,
}

const ROOM: usize = 1024;

impl Userfault {
    /// Opens a userfaultfd, and starts the thread that reads it.
    pub(crate) fn open() -> io::Result<Userfault> {
        let userfault = abi::open().map_err(|error| {
            let hint = match error.raw_os_error() {
                Some(libc::EPERM) => "; `sysctl vm.unprivileged_userfaultfd=1`, or a container whose seccomp profile allows userfaultfd, permits it",
                Some(libc::ENOSYS) => "; this kernel is built without it",
                _ => "",
            };
            io::Error::new(error.kind(), format!("memory cannot be watched: userfaultfd failed: {error}{hint}"))
        })?;
        let nothing = Change {
            start: 0,
            end: 0,
            kind: ChangeKind::Done,
        };
        let shared = Arc::new(Shared {
            userfault,
            reported: Mutex::new(ReportedChanges {
                changes: Box::new([nothing; ROOM]),
                count: 0,
            }),
        });
        let (stopped, stop) = io::pipe()?;
        let reader = Arc::clone(&shared);
        // A signal handler of the program that changes memory on this thread would wait for this
        // thread.
        let unblocked = signals::block_all();
        let thread = std::thread::Builder::new()
            .name("efa-hw memory".to_owned())
            .spawn(move || reader.read_until(&stopped));
        signals::set(&unblocked);
        Ok(Userfault {
            shared,
            stop,
            thread: Some(thread?),
            home: std::process::id(),
            taken: Vec::with_capacity(ROOM),
        })
    }
}

impl Drop for Userfault {
    fn drop(&mut self) {
        if std::process::id() != self.home {
            // A forked child has no such thread, and its pipe and userfaultfd belong to the parent.
            // If the parent's thread ended, a process that unmaps watched memory would wait
            // forever.
            std::mem::forget(self.thread.take());
            return;
        }
        // The thread has the read end of the pipe, so this cannot fail.
        let _ = self.stop.write_all(&[0]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl MemoryMonitor for Userfault {
    fn watch(&mut self, memory: UserSlice) -> bool {
        let Some((start, end)) = whole_pages(memory) else {
            return false;
        };
        // In this order, a mapping that is made after the check is reported.
        abi::register(&self.shared.userfault, start, end)
            && is_private_anonymous(start, end).unwrap_or(false)
    }

    fn changes(&mut self, report: impl FnMut(Change)) -> bool {
        self.taken.clear();
        let mut reported = self.shared.lock();
        // Check first, then read the reports: all changes that are no longer pending have been
        // reported.
        let is_settled = !abi::is_change_pending(&self.shared.userfault);
        // There is room for all, so this does not allocate under the lock.
        self.taken
            .extend_from_slice(&reported.changes[..reported.count]);
        reported.count = 0;
        drop(reported);
        self.taken.iter().copied().for_each(report);
        is_settled
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, ReportedChanges> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads reports until `stopped` is readable. Does not allocate.
    fn read_until(&self, stopped: &io::PipeReader) {
        loop {
            let mut both = [
                PollFd::new(&self.userfault, PollFlags::IN),
                PollFd::new(stopped, PollFlags::IN),
            ];
            // If a signal interrupts it, there is nothing to read.
            let _ = poll(&mut both, None);
            if !both[1].revents().is_empty() {
                return;
            }
            let mut reported = self.lock();
            while let Some(change) = abi::read(&self.userfault) {
                reported.add(change);
            }
        }
    }
}

impl ReportedChanges {
    /// Adds a change. If there is no room, the last entry is extended to include it: then more
    /// memory counts as changed than has changed.
    fn add(&mut self, change: Change) {
        if self.count < ROOM {
            self.changes[self.count] = change;
            self.count += 1;
            return;
        }
        let last = &mut self.changes[ROOM - 1];
        last.start = last.start.min(change.start);
        last.end = last.end.max(change.end);
        if change.kind == ChangeKind::Coming {
            last.kind = ChangeKind::Coming;
        }
    }
}

/// The pages of a range of memory: the address of the first one, and the end of the last one.
fn whole_pages(memory: UserSlice) -> Option<(u64, u64)> {
    let page = rustix::param::page_size() as u64;
    let end = memory.address.checked_add(memory.length as u64)?;
    let end = end.checked_next_multiple_of(page)?;
    let start = memory.address - memory.address % page;
    (start < end).then_some((start, end))
}

/// Returns whether all of a range is private memory without a file.
fn is_private_anonymous(start: u64, end: u64) -> io::Result<bool> {
    let mut maps = BufReader::new(File::open("/proc/self/maps")?);
    let mut line = String::new();
    let mut covered = start;
    while covered < end {
        line.clear();
        if maps.read_line(&mut line)? == 0 {
            return Ok(false);
        }
        let Some(mapping) = Mapping::parse(&line) else {
            return Ok(false);
        };
        if mapping.end <= covered {
            continue;
        }
        if mapping.start > covered || !mapping.is_private_anonymous {
            return Ok(false);
        }
        covered = mapping.end;
    }
    Ok(true)
}

/// A line of `/proc/self/maps`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mapping {
    start: u64,
    end: u64,
    is_private_anonymous: bool,
}

impl Mapping {
    fn parse(line: &str) -> Option<Mapping> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let (permissions, _offset, _device) = (words.next()?, words.next()?, words.next()?);
        let inode = words.next()?;
        Some(Mapping {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            is_private_anonymous: permissions.ends_with('p') && inode == "0",
        })
    }
}

/// The thread's signal mask.
mod signals {
    use std::mem::MaybeUninit;

    /// Blocks all signals for this thread, and returns the previous mask.
    pub(super) fn block_all() -> libc::sigset_t {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the first call fills `all`; the second one reads it, and fills `before`: with a
        // valid first argument it cannot fail.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            before.assume_init()
        }
    }

    pub(super) fn set(mask: &libc::sigset_t) {
        // SAFETY: a valid mask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
    }
}

/// The kernel's interface, `linux/userfaultfd.h`.
mod abi {
    use super::{Change, ChangeKind, OwnedFd, io};
    use rustix::io::Errno;
    use rustix::ioctl::opcode::read_write;
    use rustix::ioctl::{Opcode, Updater, ioctl};
    use rustix::mm::{UserfaultfdFlags, userfaultfd};

    const API: u64 = 0xAA;
    const USER_MODE_ONLY: u32 = 1;
    const EVENT_REMAP: u64 = 1 << 2;
    const EVENT_REMOVE: u64 = 1 << 3;
    const EVENT_UNMAP: u64 = 1 << 6;
    const REGISTER_MODE_WP: u64 = 1 << 1;

    /// `struct uffdio_api`.
    #[repr(C)]
    struct Api {
        api: u64,
        features: u64,
        ioctls: u64,
    }

    /// `struct uffdio_register`.
    #[repr(C)]
    struct Register {
        start: u64,
        length: u64,
        mode: u64,
        ioctls: u64,
    }

    /// `struct uffdio_zeropage`.
    #[repr(C)]
    struct ZeroPage {
        start: u64,
        length: u64,
        mode: u64,
        zeroed: i64,
    }

    /// The size of a `struct uffd_msg`: the event, and three words of arguments.
    const MESSAGE: usize = 32;
    const REMAP: u8 = 0x14;
    const REMOVE: u8 = 0x15;
    const UNMAP: u8 = 0x16;

    const UFFDIO_API: Opcode = read_write::<Api>(0xAA, 0x3F);
    const UFFDIO_REGISTER: Opcode = read_write::<Register>(0xAA, 0x00);
    const UFFDIO_ZEROPAGE: Opcode = read_write::<ZeroPage>(0xAA, 0x04);

    fn request<const REQUEST: Opcode, T>(
        userfault: &OwnedFd,
        argument: &mut T,
    ) -> Result<(), Errno> {
        // SAFETY: the structure is the request's. None of the requests changes memory or access to
        // it.
        unsafe { ioctl(userfault, Updater::<REQUEST, T>::new(argument)) }
    }

    /// Opens a userfaultfd that reports changes of mappings.
    pub(super) fn open() -> io::Result<OwnedFd> {
        let open = |mode| {
            let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | mode;
            // SAFETY: no access to memory waits for an answer to it.
            unsafe { userfaultfd(flags) }
        };
        // Unprivileged programs may use this variant. Linux before 5.11 does not have it.
        let opened = match open(UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY)) {
            Err(Errno::INVAL) => open(UserfaultfdFlags::empty()),
            opened => opened,
        }?;
        let mut api = Api {
            api: API,
            features: EVENT_UNMAP | EVENT_REMOVE | EVENT_REMAP,
            ioctls: 0,
        };
        request::<UFFDIO_API, _>(&opened, &mut api)?;
        Ok(opened)
    }

    /// Watches a range. Returns whether the kernel supports that.
    pub(super) fn register(userfault: &OwnedFd, start: u64, end: u64) -> bool {
        let mut register = Register {
            start,
            length: end - start,
            mode: REGISTER_MODE_WP,
            ioctls: 0,
        };
        request::<UFFDIO_REGISTER, _>(userfault, &mut register).is_ok()
    }

    /// Returns whether a change is in progress whose report was not read, or whose caller has not
    /// been resumed since.
    pub(super) fn is_change_pending(userfault: &OwnedFd) -> bool {
        let mut nothing = ZeroPage {
            start: 0,
            length: 0,
            mode: 0,
            zeroed: 0,
        };
        // A zero length is invalid for every page. Only this error means that no change is pending.
        request::<UFFDIO_ZEROPAGE, _>(userfault, &mut nothing) != Err(Errno::INVAL)
    }

    /// Reads the next report. `None` if there is none.
    pub(super) fn read(userfault: &OwnedFd) -> Option<Change> {
        loop {
            let mut message = [0; MESSAGE];
            if rustix::io::read(userfault, &mut message) != Ok(MESSAGE) {
                return None;
            }
            let (words, _) = message.as_chunks();
            let [first, second, third] = [1, 2, 3].map(|word| u64::from_ne_bytes(words[word]));
            let (start, end, kind) = match message[0] {
                UNMAP => (first, second, ChangeKind::Done),
                REMOVE => (first, second, ChangeKind::Coming),
                // From, to, length.
                REMAP => (first, first.saturating_add(third), ChangeKind::Done),
                _ => continue,
            };
            return Some(Change { start, end, kind });
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn requests_have_the_numbers_of_the_kernels_header() {
            assert_eq!(UFFDIO_API, 0xC018_AA3F);
            assert_eq!(UFFDIO_REGISTER, 0xC020_AA00);
            assert_eq!(UFFDIO_ZEROPAGE, 0xC020_AA04);
        }
    }
}

#[cfg(test)]
mod tests;
