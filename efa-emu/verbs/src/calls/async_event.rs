//! Asynchronous events.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;

use efa_core::address::Qpn;
use efa_device_model::device::DeviceEvent;

use crate::abi::{ibv_async_event, ibv_context};
use crate::ffi::errno::{self, Errno};
use crate::objects::async_events::{
    self, AsyncEvents, IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_DEVICE_SPEED_CHANGE,
    IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL,
    IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED,
};
use crate::objects::comp_queue::CompQueue;
use crate::objects::handle::Handle;
use crate::objects::queue_pair::QueuePair;
use crate::objects::shared_queue::SharedQueue;
use crate::registry::{COMP_QUEUES, CONTEXTS, QUEUE_PAIRS, SHARED_QUEUES};

/// Raises an event of the device in the context with this serial number. Called by the device,
/// under its lock.
pub(super) fn raise(event: DeviceEvent, serial: u64, events: &AsyncEvents) {
    const PORT: usize = 1;
    match event {
        DeviceEvent::Completion(_) => {}
        DeviceEvent::CqError(id) => {
            let failed = |queue: &CompQueue| {
                queue.id == id
                    && queue.context.serial == serial
                    && !queue.ended.load(Ordering::Relaxed)
            };
            for queue in COMP_QUEUES.all(failed) {
                // The reason for missing completions is printed; few programs read events.
                eprintln!(
                    "efa-emu: a completion queue with {} entries was full when another one was due, or a \
                     rule says so: completions are lost",
                    queue.entries()
                );
                events.raise(IBV_EVENT_CQ_ERR, queue.c_pointer().expose_provenance());
            }
        }
        DeviceEvent::QpFatal(qpn) => of_queue_pair(IBV_EVENT_QP_FATAL, qpn, serial, events),
        DeviceEvent::QpRequestError(qpn) => {
            of_queue_pair(IBV_EVENT_QP_REQ_ERR, qpn, serial, events);
        }
        DeviceEvent::QpAccessError(qpn) => {
            of_queue_pair(IBV_EVENT_QP_ACCESS_ERR, qpn, serial, events);
        }
        DeviceEvent::QpLastReceive(qpn) => {
            of_queue_pair(IBV_EVENT_QP_LAST_WQE_REACHED, qpn, serial, events);
        }
        DeviceEvent::SrqLimit(id) => {
            let of_id = |queue: &SharedQueue| queue.id == id && queue.context.serial == serial;
            for queue in SHARED_QUEUES.all(of_id) {
                let pointer = queue.c_pointer().expose_provenance();
                events.raise(IBV_EVENT_SRQ_LIMIT_REACHED, pointer);
            }
        }
        DeviceEvent::Fatal => events.raise(IBV_EVENT_DEVICE_FATAL, 0),
        DeviceEvent::PortError => events.raise(IBV_EVENT_PORT_ERR, PORT),
        DeviceEvent::PortActive => events.raise(IBV_EVENT_PORT_ACTIVE, PORT),
        // An event of the device as a whole, without a port.
        DeviceEvent::SpeedChange => events.raise(IBV_EVENT_DEVICE_SPEED_CHANGE, 0),
    }
}

fn of_queue_pair(event_type: c_int, qpn: Qpn, serial: u64, events: &AsyncEvents) {
    let is_it = |pair: &QueuePair| pair.qpn == qpn && pair.context.serial == serial;
    for pair in QUEUE_PAIRS.all(is_it) {
        events.raise(event_type, pair.c_pointer().expose_provenance());
    }
}

/// Waits for the next event of the context, unless its descriptor is non-blocking, and writes it to
/// `*event`. An event about an object has to be acknowledged before the object can be destroyed.
///
/// Returns 0, or -1 with `errno`: `EAGAIN` if there is no event and the descriptor is non-blocking,
/// `EINVAL` for a pointer that is null or no context, `EBADF` if the device was closed meanwhile.
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
        let taken = ibv_async_event {
            element: core::ptr::with_exposed_provenance_mut::<c_void>(element),
            event_type,
        };
        // SAFETY: valid by contract.
        unsafe { event.write(taken) };
        Ok(())
    }))
}

/// Acknowledges an event that the program read: its object may end. Does nothing for a null
/// pointer.
///
/// # Safety
/// `event` is null or valid for a read.
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: by contract.
    if let Some(event) = unsafe { event.as_ref() } {
        async_events::acknowledge(event.event_type, event.element.addr());
    }
}
