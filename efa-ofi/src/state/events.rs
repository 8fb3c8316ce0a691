//! The events of event queues.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard};

use efa_core::endpoint::{Errno, Failure};

use crate::ffi::host::log_warn;
use crate::ffi::result::{EOVERFLOW, Result};
use crate::ffi::{fi_eq_entry, fid, fid_t};
use crate::state::wait::EventFd;

/// The events of an event queue, and the descriptor that signals them.
#[derive(Debug)]
pub(crate) struct Events {
    queued: Mutex<Queued>,
    /// Notified while there are events, if the queue was opened for waiting.
    pub(crate) eventfd: Option<EventFd>,
}

#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) written: VecDeque<(u32, Vec<u8>)>,
    pub(crate) failed: VecDeque<FailedOperation>,
    /// The largest number of events of each of the two types.
    pub(crate) limit: usize,
}

impl Queued {
    pub(crate) fn is_empty(&self) -> bool {
        self.written.is_empty() && self.failed.is_empty()
    }
}

/// The failure of an operation that has no completion.
#[derive(Debug)]
pub(crate) struct FailedOperation {
    pub(crate) endpoint: fid_t,
    /// The context of the endpoint.
    pub(crate) context: *mut c_void,
    pub(crate) failure: Failure,
}

// SAFETY: the pointers are handed to the application, and not followed.
unsafe impl Send for FailedOperation {}

impl Events {
    /// A queue for `limit` events.
    pub(crate) fn new(limit: usize, eventfd: Option<EventFd>) -> Events {
        Events {
            queued: Mutex::new(Queued {
                written: VecDeque::new(),
                failed: VecDeque::new(),
                limit,
            }),
            eventfd,
        }
    }

    /// # Errors
    /// `FI_EOTHER` after a panic of another thread.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Queued>> {
        self.queued.lock().map_err(|_| Errno::EOTHER)
    }

    /// Runs a call on the events, and then updates the descriptor to show whether events are
    /// queued.
    pub(crate) fn with<T>(&self, call: impl FnOnce(&mut Queued) -> Result<T>) -> Result<T> {
        let mut queued = self.lock()?;
        let result = call(&mut queued);
        if let Some(eventfd) = &self.eventfd {
            match queued.is_empty() {
                true => eventfd.clear(),
                false => eventfd.notify(),
            }
        }
        result
    }

    /// Adds an event about an object. Without room it is written to the log instead.
    pub(crate) fn complete(&self, kind: u32, object: *mut fid, context: *mut c_void) {
        // The structure has no gaps.
        let mut bytes = Vec::from((object.expose_provenance() as u64).to_ne_bytes());
        bytes.extend((context.expose_provenance() as u64).to_ne_bytes());
        bytes.resize(size_of::<fi_eq_entry>(), 0);
        let added = self.with(|events| match events.written.len() < events.limit {
            true => {
                events.written.push_back((kind, bytes));
                Ok(())
            }
            false => Err(EOVERFLOW),
        });
        if added.is_err() {
            log_warn!(Endpoint, "an event queue is full; the event {kind} is lost");
        }
    }

    /// Adds the failure of an operation of an endpoint. Without room it is written to the log
    /// instead.
    pub(crate) fn fail(&self, endpoint: &fid, failure: Failure) {
        let failed = FailedOperation {
            endpoint: std::ptr::from_ref(endpoint).cast_mut(),
            context: endpoint.context,
            failure,
        };
        let added = self.with(|events| match events.failed.len() < events.limit {
            true => {
                events.failed.push_back(failed);
                Ok(())
            }
            false => Err(EOVERFLOW),
        });
        if added.is_err() {
            log_warn!(
                Endpoint,
                "an event queue is full; an operation without a completion failed: {failure}"
            );
        }
    }
}
