//! The state shared by the application's threads and the engine's thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::polling_policy::IdleAction;
use super::state::{EngineState, Sleeper};
use crate::error::FabricError;
use crate::fabric::host::Host;
use crate::process::fork::HomeProcess;
use crate::process::shared::futex;
use crate::transport::segment::Segment;
use efa_lock_free::mutex::{Guard, Mutex};

/// A time that is never reached.
const NEVER: u64 = u64::MAX;

/// One opened device, in the form that its threads share.
pub(super) struct Shared {
    pub(super) home: HomeProcess,
    pub(super) host: Host,
    pub(super) segment: Arc<Segment>,
    state: Mutex<EngineState>,
    started: Instant,
    /// Counts the application's polls, so that the worker detects whether there are any.
    polls: AtomicU32,
    stop: AtomicBool,
    /// The time at which the sleeping worker wakes without being woken, in nanoseconds since
    /// `started`.
    worker_wakes_at: AtomicU64,
    /// Changes when the worker is to end its sleep.
    interruptions: AtomicU32,
    /// The application has made enough empty polls that its polls should call [`Shared::rest`].
    rest_is_due: AtomicBool,
    /// The time until which others are assumed to need the processors, in nanoseconds since
    /// `started`.
    contended_until: AtomicU64,
}

impl Shared {
    pub(super) fn new(
        home: HomeProcess,
        host: Host,
        segment: Arc<Segment>,
        state: EngineState,
    ) -> Shared {
        Shared {
            home,
            host,
            segment,
            started: state.started,
            state: Mutex::new(state),
            polls: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            worker_wakes_at: AtomicU64::new(NEVER),
            interruptions: AtomicU32::new(0),
            rest_is_due: AtomicBool::new(false),
            contended_until: AtomicU64::new(0),
        }
    }

    pub(super) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    #[inline(always)]
    pub(super) fn lock(&self) -> Result<Guard<'_, EngineState>, FabricError> {
        if !self.home.is_current() {
            return Err(FabricError::Forked);
        }
        Ok(self.state.lock())
    }

    #[inline(always)]
    pub(super) fn try_lock(&self) -> Option<Guard<'_, EngineState>> {
        self.state.try_lock()
    }

    #[inline]
    pub(super) fn note_poll(&self) {
        // Not an atomic increment: a few lost polls among many have no effect.
        let polls = self.polls.load(Ordering::Relaxed);
        self.polls.store(polls.wrapping_add(1), Ordering::Relaxed);
    }

    pub(super) fn polls(&self) -> u32 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Ends the worker. The worker reads `stop` after it has announced its sleep or read
    /// `interruptions`; here both are changed after `stop`, by atomic operations that also read. So
    /// the worker finds `stop` set, or is woken.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.interrupt();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Wakes the thread that sleeps for the device, and the worker from its sleep.
    pub(super) fn interrupt(&self) {
        self.interruptions.fetch_add(1, Ordering::Release);
        futex::wake(&self.interruptions);
        self.segment.interrupt();
    }

    /// Lets the worker sleep for a time, or until it is interrupted. Peers do not wake it. An
    /// interruption during the call of `time` is not lost, because its cause may affect the time.
    pub(super) fn sleep(&self, time: impl FnOnce() -> Duration) {
        let interruptions = self.interruptions.load(Ordering::Acquire);
        let time = time();
        if !self.is_stopped() {
            futex::wait(&self.interruptions, interruptions, Some(time));
        }
    }

    /// Withdraws the announcement that the calling thread sleeps, and locks the state.
    pub(super) fn wake_up(&self) -> Guard<'_, EngineState> {
        let mut state = self.state.lock();
        state.sleeper = Sleeper::Nobody;
        self.segment.stay_awake();
        state
    }

    /// Counts an empty poll.
    #[inline]
    pub(super) fn note_poll_in_vain(&self, state: &mut EngineState) {
        if state.must_stop_polling() {
            self.rest_is_due.store(true, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn should_rest(&self) -> bool {
        self.rest_is_due.load(Ordering::Relaxed)
    }

    /// Whether the application's polls have found contention for its processor. Never while the
    /// application requests an event: then it is about to sleep, and a poll before that does not
    /// mean that it continues to poll.
    pub(super) fn is_contended(&self) -> bool {
        let until = Duration::from_nanos(self.contended_until.load(Ordering::Relaxed));
        self.uptime() < until
    }

    /// Records that the application requests an event. It is going to sleep, and the worker has to
    /// detect this soon.
    pub(super) fn end_contention(&self) {
        if self.contended_until.swap(0, Ordering::Relaxed) != 0 {
            self.interrupt();
        }
    }

    /// See [`Engine::rest`](super::Engine::rest).
    pub(super) fn rest(&self) {
        let Some(mut state) = self.try_lock() else {
            return;
        };
        self.rest_is_due.store(false, Ordering::Relaxed);
        let (rest, contended_until) = state.next_idle_action();
        let contended_until =
            contended_until.map_or(0, |until| (until - self.started).as_nanos() as u64);
        self.contended_until
            .store(contended_until, Ordering::Relaxed);
        let longest = match rest {
            IdleAction::Nothing => return,
            IdleAction::GiveWay => {
                drop(state);
                return std::thread::yield_now();
            }
            IdleAction::Sleep(longest) => longest,
        };
        match state.sleeper {
            Sleeper::Nobody => {
                self.segment.fall_asleep();
                if !state.prepare_to_sleep() {
                    self.segment.stay_awake();
                    return;
                }
                let due = state.next_deadline();
                let time = due.map_or(longest, |due| due.saturating_sub(self.uptime()));
                state.sleeper = Sleeper::Poll;
                drop(state);
                self.segment.sleep(Some(time.min(longest)));
                self.wake_up().polling.napped(Instant::now());
            }
            // It has not detected yet that there are polls again.
            Sleeper::Worker => {
                drop(state);
                self.interrupt();
            }
            // Another thread is polling: the event that wakes it wakes this one too.
            Sleeper::Poll => {
                drop(state);
                self.segment.sleep(Some(longest));
            }
        }
    }

    /// Records the time until which the worker is going to sleep, at most for `pause`, and returns
    /// the duration. The caller has locked the state.
    pub(super) fn plan_sleep(
        &self,
        state: &EngineState,
        pause: Option<Duration>,
    ) -> Option<Duration> {
        let pause = pause.map(|pause| self.uptime() + pause);
        let wake_at = state.next_deadline().into_iter().chain(pause).min();
        let nanos = wake_at.map_or(NEVER, |time| time.as_nanos() as u64);
        self.worker_wakes_at.store(nanos, Ordering::Relaxed);
        wake_at.map(|time| time.saturating_sub(self.uptime()))
    }

    /// Wakes the worker if it would sleep past something that the application's call has just made
    /// necessary. The caller has locked the state.
    #[inline]
    pub(super) fn keep_worker_in_time(&self, state: &EngineState) {
        if self.segment.is_asleep() && state.has_deadlines() {
            self.shorten_sleep(state);
        }
    }

    #[cold]
    fn shorten_sleep(&self, state: &EngineState) {
        let wakes_at = self.worker_wakes_at.load(Ordering::Relaxed);
        let needed = state.next_deadline().map(|time| time.as_nanos() as u64);
        if needed.is_some_and(|needed| needed < wakes_at) {
            self.interrupt();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engine;
    use crate::fabric::directory::Fabric;
    use crate::identity::config::HostConfig;
    use efa_device_model::device::CqId;
    use efa_device_model::device::queue::{CqDoorbell, RequestIdSize};
    use efa_device_model::profile::Profile;

    fn open_engine(root: &tempfile::TempDir) -> Engine {
        let fabric = Fabric::open_below(root.path(), "crowd").unwrap();
        let config = HostConfig::new("crowd", "alpha");
        let profile = Profile::named(&config.profile).unwrap();
        Engine::open_in(&fabric, &config, profile).unwrap()
    }

    /// Makes a completion queue whose doorbell requests an event; the device has not read it yet.
    fn create_cq(engine: &Engine) -> CqId {
        let created = engine
            .with_device(|device| device.create_cq(16, RequestIdSize::Bits16))
            .unwrap();
        let (cq, ring) = created.unwrap();
        let request = CqDoorbell {
            consumer: 0,
            sequence: 0,
            solicited_only: false,
            arm: true,
        };
        ring.doorbell().write(request.to_bits());
        cq
    }

    /// An empty poll that has to rest.
    fn rest(engine: &Engine) {
        while !engine.should_rest() {
            engine.progress();
        }
        // Does nothing as long as the device's thread has the lock.
        while engine.should_rest() {
            engine.rest();
        }
    }

    #[test]
    fn waiting_for_an_event_differs_from_being_preempted() {
        let root = tempfile::tempdir().unwrap();
        let engine = open_engine(&root);
        let cq = create_cq(&engine);
        let shared = &engine.shared;
        assert!(!shared.is_contended());
        shared.contended_until.store(NEVER, Ordering::Relaxed);
        let interruptions = shared.interruptions.load(Ordering::Relaxed);
        assert!(shared.is_contended());
        engine.arm_cq(cq).unwrap();
        assert!(!shared.is_contended());
        assert_ne!(
            shared.interruptions.load(Ordering::Relaxed),
            interruptions,
            "the worker's sleep ends"
        );
    }

    #[test]
    fn a_last_poll_before_waiting_differs_too() {
        let root = tempfile::tempdir().unwrap();
        let engine = open_engine(&root);
        let cq = create_cq(&engine);
        let shared = &engine.shared;
        let contend = || shared.lock().unwrap().polling.assume_long_contention();
        contend();
        rest(&engine);
        assert!(shared.is_contended());
        engine.arm_cq(cq).unwrap();
        contend();
        rest(&engine);
        assert!(!shared.is_contended());
    }

    #[test]
    fn interruptions_end_a_sleep_that_is_just_starting() {
        let root = tempfile::tempdir().unwrap();
        let engine = open_engine(&root);
        let shared = &engine.shared;
        shared.sleep(|| {
            shared.interrupt();
            Duration::from_secs(3600)
        });
    }
}
