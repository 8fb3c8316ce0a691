//! Asynchronous events: what the device tells a program that it did not ask for. An event is 16 bytes, as in
//! the kernel's `ib_uverbs_async_event_desc`: the address of the object, or the number of the port, and the type.

use core::ffi::{c_int, c_void};
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::abi::{ibv_async_event, ibv_context};
use crate::context::CONTEXTS;
use crate::errno::{self, Errno};
use crate::event_pipe::{EventPipe, Extent};

/// Types of events (`enum ibv_event_type`).
pub(crate) const IBV_EVENT_CQ_ERR: c_int = 0;
pub(crate) const IBV_EVENT_QP_FATAL: c_int = 1;
pub(crate) const IBV_EVENT_DEVICE_FATAL: c_int = 8;
pub(crate) const IBV_EVENT_PORT_ACTIVE: c_int = 9;
pub(crate) const IBV_EVENT_PORT_ERR: c_int = 10;
/// Since rdma-core 62.
pub(crate) const IBV_EVENT_DEVICE_SPEED_CHANGE: c_int = 20;

/// Bytes of an event.
const EVENT_SIZE: usize = 16;

/// Whether events of this type are about an object, which waits for their acknowledgement.
fn is_about_object(event_type: c_int) -> bool {
    matches!(event_type, IBV_EVENT_CQ_ERR | IBV_EVENT_QP_FATAL)
}

/// Acknowledgements that programs owe: for each object, by its address, the events that were taken and not
/// acknowledged. An event that is acknowledged does not say of which context it was.
struct Owed {
    by_object: Mutex<BTreeMap<usize, u32>>,
    acknowledged: Condvar,
}

static OWED: Owed = Owed {
    by_object: Mutex::new(BTreeMap::new()),
    acknowledged: Condvar::new(),
};

impl Owed {
    fn by_object(&self) -> MutexGuard<'_, BTreeMap<usize, u32>> {
        self.by_object
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, object: usize) {
        *self.by_object().entry(object).or_default() += 1;
    }

    fn acknowledge(&self, object: usize) {
        let mut by_object = self.by_object();
        if let Some(events) = by_object.get_mut(&object) {
            *events -= 1;
            if *events == 0 {
                by_object.remove(&object);
            }
        }
        self.acknowledged.notify_all();
    }

    /// Waits until all events of an object are acknowledged.
    fn wait(&self, object: usize) {
        let by_object = self.by_object();
        let owes = |by_object: &mut BTreeMap<_, _>| by_object.contains_key(&object);
        drop(self.acknowledged.wait_while(by_object, owes));
    }
}

/// The events of a context that the program has not taken yet.
pub(crate) struct AsyncEvents(EventPipe<EVENT_SIZE>);

impl AsyncEvents {
    pub(crate) fn new() -> Result<AsyncEvents, Errno> {
        EventPipe::new().map(AsyncEvents)
    }

    /// The descriptor for the program.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.descriptor()
    }

    /// Adds an event about an object, by its address, or about a port. Called by the device, under its lock.
    pub(crate) fn raise(&self, event_type: c_int, element: usize) {
        let mut bytes = [0; EVENT_SIZE];
        bytes[..8].copy_from_slice(&(element as u64).to_ne_bytes());
        bytes[8..12].copy_from_slice(&event_type.to_ne_bytes());
        self.0.push(bytes);
    }

    /// Takes the oldest event, waiting for it unless the program's descriptor is non-blocking.
    fn take(&self) -> Result<(c_int, usize), Errno> {
        self.0.take(|bytes| {
            let (event_type, element) = read(&bytes);
            if is_about_object(event_type) {
                OWED.take(element);
            }
            Some((event_type, element))
        })
    }

    /// For an object that has ended in the device: drops its events, and waits until the program has acknowledged
    /// those that it took.
    pub(crate) fn settle(&self, object: usize) {
        self.0.discard(Extent::All, |bytes| {
            let (event_type, element) = read(bytes);
            is_about_object(event_type) && element == object
        });
        OWED.wait(object);
    }
}

/// Type and element of an event.
fn read(bytes: &[u8; EVENT_SIZE]) -> (c_int, usize) {
    let [element, event_type] = [&bytes[..8], &bytes[8..]];
    let element = u64::from_ne_bytes(element.try_into().expect("8 bytes"));
    let event_type = c_int::from_ne_bytes(event_type[..4].try_into().expect("4 bytes"));
    (event_type, element as usize)
}

/// Waits for an event on the context.
///
/// # Safety
/// `event` is null or valid for a write.
pub(crate) unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    errno::zero_or_minus_one(CONTEXTS.get(context).and_then(|context| {
        let events = context.async_events()?;
        if event.is_null() {
            return Err(Errno::INVAL);
        }
        let (event_type, element) = events.take()?;
        // SAFETY: valid by contract.
        unsafe {
            event.write(ibv_async_event {
                element: core::ptr::with_exposed_provenance_mut::<c_void>(element),
                event_type,
            });
        }
        Ok(())
    }))
}

/// The program is done with an event that it took: its object may end.
///
/// # Safety
/// `event` is null or valid for a read.
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: by contract.
    if let Some(event) = unsafe { event.as_ref() }
        && is_about_object(event.event_type)
    {
        OWED.acknowledge(event.element.addr());
    }
}
