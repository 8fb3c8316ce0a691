//! A domain on a simulated host: the objects that its queue pairs share.

use std::collections::BTreeMap;
use std::rc::Rc;

use efa_core::address::{Ahn, Gid, Qpn};
use efa_core::nic::{
    Access, BufferId, Completion, CompletionKind, CompletionQueueId, Device, Domain, DomainConfig,
    LocalKey, NicAttributes, NicError, QueuePairConfig, Region, RemoteKey, Source, Status,
    UserSlice,
};
use slab::Slab;

use super::host::SimHost;
use super::memory::MemoryFault;
use super::objects::{DeviceCq, DomainObjects};
use super::packet_buffers::PacketBuffers;
use super::queue_pair::{Queues, SimQueuePair, place_of_user_receive};
use efa_device_model::device::{Error, Lkey, MemoryRegion, Service};
use efa_device_model::profile::Profile;
use efa_device_model::provider::{self, CompletionQueue, QueueOwner, Retired, WcOpcode};

/// A send queue request that has not completed.
#[derive(Clone, Copy)]
pub(super) struct Posted {
    pub(super) queue_pair: Qpn,
    pub(super) context: u64,
    /// The packet buffer of a send.
    pub(super) buffer: Option<BufferId>,
}

/// A completion queue.
struct Completions {
    on_device: Rc<DeviceCq>,
    queue: CompletionQueue,
    /// Polled from the queue, but not yet returned to the caller.
    pending: Vec<provider::Completion>,
}

/// The client's side of the queues, by queue pair.
#[derive(Default)]
pub(super) struct AllQueues(BTreeMap<Qpn, Queues>);

impl QueueOwner for AllQueues {
    fn retire_send(&mut self, qpn: Qpn, request_id: u16) -> Retired {
        match self.0.get_mut(&qpn) {
            Some(queues) => queues.send.retire(request_id),
            None => Retired::Stale,
        }
    }

    fn retire_recv(&mut self, qpn: Qpn, request_id: u16) -> Retired {
        match self.0.get_mut(&qpn) {
            Some(queues) => queues.recv.retire(request_id),
            None => Retired::Stale,
        }
    }

    fn owns(&mut self, qpn: Qpn) -> bool {
        self.0.contains_key(&qpn)
    }
}

/// A protection domain of a simulated host with registered packet buffers, and the completion
/// queues and queue pairs that are created in it. Dropping it releases them all.
///
/// # Panics
/// Touching a packet buffer that the caller does not own is a bug of the caller and panics, in
/// [`Domain::buffer`], [`Domain::buffer_mut`] and [`Domain::release_buffer`]. The calls that can
/// fail return [`NicError::Invalid`] instead.
pub struct SimDomain {
    attributes: NicAttributes,
    pub(super) profile: Profile,
    completion_queues: Slab<Completions>,
    pub(super) queues: AllQueues,
    pub(super) posted: Slab<Posted>,
    pub(super) buffers: PacketBuffers,
    pub(super) objects: DomainObjects,
}

impl Device for SimHost {
    type Domain = SimDomain;

    fn attributes(&self) -> NicAttributes {
        let world = self.fabric().0.borrow();
        attributes(self, &world.hosts[self.id().index()].config.profile)
    }

    fn open_domain(&self, config: &DomainConfig) -> Result<SimDomain, NicError> {
        let mut objects = DomainObjects::new(self)?;
        let profile = objects
            .incarnation
            .with_host(|host| Ok(host.config.profile.clone()))?;
        let stride = PacketBuffers::stride_for(profile.mtu as usize);
        let pool = objects.create_pool(config.packet_buffers, stride)?;
        let attributes = attributes(self, &profile);
        Ok(SimDomain {
            buffers: PacketBuffers::new(pool, attributes.mtu, config.packet_buffers),
            attributes,
            profile,
            completion_queues: Slab::new(),
            queues: AllQueues::default(),
            posted: Slab::new(),
            objects,
        })
    }
}

fn attributes(host: &SimHost, profile: &Profile) -> NicAttributes {
    profile.nic_attributes(host.id().index() as u64 + 1)
}

impl SimDomain {
    /// The host of this domain.
    pub fn host(&self) -> &SimHost {
        self.objects.incarnation.host()
    }

    /// The number of packet buffers in the pool.
    pub fn free_buffers(&self) -> usize {
        self.buffers.free()
    }

    /// The number of memory registrations, the pool of packet buffers included.
    pub fn regions(&self) -> usize {
        self.objects.regions()
    }

    /// The number of posted receives of all queue pairs together.
    pub fn posted_receives(&self) -> usize {
        let queues = self.queues.0.values();
        queues.map(|queues| queues.recv.outstanding()).sum()
    }

    /// Completions that were dropped because they belonged to no outstanding request.
    pub fn stale_completions(&self) -> u64 {
        let queues = self.completion_queues.iter();
        queues.map(|(_, cq)| cq.queue.stale()).sum()
    }

    pub(super) fn completion_queue(
        &self,
        queue: CompletionQueueId,
    ) -> Result<&Rc<DeviceCq>, NicError> {
        let found = self.completion_queues.get(queue.0 as usize);
        found.map(|cq| &cq.on_device).ok_or(unknown_queue(queue))
    }

    /// The client's side of a queue pair's queues.
    pub(super) fn queues(&mut self, queue_pair: Qpn) -> Result<&mut Queues, NicError> {
        let unknown = NicError::invalid("queue pair of another domain:", queue_pair.0);
        self.queues.0.get_mut(&queue_pair).ok_or(unknown)
    }

    /// Adds a new queue pair, which may have the number of one that was dropped.
    pub(super) fn add_queues(&mut self, queue_pair: Qpn, queues: Queues) {
        self.forget_queues(queue_pair);
        self.queues.0.insert(queue_pair, queues);
    }

    /// Removes a queue pair with its outstanding requests.
    pub(super) fn forget_queues(&mut self, queue_pair: Qpn) {
        if self.queues.0.remove(&queue_pair).is_none() {
            return;
        }
        for (_, cq) in &mut self.completion_queues {
            cq.pending.retain(|entry| entry.qp_num() != queue_pair);
        }
        self.posted
            .retain(|_, posted| posted.queue_pair != queue_pair);
        let buffers = &mut self.buffers;
        self.objects
            .incarnation
            .with_memory(|memory| buffers.reclaim(queue_pair, memory));
    }

    /// The completion of a receive into user memory; `None` for any other completion.
    fn translate_user_receive(&mut self, entry: &provider::Completion) -> Option<Completion> {
        let is_write = match entry.opcode() {
            WcOpcode::Recv => false,
            WcOpcode::RecvRdmaWithImmediate if !entry.is_unsolicited() => true,
            _ => return None,
        };
        let place = place_of_user_receive(entry.wr_id)?;
        let posted = self.posted.try_remove(place)?;
        let status = entry.status().unwrap_or(Status::RemoteBadStatus);
        Some(Completion {
            queue_pair: entry.qp_num(),
            context: posted.context,
            // A peer's RDMA write that consumed the receive wrote nothing into its memory.
            status: match (is_write, status) {
                (true, Status::Ok) => Status::LocalUnsupportedOp,
                (_, status) => status,
            },
            kind: CompletionKind::RecvUser {
                length: entry.byte_len() as usize,
                source: Source {
                    ahn: entry.ahn(),
                    qpn: entry.src_qp(),
                    gid: entry.sgid(),
                },
                immediate: entry.immediate(),
            },
        })
    }

    fn translate(&mut self, entry: &provider::Completion) -> Completion {
        if let Some(completion) = self.translate_user_receive(entry) {
            return completion;
        }
        let source = Source {
            ahn: entry.ahn(),
            qpn: entry.src_qp(),
            gid: entry.sgid(),
        };
        let (context, kind) = match entry.opcode() {
            WcOpcode::Send | WcOpcode::RdmaRead | WcOpcode::RdmaWrite => {
                let posted = self.posted.remove(entry.wr_id as usize);
                let kind = match (entry.opcode(), posted.buffer) {
                    (WcOpcode::RdmaRead, _) => CompletionKind::RdmaRead,
                    (WcOpcode::RdmaWrite, _) => CompletionKind::RdmaWrite,
                    (_, Some(buffer)) => CompletionKind::Send { buffer },
                    // A request that the device could not read completes as a send.
                    (_, None) => CompletionKind::RdmaWrite,
                };
                (posted.context, kind)
            }
            WcOpcode::Recv => {
                let kind = CompletionKind::Recv {
                    buffer: BufferId(entry.wr_id as u32),
                    length: entry.byte_len() as usize,
                    source,
                    immediate: entry.immediate(),
                };
                (0, kind)
            }
            WcOpcode::RecvRdmaWithImmediate => {
                let solicited = !entry.is_unsolicited();
                let kind = CompletionKind::RecvRdmaWithImmediate {
                    buffer: solicited.then_some(BufferId(entry.wr_id as u32)),
                    length: entry.byte_len() as usize,
                    source,
                    immediate: entry.immediate().unwrap_or(0),
                };
                (0, kind)
            }
        };
        let buffer = match kind {
            CompletionKind::Send { buffer } | CompletionKind::Recv { buffer, .. } => Some(buffer),
            CompletionKind::RecvRdmaWithImmediate { buffer, .. } => buffer,
            CompletionKind::RecvUser { .. }
            | CompletionKind::RdmaRead
            | CompletionKind::RdmaWrite => None,
        };
        if let Some(buffer) = buffer {
            let buffers = &mut self.buffers;
            self.objects
                .incarnation
                .with_memory(|memory| buffers.take_back(buffer, memory));
        }
        Completion {
            queue_pair: entry.qp_num(),
            context,
            status: entry.status().unwrap_or(Status::RemoteBadStatus),
            kind,
        }
    }

    /// Calls `f` with the bytes of user memory.
    fn with_user<T>(
        &self,
        memory: UserSlice,
        f: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, NicError> {
        let incarnation = &self.objects.incarnation;
        incarnation.check_alive()?;
        incarnation
            .with_memory(|space| space.bytes_mut(memory.address, memory.length).map(f))
            .map_err(|_: MemoryFault| fault(memory))
    }
}

impl Domain for SimDomain {
    type QueuePair = SimQueuePair;
    type OpenError = NicError;

    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

    fn create_completion_queue(&mut self, entries: usize) -> Result<CompletionQueueId, NicError> {
        let limit = self.profile.max_cqe;
        let entries = u32::try_from(entries).map_or(limit, |entries| entries.min(limit));
        let (on_device, ring) = DeviceCq::create(&self.objects.incarnation, entries)?;
        let key = self.completion_queues.insert(Completions {
            on_device,
            queue: CompletionQueue::new(ring),
            pending: Vec::new(),
        });
        Ok(CompletionQueueId(key as u32))
    }

    fn destroy_completion_queue(&mut self, queue: CompletionQueueId) -> Result<(), NicError> {
        // A queue pair holds a reference to its completion queue.
        if Rc::strong_count(self.completion_queue(queue)?) > 1 {
            return Err(unknown_queue(queue));
        }
        self.completion_queues.remove(queue.0 as usize);
        Ok(())
    }

    fn create_queue_pair(
        &mut self,
        queue: CompletionQueueId,
        config: &QueuePairConfig,
    ) -> Result<SimQueuePair, NicError> {
        SimQueuePair::create(self, queue, config, Service::Srd)
    }

    fn poll(
        &mut self,
        queue: CompletionQueueId,
        completions: &mut Vec<Completion>,
        limit: usize,
    ) -> usize {
        let key = queue.0 as usize;
        if self.objects.incarnation.check_alive().is_err() || !self.completion_queues.contains(key)
        {
            return 0;
        }
        let window = self.objects.incarnation.completion_window();
        let mut count = 0;
        while count < limit {
            let Completions { queue, pending, .. } = &mut self.completion_queues[key];
            while pending.len() < window
                && let Some(entry) = queue.next(&mut self.queues)
            {
                pending.push(entry);
            }
            let chosen = match pending.len() {
                0 => break,
                1 => 0,
                several => self.objects.incarnation.random_below(several),
            };
            let entry = pending.remove(chosen);
            let completion = self.translate(&entry);
            completions.push(completion);
            count += 1;
        }
        count
    }

    fn register(&mut self, memory: UserSlice, access: Access) -> Result<Region, NicError> {
        let incarnation = &self.objects.incarnation;
        incarnation.check_alive()?;
        let (address, length) = (memory.address, memory.length as u64);
        incarnation
            .with_memory(|memory| memory.check(address, length))
            .map_err(|_| fault(memory))?;
        if let Some(errno) = incarnation.registration_failure(length) {
            return Err(Error::Staged(errno).into());
        }
        let keys = self
            .objects
            .register(MemoryRegion::new(address, length, access))?;
        Ok(Region {
            local_key: LocalKey(keys.lkey.0),
            remote_key: RemoteKey(keys.rkey.0.into()),
        })
    }

    fn deregister(&mut self, region: Region) -> Result<(), NicError> {
        self.objects.deregister(Lkey(region.local_key.0))
    }

    fn create_address_handle(&mut self, gid: Gid) -> Result<Ahn, NicError> {
        self.objects.create_handle(gid)
    }

    fn destroy_address_handle(&mut self, ahn: Ahn) -> Result<(), NicError> {
        self.objects.destroy_handle(ahn)
    }

    fn acquire_buffer(&mut self) -> Option<BufferId> {
        let buffers = &mut self.buffers;
        self.objects
            .incarnation
            .with_memory(|memory| buffers.acquire(memory))
    }

    fn release_buffer(&mut self, buffer: BufferId) {
        let buffers = &mut self.buffers;
        self.objects
            .incarnation
            .with_memory(|memory| buffers.release(buffer, memory));
    }

    fn buffer(&self, buffer: BufferId) -> &[u8] {
        self.buffers.bytes(buffer)
    }

    fn buffer_mut(&mut self, buffer: BufferId) -> &mut [u8] {
        self.buffers.bytes_mut(buffer)
    }

    fn copy_from_user(
        &mut self,
        buffer: BufferId,
        offset: usize,
        source: UserSlice,
    ) -> Result<(), NicError> {
        self.objects.incarnation.check_alive()?;
        let target = self.buffers.range_mut(buffer, offset, source.length)?;
        self.objects
            .incarnation
            .with_memory(|memory| {
                target.copy_from_slice(memory.bytes(source.address, source.length)?);
                Ok(())
            })
            .map_err(|_: MemoryFault| fault(source))
    }

    fn copy_to_user(
        &mut self,
        buffer: BufferId,
        offset: usize,
        length: usize,
        address: u64,
    ) -> Result<(), NicError> {
        self.objects.incarnation.check_alive()?;
        let source = self.buffers.range_mut(buffer, offset, length)?;
        self.objects
            .incarnation
            .with_memory(|memory| {
                memory.bytes_mut(address, length)?.copy_from_slice(source);
                Ok(())
            })
            .map_err(|_: MemoryFault| fault(UserSlice { address, length }))
    }

    fn read_user(&mut self, address: u64, target: &mut [u8]) -> Result<(), NicError> {
        let length = target.len();
        self.with_user(UserSlice { address, length }, |bytes| {
            target.copy_from_slice(bytes);
        })
    }

    fn exchange_user(
        &mut self,
        address: u64,
        expected: &mut [u8],
        new: &[u8],
    ) -> Result<bool, NicError> {
        let length = new.len();
        // All hosts of a fabric are in one thread.
        self.with_user(UserSlice { address, length }, |bytes| {
            let is_expected = bytes == expected;
            match is_expected {
                true => bytes.copy_from_slice(new),
                false => expected.copy_from_slice(bytes),
            }
            is_expected
        })
    }

    fn write_user(&mut self, address: u64, source: &[u8]) -> Result<(), NicError> {
        let length = source.len();
        self.with_user(UserSlice { address, length }, |bytes| {
            bytes.copy_from_slice(source);
        })
    }
}

fn unknown_queue(queue: CompletionQueueId) -> NicError {
    NicError::invalid("completion queue", queue.0)
}

fn fault(slice: UserSlice) -> NicError {
    NicError::MemoryFault {
        address: slice.address,
        length: slice.length,
    }
}
