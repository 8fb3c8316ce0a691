//! Bindings of an endpoint.

use std::ffi::c_void;

use efa_core::endpoint::{EndpointId, Errno, Statistics};

use crate::ffi::object::{Ref, object};
use crate::ffi::result::{ENOSYS, Result};
use crate::ffi::{FI_RECV, FI_SELECTIVE_COMPLETION, FI_TRANSMIT};
use crate::objects::address_vector::AddressVector;
use crate::objects::completion_queue::CompletionQueue;
use crate::objects::counter::Counter;
use crate::objects::domain::Domain;
use crate::objects::event_queue::EventQueue;

/// The objects that an endpoint uses, and keeps open.
#[derive(Default)]
pub(crate) struct Bindings {
    pub(crate) vector: Option<Ref<AddressVector>>,
    pub(crate) transmit: Option<BoundQueue>,
    pub(crate) receive: Option<BoundQueue>,
    pub(crate) events: Option<Ref<EventQueue>>,
    /// The counters, with the operations that each counts.
    counters: Vec<(Ref<Counter>, u64)>,
}

/// The completion queue of one direction.
pub(crate) struct BoundQueue {
    pub(crate) queue: Ref<CompletionQueue>,
    /// Successes are reported on request only (`FI_SELECTIVE_COMPLETION`).
    pub(crate) selective: bool,
}

impl Bindings {
    /// Binds an object to an endpoint of this domain.
    ///
    /// # Errors
    /// `FI_EINVAL` for objects that cannot be bound, objects of another domain, a second object of
    /// a type that is bound once, and flags that the object does not support; the errors of
    /// [`Counter::check`], and `FI_ENOSYS` for counters of datagrams.
    ///
    /// # Safety
    /// C does not close the other object meanwhile; the pointer may be any.
    pub(crate) unsafe fn bind(
        &mut self,
        domain: &Ref<Domain>,
        other: *const c_void,
        flags: u64,
    ) -> Result<()> {
        // SAFETY: C does not close it meanwhile, by the caller's contract.
        if let Ok(vector) = unsafe { object::<AddressVector>(other) } {
            if self.vector.is_some() || !domain.is(&vector.domain) {
                return Err(Errno::EINVAL);
            }
            self.vector = Some(Ref::new(vector));
        // SAFETY: as above.
        } else if let Ok(queue) = unsafe { object::<CompletionQueue>(other) } {
            if !domain.is(&queue.domain) {
                return Err(Errno::EINVAL);
            }
            self.bind_queue(queue, flags)?;
        // SAFETY: as above.
        } else if let Ok(counter) = unsafe { object::<Counter>(other) } {
            Counter::check(flags)?;
            if domain.endpoint_type.is_datagram() {
                return Err(ENOSYS);
            }
            if !domain.is(&counter.domain) {
                return Err(Errno::EINVAL);
            }
            self.counters.push((Ref::new(counter), flags));
        } else {
            // SAFETY: as above.
            let events: &EventQueue = unsafe { object(other) }?;
            if self.events.is_some() {
                return Err(Errno::EINVAL);
            }
            self.events = Some(Ref::new(events));
        }
        Ok(())
    }

    fn bind_queue(&mut self, queue: &CompletionQueue, flags: u64) -> Result<()> {
        let directions = flags & (FI_TRANSMIT | FI_RECV);
        let is_taken = (directions & FI_TRANSMIT != 0 && self.transmit.is_some())
            || (directions & FI_RECV != 0 && self.receive.is_some());
        if directions == 0 || is_taken || flags & !(directions | FI_SELECTIVE_COMPLETION) != 0 {
            return Err(Errno::EINVAL);
        }
        let bound = || BoundQueue {
            queue: Ref::new(queue),
            selective: flags & FI_SELECTIVE_COMPLETION != 0,
        };
        if directions & FI_TRANSMIT != 0 {
            self.transmit = Some(bound());
        }
        if directions & FI_RECV != 0 {
            self.receive = Some(bound());
        }
        Ok(())
    }

    /// Returns whether a thread may sleep until something happens on the endpoint.
    pub(crate) fn can_sleep(&self) -> bool {
        let mut queues = [&self.transmit, &self.receive].into_iter().flatten();
        let mut counters = self.counters.iter();
        queues.any(|bound| bound.queue.can_sleep())
            || counters.any(|(counter, _)| counter.can_sleep())
    }

    /// Starts counting the endpoint's operations.
    pub(crate) fn attach_counters(&self, id: EndpointId) {
        for (counter, operations) in &self.counters {
            counter.attach(id, *operations);
        }
    }

    /// Transfers the final counts of the endpoint to the counters.
    pub(crate) fn detach_counters(&self, id: EndpointId, statistics: &Statistics) {
        for (counter, _) in &self.counters {
            counter.detach(id, statistics);
        }
    }
}
