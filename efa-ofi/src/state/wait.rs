//! Waiting: descriptors that become readable, and calls that sleep on them.
//!
//! A sleeper is woken by a device event or by another thread. Device events are the same for all
//! objects of a domain: the events of its device's queues and the time-outs of the engine
//! ([`DeviceEvents`]). Other threads use an eventfd that each object has. Both are combined in one
//! descriptor ([`WaitFd`]), which applications get by `FI_GETWAIT`.
//!
//! No event is missed. A sleeper acquires the domain's lock, requests an event from the devices,
//! and only then checks for available work (`DomainState::arm`). From then on, device events make
//! the descriptor readable. Another thread that consumes them by polling, under the lock, notifies
//! the sleepers concerned.

use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use efa_core::endpoint::Errno;
use efa_core::nic::CompletionQueueId;
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::ffi::result::Result;
use crate::ffi::{FI_WAIT_FD, FI_WAIT_NONE, FI_WAIT_YIELD, fi_wait_obj};

/// The time that a waiting call polls before it sleeps: about the time needed to fall asleep and
/// wake up.
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

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// A descriptor that is readable from [`EventFd::notify`] until [`EventFd::clear`].
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    /// # Errors
    /// Those of `eventfd(2)`.
    pub(crate) fn new() -> Result<EventFd> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        eventfd(0, flags).map(EventFd).map_err(failed)
    }

    pub(crate) fn notify(&self) {
        // It only fails where the counter is full: it is readable then.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        // It fails if no notification is pending.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Descriptors as one, which is readable while any of them is.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> Result<Epoll> {
        let created = epoll::create(epoll::CreateFlags::CLOEXEC);
        created.map(Epoll).map_err(failed)
    }

    pub(crate) fn add(&self, descriptor: impl AsFd) -> Result<()> {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.0, descriptor, data, epoll::EventFlags::IN).map_err(failed)
    }

    fn remove(&self, descriptor: impl AsFd) {
        // A missing descriptor needs no removal.
        let _ = epoll::delete(&self.0, descriptor);
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The events that all sleepers of a domain wait for: events of the device's queues, and time-outs
/// of the engine.
#[derive(Debug)]
pub(crate) struct DeviceEvents {
    epoll: Epoll,
    timer: OwnedFd,
    timer_is_set: bool,
    /// The queues that notify.
    pub(crate) queues: Vec<CompletionQueueId>,
    /// The queues without events, since the device does not support them: sleepers poll them each
    /// millisecond.
    pub(crate) polled: Vec<CompletionQueueId>,
}

impl DeviceEvents {
    pub(crate) fn new() -> Result<DeviceEvents> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(failed)?;
        let epoll = Epoll::new()?;
        epoll.add(&timer)?;
        Ok(DeviceEvents {
            epoll,
            timer,
            timer_is_set: false,
            queues: Vec::new(),
            polled: Vec::new(),
        })
    }

    pub(crate) fn add(&mut self, queue: CompletionQueueId, channel: BorrowedFd<'_>) -> Result<()> {
        self.epoll.add(channel)?;
        self.queues.push(queue);
        Ok(())
    }

    /// Forgets a queue; `channel` is where its events were.
    pub(crate) fn remove(&mut self, queue: CompletionQueueId, channel: Option<BorrowedFd<'_>>) {
        if let Some(channel) = channel {
            self.epoll.remove(channel);
        }
        self.queues.retain(|other| *other != queue);
        self.polled.retain(|other| *other != queue);
    }

    /// Wakes the sleepers after this time at the latest, or stops the timer.
    pub(crate) fn wake_after(&mut self, time: Option<Duration>) -> Result<()> {
        if time.is_none() && !self.timer_is_set {
            return Ok(());
        }
        // Zero would disarm it.
        let value = time.map_or(Duration::ZERO, |time| time.max(Duration::from_nanos(1)));
        let spec = Itimerspec {
            it_interval: timespec(Duration::ZERO),
            it_value: timespec(value),
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec).map_err(failed)?;
        self.timer_is_set = time.is_some();
        Ok(())
    }
}

impl AsFd for DeviceEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// The descriptors of an object's sleepers: the domain's, and the object's eventfd.
#[derive(Debug)]
pub(crate) struct WaitFd {
    pub(crate) eventfd: EventFd,
    epoll: Epoll,
    /// Calls that sleep, or are about to.
    sleepers: AtomicUsize,
}

impl WaitFd {
    pub(crate) fn new(events: &DeviceEvents) -> Result<WaitFd> {
        let (eventfd, epoll) = (EventFd::new()?, Epoll::new()?);
        epoll.add(&eventfd)?;
        epoll.add(events)?;
        Ok(WaitFd {
            eventfd,
            epoll,
            sleepers: AtomicUsize::new(0),
        })
    }

    /// Prepares for sleeping. Called with the domain's lock, when there is nothing to do.
    pub(crate) fn prepare(&self) -> Sleeper<'_> {
        // The notification may be for another sleeper that has not woken yet. Until then none
        // sleeps.
        if self.sleepers.fetch_add(1, Ordering::Relaxed) == 0 {
            self.eventfd.clear();
        }
        Sleeper(self)
    }
}

impl AsFd for WaitFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// A call that may sleep.
#[derive(Debug)]
pub(crate) struct Sleeper<'a>(&'a WaitFd);

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

/// How an application can wait for something (`enum fi_wait_obj`).
#[derive(Clone, Debug)]
pub(crate) enum WaitObject {
    /// Not at all (`FI_WAIT_NONE`).
    None,
    /// By looking again and again (`FI_WAIT_YIELD`).
    Yield,
    /// By sleeping (`FI_WAIT_FD`, `FI_WAIT_UNSPEC` and `FI_WAIT_SET`).
    Fd(Arc<WaitFd>),
}

impl WaitObject {
    pub(crate) fn kind(&self) -> fi_wait_obj {
        match self {
            WaitObject::None => FI_WAIT_NONE,
            WaitObject::Yield => FI_WAIT_YIELD,
            WaitObject::Fd(_) => FI_WAIT_FD,
        }
    }

    /// The descriptor, if calls and programs may sleep on one.
    pub(crate) fn fd(&self) -> Option<&Arc<WaitFd>> {
        match self {
            WaitObject::Fd(fd) => Some(fd),
            _ => None,
        }
    }

    /// Pauses a call that has been waiting since `start`. Sleeps if `arm` returns a [`Sleeper`],
    /// which it does when there is nothing to do.
    ///
    /// # Errors
    /// Those of `arm` and of `poll(2)`.
    pub(crate) fn pause(
        &self,
        start: Instant,
        until: Deadline,
        arm: impl for<'a> FnOnce(&'a Arc<WaitFd>) -> Result<Option<Sleeper<'a>>>,
    ) -> Result<Woken> {
        match self {
            WaitObject::Fd(fd) if start.elapsed() >= SPIN => {
                if let Some(sleeper) = arm(fd)? {
                    return sleeper.sleep(until);
                }
            }
            WaitObject::Fd(_) => std::hint::spin_loop(),
            WaitObject::None | WaitObject::Yield => std::thread::yield_now(),
        }
        Ok(Woken::Readable)
    }
}
