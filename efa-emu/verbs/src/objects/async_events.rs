//! Asynchronous events: failures of objects and changes of the device and its port. An event has 16
//! bytes, as in the kernel's `ib_uverbs_async_event_desc`: the address of the object, or the number
//! of the port, and the type.

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::event_pipe::{Discard, EventPipe};
use crate::ffi::errno::Errno;

/// Types of events (`enum ibv_event_type`).
pub(crate) const IBV_EVENT_CQ_ERR: c_int = 0;
pub(crate) const IBV_EVENT_QP_FATAL: c_int = 1;
pub(crate) const IBV_EVENT_QP_REQ_ERR: c_int = 2;
pub(crate) const IBV_EVENT_QP_ACCESS_ERR: c_int = 3;
pub(crate) const IBV_EVENT_DEVICE_FATAL: c_int = 8;
pub(crate) const IBV_EVENT_PORT_ACTIVE: c_int = 9;
pub(crate) const IBV_EVENT_PORT_ERR: c_int = 10;
pub(crate) const IBV_EVENT_SRQ_LIMIT_REACHED: c_int = 15;
pub(crate) const IBV_EVENT_QP_LAST_WQE_REACHED: c_int = 16;
/// Since rdma-core 62.
pub(crate) const IBV_EVENT_DEVICE_SPEED_CHANGE: c_int = 20;

/// Bytes of an event.
const EVENT_SIZE: usize = 16;

/// Whether events of this type concern an object, whose destruction waits for their
/// acknowledgement.
fn is_about_object(event_type: c_int) -> bool {
    matches!(
        event_type,
        IBV_EVENT_CQ_ERR
            | IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_SRQ_LIMIT_REACHED
            | IBV_EVENT_QP_LAST_WQE_REACHED
    )
}

/// The number of events that programs read and have not acknowledged, for each object, by its
/// address. An acknowledged event does not name its context.
static UNACKNOWLEDGED: Mutex<BTreeMap<usize, u32>> = Mutex::new(BTreeMap::new());
static ACKNOWLEDGED: Condvar = Condvar::new();

fn unacknowledged() -> MutexGuard<'static, BTreeMap<usize, u32>> {
    UNACKNOWLEDGED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Counts the acknowledgement of an event of this type about this object, by its address.
pub(crate) fn acknowledge(event_type: c_int, object: usize) {
    if !is_about_object(event_type) {
        return;
    }
    let mut events = unacknowledged();
    if let Some(count) = events.get_mut(&object) {
        *count -= 1;
        if *count == 0 {
            events.remove(&object);
        }
    }
    ACKNOWLEDGED.notify_all();
}

/// The events of a context that the program has not read yet.
pub(crate) struct AsyncEvents(EventPipe<EVENT_SIZE>);

impl AsyncEvents {
    pub(crate) fn new() -> Result<AsyncEvents, Errno> {
        EventPipe::new().map(AsyncEvents)
    }

    /// The descriptor for the program.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.descriptor()
    }

    /// Adds an event about an object, by its address, or about a port. Called by the device, under
    /// its lock.
    pub(crate) fn raise(&self, event_type: c_int, element: usize) {
        let mut bytes = [0; EVENT_SIZE];
        bytes[..8].copy_from_slice(&(element as u64).to_ne_bytes());
        bytes[8..12].copy_from_slice(&event_type.to_ne_bytes());
        self.0.push(bytes);
    }

    /// Reads the oldest event, waiting for it unless the program's descriptor is non-blocking.
    pub(crate) fn take(&self) -> Result<(c_int, usize), Errno> {
        self.0.take(|bytes| {
            let (event_type, element) = read(&bytes);
            if is_about_object(event_type) {
                *unacknowledged().entry(element).or_default() += 1;
            }
            Some((event_type, element))
        })
    }

    /// For an object that the device has destroyed: drops its events, and waits until the program
    /// has acknowledged the events that it read.
    pub(crate) fn drain(&self, object: usize) {
        self.0.discard(Discard::All, |bytes| {
            let (event_type, element) = read(bytes);
            is_about_object(event_type) && element == object
        });
        let pending = |events: &mut BTreeMap<_, _>| events.contains_key(&object);
        drop(ACKNOWLEDGED.wait_while(unacknowledged(), pending));
    }
}

/// The type and the object or port of an event.
fn read(bytes: &[u8; EVENT_SIZE]) -> (c_int, usize) {
    let [element, event_type] = [&bytes[..8], &bytes[8..]];
    let element = u64::from_ne_bytes(element.try_into().expect("8 bytes"));
    let event_type = c_int::from_ne_bytes(event_type[..4].try_into().expect("4 bytes"));
    (event_type, element as usize)
}
