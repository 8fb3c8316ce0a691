//! Waiting: descriptors that become readable, and calls that sleep on them.
//!
//! What wakes a sleeper is either something that a device reports, or something that another thread has done. The
//! first is the same for all objects of a domain: the events of its device's queues and the time-outs of the engine
//! ([`Watch`]). The second is a bell of the object's own ([`Alarm`]). Both together are one descriptor, which
//! applications get by `FI_GETWAIT`.
//!
//! Nothing is overlooked, because a sleeper takes the domain's lock, asks the devices for an event, and only then looks
//! whether there is anything to do ([`State::arm`](crate::domain::State::arm)). From then on, what comes from the devices makes the descriptor
//! readable; and who takes it from them in another thread, with the lock, rings the bells of those for whom it was.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use efa_core::endpoint::Errno;
use efa_core::nic::CompletionQueueId;
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::border::{ENODATA, ENOSYS, Result};
use crate::ffi::{FI_GETWAIT, FI_GETWAITOBJ, fi_wait_obj};

/// How long a call that waits looks before it sleeps: about as long as falling asleep and waking up take.
pub(crate) const SPIN: Duration = Duration::from_micros(20);

fn failed(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

/// The end of the time that a call may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// `timeout` milliseconds from now; negative ones have no end.
    pub(crate) fn after(timeout: c_int) -> Deadline {
        let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
        Deadline(limit.and_then(|limit| Instant::now().checked_add(limit)))
    }

    pub(crate) fn has_passed(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }
}

/// How a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Woken {
    Readable,
    TimedOut,
    /// By a signal that the process handled.
    Interrupted,
}

/// Sleeps until a descriptor is readable.
///
/// # Errors
/// Those of `poll(2)`.
pub(crate) fn sleep(descriptor: BorrowedFd<'_>, until: Deadline) -> Result<Woken> {
    let left = until
        .0
        .map(|end| end.saturating_duration_since(Instant::now()));
    let mut watched = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    match poll(&mut watched, left.map(timespec).as_ref()) {
        Ok(0) => Ok(Woken::TimedOut),
        Ok(_) => Ok(Woken::Readable),
        Err(rustix::io::Errno::INTR) => Ok(Woken::Interrupted),
        Err(error) => Err(failed(error)),
    }
}

/// Answers `fi_control` of an object with this wait object.
///
/// # Errors
/// `FI_ENODATA` if it has no descriptor, `FI_ENOSYS` for other commands.
///
/// # Safety
/// The argument is null or as libfabric documents it for the command.
pub(crate) unsafe fn control(
    command: c_int,
    argument: *mut c_void,
    kind: fi_wait_obj,
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<()> {
    if argument.is_null() {
        return Err(Errno::EINVAL);
    }
    match u32::try_from(command) {
        Ok(FI_GETWAIT) => {
            let descriptor = descriptor.ok_or(ENODATA)?.as_raw_fd();
            // SAFETY: by the caller's contract.
            unsafe { argument.cast::<c_int>().write(descriptor) };
        }
        // SAFETY: likewise.
        Ok(FI_GETWAITOBJ) => unsafe { argument.cast::<fi_wait_obj>().write(kind) },
        _ => return Err(ENOSYS),
    }
    Ok(())
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// A descriptor that is readable from when it was rung until it is silenced.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    /// # Errors
    /// Those of `eventfd(2)`.
    pub(crate) fn new() -> Result<Bell> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        eventfd(0, flags).map(Bell).map_err(failed)
    }

    pub(crate) fn ring(&self) {
        // It only fails where it was rung without end.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(crate) fn silence(&self) {
        // It fails where it was not rung.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Descriptors as one, which is readable while any of them is.
#[derive(Debug)]
struct Bundle(OwnedFd);

impl Bundle {
    fn new() -> Result<Bundle> {
        let bundle = epoll::create(epoll::CreateFlags::CLOEXEC);
        bundle.map(Bundle).map_err(failed)
    }

    fn add(&self, descriptor: impl AsFd) -> Result<()> {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.0, descriptor, data, epoll::EventFlags::IN).map_err(failed)
    }

    fn remove(&self, descriptor: impl AsFd) {
        // One that is not in it needs no removal.
        let _ = epoll::delete(&self.0, descriptor);
    }
}

/// What all sleepers of a domain wait for: events of the device's queues, and the time-outs of the engine.
#[derive(Debug)]
pub(crate) struct Watch {
    bundle: Bundle,
    timer: OwnedFd,
    /// Whether the timer is set.
    set: bool,
    /// The queues that notify.
    pub(crate) queues: Vec<CompletionQueueId>,
    /// The queues that do not, since the device cannot: sleepers look at them each millisecond.
    pub(crate) silent: Vec<CompletionQueueId>,
}

impl Watch {
    pub(crate) fn new() -> Result<Watch> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(failed)?;
        let bundle = Bundle::new()?;
        bundle.add(&timer)?;
        Ok(Watch {
            bundle,
            timer,
            set: false,
            queues: Vec::new(),
            silent: Vec::new(),
        })
    }

    pub(crate) fn add(&mut self, queue: CompletionQueueId, channel: BorrowedFd<'_>) -> Result<()> {
        self.bundle.add(channel)?;
        self.queues.push(queue);
        Ok(())
    }

    /// Forgets a queue; `channel` is where its events were.
    pub(crate) fn remove(&mut self, queue: CompletionQueueId, channel: Option<BorrowedFd<'_>>) {
        if let Some(channel) = channel {
            self.bundle.remove(channel);
        }
        self.queues.retain(|other| *other != queue);
        self.silent.retain(|other| *other != queue);
    }

    /// Wakes the sleepers after this time at the latest, or ends what was asked for before.
    pub(crate) fn wake_after(&mut self, time: Option<Duration>) -> Result<()> {
        if time.is_none() && !self.set {
            return Ok(());
        }
        // Zero would end it.
        let value = time.map_or(Duration::ZERO, |time| time.max(Duration::from_nanos(1)));
        let spec = Itimerspec {
            it_interval: timespec(Duration::ZERO),
            it_value: timespec(value),
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec).map_err(failed)?;
        self.set = time.is_some();
        Ok(())
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bundle.0.as_fd()
    }
}

/// What the sleepers of an object wait for: all that concerns its domain, and its own bell.
#[derive(Debug)]
pub(crate) struct Alarm {
    pub(crate) bell: Bell,
    bundle: Bundle,
    /// Calls that sleep, or are about to.
    sleepers: AtomicUsize,
}

impl Alarm {
    pub(crate) fn new(watch: &Watch) -> Result<Alarm> {
        let (bell, bundle) = (Bell::new()?, Bundle::new()?);
        bundle.add(&bell)?;
        bundle.add(watch)?;
        Ok(Alarm {
            bell,
            bundle,
            sleepers: AtomicUsize::new(0),
        })
    }

    /// Prepares for sleeping. Called with the domain's lock, when there is nothing to do.
    pub(crate) fn prepare(&self) -> Sleeper<'_> {
        // A bell that was rung may be for another sleeper, who has not noticed yet. Until then nobody sleeps.
        if self.sleepers.fetch_add(1, Ordering::Relaxed) == 0 {
            self.bell.silence();
        }
        Sleeper(self)
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bundle.0.as_fd()
    }
}

/// A call that may sleep.
#[derive(Debug)]
pub(crate) struct Sleeper<'a>(&'a Alarm);

impl Sleeper<'_> {
    /// Sleeps until something happens that may concern the object.
    ///
    /// # Errors
    /// Those of `poll(2)`.
    pub(crate) fn sleep(self, until: Deadline) -> Result<Woken> {
        sleep(self.0.as_fd(), until)
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.0.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}
