//! A simulated host, from the view of its programs.

use efa_core::address::{Gid, Qpn};
use efa_core::nic::UserSlice;

use super::fabric::Fabric;
use super::host_id::HostId;
use super::memory::{MemoryFault, OutOfMemory};
use efa_device_model::device::Device;
use efa_device_model::fault::{Action, Errno, Fault, Match, Point};

/// A host of a fabric: memory, and a device on which queue pairs are opened. This is a handle:
/// clones refer to the same host.
///
/// Memory is lost when the host is [killed](Fabric::kill).
#[derive(Clone, Debug)]
pub struct SimHost {
    pub(super) fabric: Fabric,
    id: HostId,
}

impl SimHost {
    pub(super) fn new(fabric: Fabric, id: HostId) -> Self {
        SimHost { fabric, id }
    }

    /// The fabric that the host belongs to.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The host's number.
    pub fn id(&self) -> HostId {
        self.id
    }

    /// The GID of the host's device.
    pub fn gid(&self) -> Gid {
        self.fabric.0.borrow().wire.port(self.id).gid
    }

    /// The next queue pair on this host gets this number, independent of the policy, if the number
    /// is free at that time.
    pub fn prefer_qpn(&self, qpn: Qpn) {
        let next = self.local(Point::QueuePair);
        self.fabric
            .install(Fault::new(next, Action::Qpn(qpn)).times(1));
    }

    /// Makes `times` memory registrations on this host fail, after the next `skip` ones, with the
    /// error for exhausted regions.
    pub fn fail_registrations(&self, skip: u64, times: u64) {
        let registrations = self.local(Point::Registration);
        let fail = Action::Fail(Errno(libc::ENOMEM));
        let fault = Fault::new(registrations, fail).skip(skip).times(times);
        self.fabric.install(fault);
    }

    fn local(&self, on: Point) -> Match {
        Match {
            host: Some(self.gid().into()),
            ..Match::any(on)
        }
    }

    /// Allocates zeroed memory. Addresses are never reused.
    pub fn allocate(&self, length: usize) -> Result<UserSlice, OutOfMemory> {
        let mut world = self.fabric.0.borrow_mut();
        let address = world.host(self.id).memory.allocate(length)?;
        Ok(UserSlice { address, length })
    }

    /// Allocates memory with these contents.
    pub fn allocate_from(&self, bytes: &[u8]) -> Result<UserSlice, OutOfMemory> {
        let slice = self.allocate(bytes.len())?;
        self.write(slice.address, bytes)
            .expect("the memory was allocated just now");
        Ok(slice)
    }

    /// Frees memory; `address` has to be the first byte of an allocation.
    pub fn free(&self, address: u64) -> Result<(), MemoryFault> {
        self.fabric
            .0
            .borrow_mut()
            .host(self.id)
            .memory
            .free(address)
    }

    /// Calls `f` with the host's device, for objects that no domain offers: reliable connections
    /// and shared receive queues. Requests that `f` posts are sent immediately.
    pub fn with_device<T>(&self, f: impl FnOnce(&mut Device) -> T) -> T {
        let mut world = self.fabric.0.borrow_mut();
        let result = f(&mut world.host(self.id).device);
        world.drive(self.id);
        result
    }

    /// Reads memory.
    pub fn read(&self, memory: UserSlice) -> Result<Vec<u8>, MemoryFault> {
        let world = self.fabric.0.borrow();
        let host = &world.hosts[self.id.index()];
        Ok(host.memory.bytes(memory.address, memory.length)?.to_vec())
    }

    /// Writes memory at `address`.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), MemoryFault> {
        let mut world = self.fabric.0.borrow_mut();
        let memory = &mut world.host(self.id).memory;
        memory
            .bytes_mut(address, bytes.len())?
            .copy_from_slice(bytes);
        Ok(())
    }
}
