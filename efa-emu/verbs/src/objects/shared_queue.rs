//! Shared receive queues.

use core::ffi::c_void;
use std::sync::Arc;

use efa_device_model::device::connected::{SrqConfig, SrqId, TagConfig};

use super::comp_queue::CompQueue;
use super::context::Context;
use super::domain::Domain;
use super::handle::{CStruct, Handle, data_path_handle};
use super::hardware::Hardware;
use super::liveness::{Liveness, SharedLiveness};
use crate::abi::ibv_srq;
use crate::ffi::errno::Errno;

/// A shared receive queue.
#[repr(C)]
pub(crate) struct SharedQueue {
    c: CStruct<ibv_srq>,
    pub(crate) context: Arc<Context>,
    pub(crate) id: SrqId,
    /// Counts the queue pairs that use it.
    pub(crate) liveness: SharedLiveness,
    domain: Arc<Domain>,
    /// The device that accepts work requests immediately.
    pub(crate) hardware: Arc<Hardware>,
    /// The completion queue, if the queue matches tags.
    pub(crate) comp_queue: Option<Arc<CompQueue>>,
}

data_path_handle!(SharedQueue, ibv_srq);

/// The parameters of a shared receive queue.
pub(crate) struct Options {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    /// The program's `srq_context`.
    pub(crate) program_context: *mut c_void,
    /// The completion queue and the largest number of tags, if the queue matches tags.
    pub(crate) tags: Option<(Arc<CompQueue>, u32)>,
}

impl SharedQueue {
    /// Makes a shared receive queue in a domain.
    pub(crate) fn create(domain: Arc<Domain>, options: Options) -> Result<Arc<Self>, Errno> {
        let context = Arc::clone(&domain.context);
        let hardware = context.hardware()?;
        let config = SrqConfig {
            pd: domain.id,
            max_wr: options.max_wr,
            max_sge: options.max_sge,
            tags: options.tags.as_ref().map(|(queue, max_tags)| TagConfig {
                cq: queue.id,
                max_tags: *max_tags,
            }),
        };
        let create = || Ok(hardware.with_device(|device| device.create_srq(config))??);
        let comp_queue = options.tags.map(|(queue, _)| queue);
        let id = domain.liveness.join(|| match &comp_queue {
            Some(queue) => Liveness::during_both(&queue.liveness, &queue.liveness, create),
            None => create(),
        })?;
        Ok(Arc::new(SharedQueue {
            c: CStruct::new(ibv_srq {
                context: context.c_pointer(),
                srq_context: options.program_context,
                pd: domain.c_pointer(),
                handle: id.0,
                mutex: libc::PTHREAD_MUTEX_INITIALIZER,
                cond: libc::PTHREAD_COND_INITIALIZER,
                events_completed: 0,
            }),
            context,
            hardware,
            id,
            liveness: SharedLiveness::new(),
            domain,
            comp_queue,
        }))
    }

    /// Destroys the queue in the device, and its handle with `remove`; `EBUSY` while queue pairs
    /// receive from it. Waits until all asynchronous events that the program read are acknowledged.
    pub(crate) fn destroy(&self, remove: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        self.liveness.end(|| {
            self.context.forget(|device| device.destroy_srq(self.id))?;
            remove()
        })?;
        self.domain.liveness.leave();
        if !self.context.is_forked()
            && let Ok(events) = self.context.async_events()
        {
            events.drain(self.c_pointer().addr());
        }
        Ok(())
    }
}
