//! Counters of completions (`fi_cntr`).
//!
//! The engine counts all ends of operations, whether or not they are reported. A counter is the sum of what it is bound
//! to, and of what the application has added.

use std::ffi::{c_int, c_void};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use efa_core::endpoint::{self, EndpointId, Errno, Statistics};

use crate::border::{self, ENOSYS, Object, Result, Users};
use crate::domain::{Domain, State};
use crate::ffi::*;
use crate::table::Table;
use crate::unsupported;
use crate::wait::{self, Alarm, Deadline, Woken};

/// What a counter can be told to count.
const KINDS: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE;

/// A counter (`fid_cntr`).
#[repr(C)]
pub(crate) struct Counter {
    c: fid_cntr,
    pub(crate) domain: *const Domain,
    waiting: Waiting,
    pub(crate) users: Users,
    state: Arc<Mutex<Counted>>,
}

/// How an application can wait for a value.
#[derive(Debug)]
enum Waiting {
    /// Not at all (`FI_WAIT_NONE`).
    Never,
    /// By looking again and again (`FI_WAIT_YIELD`).
    Looking,
    /// By sleeping (`FI_WAIT_FD` and `FI_WAIT_UNSPEC`).
    Sleeping(Arc<Alarm>),
}

/// Somebody who sleeps until a counter has other values than these.
#[derive(Debug)]
pub(crate) struct Sleeper {
    counted: Arc<Mutex<Counted>>,
    alarm: Arc<Alarm>,
    values: endpoint::Counter,
}

impl Sleeper {
    /// Rings the bell if the values have changed. Returns whether it did.
    pub(crate) fn wake(&self, state: &mut State) -> bool {
        let changed = self
            .counted
            .lock()
            .is_ok_and(|counted| counted.values(state) != self.values);
        if changed {
            self.alarm.bell.ring();
        }
        changed
    }
}

#[derive(Debug, Default)]
struct Counted {
    /// What the application has added, and what endpoints have counted that were closed. Together with the counts of
    /// the sources this is the counter's value, in arithmetic that wraps around.
    base: endpoint::Counter,
    sources: Vec<(EndpointId, u64)>,
}

/// Which of the two values of a counter.
#[derive(Clone, Copy)]
enum Which {
    Successes,
    Errors,
}

impl Which {
    fn of(self, counter: &mut endpoint::Counter) -> &mut u64 {
        match self {
            Which::Successes => &mut counter.successes,
            Which::Errors => &mut counter.errors,
        }
    }
}

/// Adds what an endpoint has counted of these kinds.
fn add(to: &mut endpoint::Counter, statistics: &Statistics, kinds: u64) {
    let counters = [
        (FI_SEND, statistics.sends),
        (FI_RECV, statistics.receives),
        (FI_READ, statistics.reads),
        (FI_WRITE, statistics.writes),
    ];
    for (kind, counter) in counters {
        if kinds & kind != 0 {
            to.successes = to.successes.wrapping_add(counter.successes);
            to.errors = to.errors.wrapping_add(counter.errors);
        }
    }
}

// SAFETY: `#[repr(C)]`, and `fid_cntr` begins with a `fid`; no other type has these operations.
unsafe impl Object for Counter {
    const CLASS: u32 = FI_CLASS_CNTR;

    fn operations() -> &'static Table<fi_ops> {
        &FID
    }
}

static FID: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close),
    control: Some(control),
    ..unsupported::FID
});

static OPS: Table<fi_ops_cntr> = Table::new(fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read: Some(read),
    readerr: Some(readerr),
    add: Some(add_value),
    set: Some(set_value),
    wait: Some(wait),
    adderr: Some(add_error),
    seterr: Some(set_error),
});

impl Counter {
    /// Checks that an endpoint can be bound for operations of these kinds.
    ///
    /// # Errors
    /// `FI_EINVAL` for no kind or an unknown one, `FI_EOPNOTSUPP` for the operations of peers: their counting is a
    /// capability (`FI_RMA_EVENT`) that this provider does not have.
    pub(crate) fn check(kinds: u64) -> Result<()> {
        const REMOTE: u64 = FI_REMOTE_READ | FI_REMOTE_WRITE;
        if kinds == 0 || kinds & !(KINDS | REMOTE) != 0 {
            return Err(Errno::EINVAL);
        }
        match kinds & REMOTE {
            0 => Ok(()),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Counts the operations of these kinds of an endpoint from now on.
    pub(crate) fn attach(&self, endpoint: EndpointId, kinds: u64) {
        if let Ok(mut counted) = self.state.lock() {
            counted.sources.push((endpoint, kinds));
        }
    }

    /// Keeps what an endpoint has counted that closes now.
    pub(crate) fn detach(&self, endpoint: EndpointId, statistics: &Statistics) {
        let Ok(mut counted) = self.state.lock() else {
            return;
        };
        let Counted { base, sources } = &mut *counted;
        sources.retain(|(source, kinds)| {
            let closes = *source == endpoint;
            if closes {
                add(base, statistics, *kinds);
            }
            !closes
        });
    }

    /// Makes progress, and runs a call with what the application has added and with the values.
    fn with<T>(
        &self,
        call: impl FnOnce(&mut endpoint::Counter, endpoint::Counter) -> T,
    ) -> Result<T> {
        // SAFETY: a domain is not closed before its counters.
        let mut state = unsafe { &*self.domain }.state()?;
        state.progress();
        let mut counted = self.state.lock().map_err(|_| Errno::EOTHER)?;
        let values = counted.values(&mut state);
        let result = call(&mut counted.base, values);
        drop(counted);
        // Who sleeps until the counter changes may be waiting for this.
        state.deliver();
        Ok(result)
    }

    fn values(&self) -> Result<endpoint::Counter> {
        self.with(|_, values| values)
    }

    fn value(&self, which: Which) -> Result<u64> {
        self.values().map(|mut values| *which.of(&mut values))
    }

    fn add(&self, which: Which, value: u64) -> Result<()> {
        self.with(|base, _| {
            let base = which.of(base);
            *base = base.wrapping_add(value);
        })
    }

    fn set(&self, which: Which, value: u64) -> Result<()> {
        self.with(|base, mut values| {
            let base = which.of(base);
            let counted = which.of(&mut values).wrapping_sub(*base);
            *base = value.wrapping_sub(counted);
        })
    }

    /// Returns whether calls or programs may sleep until it changes.
    pub(crate) fn can_sleep(&self) -> bool {
        matches!(self.waiting, Waiting::Sleeping(_))
    }

    /// Waits until the counter is at least `threshold`.
    ///
    /// # Errors
    /// `FI_EINVAL` if the counter was opened without waiting, `FI_EAVAIL` if an operation fails meanwhile,
    /// `FI_ETIMEDOUT`.
    fn wait(&self, threshold: u64, timeout: c_int) -> Result<()> {
        let alarm = match &self.waiting {
            Waiting::Never => return Err(Errno::EINVAL),
            Waiting::Looking => None,
            Waiting::Sleeping(alarm) => Some(alarm),
        };
        let errors = self.value(Which::Errors)?;
        let (start, until) = (Instant::now(), Deadline::after(timeout));
        loop {
            let values = self.values()?;
            if values.successes >= threshold {
                return Ok(());
            }
            if values.errors != errors {
                return Err(border::EAVAIL);
            }
            if until.has_passed() {
                return Err(Errno(libc::ETIMEDOUT));
            }
            match alarm {
                None => std::thread::yield_now(),
                Some(_) if start.elapsed() < wait::SPIN => std::hint::spin_loop(),
                Some(alarm) => {
                    if let Some(sleeper) = self.arm(alarm, Some(values))?
                        && sleeper.sleep(until)? == Woken::Interrupted
                    {
                        return Err(Errno(libc::EINTR));
                    }
                }
            }
        }
    }

    /// Asks for the bell when the counter has other values than now. Nobody sleeps if these are not `values` any more.
    fn arm<'a>(
        &self,
        alarm: &'a Arc<Alarm>,
        values: Option<endpoint::Counter>,
    ) -> Result<Option<wait::Sleeper<'a>>> {
        // SAFETY: a domain is not closed before its counters.
        let mut state = unsafe { &*self.domain }.state()?;
        if !state.arm()? {
            return Ok(None);
        }
        let now = {
            let counted = self.state.lock().map_err(|_| Errno::EOTHER)?;
            counted.values(&mut state)
        };
        if values.is_some_and(|values| values != now) {
            return Ok(None);
        }
        self.forget_sleepers(&mut state);
        state.sleepers.push(Sleeper {
            counted: Arc::clone(&self.state),
            alarm: Arc::clone(alarm),
            values: now,
        });
        Ok(Some(alarm.prepare()))
    }

    /// Prepares for sleeping on the descriptor (`fi_trywait`).
    ///
    /// # Errors
    /// `FI_EAGAIN` if there may be more soon, `FI_EINVAL` if there is no descriptor.
    pub(crate) fn try_wait(&self) -> Result<()> {
        let Waiting::Sleeping(alarm) = &self.waiting else {
            return Err(Errno::EINVAL);
        };
        match self.arm(alarm, None)? {
            Some(_) => Ok(()),
            None => Err(Errno::EAGAIN),
        }
    }

    fn forget_sleepers(&self, state: &mut State) {
        let is_own = |sleeper: &Sleeper| Arc::ptr_eq(&sleeper.counted, &self.state);
        state.sleepers.retain(|sleeper| !is_own(sleeper));
    }
}

impl Counted {
    fn values(&self, state: &mut State) -> endpoint::Counter {
        let mut values = self.base;
        for (endpoint, kinds) in &self.sources {
            if let Some(endpoint) = state.core.endpoint(*endpoint) {
                add(&mut values, endpoint.statistics(), *kinds);
            }
        }
        values
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // SAFETY: a domain is not closed before its counters.
        let domain = unsafe { &*self.domain };
        if let Ok(mut state) = domain.state() {
            self.forget_sleepers(&mut state);
        }
        domain.users.remove();
    }
}

/// # Safety
/// As libfabric documents `fi_cntr_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attributes: *mut fi_cntr_attr,
    result: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let domain: &Domain = unsafe { border::object(domain.cast()) }?;
        if result.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: likewise.
        let (events, wait_obj, flags) = match unsafe { attributes.as_ref() } {
            Some(attributes) => (attributes.events, attributes.wait_obj, attributes.flags),
            None => (FI_CNTR_EVENTS_COMP, FI_WAIT_NONE, 0),
        };
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        // Counters of bytes came with a later interface.
        if events != FI_CNTR_EVENTS_COMP {
            return Err(ENOSYS);
        }
        let waiting = match wait_obj {
            FI_WAIT_NONE => Waiting::Never,
            FI_WAIT_YIELD => Waiting::Looking,
            FI_WAIT_UNSPEC | FI_WAIT_FD => {
                Waiting::Sleeping(Arc::new(Alarm::new(domain.state()?.watch()?)?))
            }
            // Wait sets, and mutexes with condition variables.
            _ => return Err(ENOSYS),
        };
        domain.users.add();
        let counter = Counter {
            c: fid_cntr {
                fid: fid {
                    context,
                    ..fid::default()
                },
                ops: OPS.as_c(),
            },
            domain,
            waiting,
            users: Users::default(),
            state: Arc::default(),
        };
        // SAFETY: valid for a write.
        unsafe { result.write(counter.give().cast()) };
        Ok(())
    })
}

/// # Safety
/// As libfabric documents `fi_control` of counters.
unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let counter: &Counter = unsafe { border::object(fid.cast()) }?;
        let (kind, alarm) = match &counter.waiting {
            Waiting::Never => (FI_WAIT_NONE, None),
            Waiting::Looking => (FI_WAIT_YIELD, None),
            Waiting::Sleeping(alarm) => (FI_WAIT_FD, Some(alarm.as_fd())),
        };
        // SAFETY: the caller's contract is the same.
        unsafe { wait::control(command, argument, kind, alarm) }
    })
}

/// # Safety
/// As libfabric documents `fi_close`.
unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let counter: &Counter = unsafe { border::object(fid.cast()) }?;
        counter.users.none()?;
        // SAFETY: no endpoint uses it, and C gives up its pointer.
        drop(unsafe { border::take(counter) });
        Ok(())
    })
}

/// Runs a call on a counter that returns a value. What is no counter has the value 0: the interface has no room for
/// errors.
///
/// # Safety
/// The counter is null or one of libfabric's.
unsafe fn value(counter: *mut fid_cntr, which: Which) -> u64 {
    let mut value = 0;
    border::status(|| {
        // SAFETY: by the caller's contract.
        value = unsafe { border::transfer_object::<Counter>(counter.cast()) }?.value(which)?;
        Ok(())
    });
    value
}

/// # Safety
/// As libfabric documents `fi_cntr_read`.
unsafe extern "C" fn read(counter: *mut fid_cntr) -> u64 {
    // SAFETY: the caller's contract is the same.
    unsafe { value(counter, Which::Successes) }
}

/// # Safety
/// As libfabric documents `fi_cntr_readerr`.
unsafe extern "C" fn readerr(counter: *mut fid_cntr) -> u64 {
    // SAFETY: the caller's contract is the same.
    unsafe { value(counter, Which::Errors) }
}

/// # Safety
/// As libfabric documents `fi_cntr_add`.
unsafe extern "C" fn add_value(counter: *mut fid_cntr, value: u64) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        unsafe { border::object::<Counter>(counter.cast()) }?.add(Which::Successes, value)
    })
}

/// # Safety
/// As libfabric documents `fi_cntr_adderr`.
unsafe extern "C" fn add_error(counter: *mut fid_cntr, value: u64) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        unsafe { border::object::<Counter>(counter.cast()) }?.add(Which::Errors, value)
    })
}

/// # Safety
/// As libfabric documents `fi_cntr_set`.
unsafe extern "C" fn set_value(counter: *mut fid_cntr, value: u64) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        unsafe { border::object::<Counter>(counter.cast()) }?.set(Which::Successes, value)
    })
}

/// # Safety
/// As libfabric documents `fi_cntr_seterr`.
unsafe extern "C" fn set_error(counter: *mut fid_cntr, value: u64) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        unsafe { border::object::<Counter>(counter.cast()) }?.set(Which::Errors, value)
    })
}

/// # Safety
/// As libfabric documents `fi_cntr_wait`.
unsafe extern "C" fn wait(counter: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        unsafe { border::object::<Counter>(counter.cast()) }?.wait(threshold, timeout)
    })
}
