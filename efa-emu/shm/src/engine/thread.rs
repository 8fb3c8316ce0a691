//! Threads that serve devices: how they start, and when they get a processor.

use std::mem::MaybeUninit;
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::{Pid, gettid};

use crate::process::fork::ForkSafeMutex;

/// The threads that serve devices of this process.
static THREADS: ForkSafeMutex<Vec<Pid>> = ForkSafeMutex::new(Vec::new());

/// Returns whether the calling thread is one that serves a device. May be called by a signal
/// handler.
pub fn is_device_thread() -> bool {
    THREADS.lock().contains(&gettid())
}

/// Starts a thread that serves a device, and returns when it runs. The thread blocks all signals,
/// which are for the application's threads, except SIGSEGV and SIGBUS: a fault while they are
/// blocked would end the process.
///
/// A new thread maps memory for its allocator. Monitors of registered memory (libfabric's memhooks,
/// UCX's) overwrite the first instructions of `mmap`, `munmap` and others while the program runs,
/// which crashes a thread that is inside one of them. Real hardware has no such thread: the
/// application can install a monitor as soon as its call to open the device returns, so the
/// thread's start must be finished before that.
pub(super) fn spawn(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
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
        .name(name.to_owned())
        .spawn(move || {
            // The first allocation of a thread maps memory.
            drop(std::hint::black_box(Box::new(0u64)));
            THREADS.lock().push(gettid());
            began.wait();
            let whole = AbortOnPanic;
            run();
            std::mem::forget(whole);
            THREADS.lock().retain(|thread| *thread != gettid());
        });
    // SAFETY: `before` was initialised above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    let thread = thread?;
    running.wait();
    Ok(thread)
}

/// Ends the process if the thread panics: the device's state may be inconsistent then, and threads
/// that wait for it would wait forever. A panic in a verb ends the process as well, because verbs
/// are called from C.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        eprintln!(
            "efa-emu: the device's thread failed, and with it the device: ending the process"
        );
        std::process::abort();
    }
}

/// Requests from the system that the calling thread gets a processor soon after a wake-up, and that
/// its sleeps end in time. Polling programs would otherwise keep the processor until their time
/// slice ends. They are not made to use shorter slices, because that was slower.
pub(super) fn be_prompt() {
    // Linux before 6.12 ignores it.
    const TURN: Duration = Duration::from_micros(100);
    // The process may lack the permission for it.
    const NICE: i32 = -10;
    // SAFETY: a number is passed.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
    let size = size_of::<libc::sched_attr>() as u32;
    let mut attributes = MaybeUninit::<libc::sched_attr>::zeroed();
    // SAFETY: the structure has the size in its field, and all zeroes are a valid value of it.
    let mut attributes = unsafe {
        let pointer = attributes.as_mut_ptr();
        if libc::syscall(libc::SYS_sched_getattr, 0, pointer, size, 0) != 0 {
            return;
        }
        attributes.assume_init()
    };
    // The user has deliberately chosen another policy.
    if attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attributes.sched_runtime = TURN.as_nanos() as u64;
    for nice in [NICE.min(attributes.sched_nice), attributes.sched_nice] {
        attributes.sched_nice = nice;
        // SAFETY: as above.
        if unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    /// Set in the process whose thread fails.
    const FAIL: &str = "EFA_EMU_TEST_FAILING_THREAD";

    #[test]
    fn a_thread_that_fails_ends_the_process() {
        if std::env::var_os(FAIL).is_some() {
            let thread = super::spawn("failing", || panic!("on purpose")).unwrap();
            let _ = thread.join();
            return;
        }
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "engine::thread::tests::a_thread_that_fails_ends_the_process",
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
