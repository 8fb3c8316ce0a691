//! The thread that serves a device while the application does not.

use std::mem::MaybeUninit;
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{Pid, gettid};

use super::state::{CHECK_PEERS, Shared, Sleeper};
use crate::transport::fork::ForkSafeMutex;

/// How often the worker looks whether the application still polls: the time after which it takes
/// over is between once and twice this.
const LOOK: Duration = Duration::from_millis(1);

/// The same while others want the application's processor: a thread that polls is without one for milliseconds, which is
/// no sign that it has stopped.
const LOOK_CROWDED: Duration = Duration::from_millis(16);

/// How long the worker goes on looking for work before it sleeps: somewhat longer than a peer takes
/// to answer, so that a dialogue does not cost a wake-up per message.
const LINGER: Duration = Duration::from_micros(30);

/// Longest pause between two looks at doorbells that nobody announces, while they are in use and
/// after they have been silent for [`WATCH_ACTIVE`].
const WATCH_PAUSE: Duration = Duration::from_micros(50);
const WATCH_PAUSE_IDLE: Duration = Duration::from_millis(1);
const WATCH_ACTIVE: Duration = Duration::from_millis(20);

/// The threads that serve devices of this process.
static THREADS: ForkSafeMutex<Vec<Pid>> = ForkSafeMutex::new(Vec::new());

/// Returns whether the calling thread is one that serves a device. May be called by a signal handler.
pub fn is_device_thread() -> bool {
    THREADS.lock().contains(&gettid())
}

/// Starts the thread, and returns when it runs. The thread takes no signals: those are for the
/// application's threads. Faults are no signals in that sense: the kernel would end the process.
///
/// A thread that begins maps memory for its allocator. Monitors of registered memory (libfabric's
/// memhooks, UCX's) overwrite the first instructions of `mmap`, `munmap` and others while the program
/// runs, which kills a thread that is inside one of them. Real hardware has no thread that could be:
/// the application can install a monitor as soon as its call to open the device returns, so the
/// beginning must be over by then.
pub(super) fn start(shared: Arc<Shared>) -> std::io::Result<JoinHandle<()>> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initialises `all`, `pthread_sigmask` reads it and initialises `before`.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigdelset(all.as_mut_ptr(), libc::SIGSEGV);
        libc::sigdelset(all.as_mut_ptr(), libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let running = Arc::new(Barrier::new(2));
    let began = Arc::clone(&running);
    let thread = std::thread::Builder::new()
        .name("efa-emu".to_owned())
        .spawn(move || {
            // The first allocation of a thread is what maps memory.
            drop(std::hint::black_box(Box::new(0u64)));
            THREADS.lock().push(gettid());
            began.wait();
            let whole = AbortUnlessWhole;
            run(&shared);
            std::mem::forget(whole);
            THREADS.lock().retain(|thread| *thread != gettid());
        });
    // SAFETY: `before` was initialised above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    let thread = thread?;
    running.wait();
    Ok(thread)
}

/// Ends the process if the thread panics: the device's state may be half changed then, and whoever waits
/// for it would wait for ever. A panic in a verb ends the process likewise, since verbs are called from C.
struct AbortUnlessWhole;

impl Drop for AbortUnlessWhole {
    fn drop(&mut self) {
        eprintln!(
            "efa-emu: the device's thread failed, and with it the device: ending the process"
        );
        std::process::abort();
    }
}

fn run(shared: &Shared) {
    let mut polls = shared.polls();
    let mut last_work = Instant::now();
    let mut last_check = last_work;
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
            shared.nap(|| match shared.is_crowded() {
                true => LOOK_CROWDED,
                false => LOOK,
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
        if now - last_work < LINGER {
            drop(state);
            std::thread::yield_now();
            continue;
        }
        if state.is_watching() {
            drop(state);
            let pause = if now - last_work < WATCH_ACTIVE {
                WATCH_PAUSE
            } else {
                WATCH_PAUSE_IDLE
            };
            shared.nap(|| pause);
            continue;
        }
        if state.sleeper != Sleeper::Nobody {
            drop(state);
            shared.nap(|| LOOK);
            continue;
        }
        shared.segment.fall_asleep();
        if !state.prepare_to_sleep() {
            shared.segment.stay_awake();
            continue;
        }
        state.publish();
        let time = shared.plan_sleep(&state);
        state.sleeper = Sleeper::Worker;
        drop(state);
        if !shared.is_stopped() {
            shared.segment.sleep(time);
        }
        drop(shared.wake_up());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::AbortUnlessWhole;

    /// Set in the process whose thread fails.
    const FAIL: &str = "EFA_EMU_TEST_FAILING_THREAD";

    #[test]
    fn a_thread_that_fails_ends_the_process() {
        if std::env::var_os(FAIL).is_some() {
            let thread = std::thread::spawn(|| {
                let _whole = AbortUnlessWhole;
                panic!("on purpose");
            });
            let _ = thread.join();
            return;
        }
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "transport::engine::worker::tests::a_thread_that_fails_ends_the_process",
            ])
            .arg("--nocapture")
            .env(FAIL, "1")
            .output()
            .unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGABRT));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("the device's thread failed"), "{said}");
    }
}
