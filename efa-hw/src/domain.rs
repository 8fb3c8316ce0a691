//! A protection domain as a [`Domain`]: the objects that queue pairs share.

use crate::address_book::AddressBook;
use crate::buffers::PacketBuffers;
use crate::completion_channel::CompletionChannel;
use crate::completion_queue::{CompletionEntry, CompletionQueue};
use crate::device::HwDevice;
use crate::elements;
use crate::error::{CompletionError, OpenError, failed};
use crate::memory::AddressSpace;
use crate::memory_monitor::Userfault;
use crate::protection_domain::{Dmabuf, MemoryRegion, ProtectionDomain};
use crate::queue_pair::{HwQueuePair, Inline, Service};
use crate::registration_cache::{CacheLimits, CacheStatistics, RegistrationCache, overlap};
use crate::work_request::{OutstandingRequests, Rdma, UserReceive, WorkRequestId};
use efa_core::address::{Ahn, Gid, Qpn};
use efa_core::nic::{
    Access, BufferId, Completion, CompletionKind, CompletionQueueId, Device, Domain, DomainConfig,
    LocalKey, NicAttributes, NicError, QueuePairConfig, Region, Status, UserSlice,
};
use slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of completion errors that are stored until they are read.
const KEPT_ERRORS: usize = 64;

/// A protection domain of an EFA device with registered packet buffers, and its completion queues.
#[derive(Debug)]
pub struct HwDomain {
    // Fields are dropped in this order, in which verbs objects may be destroyed.
    pub(crate) address_book: AddressBook,
    regions: HashMap<LocalKey, RegisteredMemory>,
    cache: Option<RegistrationCache<ProtectionDomain, Userfault>>,
    buffer_regions: Vec<MemoryRegion>,
    pub(crate) buffers: PacketBuffers,
    address_space: AddressSpace,
    completion_queues: Slab<Arc<CompletionQueue>>,
    pd: Arc<ProtectionDomain>,
    device: HwDevice,
    queue_pairs: Slab<OutstandingRequests>,
    /// The number of queue pairs created so far.
    generations: u16,
    pub(crate) rdma: Slab<Rdma>,
    pub(crate) user_receives: Slab<UserReceive>,
    /// Requests of the engine that the device refused.
    failed: Vec<(CompletionQueueId, WorkRequestId, Status)>,
    /// The newest errors of completions, at most [`KEPT_ERRORS`].
    errors: VecDeque<CompletionError>,
}

// SAFETY: libibverbs allows calls from any thread, and `&mut self` serializes them.
unsafe impl Send for HwDomain {}

impl Device for HwDevice {
    type Domain = HwDomain;

    fn attributes(&self) -> NicAttributes {
        self.limits().clone()
    }

    fn open_domain(&self, config: &DomainConfig) -> Result<HwDomain, OpenError> {
        let pd = ProtectionDomain::alloc(self)?;
        let mut domain = HwDomain {
            address_book: AddressBook::default(),
            regions: HashMap::new(),
            cache: None,
            buffer_regions: Vec::new(),
            buffers: PacketBuffers::new(self.limits().mtu),
            address_space: AddressSpace::default(),
            completion_queues: Slab::new(),
            pd: Arc::new(pd),
            device: self.clone(),
            queue_pairs: Slab::new(),
            generations: 0,
            rdma: Slab::new(),
            user_receives: Slab::new(),
            failed: Vec::new(),
            errors: VecDeque::new(),
        };
        domain.add_packet_buffers(config.packet_buffers)?;
        Ok(domain)
    }
}

impl HwDevice {
    /// The reason why the packet buffers could not be registered, from errno.
    fn not_registered(&self, needed: usize) -> OpenError {
        let error = self.last_error("ibv_reg_mr");
        let mut limit = libc::rlimit {
            rlim_cur: libc::RLIM_INFINITY,
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: the structure is valid for writes.
        unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
        match error {
            OpenError::Verbs { device, source, .. }
                if source.raw_os_error() == Some(libc::ENOMEM)
                    && limit.rlim_cur < needed as libc::rlim_t =>
            {
                OpenError::LockedMemory {
                    device,
                    needed,
                    limit: limit.rlim_cur,
                    source,
                }
            }
            other => other,
        }
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

    /// Writes user memory from `address` on.
    ///
    /// # Errors
    /// [`NicError::MemoryFault`] if not all of it is known to the domain.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), NicError> {
        self.write_user(address, bytes)
    }

    /// Permits operations on memory that the caller owns.
    ///
    /// # Errors
    /// [`NicError::MemoryFault`] if it is empty or overlaps memory that is already known to the
    /// domain.
    ///
    /// # Safety
    /// Until [`HwDomain::revoke_user`] or the end of the domain, each part of the memory that is an
    /// argument of a call, is used by a posted receive or an outstanding operation, or is covered
    /// by a registration of the caller, is readable and writable and not referenced by Rust
    /// references.
    ///
    /// Between operations the caller may unmap the memory and replace it with another mapping.
    pub unsafe fn allow_user(&mut self, memory: UserSlice) -> Result<(), NicError> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.address_space.allow(memory) }
    }

    /// Ends the use of the memory that [`HwDomain::allow_user`] added at `address`. All its
    /// registrations end first, so that after `Ok` neither the device nor a peer accesses the
    /// memory. Outstanding operations on it fail.
    ///
    /// # Errors
    /// The domain has no memory of the caller at this address, or the device refuses to end a
    /// registration. In the second case the memory is still in use.
    pub fn revoke_user(&mut self, address: u64) -> Result<(), NicError> {
        let memory = self.address_space.foreign_at(address)?;
        let inside: Vec<LocalKey> = self
            .regions
            .iter()
            .filter(|(_, registered)| {
                registered
                    .memory
                    .is_some_and(|inside| overlap(inside, memory))
            })
            .map(|(key, _)| *key)
            .collect();
        for key in inside {
            self.end_registration(key)?;
        }
        if let Some(cache) = &mut self.cache {
            cache.end_all_in(&*self.pd, memory)?;
        }
        self.address_space.revoke(address);
        Ok(())
    }

    fn end_registration(&mut self, key: LocalKey) -> Result<(), NicError> {
        let Some(RegisteredMemory { memory, region }) = self.regions.remove(&key) else {
            return Err(NicError::invalid("local key", key.0));
        };
        region.end().map_err(|(region, error)| {
            // The registration still exists and grants its access.
            self.regions
                .insert(key, RegisteredMemory { memory, region });
            error
        })
    }

    /// Registers memory behind a dma-buf, such as that of a GPU, for all queue pairs of the domain.
    /// Work requests and peers address it by `memory.address`. The engine and the device transfer
    /// data from and to it by RDMA and as the registered payload of packets; this process copies
    /// none of the data. [`Domain::deregister`] ends it.
    ///
    /// # Errors
    /// [`NicError::Device`] with `EBADF` for an invalid descriptor, `EINVAL` for another type of
    /// file, a range beyond its end, or an address with another offset in its page, and
    /// `EOPNOTSUPP` if the kernel does not support it.
    pub fn register_dmabuf(
        &mut self,
        memory: &Dmabuf<'_>,
        access: Access,
    ) -> Result<Region, NicError> {
        let region = self.pd.register_dmabuf(memory, access)?;
        let keys = region.keys();
        let registered = RegisteredMemory {
            memory: None,
            region,
        };
        self.regions.insert(keys.local_key, registered);
        Ok(keys)
    }

    /// Keeps registrations of single operations ([`Domain::lease`]) for later ones, within limits.
    ///
    /// This saves a system call and the pinning of pages for each operation on memory that is
    /// reused. It is optional, because two things change. The domain has a thread that watches the
    /// memory: see the [crate's documentation](crate#cached-registrations). And a peer that
    /// received a key for an operation can use it until the registration is evicted, not only until
    /// the operation ends.
    ///
    /// # Errors
    /// The memory cannot be watched; the message has the reason. Each operation then continues to
    /// register its memory.
    pub fn cache_registrations(&mut self, limits: CacheLimits) -> io::Result<()> {
        if self.cache.is_none() {
            self.cache = Some(RegistrationCache::new(Userfault::open()?, limits));
        }
        Ok(())
    }

    /// Statistics of the registration cache. `None` without a cache.
    pub fn cache_statistics(&self) -> Option<CacheStatistics> {
        self.cache.as_ref().map(RegistrationCache::statistics)
    }

    /// As [`Domain::create_completion_queue`], for a queue on which a program can sleep.
    ///
    /// # Errors
    /// [`OpenError::Verbs`] if the device has no room, or does not support completion events
    /// (`EOPNOTSUPP`).
    pub fn create_completion_queue_with_channel(
        &mut self,
        entries: usize,
    ) -> Result<CompletionQueueId, OpenError> {
        let channel = CompletionChannel::create(&self.device)?;
        self.add_completion_queue(entries, Some(channel))
    }

    fn add_completion_queue(
        &mut self,
        entries: usize,
        channel: Option<CompletionChannel>,
    ) -> Result<CompletionQueueId, OpenError> {
        let entries = entries.clamp(1, self.device.max_completions());
        let queue = CompletionQueue::create(&self.device, entries, channel)?;
        let key = self.completion_queues.insert(Arc::new(queue));
        Ok(CompletionQueueId(key as u32))
    }

    /// As [`Domain::create_queue_pair`], for a queue pair with this inline data.
    ///
    /// # Errors
    /// The configuration is beyond the device's limits, or the device has no room.
    pub fn create_queue_pair_with(
        &mut self,
        queue: CompletionQueueId,
        config: &QueuePairConfig,
        inline: Inline,
    ) -> Result<HwQueuePair, OpenError> {
        HwQueuePair::create(self, queue, config, Service::Srd(inline))
    }

    /// As [`Domain::create_queue_pair`], for a queue pair for datagrams (UD): a send is one packet,
    /// which may be lost without an error, and a receive contains it after a header of 40 bytes,
    /// which is included in the length.
    ///
    /// # Errors
    /// The configuration is beyond the device's limits, or the device has no room.
    pub fn create_datagram_queue_pair(
        &mut self,
        queue: CompletionQueueId,
        config: &QueuePairConfig,
    ) -> Result<HwQueuePair, OpenError> {
        HwQueuePair::create(self, queue, config, Service::Ud)
    }

    /// Returns whether this process may read and write all of this memory for the domain.
    pub(crate) fn can_access(&self, memory: UserSlice) -> bool {
        self.address_space.resolve(memory).is_ok()
    }

    /// Requests an event for the next completion, before a program sleeps. No completion is missed
    /// in this order:
    ///
    /// 1. `arm`;
    /// 2. poll until the queue is empty. A completion may have arrived before the device got the
    ///    request;
    /// 3. [`sleep`](Self::sleep), or wait for [`channel`](Self::channel) to be readable. A
    ///    completion since the first step ends the sleep immediately;
    /// 4. poll, and return to the first step before the next sleep: each `arm` requests one event.
    ///
    /// # Errors
    /// [`NicError::Invalid`] if there is no such queue, [`NicError::Unsupported`] if it has no
    /// channel, [`NicError::Device`] with the verb that failed.
    pub fn arm(&mut self, queue: CompletionQueueId) -> Result<(), NicError> {
        let found = self.completion_queue(queue)?;
        found.arm().unwrap_or(Err(NO_CHANNEL))
    }

    /// Sleeps until there is a completion since the last [`arm`](Self::arm). Returns whether there
    /// may be one; false after `timeout`.
    ///
    /// # Errors
    /// As for [`arm`](Self::arm).
    pub fn sleep(
        &mut self,
        queue: CompletionQueueId,
        timeout: Option<Duration>,
    ) -> Result<bool, NicError> {
        if self.failed.iter().any(|(of, ..)| *of == queue) {
            return Ok(true);
        }
        let channel = self.completion_queue(queue)?.channel();
        channel.ok_or(NO_CHANNEL)?.wait(timeout)
    }

    /// Returns whether there are completions of requests that the device refused. They raise no
    /// event: a program that has [armed](Self::arm) a queue polls instead of sleeping.
    pub fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// A descriptor that is readable once there is a completion since the last [`arm`](Self::arm),
    /// for `poll(2)` and similar calls. Programs only wait for it; `arm` reads it.
    ///
    /// # Errors
    /// As for [`arm`](Self::arm).
    pub fn channel(&self, queue: CompletionQueueId) -> Result<BorrowedFd<'_>, NicError> {
        let channel = self.completion_queue(queue)?.channel();
        Ok(channel.ok_or(NO_CHANNEL)?.descriptor())
    }

    /// Removes and returns the errors of failed work requests, at most the newest 64.
    pub fn take_errors(&mut self) -> Vec<CompletionError> {
        self.errors.drain(..).collect()
    }

    /// The number of packet buffers in the pool.
    pub fn free_buffers(&self) -> usize {
        self.buffers.free()
    }

    /// The number of all packet buffers, including those in queues.
    pub fn packet_buffers(&self) -> usize {
        self.buffers.len()
    }

    /// Adds packet buffers to the initial ones of the domain, in a separate registration. An
    /// additional queue pair needs as many as its queues can hold requests. The buffers stay until
    /// the domain ends.
    ///
    /// # Errors
    /// Memory is exhausted, or the device cannot register it; then nothing changes.
    pub fn add_packet_buffers(&mut self, count: usize) -> Result<(), OpenError> {
        if count == 0 {
            return Ok(());
        }
        let memory = self.buffers.allocate(count).map_err(|error| {
            let source = io::Error::new(io::ErrorKind::OutOfMemory, error);
            failed("packet buffer allocation", self.device.name(), source)
        })?;
        let slice = memory.slice();
        let region = self
            .pd
            .register(slice, Access::LOCAL_WRITE)
            .map_err(|_| self.device.not_registered(slice.length))?;
        self.buffers.add(memory, region.keys().local_key);
        self.buffer_regions.push(region);
        Ok(())
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

    /// Assigns an index to a new queue pair.
    pub(crate) fn add_queue_pair(&mut self, queue_pair: Qpn) -> Result<u16, NicError> {
        // The device may reuse the number of a queue pair that was dropped without being closed.
        let dropped = self.slot_of(queue_pair);
        if let Some(slot) = dropped {
            self.remove_queue_pair(slot);
        }
        let entry = self.queue_pairs.vacant_entry();
        let slot = u16::try_from(entry.key()).map_err(|_| NicError::Exhausted("queue pair"))?;
        self.generations = self.generations.wrapping_add(1);
        entry.insert(OutstandingRequests {
            queue_pair,
            generation: self.generations & WorkRequestId::GENERATION,
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
        self.user_receives.retain(|_, receive| receive.slot != slot);
    }

    /// The outstanding requests of a queue pair.
    #[inline]
    pub(crate) fn outstanding(&mut self, slot: u16) -> Result<&mut OutstandingRequests, NicError> {
        let unknown = NicError::invalid("queue pair of another domain:", slot);
        self.queue_pairs.get_mut(usize::from(slot)).ok_or(unknown)
    }

    /// Queues a completion with an error for a request that the device refused.
    pub(crate) fn fail(&mut self, queue: CompletionQueueId, id: WorkRequestId, status: Status) {
        self.failed.push((queue, id, status));
    }

    /// Reports completions of requests that the device refused.
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

/// The error for bytes outside of a packet buffer.
#[cold]
fn beyond_buffer(offset: usize) -> NicError {
    NicError::invalid("packet buffer offset", offset as u64)
}

/// Completes a request of a send queue.
#[inline(always)]
fn finish_request(
    queue_pairs: &mut Slab<OutstandingRequests>,
    buffers: &mut PacketBuffers,
    rdma: &mut Slab<Rdma>,
    id: WorkRequestId,
    status: Status,
    completions: &mut Vec<Completion>,
) {
    let Some(outstanding) = queue_pairs.get_mut(id.slot()) else {
        return;
    };
    if outstanding.generation != id.generation() {
        return;
    }
    // Each arm builds the completion at its final address, without a move.
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

/// Stores an error of a completion, and drops the oldest one if there are too many.
#[cold]
fn keep_error(
    errors: &mut VecDeque<CompletionError>,
    rdma: &Slab<Rdma>,
    id: WorkRequestId,
    error: CompletionError,
) {
    if errors.len() == KEPT_ERRORS {
        errors.pop_front();
    }
    let verb = match (
        id.0 & WorkRequestId::RECV,
        id.0 & WorkRequestId::SEND,
        rdma.get(id.index() as usize),
    ) {
        (0, 0, Some(rdma)) if rdma.is_read => "RDMA read",
        (0, 0, _) => "RDMA write",
        (0, ..) => "send",
        _ => "receive",
    };
    tracing::debug!(
        qpn = %error.queue_pair,
        operation = verb,
        status = error.status().map(tracing::field::debug),
        vendor_status = error.vendor_status,
        "completion with an error"
    );
    errors.push_back(CompletionError { verb, ..error });
}

/// Completes a receive.
#[inline(always)]
fn finish_receive(
    queue_pairs: &mut Slab<OutstandingRequests>,
    buffers: &mut PacketBuffers,
    entry: &CompletionEntry<'_>,
    id: WorkRequestId,
    status: Status,
    completions: &mut Vec<Completion>,
) {
    let buffer = BufferId(id.index());
    if let Some(outstanding) = queue_pairs.get_mut(id.slot())
        && buffers.take_back(buffer).is_some()
    {
        outstanding.receives -= 1;
        let queue_pair = outstanding.queue_pair;
        let completion = |kind| Completion {
            queue_pair,
            context: 0,
            status,
            kind,
        };
        // As above: the plain one is not moved.
        match entry.plain_receive(buffer, status) {
            Some(kind) => completions.push(completion(kind)),
            None => completions.push(completion(entry.receive(buffer, status))),
        }
    }
}

/// Completes a receive into memory of the user.
#[cold]
fn finish_user_receive(
    queue_pairs: &mut Slab<OutstandingRequests>,
    user_receives: &mut Slab<UserReceive>,
    entry: &CompletionEntry<'_>,
    id: WorkRequestId,
    status: Status,
    completions: &mut Vec<Completion>,
) {
    if let Some(outstanding) = queue_pairs.get_mut(id.slot())
        && let Some(receive) = user_receives.try_remove(id.index() as usize)
    {
        outstanding.receives -= 1;
        let (status, kind) = entry.user_receive(status);
        completions.push(Completion {
            queue_pair: outstanding.queue_pair,
            context: receive.context,
            status,
            kind,
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
        self.add_completion_queue(entries, None)
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
        HwQueuePair::create(self, queue, config, Service::Srd(Inline::default()))
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
            user_receives,
            queue_pairs,
            errors,
            ..
        } = self;
        let Some(cq) = completion_queues.get(queue.0 as usize) else {
            return 0;
        };
        let before = completions.len();
        // SAFETY: only the domain polls its queues, and `&mut self` makes this the only call.
        unsafe {
            cq.poll(limit, |entry| {
                let id = WorkRequestId(entry.wr_id());
                let status = entry.status(|error| keep_error(errors, rdma, id, error));
                if id.0 & WorkRequestId::USER != 0 {
                    finish_user_receive(queue_pairs, user_receives, entry, id, status, completions);
                } else if id.0 & WorkRequestId::RECV != 0 {
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
            });
        }
        // Late completions of a destroyed queue pair are dropped.
        completions.len() - before
    }

    fn register(&mut self, memory: UserSlice, access: Access) -> Result<Region, NicError> {
        self.address_space.resolve(memory)?;
        let region = self.pd.register(memory, access)?;
        let keys = region.keys();
        let registered = RegisteredMemory {
            memory: Some(memory),
            region,
        };
        self.regions.insert(keys.local_key, registered);
        Ok(keys)
    }

    fn deregister(&mut self, region: Region) -> Result<(), NicError> {
        self.end_registration(region.local_key)
    }

    fn lease(&mut self, memory: UserSlice, access: Access) -> Result<Region, NicError> {
        let Some(cache) = &mut self.cache else {
            return self.register(memory, access);
        };
        self.address_space.resolve(memory)?;
        cache.lease(&*self.pd, memory, access)
    }

    fn end_lease(&mut self, region: Region) -> Result<(), NicError> {
        match &mut self.cache {
            Some(cache) if cache.has(region.local_key) => {
                cache.end_lease(&*self.pd, region.local_key)
            }
            // The registration may be older than the cache.
            _ => self.deregister(region),
        }
    }

    fn create_address_handle(&mut self, gid: Gid) -> Result<Ahn, NicError> {
        // SAFETY: the protection domain is valid as long as `self` and never changes.
        unsafe { self.address_book.create(self.pd.as_ptr(), gid) }
    }

    fn destroy_address_handle(&mut self, ahn: Ahn) -> Result<(), NicError> {
        self.address_book.destroy(ahn)
    }

    #[inline(always)]
    fn acquire_buffer(&mut self) -> Option<BufferId> {
        self.buffers.acquire()
    }

    #[inline(always)]
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

    #[inline(always)]
    fn copy_from_user(
        &mut self,
        buffer: BufferId,
        offset: usize,
        source: UserSlice,
    ) -> Result<(), NicError> {
        let from = self.address_space.resolve(source)?;
        let Some((_, rest)) = self.buffers.bytes_mut(buffer).split_at_mut_checked(offset) else {
            return Err(beyond_buffer(offset));
        };
        let Some(target) = rest.get_mut(..source.length) else {
            return Err(beyond_buffer(offset));
        };
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
        let Some((_, rest)) = self.buffers.bytes(buffer).split_at_checked(offset) else {
            return Err(beyond_buffer(offset));
        };
        let Some(source) = rest.get(..length) else {
            return Err(beyond_buffer(offset));
        };
        // SAFETY: as in `copy_from_user`, in the opposite direction.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
        Ok(())
    }

    fn read_user(&mut self, address: u64, target: &mut [u8]) -> Result<(), NicError> {
        let from = self
            .address_space
            .resolve(UserSlice::new(address, target.len()))?;
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
        let at = self
            .address_space
            .resolve(UserSlice::new(address, new.len()))?;
        // SAFETY: as in `read_user`.
        Ok(unsafe { elements::exchange(at, expected, new) })
    }

    fn write_user(&mut self, address: u64, source: &[u8]) -> Result<(), NicError> {
        let target = self
            .address_space
            .resolve(UserSlice::new(address, source.len()))?;
        // SAFETY: `resolve` found the whole target in memory that is allocated here or that the
        // caller of `allow_user` vouched for; `copy` allows overlap.
        unsafe { std::ptr::copy(source.as_ptr(), target, source.len()) };
        Ok(())
    }
}

const NO_CHANNEL: NicError =
    NicError::Unsupported("sleeping on a completion queue that was created without a channel");

fn unknown_queue(queue: CompletionQueueId) -> NicError {
    NicError::invalid("completion queue", queue.0)
}

/// A memory registration and its memory.
#[derive(Debug)]
struct RegisteredMemory {
    /// The memory in this process; `None` for memory behind a dma-buf.
    memory: Option<UserSlice>,
    region: MemoryRegion,
}
