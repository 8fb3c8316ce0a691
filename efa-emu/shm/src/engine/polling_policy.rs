//! Decides when an empty poll sleeps instead of spinning: on machines with more programs than
//! processors.
//!
//! A program that polls waits for another program. Real hardware works while programs wait; here
//! the other program, or its device, needs a processor for this. A program that keeps polling uses
//! up its time slice, and then the scheduler runs other programs for milliseconds each. A program
//! that sleeps keeps its share, so it runs as soon as a packet for it arrives.
//!
//! A thread that was preempted while it polled without success therefore sleeps from then on: after
//! some empty polls, until an event for the device. It sleeps for a short time only, because the
//! program may also be waiting for other events. A thread without competition for its processor
//! never sleeps; it makes four system calls in a thousand empty polls. A thread that yields between
//! its polls, as MPI libraries do, does not sleep either: other programs get its processor anyway.
//!
//! Messages from and to other machines pass the threads of a bridge, which sleep when idle. A
//! program with such peers does not sleep, since an idle processor takes long to wake. Instead it
//! yields to other ready threads as soon as a poll is empty, and then every few polls.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// Number of empty polls, 50 to 100 us, after which the thread checks whether other threads used
/// the processor meanwhile.
const WINDOW: u32 = 1024;

/// A thread has lost the processor to others if it did not run for longer than this. Kernel threads
/// use the processor for less.
pub(super) const LOST: Duration = Duration::from_micros(500);

/// A thread that lost the processor at least this number of times in a window, each time after less
/// than [`KEPT`] of its time on average, yielded it voluntarily: the system preempts a thread only
/// once in some milliseconds, and counts both alike.
const GIVEN_AWAY: u32 = 16;
const KEPT: Duration = Duration::from_micros(500);

/// The time for which other threads are assumed on the processor of a thread that yields. It may
/// make much fewer polls in that time than a window has.
const YIELDING_ASSUMED: Duration = Duration::from_secs(2);

/// The time for which other threads are assumed to need the processor, at first and at most. To
/// check whether they still do, the thread must lose the processor again; so the time grows as long
/// as they do.
const ASSUMED: Duration = Duration::from_millis(200);
const MOST_ASSUMED: Duration = Duration::from_secs(2);
const GROWTH: u32 = 4;

/// Other threads that are seen again within this time are assumed to be the same ones.
const SAME: Duration = Duration::from_millis(200);

/// Number of empty polls before a sleep: about the time in which a peer with a processor answers.
/// The device does more work for a packet of a connection than for a message.
const POLLS: u32 = 16;
const POLLS_OF_CONNECTIONS: u32 = 48;

/// Number of empty polls, less than a microsecond, after which a thread yields to threads that must
/// never wait: those of the bridge, which have to run for each message from another machine and to
/// it.
const GIVE_WAY: u32 = 4;

/// A thread that needs longer than this from one poll to the next does other work besides polling,
/// and has no time to sleep.
const SPINNING: Duration = Duration::from_micros(20);

/// How long a poll sleeps at most: at first, and after several sleeps without an event.
pub(super) const SHORTEST_SLEEP: Duration = Duration::from_micros(50);
pub(super) const LONGEST_SLEEP: Duration = Duration::from_micros(500);

/// Decides how an empty poll yields, from the known demand for the thread's processor.
#[derive(Debug)]
pub(super) struct PollingPolicy {
    /// The device's count of work at the last poll that found nothing, under contention or with
    /// peers on other machines.
    done: u64,
    /// Empty polls since the last check or sleep.
    polls: u32,
    /// The number of polls before a sleep.
    most_polls: u32,
    last_look: Option<ProcessorSample>,
    contention: Option<Contention>,
    /// The time at which the last contention was assumed to have ended.
    contention_ended: Option<Instant>,
    /// The time for which the last contention was assumed.
    assumed: Duration,
    /// The time until which the thread is assumed to yield its processor itself.
    yields_until: Option<Instant>,
    sleep: Duration,
    /// Peers are on other machines.
    has_bridges: bool,
}

/// How an empty poll yields the processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum IdleAction {
    Nothing,
    /// Lets others run that are ready to.
    GiveWay,
    /// Sleeps for this time at most.
    Sleep(Duration),
}

/// Others that need the processor.
#[derive(Debug)]
struct Contention {
    until: Instant,
    /// The time at which the thread last began to poll, or checked whether to sleep.
    polls_since: Instant,
}

impl PollingPolicy {
    /// `is_connected` is whether the device has connections.
    pub(super) fn new(is_connected: bool) -> PollingPolicy {
        PollingPolicy {
            done: 0,
            polls: 0,
            most_polls: match is_connected {
                true => POLLS_OF_CONNECTIONS,
                false => POLLS,
            },
            last_look: None,
            contention: None,
            contention_ended: None,
            assumed: ASSUMED,
            yields_until: None,
            sleep: SHORTEST_SLEEP,
            has_bridges: false,
        }
    }

    /// Counts an empty poll, at which the device had done `done` pieces of work in total. Returns
    /// whether the caller must call [`PollingPolicy::next_idle_action`].
    #[inline]
    pub(super) fn is_over(&mut self, done: u64) -> bool {
        self.polls += 1;
        if self.has_bridges {
            return self.polls >= GIVE_WAY || std::mem::replace(&mut self.done, done) != done;
        }
        if self.contention.is_none() {
            return self.polls >= WINDOW;
        }
        if done != self.done {
            self.done = done;
            self.polls = 1;
            self.sleep = SHORTEST_SLEEP;
        }
        self.polls >= self.most_polls
    }

    /// How the poll yields. `look` is called now, if at all. `has_bridges` is set if the program
    /// has peers on other machines.
    pub(super) fn next_idle_action(
        &mut self,
        has_bridges: bool,
        look: impl FnOnce() -> ProcessorSample,
    ) -> IdleAction {
        self.has_bridges = has_bridges;
        if has_bridges {
            self.polls = 0;
            self.contention = None;
            return IdleAction::GiveWay;
        }
        self.next_sleep(look)
            .map_or(IdleAction::Nothing, IdleAction::Sleep)
    }

    /// The time that the poll should sleep, if any.
    fn next_sleep(&mut self, look: impl FnOnce() -> ProcessorSample) -> Option<Duration> {
        self.polls = 0;
        let look = look();
        let now = look.time;
        let Some(contention) = &mut self.contention else {
            self.judge(look);
            return None;
        };
        if now >= contention.until {
            self.end_contention(now);
            return None;
        }
        let took = now - std::mem::replace(&mut contention.polls_since, now);
        if took > self.most_polls * SPINNING {
            return None;
        }
        let sleep = self.sleep;
        self.sleep = (2 * sleep).min(LONGEST_SLEEP);
        Some(sleep)
    }

    fn end_contention(&mut self, now: Instant) {
        self.contention = None;
        self.contention_ended = Some(now);
        self.last_look = None;
    }

    /// Whether other programs are assumed to need the processor of a thread that polls without
    /// system calls. `look` returns whether they have just used it.
    pub(super) fn is_contended(&mut self, now: Instant, look: impl FnOnce() -> bool) -> bool {
        match &self.contention {
            Some(contention) if now >= contention.until => self.end_contention(now),
            Some(_) => {}
            None if look() => self.assume_contention(now),
            None => {}
        }
        self.contention.is_some()
    }

    /// A sleep is over.
    pub(super) fn napped(&mut self, now: Instant) {
        if let Some(contention) = &mut self.contention {
            contention.polls_since = now;
        }
    }

    /// The time until which others are assumed to need the processor, if they are.
    pub(super) fn contended_until(&self) -> Option<Instant> {
        let contention = self.contention.as_ref().map(|contention| contention.until);
        contention.max(self.yields_until)
    }

    /// For tests of the consequences: assumes the longest possible contention for the processor.
    #[cfg(test)]
    pub(super) fn assume_long_contention(&mut self) {
        let now = Instant::now();
        self.has_bridges = false;
        self.contention = Some(Contention {
            until: now + Duration::from_secs(3600),
            polls_since: now,
        });
    }

    /// Decides from two samples whether others need the processor.
    fn judge(&mut self, look: ProcessorSample) {
        let now = look.time;
        self.yields_until = None;
        let before = self.last_look.replace(look);
        let Some(losses) = before.and_then(|before| self.last_look.as_ref()?.losses_since(&before))
        else {
            return;
        };
        if losses.count >= GIVEN_AWAY && losses.processor < losses.count * KEPT {
            self.yields_until = Some(now + YIELDING_ASSUMED);
            return;
        }
        self.assume_contention(now);
    }

    fn assume_contention(&mut self, now: Instant) {
        self.assumed = match self.contention_ended {
            Some(ended) if now - ended < SAME => (GROWTH * self.assumed).min(MOST_ASSUMED),
            _ => ASSUMED,
        };
        self.contention = Some(Contention {
            until: now + self.assumed,
            polls_since: now,
        });
    }
}

/// The kernel's accounting of the calling thread at one moment. The thread can lose the processor
/// during each of the queries, so the count of losses is read before and after.
#[derive(Debug)]
pub(super) struct ProcessorSample {
    /// The address of a variable of the thread.
    thread: usize,
    losses_before: i64,
    processor: Duration,
    time: Instant,
    losses_after: i64,
}

/// The use of a thread's processor between two looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ProcessorUse {
    /// The number of times that other threads got the processor while this thread was ready.
    count: u32,
    /// The time that the thread had it.
    processor: Duration,
}

impl ProcessorSample {
    pub(super) fn take() -> ProcessorSample {
        thread_local!(static HERE: u8 = const { 0 });
        ProcessorSample {
            thread: HERE.with(|here| std::ptr::from_ref(here).addr()),
            losses_before: losses(),
            processor: processor_time(),
            time: Instant::now(),
            losses_after: losses(),
        }
    }

    /// How other threads got the thread's processor since `before`; `None` if they had it for a
    /// short time only.
    fn losses_since(&self, before: &ProcessorSample) -> Option<ProcessorUse> {
        let passed = self.time - before.time;
        let processor = self.processor.saturating_sub(before.processor);
        let count = u32::try_from(self.losses_after - before.losses_before).unwrap_or(0);
        let lost = self.thread == before.thread && passed > processor + LOST && count > 0;
        lost.then_some(ProcessorUse { count, processor })
    }
}

/// The number of times that the calling thread lost its processor while it was ready: by
/// preemption, or by yielding.
fn losses() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is valid for a write, and all zeroes are a valid value of it if the call
    // fails.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_nivcsw
    }
}

/// The processor time of the calling thread.
fn processor_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for a write.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);
    const MS: Duration = Duration::from_millis(1);

    /// A thread that polls, and its processor.
    struct PollingThread {
        policy: PollingPolicy,
        start: Instant,
        passed: Duration,
        processor: Duration,
        losses: i64,
        done: u64,
    }

    impl PollingThread {
        fn new() -> PollingThread {
            PollingThread {
                policy: PollingPolicy::new(false),
                start: Instant::now(),
                passed: Duration::ZERO,
                processor: Duration::ZERO,
                losses: 0,
                done: 0,
            }
        }

        fn now(&self) -> Instant {
            self.start + self.passed
        }

        /// An empty poll, of a tenth of a microsecond.
        fn poll(&mut self) -> Option<Duration> {
            self.passed += US / 10;
            self.processor += US / 10;
            if !self.policy.is_over(self.done) {
                return None;
            }
            let look = ProcessorSample {
                thread: 1,
                losses_before: self.losses,
                processor: self.processor,
                time: self.now(),
                losses_after: self.losses,
            };
            let sleep = self.policy.next_sleep(|| look);
            if let Some(sleep) = sleep {
                self.passed += sleep;
                self.policy.napped(self.now());
            }
            sleep
        }

        /// The sleeps of some empty polls.
        fn polls(&mut self, count: u32) -> Vec<Duration> {
            (0..count).filter_map(|_| self.poll()).collect()
        }

        /// Others have the processor.
        fn loses(&mut self, time: Duration) {
            self.passed += time;
            self.losses += 1;
        }
    }

    #[test]
    fn a_thread_with_a_processor_never_sleeps() {
        let mut thread = PollingThread::new();
        assert_eq!(thread.polls(1_000_000), []);
        // Kernel threads.
        for _ in 0..1000 {
            thread.loses(20 * US);
            assert_eq!(thread.polls(1000), []);
        }
        // The program sleeps between its polls.
        for _ in 0..1000 {
            thread.passed += 2 * MS;
            assert_eq!(thread.polls(100), []);
        }
    }

    #[test]
    fn futile_polls_lead_to_sleep() {
        let mut thread = PollingThread::new();
        thread.polls(2 * WINDOW);
        thread.loses(4 * MS);
        assert_eq!(thread.polls(WINDOW), [], "the loss is being noticed");
        let sleeps = thread.polls(6 * POLLS);
        assert_eq!(sleeps, [50, 100, 200, 400, 500, 500].map(|us| us * US));
        // An event arrives: the next sleeps are short again.
        thread.done += 1;
        assert_eq!(thread.polls(POLLS - 1), []);
        assert_eq!(thread.polls(POLLS), [SHORTEST_SLEEP]);
    }

    #[test]
    fn other_work_between_polls_prevents_sleep() {
        let mut thread = PollingThread::new();
        thread.polls(2 * WINDOW);
        thread.loses(4 * MS);
        thread.polls(WINDOW);
        for _ in 0..100 {
            thread.passed += 50 * US;
            thread.processor += 50 * US;
            assert_eq!(thread.poll(), None);
        }
    }

    #[test]
    fn sleeps_last_while_other_programs_compete() {
        let mut thread = PollingThread::new();
        thread.polls(2 * WINDOW);
        let mut assumed = Vec::new();
        for _ in 0..4 {
            thread.loses(4 * MS);
            assert_eq!(thread.polls(WINDOW), []);
            let begin = thread.passed;
            while thread.policy.contention.is_some() {
                thread.poll();
            }
            let round = (thread.passed - begin).as_millis() as u64;
            assumed.push(round);
            // The first look after sleeps, with which the next one is compared.
            assert_eq!(thread.polls(WINDOW), []);
        }
        assert_eq!(assumed, [200, 800, 2000, 2000]);
        assert_eq!(thread.polls(10_000_000), [], "they have gone");
        thread.loses(4 * MS);
        thread.polls(WINDOW);
        assert_eq!(thread.policy.assumed, ASSUMED, "others than before");
    }

    #[test]
    fn a_yielding_thread_does_not_sleep() {
        let mut thread = PollingThread::new();
        for _ in 0..10 * WINDOW {
            thread.loses(MS);
            assert_eq!(thread.poll(), None);
        }
        assert!(thread.policy.contended_until() > Some(thread.now()));
        assert_eq!(thread.polls(WINDOW), []);
        assert_eq!(thread.policy.contended_until(), None);
        thread.loses(4 * MS);
        assert_eq!(thread.polls(WINDOW), [], "the loss is being noticed");
        assert_eq!(thread.polls(POLLS), [SHORTEST_SLEEP]);
        assert!(thread.policy.contended_until() > Some(thread.now()));
    }

    #[test]
    fn rare_losses_do_not_give_the_processor_away() {
        let mut thread = PollingThread::new();
        thread.polls(2 * WINDOW);
        // The program computes between its polls, and other programs run alternately.
        for _ in 0..WINDOW {
            thread.processor += 5 * MS;
            thread.passed += 5 * MS;
            thread.loses(5 * MS);
            thread.loses(5 * MS);
            assert_eq!(thread.poll(), None);
        }
        assert_eq!(thread.policy.yields_until, None);
        assert!(thread.policy.contention.is_some());
    }

    #[test]
    fn peers_on_other_machines_mean_yielding_without_sleep() {
        let mut policy = PollingPolicy::new(false);
        let look =
            || -> ProcessorSample { unreachable!("nobody asks whether others want the processor") };
        // Such peers are detected when the first sample is due.
        let first = (0..WINDOW).filter(|_| policy.is_over(0)).count();
        assert_eq!(first, 1);
        assert_eq!(policy.next_idle_action(true, look), IdleAction::GiveWay);
        for _ in 0..100 {
            let polls = 1 + (0..WINDOW).take_while(|_| !policy.is_over(0)).count();
            assert_eq!(polls, GIVE_WAY as usize);
            assert_eq!(policy.next_idle_action(true, look), IdleAction::GiveWay);
        }
        // The first empty poll after the device has done some work.
        assert!(policy.is_over(1));
        assert_eq!(policy.next_idle_action(true, look), IdleAction::GiveWay);
        assert!(!policy.is_over(1));
    }

    #[test]
    fn a_look_sees_the_thread() {
        let before = ProcessorSample::take();
        // SAFETY: no memory is involved.
        unsafe { libc::sched_yield() };
        while processor_time() < before.processor + MS {}
        let after = ProcessorSample::take();
        assert!(after.processor >= before.processor + MS);
        assert_eq!(after.thread, before.thread);
        assert!(after.losses_before >= before.losses_after);
        let elsewhere = std::thread::spawn(ProcessorSample::take).join().unwrap();
        assert_ne!(elsewhere.thread, before.thread);
        assert_eq!(elsewhere.losses_since(&before), None);
    }
}
