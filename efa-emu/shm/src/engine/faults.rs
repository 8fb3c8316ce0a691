//! Page faults that the system reports to the device, and that wait for its answer (userfaultfd).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

// From the system's header `linux/userfaultfd.h`.

/// Faults in the kernel are not reported. This mode needs no privileges.
const USER_MODE_ONLY: u32 = 1;
const API: u64 = 0xAA;
const UFFDIO_API: u32 = 0xc018_aa3f;
const UFFDIO_REGISTER: u32 = 0xc020_aa00;
const UFFDIO_UNREGISTER: u32 = 0x8010_aa01;
const UFFDIO_WAKE: u32 = 0x8010_aa02;
const UFFDIO_WRITEPROTECT: u32 = 0xc018_aa06;
const UFFDIO_CONTINUE: u32 = 0xc020_aa07;
const FEATURE_WRITE_PROTECTION: u64 = 1 << 0;
const FEATURE_THREAD: u64 = 1 << 8;
const FEATURE_UNMAPPED_SHARED: u64 = 1 << 10;
const FEATURE_EXACT_ADDRESS: u64 = 1 << 11;
const REGISTER_WRITE_PROTECTION: u64 = 1 << 1;
const REGISTER_UNMAPPED: u64 = 1 << 2;
const PROTECT: u64 = 1 << 0;
const EVENT_PAGEFAULT: u8 = 0x12;

/// The page size in bytes that this module uses. The system protects a multiple of it.
pub(crate) const PAGE: usize = efa_device_model::device::queue::DoorbellPage::LENGTH;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Range {
    start: u64,
    length: u64,
}

/// The argument of a request about a range: its mode, and the system's answer.
#[repr(C)]
struct RangeRequest {
    range: Range,
    mode: u64,
    answer: u64,
}

/// A message of the system: event, flags, address, thread.
const MESSAGE: usize = 32;

/// An access that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Access {
    pub(super) address: usize,
    /// The id of the thread, 0 if the system does not report it.
    pub(super) thread: u32,
}

/// Reports accesses to registered pages.
pub(super) struct Faults {
    descriptor: OwnedFd,
    reports_reads: bool,
}

impl Faults {
    /// Opens it; `None` if the system does not permit this for this process.
    pub(super) fn new() -> Option<Faults> {
        const ALL: u64 = FEATURE_WRITE_PROTECTION
            | FEATURE_THREAD
            | FEATURE_UNMAPPED_SHARED
            | FEATURE_EXACT_ADDRESS;
        // The features of a descriptor can be requested only once.
        [(ALL, true), (FEATURE_WRITE_PROTECTION, false)]
            .into_iter()
            .find_map(|(features, reports_reads)| {
                // Without `NONBLOCK` it cannot be polled with a time-out.
                let flags = UserfaultfdFlags::CLOEXEC
                    | UserfaultfdFlags::NONBLOCK
                    | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
                // SAFETY: accesses to pages that are registered below are answered by the reader of
                // the descriptor.
                let descriptor = unsafe { userfaultfd(flags) }.ok()?;
                let faults = Faults {
                    descriptor,
                    reports_reads,
                };
                let mut api = Api {
                    api: API,
                    features,
                    ioctls: 0,
                };
                faults.request(UFFDIO_API, &mut api).then_some(faults)
            })
    }

    /// Reports stores to a page while it is [protected](Faults::protect).
    pub(super) fn register_stores(&self, address: usize) -> bool {
        let mut request = request(address, PAGE, REGISTER_WRITE_PROTECTION);
        self.request(UFFDIO_REGISTER, &mut request)
    }

    /// Reports accesses to existing pages of a shared mapping that are not mapped there: pages that
    /// were unmapped, or that only another mapping has accessed yet. Requires Linux 5.18.
    pub(super) fn register_unmapped(&self, address: usize, length: usize) -> bool {
        let mut request = request(address, length, REGISTER_UNMAPPED);
        self.reports_reads && self.request(UFFDIO_REGISTER, &mut request)
    }

    /// Ends [`Faults::register_unmapped`]. Waiting threads continue.
    pub(super) fn unregister(&self, address: usize, length: usize) {
        let mut request = request(address, length, 0);
        self.request(UFFDIO_UNREGISTER, &mut request);
    }

    /// Protects a page, or lets stores through, those that wait first.
    pub(super) fn protect(&self, address: usize, is_protected: bool) -> bool {
        let mode = if is_protected { PROTECT } else { 0 };
        let mut request = request(address, PAGE, mode);
        self.request(UFFDIO_WRITEPROTECT, &mut request)
    }

    /// Maps a page again, and continues the threads that wait for it.
    pub(super) fn map(&self, address: usize) -> bool {
        let mut request = request(address, PAGE, 0);
        // If the page is present already, the waiting threads retry.
        self.request(UFFDIO_CONTINUE, &mut request) || self.request(UFFDIO_WAKE, &mut request.range)
    }

    fn request<T>(&self, operation: u32, argument: &mut T) -> bool {
        let (descriptor, argument) = (self.descriptor.as_raw_fd(), std::ptr::from_mut(argument));
        // SAFETY: each request has an argument at least as large as the system's header declares.
        unsafe { libc::ioctl(descriptor, operation as libc::Ioctl, argument) == 0 }
    }

    /// Waits for an access; `None` if none happened in time.
    ///
    /// # Errors
    /// The program has closed the descriptor, and nothing waits any more.
    pub(super) fn wait(&self, time: Option<Duration>) -> rustix::io::Result<Option<Access>> {
        let time = time.map(|time| Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: time.subsec_nanos().into(),
        });
        let mut events = [PollFd::new(self, PollFlags::IN)];
        if retry_on_intr(|| poll(&mut events, time.as_ref()))? == 0 {
            return Ok(None);
        }
        let mut message = [0; MESSAGE];
        let length = match rustix::io::read(self, &mut message) {
            // The process that accessed it has been killed.
            Err(Errno::AGAIN | Errno::INTR) => 0,
            read => read?,
        };
        let (words, _) = message.as_chunks::<8>();
        let [_, _, address, thread] = words else {
            unreachable!("a message has four words");
        };
        let is_access = length == MESSAGE && message[0] == EVENT_PAGEFAULT;
        Ok(is_access.then_some(Access {
            address: u64::from_ne_bytes(*address) as usize,
            thread: u64::from_ne_bytes(*thread) as u32,
        }))
    }
}

impl AsFd for Faults {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

fn request(address: usize, length: usize, mode: u64) -> RangeRequest {
    RangeRequest {
        range: Range {
            start: address as u64,
            length: length as u64,
        },
        mode,
        answer: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Instant;

    use super::*;
    use efa_device_model::device::queue::{CompletionRing, DoorbellPage};

    const SOON: Option<Duration> = Some(Duration::from_millis(20));
    const IN_TIME: Option<Duration> = Some(Duration::from_secs(30));

    #[test]
    fn protected_stores_take_effect_when_let_through() {
        let Some(faults) = Faults::new() else {
            return efa_testing::skip("userfaultfd is forbidden here");
        };
        let page = DoorbellPage::new(7).unwrap();
        assert!(faults.register_stores(page.address()));
        page.doorbell().write(8);
        assert_eq!(faults.wait(SOON).unwrap(), None, "it is not protected yet");
        assert!(faults.protect(page.address(), true));
        assert_eq!(page.doorbell().read(), 8, "reads do not wait");
        assert_eq!(faults.wait(SOON).unwrap(), None);
        let thread = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                thread.store(
                    rustix::thread::gettid().as_raw_pid() as u32,
                    Ordering::Relaxed,
                );
                page.doorbell().write(9);
            });
            let access = faults.wait(IN_TIME).unwrap().unwrap();
            assert_eq!(access.address & !(PAGE - 1), page.address());
            if faults.reports_reads {
                assert_eq!(access.thread, thread.load(Ordering::Relaxed));
                assert_eq!(access.address, page.doorbell().as_ptr().addr());
            }
            assert_eq!(page.doorbell().read(), 8);
            assert!(faults.protect(page.address(), false));
        });
        assert_eq!(page.doorbell().read(), 9);
    }

    #[test]
    fn an_unmapped_page_is_read_once_mapped() {
        let Some(faults) = Faults::new().filter(|faults| faults.reports_reads) else {
            return efa_testing::skip("userfaultfd is forbidden or old here");
        };
        let ring = CompletionRing::new(256).unwrap();
        let pages = ring.make_direct().unwrap();
        let start = pages.as_ptr().addr();
        assert!(faults.register_unmapped(start, pages.length()));
        // SAFETY: the first word of the second page.
        let word = unsafe { AtomicU32::from_ptr(pages.as_ptr().add(PAGE).cast()) };
        assert_eq!(
            word.load(Ordering::Relaxed),
            0,
            "nothing waits for a new page"
        );
        pages.unmap_page(PAGE);
        std::thread::scope(|scope| {
            let read = scope.spawn(|| word.load(Ordering::Relaxed));
            let access = faults.wait(IN_TIME).unwrap().unwrap();
            assert_eq!(access.address, start + PAGE);
            let written = ring.memory().as_ptr().wrapping_add(PAGE);
            // SAFETY: the same word in the first mapping.
            unsafe { AtomicU32::from_ptr(written.cast()) }.store(5, Ordering::Relaxed);
            assert!(!read.is_finished());
            assert!(faults.map(start + PAGE));
            assert_eq!(read.join().unwrap(), 5);
        });
    }

    #[test]
    fn a_timed_wait_ends_after_its_time() {
        let Some(faults) = Faults::new() else {
            return efa_testing::skip("userfaultfd is forbidden here");
        };
        let begin = Instant::now();
        assert_eq!(faults.wait(SOON).unwrap(), None);
        assert!(Some(begin.elapsed()) >= SOON);
    }
}
