//! A protection domain as a [`Domain`]: the objects that queue pairs share.

use crate::address_book::AddressBook;
use crate::buffers::PacketBuffers;
use crate::completion_queue::{CompletionQueue, Entry};
use crate::device::HwDevice;
use crate::elements;
use crate::error::{OpenError, last_nic_error};
use crate::loaded;
use crate::memory::AddressSpace;
use crate::queue_pair::HwQueuePair;
use efa_core::address::{Ahn, Gid, Qpn};
use efa_core::nic::{
    Access, BufferId, Completion, CompletionKind, CompletionQueueId, Device, Domain, DomainConfig,
    LocalKey, NicAttributes, NicError, QueuePairConfig, Region, RemoteKey, Status, UserSlice,
};
use ibverbs_sys as ffi;
use slab::Slab;
use std::collections::HashMap;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// An RDMA request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rdma {
    /// The place of its queue pair in the domain.
    pub(crate) slot: u16,
    pub(crate) is_read: bool,
    pub(crate) context: u64,
}

/// A queue pair of the domain, and the number of its outstanding requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outstanding {
    queue_pair: Qpn,
    pub(crate) sends: usize,
    pub(crate) receives: usize,
}

/// The `wr_id` of a work request: what it is (bits 62 and 63), the place of its queue pair in the
/// domain (bits 32 to 47), and its buffer, or the place of its RDMA request (bits 0 to 31).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WorkRequestId(pub(crate) u64);

impl WorkRequestId {
    const RECV: u64 = 1 << 63;
    const SEND: u64 = 1 << 62;

    #[inline]
    pub(crate) fn recv(slot: u16, buffer: BufferId) -> Self {
        WorkRequestId(Self::RECV | u64::from(slot) << 32 | u64::from(buffer.0))
    }

    #[inline]
    pub(crate) fn send(slot: u16, buffer: BufferId) -> Self {
        WorkRequestId(Self::SEND | u64::from(slot) << 32 | u64::from(buffer.0))
    }

    pub(crate) fn rdma(slot: u16, key: usize) -> Self {
        WorkRequestId(u64::from(slot) << 32 | key as u64)
    }

    #[inline]
    fn slot(self) -> usize {
        usize::from((self.0 >> 32) as u16)
    }

    /// The buffer, or the place of the RDMA request.
    #[inline]
    fn index(self) -> u32 {
        self.0 as u32
    }
}

/// A protection domain of an EFA device with registered packet buffers, and its completion queues.
#[derive(Debug)]
pub struct HwDomain {
    // Fields are dropped in this order, in which verbs objects may be destroyed.
    pub(crate) address_book: AddressBook,
    regions: HashMap<LocalKey, Registered>,
    buffers_region: MemoryRegion,
    pub(crate) buffers: PacketBuffers,
    address_space: AddressSpace,
    completion_queues: Slab<Arc<CompletionQueue>>,
    pd: Arc<ProtectionDomain>,
    device: HwDevice,
    queue_pairs: Slab<Outstanding>,
    pub(crate) rdma: Slab<Rdma>,
    /// Requests of the engine that the device did not take.
    failed: Vec<(CompletionQueueId, WorkRequestId, Status)>,
}

// SAFETY: libibverbs allows calls from any thread, and `&mut self` keeps them apart.
unsafe impl Send for HwDomain {}

impl Device for HwDevice {
    type Domain = HwDomain;

    fn attributes(&self) -> NicAttributes {
        self.limits().clone()
    }

    fn open_domain(&self, config: &DomainConfig) -> Result<HwDomain, OpenError> {
        let pd = ProtectionDomain::alloc(self)?;
        let memory_error = |error: NicError| OpenError::Verbs {
            call: "packet buffer allocation",
            device: self.name().to_owned(),
            source: io::Error::new(io::ErrorKind::OutOfMemory, error),
        };
        let count = u32::try_from(config.packet_buffers).map_err(|_| OpenError::Config {
            what: "number of packet buffers",
            value: config.packet_buffers,
            limit: u32::MAX as usize,
        })?;
        let buffers = PacketBuffers::new(count, self.limits().mtu).map_err(memory_error)?;
        let buffers_region = pd
            .register(buffers.memory().slice(), Access::LOCAL_WRITE)
            .map_err(|_| self.last_error("ibv_reg_mr"))?;
        Ok(HwDomain {
            address_book: AddressBook::default(),
            regions: HashMap::new(),
            buffers_region,
            buffers,
            address_space: AddressSpace::default(),
            completion_queues: Slab::new(),
            pd: Arc::new(pd),
            device: self.clone(),
            queue_pairs: Slab::new(),
            rdma: Slab::new(),
            failed: Vec::new(),
        })
    }
}

impl HwDomain {
    /// The device that the domain is on.
    pub fn device(&self) -> &HwDevice {
        &self.device
    }

    /// Allocates `length` bytes of zeroed memory for transfers, owned by the domain.
    ///
    /// # Errors
    /// [`NicError::Exhausted`] if there is no memory.
    pub fn allocate(&mut self, length: usize) -> Result<UserSlice, NicError> {
        self.address_space.allocate(length)
    }

    /// Returns a copy of user memory.
    ///
    /// # Errors
    /// [`NicError::MemoryFault`] if not all of it is known to the domain.
    pub fn read(&mut self, source: UserSlice) -> Result<Vec<u8>, NicError> {
        let mut bytes = vec![0; source.length];
        self.read_user(source.address, &mut bytes)?;
        Ok(bytes)
    }

    /// Lets operations use memory that the caller owns.
    ///
    /// # Errors
    /// [`NicError::MemoryFault`] if it is empty or overlaps memory that the domain already knows.
    ///
    /// # Safety
    /// The memory is readable and writable, and stays so, and is not referenced by Rust references
    /// while operations on it are outstanding, until [`HwDomain::revoke_user`] or the end of the
    /// domain.
    pub unsafe fn allow_user(&mut self, memory: UserSlice) -> Result<(), NicError> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.address_space.allow(memory) }
    }

    /// Ends the use of the memory that [`HwDomain::allow_user`] made known at `address`. All its
    /// registrations end first, so that after `Ok` neither the device nor a peer touches the memory.
    /// Outstanding operations on it fail.
    ///
    /// # Errors
    /// The domain knows no memory of the caller at this address, or the device refuses to end a
    /// registration. In the second case the memory is still in use.
    pub fn revoke_user(&mut self, address: u64) -> Result<(), NicError> {
        let memory = self.address_space.foreign_at(address)?;
        let inside: Vec<LocalKey> = self
            .regions
            .iter()
            .filter(|(_, registered)| overlap(registered.memory, memory))
            .map(|(key, _)| *key)
            .collect();
        for key in inside {
            self.end_registration(key)?;
        }
        self.address_space.revoke(address);
        Ok(())
    }

    fn end_registration(&mut self, key: LocalKey) -> Result<(), NicError> {
        let Some(Registered { memory, region }) = self.regions.remove(&key) else {
            return Err(NicError::Invalid {
                what: "local key",
                value: u64::from(key.0),
            });
        };
        region.end().map_err(|(region, error)| {
            // The registration still exists, and with it the access that it grants.
            self.regions.insert(key, Registered { memory, region });
            error
        })
    }

    /// Packet buffers in the pool.
    pub fn free_buffers(&self) -> usize {
        self.buffers.free()
    }

    pub(crate) fn protection_domain(&self) -> &Arc<ProtectionDomain> {
        &self.pd
    }

    pub(crate) fn completion_queue(
        &self,
        queue: CompletionQueueId,
    ) -> Result<&Arc<CompletionQueue>, NicError> {
        let found = self.completion_queues.get(queue.0 as usize);
        found.ok_or(unknown_queue(queue))
    }

    /// The key of all packet buffers.
    #[inline]
    pub(crate) fn buffers_key(&self) -> LocalKey {
        self.buffers_region.keys().local_key
    }

    /// Assigns a place to a new queue pair.
    pub(crate) fn add_queue_pair(&mut self, queue_pair: Qpn) -> Result<u16, NicError> {
        // The device may reuse the number of a queue pair that was dropped without being closed.
        let dropped = self.slot_of(queue_pair);
        if let Some(slot) = dropped {
            self.remove_queue_pair(slot);
        }
        let entry = self.queue_pairs.vacant_entry();
        let slot = u16::try_from(entry.key()).map_err(|_| NicError::Exhausted("queue pair"))?;
        entry.insert(Outstanding {
            queue_pair,
            sends: 0,
            receives: 0,
        });
        Ok(slot)
    }

    fn slot_of(&self, queue_pair: Qpn) -> Option<u16> {
        let mut all = self.queue_pairs.iter();
        let found = all.find(|(_, entry)| entry.queue_pair == queue_pair)?;
        Some(found.0 as u16)
    }

    /// Forgets a destroyed queue pair and returns its buffers to the pool.
    pub(crate) fn remove_queue_pair(&mut self, slot: u16) {
        self.queue_pairs.try_remove(usize::from(slot));
        self.buffers.reclaim(slot);
        self.failed
            .retain(|(_, id, _)| id.slot() != usize::from(slot));
        self.rdma.retain(|_, rdma| rdma.slot != slot);
    }

    /// The outstanding requests of a queue pair.
    #[inline]
    pub(crate) fn outstanding(&mut self, slot: u16) -> Result<&mut Outstanding, NicError> {
        let unknown = NicError::Invalid {
            what: "queue pair of another domain:",
            value: u64::from(slot),
        };
        self.queue_pairs.get_mut(usize::from(slot)).ok_or(unknown)
    }

    /// Queues a completion with an error for a request that the device did not take.
    pub(crate) fn fail(&mut self, queue: CompletionQueueId, id: WorkRequestId, status: Status) {
        self.failed.push((queue, id, status));
    }

    /// Reports completions of requests that the device did not take.
    #[cold]
    fn poll_failed(
        &mut self,
        queue: CompletionQueueId,
        completions: &mut Vec<Completion>,
        limit: usize,
    ) -> usize {
        let mut count = 0;
        while count < limit
            && let Some(found) = self.failed.iter().position(|(of, ..)| *of == queue)
        {
            let (_, id, status) = self.failed.remove(found);
            let before = completions.len();
            let (buffers, rdma) = (&mut self.buffers, &mut self.rdma);
            finish_request(
                &mut self.queue_pairs,
                buffers,
                rdma,
                id,
                status,
                completions,
            );
            count += completions.len() - before;
        }
        count
    }
}

/// Ends a request of a send queue.
#[inline(always)]
fn finish_request(
    queue_pairs: &mut Slab<Outstanding>,
    buffers: &mut PacketBuffers,
    rdma: &mut Slab<Rdma>,
    id: WorkRequestId,
    status: Status,
    completions: &mut Vec<Completion>,
) {
    let Some(outstanding) = queue_pairs.get_mut(id.slot()) else {
        return;
    };
    // Each arm builds the completion in its final place, without a move.
    if id.0 & WorkRequestId::SEND != 0 {
        let buffer = BufferId(id.index());
        if let Some(context) = buffers.take_back(buffer) {
            outstanding.sends -= 1;
            completions.push(Completion {
                queue_pair: outstanding.queue_pair,
                context,
                status,
                kind: CompletionKind::Send { buffer },
            });
        }
        return;
    }
    if let Some(Rdma {
        is_read, context, ..
    }) = rdma.try_remove(id.index() as usize)
    {
        outstanding.sends -= 1;
        completions.push(Completion {
            queue_pair: outstanding.queue_pair,
            context,
            status,
            kind: match is_read {
                true => CompletionKind::RdmaRead,
                false => CompletionKind::RdmaWrite,
            },
        });
    }
}

/// Ends a receive.
#[inline(always)]
fn finish_receive(
    queue_pairs: &mut Slab<Outstanding>,
    buffers: &mut PacketBuffers,
    entry: &Entry<'_>,
    id: WorkRequestId,
    status: Status,
    completions: &mut Vec<Completion>,
) {
    let buffer = BufferId(id.index());
    if let Some(outstanding) = queue_pairs.get_mut(id.slot())
        && buffers.take_back(buffer).is_some()
    {
        outstanding.receives -= 1;
        completions.push(Completion {
            queue_pair: outstanding.queue_pair,
            context: 0,
            status,
            kind: entry.receive(buffer, status),
        });
    }
}

impl Domain for HwDomain {
    type QueuePair = HwQueuePair;
    type OpenError = OpenError;

    fn attributes(&self) -> &NicAttributes {
        self.device.limits()
    }

    fn create_completion_queue(&mut self, entries: usize) -> Result<CompletionQueueId, OpenError> {
        let entries = entries.clamp(1, self.device.max_completions());
        let queue = CompletionQueue::create(&self.device, entries)?;
        let key = self.completion_queues.insert(Arc::new(queue));
        Ok(CompletionQueueId(key as u32))
    }

    fn destroy_completion_queue(&mut self, queue: CompletionQueueId) -> Result<(), NicError> {
        // Each queue pair holds a reference to its queue.
        if Arc::strong_count(self.completion_queue(queue)?) > 1 {
            return Err(unknown_queue(queue));
        }
        self.completion_queues.remove(queue.0 as usize);
        Ok(())
    }

    fn create_queue_pair(
        &mut self,
        queue: CompletionQueueId,
        config: &QueuePairConfig,
    ) -> Result<HwQueuePair, OpenError> {
        HwQueuePair::create(self, queue, config)
    }

    #[inline]
    fn poll(
        &mut self,
        queue: CompletionQueueId,
        completions: &mut Vec<Completion>,
        limit: usize,
    ) -> usize {
        if !self.failed.is_empty() {
            let count = self.poll_failed(queue, completions, limit);
            if count > 0 {
                return count;
            }
        }
        let HwDomain {
            completion_queues,
            buffers,
            rdma,
            queue_pairs,
            ..
        } = self;
        let Some(cq) = completion_queues.get(queue.0 as usize) else {
            return 0;
        };
        // SAFETY: only the domain polls its queues, and `&mut self` makes this the only call.
        unsafe {
            cq.poll(limit, |entry| {
                let status = entry.status();
                let id = WorkRequestId(entry.wr_id());
                if id.0 & WorkRequestId::RECV != 0 {
                    finish_receive(queue_pairs, buffers, entry, id, status, completions);
                } else if id.0 & WorkRequestId::SEND == 0 && entry.is_write_without_receive() {
                    let queue_pair = entry.queue_pair();
                    if queue_pairs
                        .iter()
                        .any(|(_, open)| open.queue_pair == queue_pair)
                    {
                        completions.push(Completion {
                            queue_pair,
                            context: 0,
                            status,
                            kind: entry.unsolicited_write(),
                        });
                    }
                } else {
                    finish_request(queue_pairs, buffers, rdma, id, status, completions);
                }
            })
        }
    }

    fn register(&mut self, memory: UserSlice, access: Access) -> Result<Region, NicError> {
        self.address_space.resolve(memory)?;
        let region = self.pd.register(memory, access)?;
        let keys = region.keys();
        let registered = Registered { memory, region };
        self.regions.insert(keys.local_key, registered);
        Ok(keys)
    }

    fn deregister(&mut self, region: Region) -> Result<(), NicError> {
        self.end_registration(region.local_key)
    }

    fn create_address_handle(&mut self, gid: Gid) -> Result<Ahn, NicError> {
        // SAFETY: the protection domain lives as long as `self` and never changes.
        unsafe { self.address_book.create(self.pd.as_ptr(), gid) }
    }

    fn destroy_address_handle(&mut self, ahn: Ahn) -> Result<(), NicError> {
        self.address_book.destroy(ahn)
    }

    #[inline]
    fn acquire_buffer(&mut self) -> Option<BufferId> {
        self.buffers.acquire()
    }

    #[inline]
    fn release_buffer(&mut self, buffer: BufferId) {
        self.buffers.release(buffer);
    }

    #[inline]
    fn buffer(&self, buffer: BufferId) -> &[u8] {
        self.buffers.bytes(buffer)
    }

    #[inline]
    fn buffer_mut(&mut self, buffer: BufferId) -> &mut [u8] {
        self.buffers.bytes_mut(buffer)
    }

    #[inline]
    fn copy_from_user(
        &mut self,
        buffer: BufferId,
        offset: usize,
        source: UserSlice,
    ) -> Result<(), NicError> {
        let from = self.address_space.resolve(source)?;
        let invalid = NicError::Invalid {
            what: "packet buffer offset",
            value: offset as u64,
        };
        let target = offset
            .checked_add(source.length)
            .and_then(|end| self.buffers.bytes_mut(buffer).get_mut(offset..end))
            .ok_or(invalid)?;
        // SAFETY: `resolve` found the whole source; packet buffers are never user memory, so the
        // two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, target.as_mut_ptr(), target.len()) };
        Ok(())
    }

    #[inline(always)]
    fn copy_to_user(
        &mut self,
        buffer: BufferId,
        offset: usize,
        length: usize,
        address: u64,
    ) -> Result<(), NicError> {
        let target = self.address_space.resolve(UserSlice { address, length })?;
        let invalid = NicError::Invalid {
            what: "packet buffer offset",
            value: offset as u64,
        };
        let source = offset
            .checked_add(length)
            .and_then(|end| self.buffers.bytes(buffer).get(offset..end))
            .ok_or(invalid)?;
        // SAFETY: as in `copy_from_user`, the other way round.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
        Ok(())
    }

    fn read_user(&mut self, address: u64, target: &mut [u8]) -> Result<(), NicError> {
        let from = self.address_space.resolve(UserSlice {
            address,
            length: target.len(),
        })?;
        // SAFETY: `resolve` found the whole source in memory that is allocated here or that the
        // caller of `allow_user` vouched for.
        unsafe { elements::read(from, target) };
        Ok(())
    }

    fn exchange_user(
        &mut self,
        address: u64,
        expected: &mut [u8],
        new: &[u8],
    ) -> Result<bool, NicError> {
        let at = self.address_space.resolve(UserSlice {
            address,
            length: new.len(),
        })?;
        // SAFETY: as in `read_user`.
        Ok(unsafe { elements::exchange(at, expected, new) })
    }

    fn write_user(&mut self, address: u64, source: &[u8]) -> Result<(), NicError> {
        let target = self.address_space.resolve(UserSlice {
            address,
            length: source.len(),
        })?;
        // SAFETY: `resolve` found the whole target in memory that is allocated here or that the
        // caller of `allow_user` vouched for; `copy` allows overlap.
        unsafe { std::ptr::copy(source.as_ptr(), target, source.len()) };
        Ok(())
    }
}

fn unknown_queue(queue: CompletionQueueId) -> NicError {
    NicError::Invalid {
        what: "completion queue",
        value: u64::from(queue.0),
    }
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct ProtectionDomain {
    pd: NonNull<ffi::ibv_pd>,
    /// Keeps the device open.
    _device: HwDevice,
}

// SAFETY: libibverbs allows calls from any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub(crate) fn as_ptr(&self) -> *mut ffi::ibv_pd {
        self.pd.as_ptr()
    }

    fn alloc(device: &HwDevice) -> Result<ProtectionDomain, OpenError> {
        // SAFETY: the device is open.
        NonNull::new(unsafe { loaded::ibv_alloc_pd(device.context()) })
            .map(|pd| ProtectionDomain {
                pd,
                _device: device.clone(),
            })
            .ok_or_else(|| device.last_error("ibv_alloc_pd"))
    }

    fn register(&self, memory: UserSlice, access: Access) -> Result<MemoryRegion, NicError> {
        let start = memory.address as usize as *mut _;
        // SAFETY: the protection domain is alive; `AddressSpace` knows the memory, or it is the
        // domain's own.
        // `Access` has the bits of `ibv_access_flags`.
        let region = unsafe {
            loaded::ibv_reg_mr(self.pd.as_ptr(), start, memory.length, access.bits() as i32)
        };
        NonNull::new(region)
            .map(MemoryRegion)
            .ok_or_else(|| last_nic_error("memory region"))
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: every object in the domain was dropped before.
        unsafe { loaded::ibv_dealloc_pd(self.pd.as_ptr()) };
    }
}

/// A memory registration and its memory.
#[derive(Debug)]
struct Registered {
    memory: UserSlice,
    region: MemoryRegion,
}

/// Whether two slices have a byte in common.
fn overlap(one: UserSlice, other: UserSlice) -> bool {
    let end = |slice: UserSlice| slice.address.saturating_add(slice.length as u64);
    one.address < end(other) && other.address < end(one)
}

/// A memory registration.
#[derive(Debug)]
struct MemoryRegion(NonNull<ffi::ibv_mr>);

impl MemoryRegion {
    #[inline]
    fn keys(&self) -> Region {
        // SAFETY: the registration is alive until `self` is dropped.
        let region = unsafe { self.0.as_ref() };
        Region {
            local_key: LocalKey(region.lkey),
            remote_key: RemoteKey(u64::from(region.rkey)),
        }
    }

    /// Ends the registration, or returns it with the reason if the device refuses.
    fn end(self) -> Result<(), (MemoryRegion, NicError)> {
        // SAFETY: nobody else deregisters it, and after a success nothing refers to it any more.
        match unsafe { loaded::ibv_dereg_mr(self.0.as_ptr()) } {
            0 => {
                std::mem::forget(self);
                Ok(())
            }
            errno => Err((self, NicError::Device(errno))),
        }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: nobody else deregisters it.
        unsafe { loaded::ibv_dereg_mr(self.0.as_ptr()) };
    }
}
