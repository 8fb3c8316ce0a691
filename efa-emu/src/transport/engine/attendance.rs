//! Whether an application that does not poll has stopped, or only has no processor: on machines with more programs
//! than processors.
//!
//! The engine's thread takes over when the application stops polling. An application that polls and has lost its
//! processor looks the same at first. If the engine's thread took over then, it would compete for the processor with the
//! very programs that the application waits for; with dozens of processes that costs more than all their messages. So
//! the engine's thread leaves the device to a thread that waits for a processor and has polled lately, and looks
//! less often while that goes on.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// How often the engine's thread looks whether the application still polls: the time after which it takes over is
/// between once and twice this, on a machine that has a processor for the application.
pub(super) const LOOK: Duration = Duration::from_millis(1);

/// Longest time between two looks.
const MOST: Duration = Duration::from_millis(8);

/// After this time without a poll the engine's thread takes over in any case: the application may have begun to compute
/// while it waits for a processor again and again.
const LATELY: Duration = Duration::from_millis(16);

/// What the engine's thread knows of the thread that polls.
#[derive(Debug)]
pub(super) struct Attendance {
    look: Duration,
    last: Seen,
    /// When polls were last seen.
    polled: Instant,
}

/// What was seen of the thread that polls at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) thread: libc::pid_t,
    pub(super) time: Instant,
    /// Its processor time; `None` if there is no such thread any more.
    pub(super) processor: Option<Duration>,
}

impl Seen {
    pub(super) fn now(thread: libc::pid_t) -> Seen {
        Seen {
            thread,
            processor: processor_time(thread),
            time: Instant::now(),
        }
    }

    /// Whether the thread had a processor most of the time since `before`. Of one that nothing is known of, this is
    /// assumed.
    fn has_run_since(&self, before: &Seen) -> bool {
        let (Some(now), Some(then)) = (self.processor, before.processor) else {
            return true;
        };
        self.thread != before.thread || 2 * now.saturating_sub(then) > self.time - before.time
    }
}

impl Attendance {
    pub(super) fn new(seen: Seen) -> Attendance {
        Attendance {
            look: LOOK,
            last: seen,
            polled: seen.time,
        }
    }

    /// The application has polled since the last look. Returns when to look again.
    pub(super) fn polled(&mut self, seen: Seen) -> Duration {
        if seen.has_run_since(&self.last) {
            self.look = LOOK;
        }
        self.polled = seen.time;
        self.last = seen;
        self.look
    }

    /// The application has not polled since the last look. Returns when to look again if the engine's thread is not
    /// to take over: the application would poll if it had a processor, as far as `is_runnable` tells.
    pub(super) fn absent(
        &mut self,
        seen: Seen,
        is_runnable: impl FnOnce(libc::pid_t) -> bool,
    ) -> Option<Duration> {
        let waits = seen.time - self.polled < LATELY
            && !seen.has_run_since(&self.last)
            && is_runnable(seen.thread);
        self.last = seen;
        self.look = match waits {
            true => (2 * self.look).min(MOST),
            false => LOOK,
        };
        waits.then_some(self.look)
    }
}

/// The processor time of a thread of this process.
fn processor_time(thread: libc::pid_t) -> Option<Duration> {
    // How the kernel names the clock of a thread's processor time (`clock_getcpuclockid`, for threads).
    const OF_A_THREAD: libc::clockid_t = 4;
    const SCHEDULED: libc::clockid_t = 2;
    let clock = (!thread << 3) | OF_A_THREAD | SCHEDULED;
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: `time` is valid for a write. It is read only after a call that succeeded and has written it.
    let time = unsafe {
        if libc::clock_gettime(clock, time.as_mut_ptr()) != 0 {
            return None;
        }
        time.assume_init()
    };
    Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Whether a thread of this process runs or waits for a processor. Where the system does not tell, it does not.
pub(super) fn is_runnable(thread: libc::pid_t) -> bool {
    let Ok(stat) = std::fs::read(format!("/proc/self/task/{thread}/stat")) else {
        return false;
    };
    // The name before the state is in brackets and may have some of its own.
    let name_end = stat.iter().rposition(|byte| *byte == b')');
    name_end.is_some_and(|end| stat[end..].starts_with(b") R"))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The thread that polls, and those that want its processor.
    struct Thread {
        start: Instant,
        passed: Duration,
        processor: Duration,
        attendance: Attendance,
    }

    impl Thread {
        fn new() -> Thread {
            let start = Instant::now();
            Thread {
                start,
                passed: Duration::ZERO,
                processor: Duration::ZERO,
                attendance: Attendance::new(seen(start, Some(Duration::ZERO))),
            }
        }

        /// Time passes, of which the thread has a part of the processor's.
        fn passes(&mut self, time: Duration, had: Duration) -> Seen {
            self.passed += time;
            self.processor += had;
            seen(self.start + self.passed, Some(self.processor))
        }

        /// The engine's thread looks, and the application has polled.
        fn polls(&mut self, time: Duration, had: Duration) -> Duration {
            let seen = self.passes(time, had);
            self.attendance.polled(seen)
        }

        /// The engine's thread looks, and the application has not polled.
        fn is_absent(&mut self, time: Duration, had: Duration, runnable: bool) -> Option<Duration> {
            let seen = self.passes(time, had);
            self.attendance.absent(seen, |_| runnable)
        }
    }

    fn seen(time: Instant, processor: Option<Duration>) -> Seen {
        Seen {
            thread: 1,
            time,
            processor,
        }
    }

    #[test]
    fn who_computes_or_sleeps_is_relieved_at_once() {
        let mut thread = Thread::new();
        assert_eq!(thread.polls(LOOK, LOOK), LOOK);
        assert_eq!(thread.is_absent(LOOK, LOOK, true), None, "it computes");
        assert_eq!(thread.polls(LOOK, LOOK), LOOK);
        assert_eq!(
            thread.is_absent(LOOK, Duration::ZERO, false),
            None,
            "it sleeps"
        );
    }

    #[test]
    fn who_waits_for_a_processor_is_not_and_is_looked_at_less_often() {
        let mut thread = Thread::new();
        thread.polls(LOOK, LOOK / 8);
        for look in [2, 4, 8, 8].map(|ms| ms * MS) {
            let time = thread.attendance.look;
            assert_eq!(thread.is_absent(time, time / 8, true), Some(look));
            assert_eq!(thread.polls(look, look / 8), look);
        }
        // The others have gone.
        assert_eq!(thread.polls(MOST, MOST), LOOK);
    }

    #[test]
    fn who_has_not_polled_for_long_is_relieved_even_if_it_waits_for_a_processor() {
        let mut thread = Thread::new();
        thread.polls(LOOK, LOOK);
        let mut absent = Duration::ZERO;
        loop {
            let time = thread.attendance.look;
            absent += time;
            if thread.is_absent(time, Duration::ZERO, true).is_none() {
                break;
            }
        }
        assert!((LATELY..LATELY + MOST).contains(&absent), "{absent:?}");
    }

    #[test]
    fn a_thread_that_has_ended_or_is_another_one_is_relieved() {
        let mut thread = Thread::new();
        thread.polls(LOOK, Duration::ZERO);
        let time = thread.start + 2 * LOOK;
        let absent = |attendance: &mut Attendance, seen| attendance.absent(seen, |_| true);
        assert_eq!(absent(&mut thread.attendance, seen(time, None)), None);
        let other = Seen {
            thread: 2,
            ..seen(time, Some(Duration::ZERO))
        };
        let mut thread = Thread::new();
        assert_eq!(absent(&mut thread.attendance, other), None);
    }

    #[test]
    fn the_system_tells_who_runs_and_who_sleeps() {
        // SAFETY: takes no pointers.
        let this_thread = || unsafe { libc::gettid() };
        assert!(is_runnable(this_thread()));
        let before = processor_time(this_thread()).unwrap();
        while processor_time(this_thread()).unwrap() < before + MS {}

        let (ids, id) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let sleeper = std::thread::Builder::new()
            .name("a) R (b".to_owned())
            .spawn(move || {
                ids.send(this_thread()).unwrap();
                ended.recv().unwrap_err();
            })
            .unwrap();
        let id = id.recv().unwrap();
        // Until it has fallen asleep.
        while is_runnable(id) {
            std::thread::yield_now();
        }
        assert!(processor_time(id).is_some());
        drop(end);
        sleeper.join().unwrap();
        while processor_time(id).is_some() {
            std::thread::yield_now();
        }
        assert!(!is_runnable(id));
    }
}
