//! Completion queues.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use efa_core::endpoint::{CompletionEntry, Errno, ErrorEntry};

use crate::border::{self, EAVAIL, ENOSYS, Object, Result, Users};
use crate::domain::{Domain, State};
use crate::ffi::*;
use crate::table::Table;
use crate::unsupported;
use crate::wait::{self, Alarm, Deadline, Sleeper, Woken};

/// A completion queue (`fid_cq`).
#[repr(C)]
pub(crate) struct CompletionQueue {
    c: fid_cq,
    pub(crate) domain: *const Domain,
    format: Format,
    /// The place of its entries in the domain.
    pub(crate) place: usize,
    pub(crate) users: Users,
    waiting: Waiting,
    signaled: AtomicBool,
}

/// How an application can wait for completions.
#[derive(Debug)]
enum Waiting {
    /// Not at all (`FI_WAIT_NONE`).
    Never,
    /// By looking again and again (`FI_WAIT_YIELD`).
    Looking { threshold: bool },
    /// By sleeping (`FI_WAIT_FD` and `FI_WAIT_UNSPEC`). Calls wait for a number of completions if `threshold` says so.
    Sleeping { alarm: Arc<Alarm>, threshold: bool },
}

/// What an entry tells (`enum fi_cq_format`).
#[derive(Clone, Copy, Debug)]
enum Format {
    Context,
    Message,
    Data,
    Tagged,
}

impl Format {
    fn size(self) -> usize {
        match self {
            Format::Context => size_of::<fi_cq_entry>(),
            Format::Message => size_of::<fi_cq_msg_entry>(),
            Format::Data => size_of::<fi_cq_data_entry>(),
            Format::Tagged => size_of::<fi_cq_tagged_entry>(),
        }
    }
}

/// What has completed and was not read.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    done: VecDeque<(fi_cq_tagged_entry, fi_addr_t)>,
    /// How many successes the application has taken.
    taken: u64,
    /// With the number of all successes that came before.
    failed: VecDeque<(u64, ErrorEntry)>,
    alarm: Option<Arc<Alarm>>,
    /// Somebody sleeps until there is another entry.
    armed: bool,
}

impl Entries {
    /// How many successes are read before the next failure. `None` if there is no failure.
    #[inline]
    fn before_failure(&self) -> Option<usize> {
        let (before, _) = self.failed.front()?;
        Some((before - self.taken) as usize)
    }

    /// Adds the end of an operation.
    #[inline]
    pub(crate) fn add(
        &mut self,
        result: std::result::Result<CompletionEntry, ErrorEntry>,
        source: fi_addr_t,
    ) {
        match result {
            Ok(entry) => self.done.push_back((
                fi_cq_tagged_entry {
                    op_context: entry.context as *mut c_void,
                    flags: entry.flags.bits(),
                    len: entry.length as usize,
                    buf: entry.buffer as *mut c_void,
                    data: entry.data,
                    tag: entry.tag,
                },
                source,
            )),
            Err(entry) => {
                let before = self.taken + self.done.len() as u64;
                self.failed.push_back((before, entry));
            }
        }
        if self.armed
            && let Some(alarm) = &self.alarm
        {
            self.armed = false;
            alarm.bell.ring();
        }
    }
}

// SAFETY: `#[repr(C)]`, and the first member begins with a `fid`; no other type has these operations.
unsafe impl Object for CompletionQueue {
    const CLASS: u32 = FI_CLASS_CQ;

    fn operations() -> &'static Table<fi_ops> {
        &FID
    }
}

static FID: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close),
    control: Some(control),
    ..unsupported::FID
});

static OPS: Table<fi_ops_cq> = Table::new(fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: Some(read),
    readfrom: Some(readfrom),
    readerr: Some(readerr),
    sread: Some(sread),
    sreadfrom: Some(sreadfrom),
    signal: Some(signal),
    strerror: Some(strerror),
});

impl CompletionQueue {
    #[inline]
    fn domain(&self) -> &Domain {
        // SAFETY: a domain is not closed before its completion queues.
        unsafe { &*self.domain }
    }

    /// Returns whether calls or programs may sleep until there is something to read.
    pub(crate) fn can_sleep(&self) -> bool {
        matches!(self.waiting, Waiting::Sleeping { .. })
    }

    /// Makes progress, and moves what has completed to the application.
    ///
    /// # Errors
    /// `FI_EAGAIN` if there are not `least` completions and no error behind them, `FI_EAVAIL` if an error comes first.
    ///
    /// # Safety
    /// `buffer` has room for `count` entries, and `sources`, unless null, for as many addresses.
    unsafe fn read(
        &self,
        buffer: *mut c_void,
        count: usize,
        sources: *mut fi_addr_t,
        least: usize,
    ) -> Result<usize> {
        let mut state = self.domain().state()?;
        state.progress();
        // SAFETY: the caller's contract is the same.
        unsafe { self.take(&mut state, buffer, count, sources, least) }
    }

    /// # Safety
    /// As for [`CompletionQueue::read`].
    unsafe fn take(
        &self,
        state: &mut State,
        buffer: *mut c_void,
        count: usize,
        sources: *mut fi_addr_t,
        least: usize,
    ) -> Result<usize> {
        let entries = state.tables.entries(self.place)?;
        let available = match entries.before_failure() {
            // More do not come before the failure was read.
            Some(0) => return Err(EAVAIL),
            Some(before) => before,
            None if entries.done.len() < least => return Err(Errno::EAGAIN),
            None => entries.done.len(),
        };
        if buffer.is_null() && count > 0 {
            return Err(Errno::EINVAL);
        }
        let size = self.format.size();
        let taken = available.min(count);
        entries.taken += taken as u64;
        for (index, (entry, source)) in entries.done.drain(..taken).enumerate() {
            // SAFETY: the room that the caller promises. The formats are prefixes of each other.
            unsafe {
                let to = buffer.cast::<u8>().add(index * size);
                std::ptr::copy_nonoverlapping(std::ptr::from_ref(&entry).cast::<u8>(), to, size);
                if !sources.is_null() {
                    sources.add(index).write(source);
                }
            }
        }
        Ok(taken)
    }

    /// As [`CompletionQueue::read`], for at most `timeout` milliseconds, or without end if that is negative.
    ///
    /// # Errors
    /// `FI_ENOSYS` if the queue was opened without waiting; `FI_EAGAIN` after the time, after
    /// `fi_cq_signal`, and after a signal that the process handled.
    ///
    /// # Safety
    /// As there, and `condition` is null or what the queue's attributes say.
    unsafe fn wait(
        &self,
        buffer: *mut c_void,
        count: usize,
        sources: *mut fi_addr_t,
        condition: *const c_void,
        timeout: c_int,
    ) -> Result<usize> {
        let (alarm, threshold) = match &self.waiting {
            Waiting::Never => return Err(ENOSYS),
            Waiting::Looking { threshold } => (None, *threshold),
            Waiting::Sleeping { alarm, threshold } => (Some(alarm), *threshold),
        };
        let least = match threshold && !condition.is_null() {
            // SAFETY: by the caller's contract a number.
            true => unsafe { condition.cast::<usize>().read() }.clamp(1, count.max(1)),
            false => 1,
        };
        let (start, until) = (Instant::now(), Deadline::after(timeout));
        loop {
            // SAFETY: the caller's contract is the same.
            match unsafe { self.read(buffer, count, sources, least) } {
                Err(Errno::EAGAIN) => {}
                result => return result,
            }
            if self.signaled.swap(false, Ordering::AcqRel) {
                return Err(Errno::EAGAIN);
            }
            if until.has_passed() {
                // What there is, if it is fewer than were asked for.
                // SAFETY: the caller's contract is the same.
                return unsafe { self.read(buffer, count, sources, 1) };
            }
            match alarm {
                None => std::thread::yield_now(),
                Some(_) if start.elapsed() < wait::SPIN => std::hint::spin_loop(),
                Some(alarm) => {
                    if let Some(sleeper) = self.arm(alarm, least)?
                        && !self.signaled.load(Ordering::Acquire)
                        && sleeper.sleep(until)? == Woken::Interrupted
                    {
                        // SAFETY: the caller's contract is the same.
                        return unsafe { self.read(buffer, count, sources, 1) };
                    }
                }
            }
        }
    }

    /// Asks for the bell at the next entry. Nobody sleeps if there are `enough` entries already, or may be some soon.
    fn arm<'a>(&self, alarm: &'a Alarm, enough: usize) -> Result<Option<Sleeper<'a>>> {
        let mut state = self.domain().state()?;
        let quiet = state.arm()?;
        let entries = state.tables.entries(self.place)?;
        if !quiet || entries.done.len() >= enough || !entries.failed.is_empty() {
            return Ok(None);
        }
        entries.armed = true;
        Ok(Some(alarm.prepare()))
    }

    /// Prepares for sleeping on the descriptor (`fi_trywait`).
    ///
    /// # Errors
    /// `FI_EAGAIN` if there is something to read, or was a signal; `FI_EINVAL` if there is no descriptor.
    pub(crate) fn try_wait(&self) -> Result<()> {
        let Waiting::Sleeping { alarm, .. } = &self.waiting else {
            return Err(Errno::EINVAL);
        };
        let is_empty = self.arm(alarm, 1)?.is_some();
        match is_empty && !self.signaled.swap(false, Ordering::AcqRel) {
            true => Ok(()),
            false => Err(Errno::EAGAIN),
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        let domain = self.domain();
        if let Ok(mut state) = domain.state() {
            state.tables.queues.try_remove(self.place);
        }
        domain.users.remove();
    }
}

/// # Safety
/// As libfabric documents `fi_cq_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attributes: *mut fi_cq_attr,
    result: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let domain: &Domain = unsafe { border::object(domain.cast()) }?;
        // SAFETY: likewise.
        let attributes = unsafe { attributes.as_mut() }.ok_or(Errno::EINVAL)?;
        // Queues of a GPU (`FI_XPU`), of another provider (`FI_PEER`), and what may come.
        if attributes.flags & !FI_AFFINITY != 0 {
            return Err(Errno::EINVAL);
        }
        let threshold = match attributes.wait_cond {
            FI_CQ_COND_NONE => false,
            FI_CQ_COND_THRESHOLD => true,
            // It only counts for those who wait.
            _ if attributes.wait_obj == FI_WAIT_NONE => false,
            _ => return Err(Errno::EINVAL),
        };
        let format = match attributes.format {
            FI_CQ_FORMAT_UNSPEC | FI_CQ_FORMAT_TAGGED => Format::Tagged,
            FI_CQ_FORMAT_CONTEXT => Format::Context,
            FI_CQ_FORMAT_MSG => Format::Message,
            FI_CQ_FORMAT_DATA => Format::Data,
            _ => return Err(ENOSYS),
        };
        if attributes.format == FI_CQ_FORMAT_UNSPEC {
            attributes.format = FI_CQ_FORMAT_TAGGED;
        }
        if result.is_null() {
            return Err(Errno::EINVAL);
        }
        let mut state = domain.state()?;
        let waiting = match attributes.wait_obj {
            FI_WAIT_NONE => Waiting::Never,
            FI_WAIT_YIELD => Waiting::Looking { threshold },
            FI_WAIT_UNSPEC | FI_WAIT_FD => {
                attributes.wait_obj = FI_WAIT_FD;
                let alarm = Arc::new(Alarm::new(state.watch()?)?);
                Waiting::Sleeping { alarm, threshold }
            }
            // Wait sets, and mutexes with condition variables.
            _ => return Err(ENOSYS),
        };
        let entries = Entries {
            alarm: match &waiting {
                Waiting::Sleeping { alarm, .. } => Some(Arc::clone(alarm)),
                _ => None,
            },
            ..Entries::default()
        };
        let place = state.tables.queues.insert(entries);
        drop(state);
        domain.users.add();
        let queue = CompletionQueue {
            c: fid_cq {
                fid: fid {
                    context,
                    ..fid::default()
                },
                ops: OPS.as_c(),
            },
            domain,
            format,
            place,
            users: Users::default(),
            waiting,
            signaled: AtomicBool::new(false),
        };
        // SAFETY: by the caller's contract.
        unsafe { queue.give_to(result) }
    })
}

/// # Safety
/// As libfabric documents `fi_close`.
unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let queue: &CompletionQueue = unsafe { border::object(fid.cast()) }?;
        queue.users.none()?;
        // SAFETY: no endpoint uses it, and C gives up its pointer.
        drop(unsafe { border::take(queue) });
        Ok(())
    })
}

/// # Safety
/// As libfabric documents `fi_cq_read`.
unsafe extern "C" fn read(queue: *mut fid_cq, buffer: *mut c_void, count: usize) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        unsafe {
            border::transfer_object::<CompletionQueue>(queue.cast())?.read(
                buffer,
                count,
                std::ptr::null_mut(),
                1,
            )
        }
    })
}

/// # Safety
/// As libfabric documents `fi_cq_readfrom`.
unsafe extern "C" fn readfrom(
    queue: *mut fid_cq,
    buffer: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        unsafe {
            border::transfer_object::<CompletionQueue>(queue.cast())?
                .read(buffer, count, sources, 1)
        }
    })
}

/// # Safety
/// As libfabric documents `fi_cq_sread`.
unsafe extern "C" fn sread(
    queue: *mut fid_cq,
    buffer: *mut c_void,
    count: usize,
    condition: *const c_void,
    timeout: c_int,
) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        unsafe {
            border::transfer_object::<CompletionQueue>(queue.cast())?.wait(
                buffer,
                count,
                std::ptr::null_mut(),
                condition,
                timeout,
            )
        }
    })
}

/// # Safety
/// As libfabric documents `fi_cq_sreadfrom`.
unsafe extern "C" fn sreadfrom(
    queue: *mut fid_cq,
    buffer: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
    condition: *const c_void,
    timeout: c_int,
) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        unsafe {
            border::transfer_object::<CompletionQueue>(queue.cast())?
                .wait(buffer, count, sources, condition, timeout)
        }
    })
}

/// # Safety
/// As libfabric documents `fi_cq_readerr`.
unsafe extern "C" fn readerr(
    queue: *mut fid_cq,
    buffer: *mut fi_cq_err_entry,
    _flags: u64,
) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        let queue: &CompletionQueue = unsafe { border::object(queue.cast()) }?;
        // SAFETY: likewise.
        let to = unsafe { buffer.as_mut() }.ok_or(Errno::EINVAL)?;
        let mut state = queue.domain().state()?;
        let entries = state.tables.entries(queue.place)?;
        // Those before it have to be read first.
        let next = match entries.before_failure() {
            Some(0) => entries.failed.pop_front(),
            _ => None,
        };
        let (_, failed) = next.ok_or(Errno::EAGAIN)?;
        to.op_context = failed.context as *mut c_void;
        to.flags = failed.flags.bits();
        to.len = failed.length as usize;
        to.buf = std::ptr::null_mut();
        to.data = failed.data;
        to.tag = failed.tag;
        to.olen = failed.overflow_length as usize;
        to.err = failed.failure.errno.0;
        to.prov_errno = failed.failure.provider.code() as c_int;
        // Since interface 1.5 the application says how much room it has for more; there is no more.
        to.err_data_size = 0;
        Ok(1)
    })
}

/// # Safety
/// As libfabric documents `fi_cq_signal`.
unsafe extern "C" fn signal(queue: *mut fid_cq) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let queue: &CompletionQueue = unsafe { border::object(queue.cast()) }?;
        if matches!(queue.waiting, Waiting::Never) {
            return Err(Errno::EINVAL);
        }
        // Before the bell, which is rung and heard by system calls: who has been woken by it finds the signal, and who has
        // looked for the signal before that has been prepared to hear the bell.
        queue.signaled.store(true, Ordering::Release);
        if let Waiting::Sleeping { alarm, .. } = &queue.waiting {
            alarm.bell.ring();
        }
        Ok(())
    })
}

/// # Safety
/// As libfabric documents `fi_control` of completion queues.
unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let queue: &CompletionQueue = unsafe { border::object(fid.cast()) }?;
        let (kind, alarm) = match &queue.waiting {
            Waiting::Never => (FI_WAIT_NONE, None),
            Waiting::Looking { .. } => (FI_WAIT_YIELD, None),
            Waiting::Sleeping { alarm, .. } => (FI_WAIT_FD, Some(alarm.as_fd())),
        };
        // SAFETY: the caller's contract is the same.
        unsafe { wait::control(command, argument, kind, alarm) }
    })
}

/// # Safety
/// As libfabric documents `fi_cq_strerror`.
unsafe extern "C" fn strerror(
    _queue: *mut fid_cq,
    provider_errno: c_int,
    _data: *const c_void,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    // SAFETY: the caller's contract is the same.
    unsafe { strerror_of(provider_errno, buffer, length) }
}

/// A text for a provider's error number, also copied to the buffer unless that is null.
///
/// # Safety
/// The buffer is null or has room for `length` bytes.
pub(crate) unsafe fn strerror_of(
    provider_errno: c_int,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    let text: &'static CStr = match provider_errno {
        0 => c"no further detail",
        1..4096 => c"status of the device",
        _ => c"error of the protocol",
    };
    if !buffer.is_null() && length > 0 {
        let bytes = text.to_bytes();
        let count = bytes.len().min(length - 1);
        // SAFETY: there is room for `length` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), count);
            buffer.add(count).write(0);
        }
    }
    text.as_ptr()
}
