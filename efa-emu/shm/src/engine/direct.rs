//! Clients that make no calls: they write their send queues and the doorbells, and read their
//! completion queues directly.
//!
//! A program that polls in this way occupies its processor, and the device's threads need one. A
//! thread that is merely woken waits until the system preempts a program: for milliseconds.
//! Therefore the device makes the client's thread wait at the two moments at which real hardware
//! would work.
//!
//! *It writes a doorbell.* Before the device sleeps, it has the system protect the pages of
//! doorbells. A thread that writes a doorbell then waits in its store until the device has polled
//! the queue, and the device runs on its processor meanwhile. The value that is being written is
//! not known yet, so the device finds new entries by their phase bits. The page stays writable for
//! the store and those that follow soon. Every answer to a request makes the device run and protect
//! the page again, so that the device is not interrupted for each of many requests.
//!
//! *It polls without a completion*, while others need the processors (module
//! [`polling_policy`](super::polling_policy)). Then the page with the next entry is removed from
//! the client's mapping after each doorbell; a poll waits there until there is an entry, or for as
//! long as polls by calls would sleep.
//!
//! If the system has no userfaultfd for this process (Linux before 5.11, containers that forbid
//! it), the device polls doorbells from time to time instead; before 5.18 polls do not wait.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use efa_core::address::Qpn;

use super::faults::{Access, Faults, PAGE};
use super::polling_policy::{LONGEST_SLEEP, LOST};
use super::thread;
use efa_device_model::device::CqId;
use efa_device_model::device::queue::{CompletionRing, DoorbellPage, SendRing};

/// The first time that a poll waits. A poll that continues keeps its processor for [`FEW_POLLS`],
/// so it waits for longer than polls by calls sleep.
const FIRST_WAIT: Duration = Duration::from_micros(200);

/// The time that a client polls after a wait without an entry.
pub(super) const FEW_POLLS: Duration = Duration::from_micros(10);

/// The queues of one device whose clients make no calls.
pub(super) struct DirectQueues {
    faults: Arc<Faults>,
    doorbells: Vec<SendDoorbell>,
    queues: Vec<PolledQueue>,
    /// Since when a poll waits.
    waits_since: Option<Instant>,
    /// The time that a poll waits.
    wait: Duration,
    delays: Delays,
    /// Is rung when the thread that answers is to end.
    end: DoorbellPage,
    thread: Option<JoinHandle<()>>,
}

struct SendDoorbell {
    qpn: Qpn,
    ring: Arc<SendRing>,
    state: Protection,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Protection {
    Protected,
    Open,
    /// Open for a store that may not have happened yet: the doorbell had this value before it.
    Ringing(u32),
}

struct PolledQueue {
    cq: CqId,
    ring: Arc<CompletionRing>,
    /// The page that was removed from the client's mapping.
    hidden: Option<usize>,
}

impl SendDoorbell {
    fn page(&self) -> Option<&DoorbellPage> {
        self.ring.direct_doorbell()
    }

    fn address(&self) -> usize {
        self.page().map_or(0, DoorbellPage::address)
    }

    fn value(&self) -> u32 {
        self.page().map_or(0, |page| page.doorbell().read())
    }
}

impl PolledQueue {
    /// The client's address of the entry of a counter.
    fn address(&self, counter: u16) -> usize {
        let start = self.ring.direct().map_or(0, |pages| pages.as_ptr().addr());
        start + self.ring.offset(counter)
    }
}

impl DirectQueues {
    /// Sets it up in the system, and starts the thread `answer`, which answers accesses until
    /// [`Faults::wait`] returns the address that was passed to it. `None` if the system does not
    /// permit this for this process.
    pub(super) fn new(
        answer: impl FnOnce(&Faults, usize) + Send + 'static,
    ) -> Option<DirectQueues> {
        let faults = Arc::new(Faults::new()?);
        let end = DoorbellPage::new(0).ok()?;
        let address = end.address();
        if !(faults.register_stores(address) && faults.protect(address, true)) {
            return None;
        }
        let answered = Arc::clone(&faults);
        let thread = thread::spawn("efa-emu-direct", move || answer(&answered, address)).ok()?;
        Some(DirectQueues {
            faults,
            doorbells: Vec::new(),
            queues: Vec::new(),
            waits_since: None,
            wait: FIRST_WAIT,
            delays: Delays::default(),
            end,
            thread: Some(thread),
        })
    }

    /// Has a send queue's doorbell wake the device.
    pub(super) fn add_doorbell(&mut self, qpn: Qpn, ring: &Arc<SendRing>) {
        let doorbell = SendDoorbell {
            qpn,
            ring: Arc::clone(ring),
            state: Protection::Open,
        };
        if self.faults.register_stores(doorbell.address()) {
            self.doorbells.push(doorbell);
        }
    }

    /// Lets stores to a doorbell through from now on.
    pub(super) fn remove_doorbell(&mut self, qpn: Qpn) {
        for doorbell in self.doorbells.extract_if(.., |each| each.qpn == qpn) {
            self.faults.protect(doorbell.address(), false);
        }
    }

    /// Lets polls of a queue wait.
    pub(super) fn add_queue(&mut self, cq: CqId, ring: &Arc<CompletionRing>) {
        let Some(pages) = ring.direct() else {
            return;
        };
        let length = pages.length().next_multiple_of(PAGE);
        if self.faults.register_unmapped(pages.as_ptr().addr(), length) {
            self.queues.push(PolledQueue {
                cq,
                ring: Arc::clone(ring),
                hidden: None,
            });
        }
    }

    /// Lets no poll of a queue wait any more.
    pub(super) fn remove_queue(&mut self, cq: CqId) {
        for queue in self.queues.extract_if(.., |each| each.cq == cq) {
            if let Some(pages) = queue.ring.direct() {
                let length = pages.length().next_multiple_of(PAGE);
                self.faults.unregister(pages.as_ptr().addr(), length);
            }
        }
    }

    /// Records that a doorbell is being rung, and returns its queue pair. The caller must let the
    /// store continue.
    pub(super) fn take_ring(&mut self, access: Access) -> Option<Qpn> {
        let mut doorbells = self.doorbells.iter_mut();
        let found = doorbells.find(|each| each.address() == access.address & !(PAGE - 1))?;
        found.state = Protection::Ringing(found.value());
        Some(found.qpn)
    }

    /// Write-protects the doorbells that are open. The caller must check afterwards for doorbells
    /// that were written before. Returns whether all are protected.
    pub(super) fn protect(&mut self) -> bool {
        let mut are_all = true;
        for doorbell in &mut self.doorbells {
            let may_be = match doorbell.state {
                Protection::Protected => continue,
                Protection::Open => true,
                Protection::Ringing(before) => doorbell.value() != before,
            };
            if may_be && self.faults.protect(doorbell.address(), true) {
                doorbell.state = Protection::Protected;
            } else {
                are_all = false;
            }
        }
        are_all
    }

    /// Lets stores through until they are protected again.
    pub(super) fn open(&mut self) {
        for doorbell in &mut self.doorbells {
            if doorbell.state == Protection::Protected
                && self.faults.protect(doorbell.address(), false)
            {
                doorbell.state = Protection::Open;
            }
        }
    }

    /// Lets polls wait that find nothing, from now on. `next` returns the counter of a queue's next
    /// entry.
    pub(super) fn hide(&mut self, next: impl Fn(CqId) -> Option<u16>) {
        for queue in self.queues.iter_mut().filter(|each| each.hidden.is_none()) {
            if let (Some(next), Some(pages)) = (next(queue.cq), queue.ring.direct()) {
                let page = queue.ring.offset(next) & !(PAGE - 1);
                // The page must be present even if no entry was written to it.
                queue.ring.touch(next);
                queue.hidden = Some(page);
                pages.unmap_page(page);
            }
        }
    }

    pub(super) fn is_hiding(&self) -> bool {
        self.queues.iter().any(|each| each.hidden.is_some())
    }

    /// Continues polls that wait, and later ones.
    pub(super) fn show(&mut self) {
        self.waits_since = None;
        self.queues.retain_mut(|queue| {
            let (Some(page), Some(pages)) = (queue.hidden.take(), queue.ring.direct()) else {
                return true;
            };
            let start = pages.as_ptr().addr();
            let is_mapped = self.faults.map(start + page);
            if !is_mapped {
                // No thread may wait for events that never occur.
                let length = pages.length().next_multiple_of(PAGE);
                self.faults.unregister(start, length);
            }
            is_mapped
        });
    }

    /// Records the arrival of an event for which polls wait.
    pub(super) fn show_arrival(&mut self) {
        self.wait = FIRST_WAIT;
        self.show();
    }

    /// A client reads a page outside of its mapping: the page is hidden, or was not mapped before.
    /// A client with unread entries continues, other clients wait.
    pub(super) fn take_poll(
        &mut self,
        access: Access,
        now: Instant,
        next: impl Fn(CqId) -> Option<u16>,
    ) {
        const ENTRY: usize = CompletionRing::ENTRY_SIZE;
        let is_in_vain = self.queues.iter().any(|queue| {
            let next = next(queue.cq).map(|next| queue.address(next));
            queue.hidden.is_some()
                && next.is_some_and(|next| (next..next + ENTRY).contains(&access.address))
        });
        match is_in_vain {
            true => self.waits_since = self.waits_since.or(Some(now)),
            false => {
                self.show();
                self.faults.map(access.address & !(PAGE - 1));
            }
        }
    }

    /// The time that polls still wait; `None` if none does.
    pub(super) fn remaining_wait(&self, now: Instant) -> Option<Duration> {
        let since = self.waits_since?;
        Some((since + self.wait).saturating_duration_since(now))
    }

    /// Ends the wait of polls without an entry.
    pub(super) fn end_wait(&mut self) {
        self.wait = (2 * self.wait).min(LONGEST_SLEEP);
        self.show();
    }

    /// Whether other threads used the processor that a thread needed; see [`Delays::look`].
    pub(super) fn was_delayed(&mut self, thread: u32, now: Instant) -> bool {
        self.delays.look(thread, now)
    }
}

impl Drop for DirectQueues {
    fn drop(&mut self) {
        self.show();
        self.open();
        // Waits until the thread lets it through.
        self.end.doorbell().write(1);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has ended the process.
            let _ = thread.join();
        }
    }
}

/// The time that a thread has waited for a processor, according to the system.
#[derive(Default)]
struct Delays {
    thread: u32,
    file: Option<File>,
    last: Option<(Instant, Delay)>,
}

/// The kernel's accounting of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Delay {
    /// The time for which it was ready to run, and did not.
    time: Duration,
    /// The number of times that it began to run.
    turns: u32,
}

impl Delays {
    /// The shortest time between two checks.
    const EVERY: Duration = Duration::from_millis(1);
    /// Whether other threads used the processor that a thread needed, for longer than devices need
    /// it.
    fn look(&mut self, thread: u32, now: Instant) -> bool {
        if self.thread != thread {
            let path = format!("/proc/self/task/{thread}/schedstat");
            *self = Delays {
                thread,
                file: File::open(path).ok(),
                last: None,
            };
        }
        let last = self.last;
        if last.is_some_and(|(at, _)| now - at < Delays::EVERY) {
            return false;
        }
        let mut text = [0; 64];
        let read = self
            .file
            .as_ref()
            .and_then(|file| file.read_at(&mut text, 0).ok());
        let Some(seen) = read.and_then(|length| Delay::parse(&text[..length])) else {
            return false;
        };
        self.last = Some((now, seen));
        last.is_some_and(|(_, before)| seen.is_contended_since(before))
    }
}

impl Delay {
    /// Threads of devices use a processor for less than this at a time.
    const SHORT: Duration = Duration::from_micros(50);

    fn is_contended_since(self, before: Delay) -> bool {
        let time = self.time.saturating_sub(before.time);
        time > LOST && time > Delay::SHORT * self.turns.wrapping_sub(before.turns)
    }

    /// From `/proc/PID/schedstat`: nanoseconds on a processor, nanoseconds ready, turns.
    fn parse(text: &[u8]) -> Option<Delay> {
        let mut words = str::from_utf8(text).ok()?.split_ascii_whitespace().skip(1);
        let mut number = || words.next()?.parse::<u64>().ok();
        Some(Delay {
            time: Duration::from_nanos(number()?),
            turns: number()? as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::{Receiver, channel};

    use super::*;
    use efa_device_model::device::queue::WqeSize;

    const QUEUE: CqId = CqId(3);
    const PAIR: Qpn = Qpn(4);

    /// The test itself receives the accesses and answers them.
    fn direct() -> Option<(DirectQueues, Receiver<Access>)> {
        let (sender, accesses) = channel();
        let direct = DirectQueues::new(move |faults, end| {
            loop {
                match faults.wait(None).unwrap() {
                    Some(access) if access.address == end => {
                        assert!(faults.protect(end, false));
                        return;
                    }
                    // The receiver may be closed when the last accesses continue.
                    Some(access) => drop(sender.send(access)),
                    None => {}
                }
            }
        });
        if direct.is_none() {
            efa_testing::skip("userfaultfd is forbidden here");
        }
        direct.map(|direct| (direct, accesses))
    }

    #[test]
    fn a_doorbell_store_waits_and_protection_returns() {
        let Some((mut direct, accesses)) = direct() else {
            return;
        };
        let ring = Arc::new(SendRing::new(4, WqeSize::Bytes64).unwrap());
        let doorbell = ring.make_direct_doorbell().unwrap().doorbell();
        direct.add_doorbell(PAIR, &ring);
        doorbell.write(1);
        std::thread::scope(|scope| {
            for value in 2..5 {
                assert!(direct.protect());
                let ringing = scope.spawn(move || doorbell.write(value));
                let access = accesses.recv().unwrap();
                assert_eq!(direct.take_ring(access), Some(PAIR));
                assert!(!direct.protect(), "the store has not happened");
                assert_eq!(doorbell.read(), value - 1);
                direct.faults.protect(doorbell.as_ptr().addr(), false);
                ringing.join().unwrap();
            }
            assert!(direct.protect());
            scope.spawn(|| doorbell.write(9));
            accesses.recv().unwrap();
            // No thread waits for a device that was closed.
            drop(direct);
        });
        assert_eq!(doorbell.read(), 9);
    }

    #[test]
    fn polls_wait_that_find_nothing_and_no_others() {
        let Some((mut direct, accesses)) = direct() else {
            return;
        };
        let ring = Arc::new(CompletionRing::new(256).unwrap());
        let pages = ring.make_direct().unwrap();
        direct.add_queue(QUEUE, &ring);
        if direct.queues.is_empty() {
            return efa_testing::skip("userfaultfd does not report reads here");
        }
        let next = |cq| (cq == QUEUE).then_some(130);
        let read = |counter| {
            let entry = pages.as_ptr().wrapping_add(ring.offset(counter));
            // SAFETY: the first word of an entry.
            unsafe { AtomicU64::from_ptr(entry.cast()) }.load(Ordering::Acquire)
        };
        let now = Instant::now();
        std::thread::scope(|scope| {
            assert_eq!(read(130), 0);
            for wait in [FIRST_WAIT, 2 * FIRST_WAIT, LONGEST_SLEEP] {
                direct.hide(next);
                let poll = scope.spawn(|| read(130));
                direct.take_poll(accesses.recv().unwrap(), now, next);
                assert_eq!(direct.remaining_wait(now), Some(wait));
                assert_eq!(direct.remaining_wait(now + wait), Some(Duration::ZERO));
                assert!(!poll.is_finished());
                direct.end_wait();
                assert_eq!(poll.join().unwrap(), 0);
                assert_eq!(direct.remaining_wait(now), None);
            }
            // The device has written to a page before the client read it.
            ring.touch(0);
            let poll = scope.spawn(|| read(0));
            direct.take_poll(accesses.recv().unwrap(), now, next);
            assert_eq!(poll.join().unwrap(), 0);
            // An event arrives.
            direct.hide(next);
            let poll = scope.spawn(|| read(130));
            direct.take_poll(accesses.recv().unwrap(), now, next);
            let written = ring.memory().as_ptr().wrapping_add(ring.offset(130));
            // SAFETY: as above, where the device writes it.
            unsafe { AtomicU64::from_ptr(written.cast()) }.store(7, Ordering::Release);
            direct.show_arrival();
            assert_eq!(poll.join().unwrap(), 7);
            // There is something to read.
            direct.hide(next);
            let poll = scope.spawn(|| read(129));
            direct.take_poll(accesses.recv().unwrap(), now, next);
            assert_eq!(direct.remaining_wait(now), None);
            assert_eq!(poll.join().unwrap(), 0);
            direct.hide(next);
            scope.spawn(|| read(130));
            direct.take_poll(accesses.recv().unwrap(), now, next);
            assert_eq!(
                direct.remaining_wait(now),
                Some(FIRST_WAIT),
                "waits are short again"
            );
            // No thread waits for a device that was closed.
            drop(direct);
        });
    }

    #[test]
    fn delays_are_read_as_the_system_writes_them() {
        let delay = |time, turns| {
            let time = Duration::from_nanos(time);
            Some(Delay { time, turns })
        };
        assert_eq!(Delay::parse(b"21041512 1250000 37\n"), delay(1_250_000, 37));
        for bad in [&b""[..], b"1", b"1 2", b"1 x 3", b"1 2 \xff"] {
            assert_eq!(Delay::parse(bad), None);
        }
    }

    #[test]
    fn an_unobserved_thread_counts_as_not_delayed() {
        let thread = rustix::thread::gettid().as_raw_pid() as u32;
        let (mut delays, now) = (Delays::default(), Instant::now());
        assert!(!delays.look(thread, now));
        assert!(!delays.look(thread, now), "no time has passed");
        // The figures of another thread are not compared with those.
        delays.last = delays.last.map(|(at, seen)| {
            let time = Duration::ZERO;
            (at, Delay { time, ..seen })
        });
        assert!(!delays.look(u32::MAX, now + Delays::EVERY));
        assert_eq!(delays.last, None, "there is no such thread");
    }

    #[test]
    fn short_delays_are_those_of_devices() {
        let judge = |time: Duration, turns| {
            let before = Delay {
                time: Duration::ZERO,
                turns: 0,
            };
            Delay { time, turns }.is_contended_since(before)
        };
        assert!(!judge(LOST, 1));
        assert!(judge(2 * LOST, 1));
        assert!(!judge(2 * LOST, 100), "100 times 10 us");
        assert!(judge(10 * LOST, 99));
    }
}
