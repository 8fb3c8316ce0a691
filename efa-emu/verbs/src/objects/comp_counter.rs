//! Completion counters.

use std::sync::Arc;

use efa_device_model::device::{CompCounter, CountedOps, CounterId};

use super::context::Context;
use super::handle::{CStruct, Handle, handle};
use super::queue_pair::QueuePair;
use crate::abi::ibv_comp_cntr;
use crate::ffi::errno::Errno;

/// A completion counter.
pub(crate) struct Counter {
    c: CStruct<ibv_comp_cntr>,
    pub(crate) context: Arc<Context>,
    id: CounterId,
    pub(crate) values: Arc<CompCounter>,
}

handle!(Counter, ibv_comp_cntr);

impl Counter {
    /// Makes a counter with these values.
    pub(crate) fn create(
        context: Arc<Context>,
        values: CompCounter,
    ) -> Result<Arc<Counter>, Errno> {
        let values = Arc::new(values);
        let hardware = context.hardware()?;
        let id = hardware.with_device(|device| device.create_counter(Arc::clone(&values)))??;
        Ok(Arc::new(Counter {
            c: CStruct::new(ibv_comp_cntr {
                context: context.c_pointer(),
                handle: id.0,
            }),
            context,
            id,
            values,
        }))
    }

    /// Removes the counter from the device; `EBUSY` while it is attached to a queue pair.
    pub(crate) fn destroy(&self) -> Result<(), Errno> {
        self.context
            .forget(|device| device.destroy_counter(self.id))
    }

    /// Counts these operations of a queue pair of the same context from now on.
    pub(crate) fn attach(&self, pair: &QueuePair, ops: CountedOps) -> Result<(), Errno> {
        let hardware = pair.context.hardware()?;
        Ok(hardware.with_device(|device| device.attach_counter(pair.qpn, self.id, ops))??)
    }
}
