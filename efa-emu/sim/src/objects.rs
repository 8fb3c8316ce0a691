//! The objects of a program on a host's device, and how they are destroyed.

use std::cell::RefMut;
use std::rc::Rc;
use std::sync::Arc;

use efa_core::address::{Ahn, Gid, Qkey, Qpn};
use efa_core::nic::{Access, NicError};

use super::host::SimHost;
use super::memory::AddressSpace;
use super::world::{Host, World};
use efa_device_model::device::queue::{CompletionRing, RequestIdSize};
use efa_device_model::device::{
    CqId, Error, Lkey, MemoryRegion, PdId, QpChange, QpConfig, QpRings, RegionKeys,
};

/// The request ids of the simulator's clients, on every device generation. With 16 bits, which a
/// table translates, a completion that a fault duplicates is recognised as stale.
pub(super) const REQUEST_IDS: RequestIdSize = RequestIdSize::Bits16;

/// The host is down, or it crashed or lost its device since the domain was opened.
const HOST_IS_DOWN: NicError = NicError::Device {
    call: "a call on a host that is down",
    errno: libc::ENODEV,
};

/// One incarnation of a host's device. Its objects are lost once the host has crashed, even if it
/// was restarted, or once another device has replaced a removed one.
#[derive(Clone)]
pub(super) struct HostIncarnation {
    host: SimHost,
    incarnation: u32,
}

impl HostIncarnation {
    /// The current incarnation of a host.
    pub(super) fn present(host: &SimHost) -> Result<Self, NicError> {
        let incarnation = host.fabric().0.borrow().wire.port(host.id()).incarnation;
        let present = HostIncarnation {
            host: host.clone(),
            incarnation,
        };
        present.check_alive()?;
        Ok(present)
    }

    pub(super) fn host(&self) -> &SimHost {
        &self.host
    }

    fn world(&self) -> RefMut<'_, World> {
        self.host.fabric().0.borrow_mut()
    }

    pub(super) fn check_alive(&self) -> Result<(), NicError> {
        match self.is_alive(&self.host.fabric().0.borrow()) {
            true => Ok(()),
            false => Err(HOST_IS_DOWN),
        }
    }

    fn is_alive(&self, world: &World) -> bool {
        let port = world.wire.port(self.host.id());
        port.alive && port.incarnation == self.incarnation
    }

    /// Calls `f` with the host, if this incarnation has not ended.
    pub(super) fn with_host<T>(
        &self,
        f: impl FnOnce(&mut Host) -> Result<T, Error>,
    ) -> Result<T, NicError> {
        let mut world = self.world();
        if !self.is_alive(&world) {
            return Err(HOST_IS_DOWN);
        }
        Ok(f(world.host(self.host.id()))?)
    }

    /// Releases an object of this incarnation. No other object uses it, so that this does not fail;
    /// after a crash there is nothing to release.
    fn give_back(&self, f: impl FnOnce(&mut Host) -> Result<(), Error>) {
        let _ = self.with_host(f);
    }

    /// Calls `f` with the host's memory. After a crash that is the memory of the host's next
    /// incarnation, which has other addresses.
    pub(super) fn with_memory<T>(&self, f: impl FnOnce(&mut AddressSpace) -> T) -> T {
        f(&mut self.world().host(self.host.id()).memory)
    }

    /// Lets the device send.
    pub(super) fn drive(&self) {
        self.world().drive(self.host.id());
    }

    /// The error number of a registration that a fault makes fail.
    pub(super) fn registration_failure(&self, length: u64) -> Option<i32> {
        self.world().registration_failure(self.host.id(), length)
    }

    pub(super) fn completion_window(&self) -> usize {
        self.world().completion_window
    }

    pub(super) fn random_below(&self, bound: usize) -> usize {
        self.world().completion_random.below(bound as u64) as usize
    }

    pub(super) fn random_qkey(&self) -> Qkey {
        Qkey(self.world().qkey_random.next_u32())
    }

    pub(super) fn next_generation(&self) -> u32 {
        self.world().host(self.host.id()).next_generation()
    }
}

/// A protection domain of the device. It is destroyed with the last object in it.
pub(super) struct ProtectionDomain {
    incarnation: HostIncarnation,
    id: PdId,
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        self.incarnation
            .give_back(|host| host.device.dealloc_pd(self.id));
    }
}

/// A completion queue of the device. It is destroyed with the last queue pair that uses it.
pub(super) struct DeviceCq {
    incarnation: HostIncarnation,
    id: CqId,
}

impl DeviceCq {
    pub(super) fn create(
        incarnation: &HostIncarnation,
        entries: u32,
    ) -> Result<(Rc<Self>, Arc<CompletionRing>), NicError> {
        let (id, ring) =
            incarnation.with_host(|host| host.device.create_cq(entries, REQUEST_IDS))?;
        let incarnation = incarnation.clone();
        Ok((Rc::new(DeviceCq { incarnation, id }), ring))
    }
}

impl Drop for DeviceCq {
    fn drop(&mut self) {
        self.incarnation
            .give_back(|host| host.device.destroy_cq(self.id));
    }
}

/// The registered memory of packet buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pool {
    /// The address of the first buffer.
    pub(super) base: u64,
    /// The distance between two buffers in bytes.
    pub(super) stride: usize,
    pub(super) lkey: Lkey,
}

/// The objects of a domain. Dropping it destroys them, so that no objects remain after a creation
/// that fails half-way.
pub(super) struct DomainObjects {
    pub(super) incarnation: HostIncarnation,
    pool: Option<u64>,
    regions: Vec<Lkey>,
    handles: Vec<Ahn>,
    pd: Rc<ProtectionDomain>,
}

impl DomainObjects {
    pub(super) fn new(host: &SimHost) -> Result<Self, NicError> {
        let incarnation = HostIncarnation::present(host)?;
        let id = incarnation.with_host(|host| host.device.alloc_pd())?;
        Ok(DomainObjects {
            pd: Rc::new(ProtectionDomain {
                incarnation: incarnation.clone(),
                id,
            }),
            incarnation,
            pool: None,
            regions: Vec::new(),
            handles: Vec::new(),
        })
    }

    /// Reserves and registers the memory of `count` packet buffers, `stride` bytes apart.
    pub(super) fn create_pool(&mut self, count: usize, stride: usize) -> Result<Pool, NicError> {
        let base = self
            .incarnation
            .with_memory(|memory| memory.reserve_slots(count, stride))
            .map_err(|_| NicError::Exhausted("packet buffer: the host's memory is full"))?;
        self.pool = Some(base);
        let keys = self.register(MemoryRegion::new(
            base,
            count as u64 * stride as u64,
            Access::LOCAL_WRITE,
        ))?;
        Ok(Pool {
            base,
            stride,
            lkey: keys.lkey,
        })
    }

    pub(super) fn regions(&self) -> usize {
        self.regions.len()
    }

    pub(super) fn register(&mut self, region: MemoryRegion) -> Result<RegionKeys, NicError> {
        let pd = self.pd.id;
        let keys = self
            .incarnation
            .with_host(|host| host.device.register_memory(pd, region))?;
        self.regions.push(keys.lkey);
        Ok(keys)
    }

    pub(super) fn deregister(&mut self, lkey: Lkey) -> Result<(), NicError> {
        let unknown = NicError::invalid("local key", lkey.0);
        let own = self.regions.iter().position(|region| *region == lkey);
        let own = own.ok_or(unknown)?;
        self.incarnation
            .with_host(|host| host.device.deregister_memory(lkey))?;
        self.regions.swap_remove(own);
        Ok(())
    }

    pub(super) fn create_handle(&mut self, gid: Gid) -> Result<Ahn, NicError> {
        let pd = self.pd.id;
        let ahn = self
            .incarnation
            .with_host(|host| host.device.create_ah(pd, gid))?;
        self.handles.push(ahn);
        Ok(ahn)
    }

    pub(super) fn destroy_handle(&mut self, ahn: Ahn) -> Result<(), NicError> {
        let unknown = NicError::invalid("address handle", ahn.0);
        let own = self.handles.iter().position(|handle| *handle == ahn);
        let own = own.ok_or(unknown)?;
        let pd = self.pd.id;
        self.incarnation
            .with_host(|host| host.device.destroy_ah(pd, ahn))?;
        self.handles.swap_remove(own);
        Ok(())
    }
}

impl Drop for DomainObjects {
    fn drop(&mut self) {
        let DomainObjects {
            incarnation,
            pool,
            regions,
            handles,
            pd,
        } = self;
        incarnation.give_back(|host| {
            for lkey in regions.drain(..) {
                let _ = host.device.deregister_memory(lkey);
            }
            for ahn in handles.drain(..) {
                let _ = host.device.destroy_ah(pd.id, ahn);
            }
            if let Some(base) = pool.take() {
                let _ = host.memory.free(base);
            }
            Ok(())
        });
    }
}

/// A queue pair of the device, and its number.
pub(super) struct DeviceQueuePair {
    incarnation: HostIncarnation,
    qpn: Qpn,
    is_made: bool,
    // Destroyed after the queue pair: fields are dropped in the order of their declaration.
    cq: Rc<DeviceCq>,
    pd: Rc<ProtectionDomain>,
}

impl DeviceQueuePair {
    /// Reserves a number for a queue pair of this domain whose completions go to `cq`.
    pub(super) fn reserve(domain: &DomainObjects, cq: &Rc<DeviceCq>) -> Result<Self, NicError> {
        let incarnation = domain.incarnation.clone();
        let taken = incarnation.world().take_qpn(incarnation.host.id());
        let qpn = taken.ok_or(NicError::Exhausted("queue pair"))?;
        Ok(DeviceQueuePair {
            incarnation,
            qpn,
            is_made: false,
            cq: cq.clone(),
            pd: domain.pd.clone(),
        })
    }

    pub(super) fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Creates the queue pair; `config` gets the protection domain and the completion queue.
    pub(super) fn create(
        &mut self,
        config: impl FnOnce(PdId, CqId) -> QpConfig,
    ) -> Result<QpRings, NicError> {
        let config = config(self.pd.id, self.cq.id);
        let qpn = self.qpn;
        let rings = self
            .incarnation
            .with_host(|host| host.device.create_qp(qpn, config))?;
        self.is_made = true;
        Ok(rings)
    }

    /// Moves the queue pair through its states to ready-to-send.
    pub(super) fn bring_up(&self, qkey: Qkey, rnr_retry: Option<u8>) -> Result<(), NicError> {
        let mut steps = QpChange::bring_up(qkey, rnr_retry).into_iter();
        steps.try_for_each(|step| self.modify(&step))
    }

    pub(super) fn modify(&self, change: &QpChange) -> Result<(), NicError> {
        self.incarnation
            .with_host(|host| host.device.modify_qp(self.qpn, change).map(drop))
    }
}

impl Drop for DeviceQueuePair {
    fn drop(&mut self) {
        let (id, qpn) = (self.incarnation.host.id(), self.qpn);
        let mut world = self.incarnation.world();
        if !self.incarnation.is_alive(&world) {
            return;
        }
        let host = world.host(id);
        if self.is_made {
            let _ = host.device.destroy_qp(qpn);
        }
        host.qpns.release(qpn);
        world.wire.close(id, qpn);
    }
}
