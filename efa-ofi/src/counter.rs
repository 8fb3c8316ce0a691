//! Counters of completions (`fi_cntr`).
//!
//! The engine counts all ends of operations, whether or not they are reported. A counter is the sum of what it is bound
//! to, and of what the application has added.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use efa_core::endpoint::{self, EndpointId, Errno, Statistics};

use crate::border::{self, ENOSYS, Object, Result, Users};
use crate::domain::{Domain, State};
use crate::ffi::*;
use crate::unsupported;
use crate::wait::Patience;

/// What a counter can be told to count.
const KINDS: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE;

/// A counter (`fid_cntr`).
#[repr(C)]
pub(crate) struct Counter {
    c: fid_cntr,
    pub(crate) domain: *const Domain,
    can_wait: bool,
    pub(crate) users: Users,
    state: Mutex<Counted>,
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

    fn operations() -> &'static fi_ops {
        &FID
    }
}

static FID: fi_ops = fi_ops {
    close: Some(close),
    ..unsupported::FID
};

static OPS: fi_ops_cntr = fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read: Some(read),
    readerr: Some(readerr),
    add: Some(add_value),
    set: Some(set_value),
    wait: Some(wait),
    adderr: Some(add_error),
    seterr: Some(set_error),
};

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
        Ok(call(&mut counted.base, values))
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

    /// Waits until the counter is at least `threshold`.
    ///
    /// # Errors
    /// `FI_EINVAL` if the counter was opened without waiting, `FI_EAVAIL` if an operation fails meanwhile,
    /// `FI_ETIMEDOUT`.
    fn wait(&self, threshold: u64, timeout: c_int) -> Result<()> {
        if !self.can_wait {
            return Err(Errno::EINVAL);
        }
        let errors = self.value(Which::Errors)?;
        let patience = Patience::new(timeout);
        loop {
            let values = self.values()?;
            if values.successes >= threshold {
                return Ok(());
            }
            if values.errors != errors {
                return Err(border::EAVAIL);
            }
            if !patience.pause() {
                return Err(Errno(libc::ETIMEDOUT));
            }
        }
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
        unsafe { (*self.domain).users.remove() };
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
        let can_wait = match wait_obj {
            FI_WAIT_NONE => false,
            FI_WAIT_UNSPEC | FI_WAIT_YIELD => true,
            // There is no descriptor to wait on.
            _ => return Err(ENOSYS),
        };
        // Counters of bytes came with a later interface.
        if events != FI_CNTR_EVENTS_COMP {
            return Err(ENOSYS);
        }
        domain.users.add();
        let counter = Counter {
            c: fid_cntr {
                fid: fid {
                    context,
                    ..fid::default()
                },
                ops: std::ptr::from_ref(&OPS).cast_mut(),
            },
            domain,
            can_wait,
            users: Users::default(),
            state: Mutex::default(),
        };
        // SAFETY: valid for a write.
        unsafe { result.write(counter.give().cast()) };
        Ok(())
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
