//! What one queue pair owns on its host's device, and how it goes away.

use std::cell::RefMut;
use std::sync::Arc;

use efa_core::address::{Ahn, Gid, Qkey, Qpn};
use efa_core::nic::{Access, NicError};

use super::host::SimHost;
use super::memory::AddressSpace;
use super::world::{Host, World};
use crate::device::queue::CompletionRing;
use crate::device::{
    CqId, Error, Lkey, MemoryRegion, PdId, QpChange, QpConfig, QpRings, QpState, RegionKeys,
};

/// The device of a host that is down, or that crashed since the queue pair was opened.
const HOST_IS_DOWN: NicError = NicError::Device(libc::ENODEV);

/// The registered memory of packet buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pool {
    /// Address of the first buffer.
    pub(super) base: u64,
    /// Distance of two buffers in bytes.
    pub(super) stride: usize,
    pub(super) lkey: Lkey,
}

/// Objects of a device and of its host's memory. The drop gives back whatever was made, so a
/// creation that fails half-way leaves nothing behind.
pub(super) struct Objects {
    host: SimHost,
    /// Which life of the host the objects belong to.
    life: u32,
    number: Option<Qpn>,
    pd: Option<PdId>,
    cq: Option<CqId>,
    qp: Option<Qpn>,
    pool: Option<u64>,
    regions: Vec<Lkey>,
    handles: Vec<Ahn>,
}

impl Objects {
    pub(super) fn new(host: &SimHost) -> Result<Self, NicError> {
        let life = host.fabric().0.borrow().wire.port(host.id()).life;
        let objects = Objects {
            host: host.clone(),
            life,
            number: None,
            pd: None,
            cq: None,
            qp: None,
            pool: None,
            regions: Vec::new(),
            handles: Vec::new(),
        };
        objects.check_alive()?;
        Ok(objects)
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
        port.alive && port.life == self.life
    }

    /// Calls `f` with the host, if it is still the one that the objects were made on.
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

    /// Calls `f` with the host's memory. After a crash that is the memory of the host's next life,
    /// whose addresses differ.
    pub(super) fn with_memory<T>(&self, f: impl FnOnce(&mut AddressSpace) -> T) -> T {
        f(&mut self.world().host(self.host.id()).memory)
    }

    /// Lets the device send what it has.
    pub(super) fn drive(&self) {
        self.world().drive(self.host.id());
    }

    /// The error number of a registration that a fault wants to fail.
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

    pub(super) fn take_qpn(&mut self) -> Result<Qpn, NicError> {
        let taken = self.world().take_qpn(self.host.id());
        let qpn = taken.ok_or(NicError::Exhausted("queue pair"))?;
        self.number = Some(qpn);
        Ok(qpn)
    }

    pub(super) fn create_pd(&mut self) -> Result<PdId, NicError> {
        let pd = self.with_host(|host| host.device.alloc_pd())?;
        self.pd = Some(pd);
        Ok(pd)
    }

    /// Reserves and registers the memory of `count` packet buffers, `stride` bytes apart.
    pub(super) fn create_pool(
        &mut self,
        pd: PdId,
        count: usize,
        stride: usize,
    ) -> Result<Pool, NicError> {
        let base = self
            .with_memory(|memory| memory.reserve_slots(count, stride))
            .map_err(|_| NicError::Exhausted("packet buffer: the host's memory is full"))?;
        self.pool = Some(base);
        let region = MemoryRegion {
            address: base,
            length: count as u64 * stride as u64,
            iova: base,
            access: Access::LOCAL_WRITE,
        };
        let keys = self.with_host(|host| host.device.register_memory(pd, region))?;
        self.regions.push(keys.lkey);
        Ok(Pool {
            base,
            stride,
            lkey: keys.lkey,
        })
    }

    pub(super) fn create_cq(
        &mut self,
        entries: u32,
    ) -> Result<(CqId, Arc<CompletionRing>), NicError> {
        let (cq, ring) = self.with_host(|host| host.device.create_cq(entries))?;
        self.cq = Some(cq);
        Ok((cq, ring))
    }

    pub(super) fn create_qp(&mut self, qpn: Qpn, config: QpConfig) -> Result<QpRings, NicError> {
        let rings = self.with_host(|host| host.device.create_qp(qpn, config))?;
        self.qp = Some(qpn);
        Ok(rings)
    }

    /// Takes the queue pair through its states to ready-to-send.
    pub(super) fn bring_up(
        &mut self,
        qpn: Qpn,
        qkey: Qkey,
        rnr_retry: Option<u8>,
    ) -> Result<(), NicError> {
        let steps = [
            QpChange {
                state: Some(QpState::Init),
                pkey_index: Some(0),
                port: Some(1),
                qkey: Some(qkey),
                ..QpChange::default()
            },
            QpChange {
                state: Some(QpState::ReadyToReceive),
                ..QpChange::default()
            },
            QpChange {
                state: Some(QpState::ReadyToSend),
                sq_psn: Some(0),
                rnr_retry,
                ..QpChange::default()
            },
        ];
        for step in &steps {
            self.with_host(|host| host.device.modify_qp(qpn, step))?;
        }
        Ok(())
    }

    pub(super) fn register(&mut self, region: MemoryRegion) -> Result<RegionKeys, NicError> {
        let pd = self.pd.ok_or(HOST_IS_DOWN)?;
        let keys = self.with_host(|host| host.device.register_memory(pd, region))?;
        self.regions.push(keys.lkey);
        Ok(keys)
    }

    pub(super) fn deregister(&mut self, lkey: Lkey) -> Result<(), NicError> {
        let unknown = NicError::Invalid {
            what: "local key",
            value: lkey.0.into(),
        };
        let own = self.regions.iter().position(|region| *region == lkey);
        let own = own.ok_or(unknown)?;
        self.with_host(|host| host.device.deregister_memory(lkey))?;
        self.regions.swap_remove(own);
        Ok(())
    }

    pub(super) fn create_handle(&mut self, gid: Gid) -> Result<Ahn, NicError> {
        let pd = self.pd.ok_or(HOST_IS_DOWN)?;
        let ahn = self.with_host(|host| host.device.create_ah(pd, gid))?;
        self.handles.push(ahn);
        Ok(ahn)
    }

    pub(super) fn destroy_handle(&mut self, ahn: Ahn) -> Result<(), NicError> {
        let unknown = NicError::Invalid {
            what: "address handle",
            value: ahn.0.into(),
        };
        let own = self.handles.iter().position(|handle| *handle == ahn);
        let own = own.ok_or(unknown)?;
        let pd = self.pd.ok_or(HOST_IS_DOWN)?;
        self.with_host(|host| host.device.destroy_ah(pd, ahn))?;
        self.handles.swap_remove(own);
        Ok(())
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        let mut world = self.host.fabric().0.borrow_mut();
        // After a crash there is nothing left to give back.
        if !self.is_alive(&world) {
            return;
        }
        let host = world.host(self.host.id());
        let device = &mut host.device;
        // The objects are this queue pair's own and nobody else uses them, so none of this fails.
        if let Some(qpn) = self.qp {
            let _ = device.destroy_qp(qpn);
        }
        if let Some(cq) = self.cq {
            let _ = device.destroy_cq(cq);
        }
        for lkey in self.regions.drain(..) {
            let _ = device.deregister_memory(lkey);
        }
        if let Some(pd) = self.pd {
            for ahn in self.handles.drain(..) {
                let _ = device.destroy_ah(pd, ahn);
            }
            let _ = device.dealloc_pd(pd);
        }
        if let Some(base) = self.pool {
            let _ = host.memory.free(base);
        }
        if let Some(qpn) = self.number {
            host.qpns.release(qpn);
            world.wire.close(self.host.id(), qpn);
        }
    }
}

impl From<Error> for NicError {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid { what, value } | Error::NotFound { what, value } => {
                NicError::Invalid { what, value }
            }
            Error::QueueFull(_) => NicError::QueueFull,
            Error::Exhausted(what) => NicError::Exhausted(what),
            Error::Unsupported(what) => NicError::Unsupported(what),
            Error::Staged(libc::ENOMEM) => NicError::Exhausted("memory region"),
            Error::Busy(_) | Error::Staged(_) => NicError::Device(error.errno()),
        }
    }
}
