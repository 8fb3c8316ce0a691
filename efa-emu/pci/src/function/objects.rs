//! The objects of a guest, as far as the device model does not store them.

use std::collections::HashMap;
use std::sync::Arc;

use efa_core::address::Qpn;
use efa_device_model::device::QpRings;
use efa_device_model::device::queue::CompletionRing;
use slab::Slab;

use crate::admin::AdminStatus;
use crate::memory::StitchedRegion;

/// The most user access regions.
const MAX_UARS: usize = 4096;

/// A queue pair.
pub(super) struct QueuePair {
    pub(super) qpn: Qpn,
    pub(super) rings: QpRings,
    /// Offset of its send queue in the region of send queues, if it has one.
    pub(super) send_queue: Option<u32>,
}

/// The objects of a guest.
#[derive(Default)]
pub(super) struct Objects {
    uars: Slab<()>,
    /// By handle.
    pub(super) queue_pairs: Slab<QueuePair>,
    /// By number.
    pub(super) completion_queues: HashMap<u16, Arc<CompletionRing>>,
    /// By local key.
    pub(super) regions: HashMap<u32, StitchedRegion>,
}

impl Objects {
    pub(super) fn alloc_uar(&mut self) -> Result<u16, AdminStatus> {
        match self.uars.len() < MAX_UARS {
            true => Ok(self.uars.insert(()) as u16),
            false => Err(AdminStatus::NoResources),
        }
    }

    pub(super) fn dealloc_uar(&mut self, uar: u16) -> Result<(), AdminStatus> {
        let freed = self.uars.try_remove(uar.into());
        freed.ok_or(AdminStatus::IllegalParameter)
    }

    pub(super) fn check_uar(&self, uar: u16) -> Result<(), AdminStatus> {
        let is_known = self.uars.contains(uar.into());
        is_known.then_some(()).ok_or(AdminStatus::IllegalParameter)
    }

    /// The queue pair with this handle.
    pub(super) fn queue_pair(&self, handle: u32) -> Result<&QueuePair, AdminStatus> {
        let pair = self.queue_pairs.get(handle as usize);
        pair.ok_or(AdminStatus::IllegalParameter)
    }
}
