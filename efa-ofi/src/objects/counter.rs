//! Counters of completions (`fi_cntr`).

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use efa_core::endpoint::{self, EndpointId, Errno, Statistics};

use crate::ffi::object::{Object, Ref, close, new_fid, object, transfer_object};
use crate::ffi::result::{EAVAIL, ENOSYS, Result, status};
use crate::ffi::table::Table;
use crate::ffi::*;
use crate::objects::domain::Domain;
use crate::objects::queue::{Waitable, control};
use crate::objects::wait_set::Membership;
use crate::state::counts::{CounterSleeper, Counts};
use crate::state::domain::DomainState;
use crate::state::wait::{Deadline, Sleeper, WaitFd, WaitObject, Woken};

/// The operations that a counter can count. Among the operations of peers it counts only those that
/// the device reports to the target. Counting all of them is a capability (`FI_RMA_EVENT`) that
/// this provider lacks.
const OPERATIONS: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

/// A counter (`fid_cntr`).
#[repr(C)]
pub(crate) struct Counter {
    c: fid_cntr,
    wait_object: WaitObject,
    wait_set: Option<Membership>,
    counts: Arc<Mutex<Counts>>,
    /// The last values that `fi_poll` and `fi_wait` reported, or that the application set.
    reported: Mutex<endpoint::Counter>,
    pub(crate) domain: Ref<Domain>,
}

/// One of the two values of a counter.
#[derive(Clone, Copy)]
enum Value {
    Successes,
    Errors,
}

impl Value {
    fn of(self, counter: &mut endpoint::Counter) -> &mut u64 {
        match self {
            Value::Successes => &mut counter.successes,
            Value::Errors => &mut counter.errors,
        }
    }
}

// SAFETY: `#[repr(C)]`, and `fid_cntr` begins with a `fid`; no other type has these operations.
unsafe impl Object for Counter {
    const CLASS: u32 = FI_CLASS_CNTR;
    const OPERATIONS: &'static Table<fi_ops> = &FID;

    fn opened(&self) {
        if let Some(wait_set) = &self.wait_set {
            wait_set.enter(self);
        }
    }
}

static FID: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close::<Counter>),
    control: Some(control::<Counter>),
    ..unsupported::FID
});

static OPS: Table<fi_ops_cntr> = Table::new(fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read: Some(read),
    readerr: Some(readerr),
    add: Some(add),
    set: Some(set),
    wait: Some(wait),
    adderr: Some(adderr),
    seterr: Some(seterr),
});

impl Counter {
    /// Opens a counter of completions.
    ///
    /// # Errors
    /// `FI_EINVAL` for flags, `FI_ENOSYS` for counters of bytes, which a later interface added, and
    /// for unknown wait objects.
    pub(crate) fn open(
        domain: &Domain,
        attributes: Option<&fi_cntr_attr>,
        context: *mut c_void,
    ) -> Result<Counter> {
        const DEFAULT: fi_cntr_attr = fi_cntr_attr {
            events: FI_CNTR_EVENTS_COMP,
            wait_obj: FI_WAIT_NONE,
            wait_set: std::ptr::null_mut(),
            flags: 0,
        };
        let attributes = attributes.unwrap_or(&DEFAULT);
        if attributes.flags != 0 {
            return Err(Errno::EINVAL);
        }
        if attributes.events != FI_CNTR_EVENTS_COMP {
            return Err(ENOSYS);
        }
        let wait_object = domain.state()?.wait_object(attributes.wait_obj)?;
        let descriptor = wait_object.fd().map(|fd| fd.as_fd());
        let wait_set = Membership::of(attributes.wait_obj, attributes.wait_set, descriptor)?;
        Ok(Counter {
            c: fid_cntr {
                fid: new_fid(context),
                ops: OPS.as_c(),
            },
            wait_object,
            wait_set,
            counts: Arc::default(),
            reported: Mutex::default(),
            domain: Ref::new(domain),
        })
    }

    /// Checks that an endpoint can be bound for these operations.
    ///
    /// # Errors
    /// `FI_EINVAL` for none or an unknown one.
    pub(crate) fn check(operations: u64) -> Result<()> {
        match operations != 0 && operations & !OPERATIONS == 0 {
            true => Ok(()),
            false => Err(Errno::EINVAL),
        }
    }

    pub(crate) fn fid(&self) -> &fid {
        &self.c.fid
    }

    /// Returns whether calls or programs may sleep until it changes.
    pub(crate) fn can_sleep(&self) -> bool {
        self.wait_object.fd().is_some()
    }

    /// Counts these operations of an endpoint from now on.
    pub(crate) fn attach(&self, endpoint: EndpointId, operations: u64) {
        if let Ok(mut counts) = self.counts.lock() {
            counts.sources.push((endpoint, operations));
        }
    }

    /// Stores the final counts of an endpoint that is closing.
    pub(crate) fn detach(&self, endpoint: EndpointId, statistics: &Statistics) {
        if let Ok(mut counts) = self.counts.lock() {
            counts.detach(endpoint, statistics);
        }
    }

    /// Makes progress, and runs a call with the application's own additions and with the values.
    fn with<T>(
        &self,
        call: impl FnOnce(&mut endpoint::Counter, endpoint::Counter) -> T,
    ) -> Result<T> {
        let mut state = self.domain.state()?;
        state.progress();
        let mut counts = self.counts.lock().map_err(|_| Errno::EOTHER)?;
        let values = counts.values(&mut state.core);
        let result = call(&mut counts.base, values);
        drop(counts);
        // A thread that sleeps until the counter changes may be waiting for this.
        state.deliver();
        Ok(result)
    }

    fn values(&self) -> Result<endpoint::Counter> {
        self.with(|_, values| values)
    }

    fn add(&self, value: Value, added: u64) -> Result<()> {
        self.with(|base, _| {
            let base = value.of(base);
            *base = base.wrapping_add(added);
        })?;
        self.note_reported().map(drop)
    }

    fn set(&self, value: Value, wanted: u64) -> Result<()> {
        self.with(|base, mut values| {
            let base = value.of(base);
            let counted = value.of(&mut values).wrapping_sub(*base);
            *base = wanted.wrapping_sub(counted);
        })?;
        self.note_reported().map(drop)
    }

    fn reported(&self) -> Result<MutexGuard<'_, endpoint::Counter>> {
        self.reported.lock().map_err(|_| Errno::EOTHER)
    }

    /// Records that the application has read the values. Returns whether they have changed since
    /// the last call.
    fn note_reported(&self) -> Result<bool> {
        let values = self.values()?;
        Ok(std::mem::replace(&mut *self.reported()?, values) != values)
    }

    /// Waits until the counter is at least `threshold`.
    ///
    /// # Errors
    /// `FI_EINVAL` if the counter was opened without waiting, `FI_EAVAIL` if an operation fails
    /// meanwhile, `FI_ETIMEDOUT`, and `FI_EINTR` after a signal that the process handled.
    fn wait(&self, threshold: u64, timeout: c_int) -> Result<()> {
        if matches!(self.wait_object, WaitObject::None) {
            return Err(Errno::EINVAL);
        }
        let errors = self.values()?.errors;
        let (start, until) = (Instant::now(), Deadline::after(timeout));
        loop {
            let values = self.values()?;
            if values.successes >= threshold {
                return Ok(());
            }
            if values.errors != errors {
                return Err(EAVAIL);
            }
            if until.has_passed() {
                return Err(Errno(libc::ETIMEDOUT));
            }
            let woken = self
                .wait_object
                .pause(start, until, |wait_fd| self.arm(wait_fd, Some(values)))?;
            if woken == Woken::Interrupted {
                return Err(Errno(libc::EINTR));
            }
        }
    }

    /// Requests a notification when the counter's values change. Returns `None` if they are no
    /// longer `values`, or may change soon.
    fn arm<'a>(
        &self,
        wait_fd: &'a Arc<WaitFd>,
        values: Option<endpoint::Counter>,
    ) -> Result<Option<Sleeper<'a>>> {
        let mut state = self.domain.state()?;
        if !state.arm()? {
            return Ok(None);
        }
        let now = {
            let counts = self.counts.lock().map_err(|_| Errno::EOTHER)?;
            counts.values(&mut state.core)
        };
        if values.is_some_and(|values| values != now) {
            return Ok(None);
        }
        self.forget_sleepers(&mut state);
        state.sleepers.push(CounterSleeper {
            counts: Arc::clone(&self.counts),
            wait_fd: Arc::clone(wait_fd),
            values: now,
        });
        Ok(Some(wait_fd.prepare()))
    }

    /// Prepares for sleeping until the values differ from these, or from the current ones.
    fn try_wait_for(&self, values: Option<endpoint::Counter>) -> Result<()> {
        let wait_fd = self.wait_object.fd().ok_or(Errno::EINVAL)?;
        match self.arm(wait_fd, values)? {
            Some(_) => Ok(()),
            None => Err(Errno::EAGAIN),
        }
    }

    fn forget_sleepers(&self, state: &mut DomainState) {
        let is_own = |sleeper: &CounterSleeper| Arc::ptr_eq(&sleeper.counts, &self.counts);
        state.sleepers.retain(|sleeper| !is_own(sleeper));
    }
}

impl Waitable for Counter {
    fn wait_object(&self) -> (fi_wait_obj, Option<BorrowedFd<'_>>) {
        if let Some(wait_set) = &self.wait_set {
            return wait_set.wait_object();
        }
        let fd = self.wait_object.fd().map(|fd| fd.as_fd());
        (self.wait_object.kind(), fd)
    }

    fn try_wait(&self) -> Result<()> {
        self.try_wait_for(None)
    }

    fn has_news(&self) -> Result<bool> {
        self.note_reported()
    }

    fn arm_for_news(&self) -> Result<()> {
        let reported = *self.reported()?;
        self.try_wait_for(Some(reported))
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        if let Ok(mut state) = self.domain.state() {
            self.forget_sleepers(&mut state);
        }
    }
}

/// Defines functions that read a value.
macro_rules! read_calls {
    ($($(#[$documentation:meta])* $name:ident: $value:expr;)*) => {$(
        $(#[$documentation])*
        ///
        /// # Returns
        /// The value; 0 for an object that is not a counter, since the interface has no room for
        /// errors.
        ///
        /// # Safety
        /// `counter` is null or a live object of libfabric.
        unsafe extern "C" fn $name(counter: *mut fid_cntr) -> u64 {
            let mut result = 0;
            status(|| {
                // SAFETY: by the caller's contract.
                let counter: &Counter = unsafe { transfer_object(counter.cast()) }?;
                result = *$value.of(&mut counter.values()?);
                Ok(())
            });
            result
        }
    )*};
}

read_calls! {
    /// Reads the number of operations that have succeeded (`fi_cntr_read`).
    read: Value::Successes;
    /// Reads the number of operations that have failed (`fi_cntr_readerr`).
    readerr: Value::Errors;
}

/// Defines functions that change a value.
macro_rules! change_calls {
    ($($(#[$documentation:meta])* $name:ident: $method:ident, $value:expr;)*) => {$(
        $(#[$documentation])*
        ///
        /// # Returns
        /// 0, or `-FI_EINVAL` for an object that is not a counter.
        ///
        /// # Safety
        /// Any pointer is permitted.
        unsafe extern "C" fn $name(counter: *mut fid_cntr, value: u64) -> c_int {
            // SAFETY: any pointer is permitted.
            status(|| unsafe { object::<Counter>(counter.cast()) }?.$method($value, value))
        }
    )*};
}

change_calls! {
    /// Adds to the successes (`fi_cntr_add`).
    add: add, Value::Successes;
    /// Adds to the errors (`fi_cntr_adderr`).
    adderr: add, Value::Errors;
    /// Sets the successes (`fi_cntr_set`).
    set: set, Value::Successes;
    /// Sets the errors (`fi_cntr_seterr`).
    seterr: set, Value::Errors;
}

/// Waits until the successes reach `threshold`, for `timeout` milliseconds, or without end if that
/// is negative (`fi_cntr_wait`).
///
/// # Returns
/// 0; `-FI_ETIMEDOUT`; `-FI_EAVAIL` if an operation fails meanwhile; `-FI_EINVAL` for an object
/// that is not a counter, and for a counter that was opened without a wait object.
///
/// # Safety
/// Any pointer is permitted.
unsafe extern "C" fn wait(counter: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    // SAFETY: any pointer is permitted.
    status(|| unsafe { object::<Counter>(counter.cast()) }?.wait(threshold, timeout))
}
