//! The process's side of the ring.
//!
//! Threads reserve room by moving the head, fill it, and publish it by storing its first word,
//! which is zero until then. The command reads records in their order, zeroes their room, and moves
//! the tail. The memory orderings are sufficient because:
//! * the first word is stored with release and loaded with acquire, so the command sees the rest of
//!   the record;
//! * the command stores the tail with release after it has zeroed the room. A writer that reserves
//!   room has loaded the tail with acquire, or the process's copy of it, which was stored with
//!   release by a thread that had done so. So the writer sees the zeroes, and its writes follow
//!   them. Two threads may store the copy in the wrong order; then it is older than necessary, and
//!   the next writer without room loads the command's word again;
//! * the head is moved with release, and the command loads it with acquire: objects that were
//!   recorded before a record was reserved are read before the record.
//!
//! The switch and the count of lost records need no ordering.

use core::mem::offset_of;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use zerocopy::IntoBytes as _;

use super::memory::Source;
use super::real::say;
use crate::exchange::{
    ALIGNMENT, Body, DATA, ENV_CLOCK, ENV_DIRECTORY, ENV_RDMA_DATA, ENV_RING, ENV_SEND_DATA, IDLE,
    MAGIC, OBJECTS, ObjectRecord, RING, Record, RingHeader, clock, from_monotonic, kind,
};

/// The ring into which the process records.
pub(crate) struct Ring {
    header: &'static RingHeader,
    data: NonNull<u8>,
    capacity: u64,
    /// The tail when there last seemed to be no room: the reader's own word is in another
    /// processor's cache.
    tail: AtomicU64,
    objects: Mutex<File>,
    /// As [`ENV_CLOCK`].
    from_monotonic: u64,
    /// Maximum number of bytes to record of a send.
    pub(crate) send_data: usize,
    /// RDMA operations of more bytes are recorded without data.
    pub(crate) rdma_data: usize,
}

// SAFETY: each range of the data is reserved before it is written.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

static OWN: AtomicPtr<Ring> = AtomicPtr::new(null_mut());

/// The switch of a process without a ring.
static NEVER: AtomicU32 = AtomicU32::new(0);
/// The process's switch: in its ring, or [`NEVER`].
static SWITCH: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const NEVER).cast_mut());

/// The process's ring, if it has one.
#[inline]
pub(crate) fn own() -> Option<&'static Ring> {
    // SAFETY: it is never freed.
    unsafe { OWN.load(Ordering::Acquire).as_ref() }
}

/// The number of the recording, if the process records now: a different one each time that it
/// starts. While the tap is idle, most calls only read this.
#[inline]
pub(crate) fn current() -> Option<u32> {
    // SAFETY: a static, or a word of a ring, which is never unmapped.
    let switch = unsafe { &*SWITCH.load(Ordering::Acquire) };
    let number = switch.load(Ordering::Relaxed);
    (number % 2 == 1).then_some(number)
}

/// The process's ring, if it records now.
#[inline]
pub(crate) fn recording() -> Option<&'static Ring> {
    current().and_then(|_| own())
}

/// Creates the process's ring, unless it has one or none is requested.
pub(crate) fn begin() {
    static BEGINNING: Mutex<()> = Mutex::new(());
    let _beginning = BEGINNING.lock().unwrap_or_else(PoisonError::into_inner);
    if own().is_some() {
        return;
    }
    let Some(directory) = env::var_os(ENV_DIRECTORY).map(PathBuf::from) else {
        return;
    };
    match Ring::create(&directory) {
        Ok(ring) => {
            let switch = (&raw const ring.header.switch).cast_mut();
            OWN.store(Box::into_raw(Box::new(ring)), Ordering::Release);
            SWITCH.store(switch, Ordering::Release);
            // SAFETY: a function that is called in a child of this process, in which no other
            // thread runs.
            unsafe { libc::pthread_atfork(None, None, Some(leave)) };
        }
        Err(error) => say(&format!("cannot record: {}: {error}", directory.display())),
    }
}

/// A forked process gets its own ring when it opens a device.
extern "C" fn leave() {
    SWITCH.store((&raw const NEVER).cast_mut(), Ordering::Release);
    OWN.store(null_mut(), Ordering::Release);
}

fn number<T: std::str::FromStr>(name: &str, default: T) -> T {
    let text = env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

impl Ring {
    fn create(directory: &std::path::Path) -> io::Result<Ring> {
        let capacity = number::<usize>(ENV_RING, 1 << 24)
            .clamp(1 << 16, 1 << 30)
            .next_power_of_two();
        let pid = std::process::id();
        let new = |path: &PathBuf| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(path)
        };
        // A process that executes another program has the same number.
        let (objects, mut path) = (0..u32::MAX)
            .map(|serial| directory.join(format!("{pid}-{serial}{OBJECTS}")))
            .find_map(|path| match new(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
                made => Some(made.map(|file| (file, path))),
            })
            .ok_or_else(|| io::Error::from(io::ErrorKind::AlreadyExists))??;
        path.set_extension("new");
        let file = new(&path)?;
        let length = DATA + capacity;
        if !is_allowed(length) {
            let _ = fs::remove_file(&path);
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        // On a full disk a write into the mapping would be fatal, so all of the file is allocated
        // at the start. SAFETY: the descriptor belongs to this code.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length as libc::off_t) } {
            0 => {}
            error => {
                let _ = fs::remove_file(&path);
                return Err(io::Error::from_raw_os_error(error));
            }
        }
        // SAFETY: a new mapping of a file that has this length.
        let base = unsafe {
            libc::mmap(
                null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let header = base.cast::<RingHeader>();
        // SAFETY: the mapping is longer than the header, zero at first, and stays.
        let header = unsafe {
            (*header).magic = MAGIC;
            (*header).capacity = capacity as u64;
            &*header
        };
        let is_on = !directory.join(IDLE).exists();
        header.switch.store(u32::from(is_on), Ordering::Relaxed);
        fs::rename(&path, path.with_extension(&RING[1..]))?;
        let data = NonNull::new(base.wrapping_byte_add(DATA).cast());
        Ok(Ring {
            header,
            data: data.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?,
            capacity: capacity as u64,
            tail: AtomicU64::new(0),
            objects: Mutex::new(objects),
            from_monotonic: number(ENV_CLOCK, from_monotonic()),
            send_data: number(ENV_SEND_DATA, usize::MAX),
            rdma_data: number(ENV_RDMA_DATA, usize::MAX).min(capacity / 8),
        })
    }

    /// Nanoseconds since the Unix epoch, by the machine's clock at the start of the run.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        clock(libc::CLOCK_MONOTONIC).wrapping_add(self.from_monotonic)
    }

    /// Records an object, before any record refers to it.
    pub(crate) fn object(&self, mut entry: ObjectRecord) {
        let mut file = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        entry.position = self.header.head.load(Ordering::Relaxed);
        if let Err(error) = file.write_all(entry.as_bytes()) {
            say(&format!("cannot write down an object: {error}"));
        }
    }

    /// Reserves room for a record with this many bytes of data. If there is none, returns `None`
    /// and counts a lost record.
    #[inline]
    pub(crate) fn reserve(&self, data: usize) -> Option<Reservation> {
        let length = (size_of::<Record>() + data).next_multiple_of(ALIGNMENT) as u64;
        let header = self.header;
        let mut head = header.head.load(Ordering::Relaxed);
        loop {
            let at = head & (self.capacity - 1);
            // A record is contiguous.
            let rest = self.capacity - at;
            let skipped = if length > rest { rest } else { 0 };
            let end = head + skipped + length;
            if end.wrapping_sub(self.tail.load(Ordering::Acquire)) > self.capacity {
                let tail = header.tail.load(Ordering::Acquire);
                self.tail.store(tail, Ordering::Release);
                if end.wrapping_sub(tail) > self.capacity {
                    header.dropped.fetch_add(1, Ordering::Relaxed);
                    return None;
                }
            }
            match header
                .head
                .compare_exchange_weak(head, end, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => {
                    self.prefetch(end);
                    if skipped > 0 {
                        self.at(at, skipped).void();
                        return Some(self.at(0, length));
                    }
                    return Some(self.at(at, length));
                }
                Err(other) => head = other,
            }
        }
    }

    /// Prefetches the memory of the next record: the reader has changed it last, on another
    /// processor, and the next lock would wait for it.
    #[inline(always)]
    fn prefetch(&self, position: u64) {
        for line in 0..PREFETCHED {
            let at = (position + line * CACHE_LINE) & (self.capacity - 1);
            // SAFETY: offsets are below the capacity.
            prefetch_for_write(unsafe { self.data.add(at as usize) });
        }
    }

    /// The room of this many bytes at this offset.
    #[inline]
    fn at(&self, offset: u64, length: u64) -> Reservation {
        // SAFETY: offsets are below the capacity, and the mapping has this many bytes after the
        // first.
        let start = unsafe { self.data.add(offset as usize) };
        Reservation {
            start,
            length: length as u32,
        }
    }
}

/// Cache lines that are prefetched: those of a record of a short message.
const PREFETCHED: u64 = 4;
/// Bytes of a cache line.
const CACHE_LINE: u64 = 64;

/// Prefetches a cache line that will be written.
#[inline(always)]
fn prefetch_for_write(address: NonNull<u8>) {
    // SAFETY: a hint without an effect on memory. Processors that do not support it skip it.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!("prefetchw [{}]", in(reg) address.as_ptr(), options(nostack, preserves_flags, readonly));
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) address.as_ptr(), options(nostack, preserves_flags, readonly));
    }
}

/// Whether a file may have this many bytes: the program would get a signal for a longer one.
fn is_allowed(length: usize) -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure may be written.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
    !known || length as libc::rlim_t <= limit.rlim_cur
}

/// Reserved room in the ring.
pub(crate) struct Reservation {
    start: NonNull<u8>,
    length: u32,
}

impl Reservation {
    /// Writes the record and its data, except the first word.
    ///
    /// # Safety
    /// `body.recorded` is not more than was requested, and `data` is readable up to there.
    #[inline(always)]
    pub(crate) unsafe fn fill(&self, body: Body, data: &Source<'_>) {
        let recorded = body.recorded as usize;
        // SAFETY: the room is as long as the record with its data, and begins at a multiple of 8.
        unsafe {
            let at_body = self.start.add(offset_of!(Record, body));
            at_body.cast::<Body>().write(body);
            let behind = self.start.add(size_of::<Record>());
            data.copy_to(behind.as_ptr(), recorded);
        }
    }

    /// Publishes the record.
    #[inline]
    pub(crate) fn publish(self, kind: u8, flags: u8) {
        let word = u64::from(self.length) | u64::from(kind) << 32 | u64::from(flags) << 40;
        // SAFETY: the first word of the room, which begins at a multiple of 8; the reader loads it
        // atomically.
        unsafe { self.start.cast::<AtomicU64>().as_ref() }.store(word, Ordering::Release);
    }

    /// Releases the room without a record.
    #[inline]
    pub(crate) fn void(self) {
        self.publish(kind::VOID, 0);
    }
}
