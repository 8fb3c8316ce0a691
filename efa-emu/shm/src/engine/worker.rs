//! The thread that serves a device while the application does not.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::faults::{Access, Faults, PAGE};
use super::shared::Shared;
use super::state::{CHECK_PEERS, Doorbells, Sleeper};
use super::thread;

/// The interval at which the worker checks whether the application still polls: the worker takes
/// over after one to two intervals.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The same under contention for the application's processor: a polling thread may be preempted for
/// milliseconds, which does not mean that it has stopped.
const LOOK_CROWDED: Duration = Duration::from_millis(16);

/// The time that the worker polls for work before it sleeps: somewhat longer than a peer needs to
/// answer, so that a dialogue does not cost a wake-up per message.
const LINGER: Duration = Duration::from_micros(30);

/// Longest pause between two polls of unannounced doorbells, while they are in use and after they
/// have been silent for [`WATCH_ACTIVE`].
const WATCH_PAUSE: Duration = Duration::from_micros(50);
const WATCH_PAUSE_IDLE: Duration = Duration::from_millis(1);
const WATCH_ACTIVE: Duration = Duration::from_millis(20);

/// Starts the thread.
pub(super) fn start(shared: Arc<Shared>) -> std::io::Result<JoinHandle<()>> {
    thread::spawn("efa-emu", move || run(&shared))
}

fn run(shared: &Shared) {
    let mut polls = shared.polls();
    let mut last_work = Instant::now();
    let mut last_check = last_work;
    let mut is_prompt = false;
    while !shared.is_stopped() {
        let polls_now = shared.polls();
        if polls_now != polls {
            polls = polls_now;
            if last_check.elapsed() >= CHECK_PEERS
                && let Some(mut state) = shared.try_lock()
            {
                last_check = Instant::now();
                state.check_peers();
            }
            shared.sleep(|| match shared.is_contended() {
                true => LOOK_CROWDED,
                false => POLL_INTERVAL,
            });
            continue;
        }
        let Some(mut state) = shared.try_lock() else {
            std::thread::yield_now();
            continue;
        };
        let mut busy = state.pass_aside();
        let now = Instant::now();
        if now - last_check >= CHECK_PEERS {
            last_check = now;
            busy |= state.check_peers();
        }
        if busy {
            last_work = now;
        }
        let is_watching = state.is_watching();
        if is_watching && !is_prompt {
            is_prompt = true;
            thread::be_prompt();
        }
        // Programs that poll without calls occupy the processors, and wait for the work of this
        // thread.
        let is_lingering = match is_watching {
            true => busy,
            false => now - last_work < LINGER,
        };
        if is_lingering {
            drop(state);
            if !is_watching {
                std::thread::yield_now();
            }
            continue;
        }
        if state.sleeper != Sleeper::Nobody {
            drop(state);
            shared.sleep(|| POLL_INTERVAL);
            continue;
        }
        shared.segment.fall_asleep();
        if !state.prepare_to_sleep() {
            shared.segment.stay_awake();
            continue;
        }
        let pause = match is_watching {
            false => None,
            true => match state.protect_doorbells() {
                Doorbells::Rung => {
                    shared.segment.stay_awake();
                    continue;
                }
                Doorbells::Open if now - last_work < WATCH_ACTIVE => Some(WATCH_PAUSE),
                Doorbells::Open | Doorbells::Protected => Some(WATCH_PAUSE_IDLE),
            },
        };
        state.publish();
        let time = shared.plan_sleep(&state, pause);
        state.sleeper = Sleeper::Worker;
        drop(state);
        if !shared.is_stopped() {
            shared.segment.sleep(time);
        }
        drop(shared.wake_up());
    }
}

/// Answers the accesses of clients that make no calls. There is one at `end` when nothing is to be
/// answered any more.
pub(super) fn answer(shared: &Shared, faults: &Faults, end: usize) {
    thread::be_prompt();
    let mut time = None;
    // An error: the program has closed the descriptor, which continues all threads.
    while let Ok(access) = faults.wait(time) {
        let Ok(mut state) = shared.lock() else {
            return;
        };
        let is_store = access.is_some_and(|access| state.answer(access));
        time = state.tend_direct(access.is_none());
        shared.keep_worker_in_time(&state);
        drop(state);
        let Some(Access { address, .. }) = access else {
            continue;
        };
        if address == end {
            faults.protect(end, false);
            return;
        }
        if is_store {
            faults.protect(address & !(PAGE - 1), false);
        }
    }
}
