//! A queue pair of a simulated host as the protocol engine's device.

use efa_core::address::{Ahn, Gid, Qkey, Qpn, RawAddress};
use efa_core::nic::{
    Access, BufferId, Completion, CompletionKind, Destination, DeviceCaps, LocalKey, Nic,
    NicAttributes, NicError, RdmaRequest, Region, RemoteKey, SendRequest, Source, Status,
    UserSlice,
};
use slab::Slab;

use super::host::SimHost;
use super::memory::MemoryFault;
use super::objects::Objects;
use super::packet_buffers::PacketBuffers;
use crate::device::queue::{Buffer, WqeSize};
use crate::device::{Error, Lkey, MemoryRegion, QpChange, QpConfig, QpState, Service};
use crate::provider::{
    self, CompletionQueue, QueueOwner, RecvQueue, RecvQueueConfig, Retired, SendData, SendFlags,
    SendOpcode, SendQueue, SendQueueConfig, UdAddress, WcOpcode,
};

/// How a queue pair is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NicConfig {
    /// Work requests that the send queue holds, a power of two.
    pub send_depth: u32,
    /// Receives that the receive queue holds, a power of two.
    pub recv_depth: u32,
    /// Packet buffers. Their memory is taken when a buffer is first used.
    pub packet_buffers: usize,
    /// The Q-key, `None` for a random one.
    pub qkey: Option<Qkey>,
    /// How often a send to a receiver that is not ready is repeated, 7 for ever. libfabric sets 3.
    pub rnr_retry: u8,
    /// RDMA writes with immediate consume no receive, if the device can do that.
    pub unsolicited_write_recv: bool,
}

impl Default for NicConfig {
    /// 256 sends, 1024 receives, buffers for both, a random Q-key, 3 RNR retries.
    fn default() -> Self {
        NicConfig {
            send_depth: 256,
            recv_depth: 1024,
            packet_buffers: 256 + 1024,
            qkey: None,
            rnr_retry: 3,
            unsolicited_write_recv: false,
        }
    }
}

/// The client's halves of the queues.
struct Queues {
    qpn: Qpn,
    send: SendQueue,
    recv: RecvQueue,
}

impl QueueOwner for Queues {
    fn retire_send(&mut self, qpn: Qpn, request_id: u16) -> Retired {
        match self.owns(qpn) {
            true => self.send.retire(request_id),
            false => Retired::Stale,
        }
    }

    fn retire_recv(&mut self, qpn: Qpn, request_id: u16) -> Retired {
        match self.owns(qpn) {
            true => self.recv.retire(request_id),
            false => Retired::Stale,
        }
    }

    fn owns(&mut self, qpn: Qpn) -> bool {
        self.qpn == qpn
    }
}

/// A send queue request that has not completed.
#[derive(Clone, Copy)]
struct Posted {
    context: u64,
    /// The packet buffer of a send.
    buffer: Option<BufferId>,
}

/// One SRD queue pair of a simulated host, with a completion queue, a protection domain and packet
/// buffers of its own. Dropping it destroys the queue pair: its number becomes free, and what is
/// still on its way to it meets nobody, or the next owner of the number.
///
/// # Panics
/// Touching a packet buffer that the caller does not own is a bug of the caller and panics, in
/// [`Nic::buffer`], [`Nic::buffer_mut`] and [`Nic::release_buffer`]. The calls that can fail answer
/// [`NicError::Invalid`] instead.
pub struct SimNic {
    attributes: NicAttributes,
    address: RawAddress,
    cq: CompletionQueue,
    queues: Queues,
    posted: Slab<Posted>,
    buffers: PacketBuffers,
    /// Completions taken from the queue and not handed out yet.
    pending: Vec<provider::Completion>,
    objects: Objects,
}

impl SimNic {
    pub(super) fn open(host: &SimHost, config: NicConfig) -> Result<Self, NicError> {
        let mut objects = Objects::new(host)?;
        let profile = objects.with_host(|host| Ok(host.device.profile().clone()))?;
        let qpn = objects.take_qpn()?;
        let pd = objects.create_pd()?;
        let stride = PacketBuffers::stride_for(profile.mtu as usize);
        let pool = objects.create_pool(pd, config.packet_buffers, stride)?;
        // Room for everything that can be outstanding. Unsolicited writes come on top, and nothing
        // bounds them: a program that does not poll loses completions, as on the real device.
        let unsolicited = if config.unsolicited_write_recv { 2 } else { 1 };
        let entries =
            (config.send_depth.saturating_add(config.recv_depth)).saturating_mul(unsolicited);
        let (cq, ring) = objects.create_cq(entries.min(profile.max_cqe))?;
        let qp = QpConfig {
            service: Service::Srd,
            pd,
            send_cq: cq,
            recv_cq: cq,
            send_entries: config.send_depth,
            wqe_size: WqeSize::Bytes64,
            recv_descriptors: RecvQueue::descriptors(config.recv_depth, 1),
            unsolicited_write_recv: config.unsolicited_write_recv,
        };
        let rings = objects.create_qp(qpn, qp)?;
        let qkey = config.qkey.unwrap_or_else(|| objects.random_qkey());
        let rnr_retry = profile.caps.contains(DeviceCaps::RNR_RETRY);
        let rnr_retry = rnr_retry.then_some(config.rnr_retry);
        objects.bring_up(qpn, qkey, rnr_retry)?;

        let generation = objects.next_generation();
        let mut send = SendQueue::new(
            rings.send,
            SendQueueConfig {
                max_sge: profile.max_sq_sge,
                max_rdma_sge: profile.max_rdma_sge,
                max_inline: profile.inline_size,
                inline_write: false,
                signal_all: true,
                generation,
            },
        );
        send.set_state(QpState::ReadyToSend);
        let recv = RecvQueueConfig {
            max_sge: 1,
            generation,
        };
        let mut recv = RecvQueue::new(rings.recv, recv);
        recv.set_state(QpState::ReadyToSend);
        let mut attributes = NicAttributes {
            send_queue_depth: send.depth(),
            recv_queue_depth: recv.depth(),
            ..profile.nic_attributes(host.id().index() as u64 + 1)
        };
        if !config.unsolicited_write_recv {
            attributes.caps -= DeviceCaps::UNSOLICITED_WRITE_RECV;
        }
        Ok(SimNic {
            buffers: PacketBuffers::new(pool, attributes.mtu, config.packet_buffers),
            attributes,
            address: RawAddress {
                gid: host.gid(),
                qpn,
                qkey,
            },
            cq: CompletionQueue::new(ring),
            queues: Queues { qpn, send, recv },
            posted: Slab::with_capacity(config.send_depth as usize),
            pending: Vec::new(),
            objects,
        })
    }

    /// The host that the queue pair is on.
    pub fn host(&self) -> &SimHost {
        self.objects.host()
    }

    /// Receives that are posted.
    pub fn posted_receives(&self) -> usize {
        self.queues.recv.outstanding()
    }

    /// Packet buffers in the pool.
    pub fn free_buffers(&self) -> usize {
        self.buffers.free()
    }

    /// Completions that were dropped because they belonged to no outstanding request.
    pub fn stale_completions(&self) -> u64 {
        self.cq.stale()
    }

    /// Fails the queue pair: everything outstanding completes with [`Status::Flushed`], and nothing
    /// can be posted any more.
    pub fn fail(&mut self) -> Result<(), NicError> {
        let qpn = self.address.qpn;
        let change = QpChange {
            state: Some(QpState::Error),
            ..QpChange::default()
        };
        self.objects
            .with_host(|host| host.device.modify_qp(qpn, &change))?;
        self.queues.send.set_state(QpState::Error);
        self.queues.recv.set_state(QpState::Error);
        Ok(())
    }

    /// Tells the device to read the send queue.
    fn ring_doorbell(&mut self) -> Result<(), NicError> {
        let qpn = self.address.qpn;
        self.objects
            .with_host(|host| host.device.look_at_send_queue(qpn))?;
        self.objects.drive();
        Ok(())
    }

    fn post_rdma(
        &mut self,
        request: &RdmaRequest,
        begin: impl FnOnce(&mut SendQueue, u64, u32, u64),
    ) -> Result<(), NicError> {
        self.objects.check_alive()?;
        let rkey = u32::try_from(request.remote_key.0)
            .map_err(|_| invalid("remote key", request.remote_key.0))?;
        let local = user_buffer(request.local, request.local_key)?;
        let wr_id = self.posted.insert(Posted {
            context: request.context,
            buffer: None,
        });
        let queue = &mut self.queues.send;
        queue.start();
        begin(queue, wr_id as u64, rkey, request.remote_address);
        queue.set_ud_addr(peer(&request.destination));
        queue.set_sge_list(&[local]);
        if let Err(error) = queue.complete() {
            self.posted.remove(wr_id);
            return Err(error.into());
        }
        self.ring_doorbell()
    }

    fn translate(&mut self, entry: &provider::Completion) -> Completion {
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
            CompletionKind::RdmaRead | CompletionKind::RdmaWrite => None,
        };
        if let Some(buffer) = buffer {
            self.objects
                .with_memory(|memory| self.buffers.take_back(buffer, memory));
        }
        Completion {
            context,
            status: entry.status().unwrap_or(Status::RemoteBadStatus),
            kind,
        }
    }
}

impl Nic for SimNic {
    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

    fn local_address(&self) -> RawAddress {
        self.address
    }

    fn register(&mut self, memory: UserSlice, access: Access) -> Result<Region, NicError> {
        self.objects.check_alive()?;
        let (address, length) = (memory.address, memory.length as u64);
        self.objects
            .with_memory(|memory| memory.check(address, length))
            .map_err(|_| fault(memory))?;
        if let Some(errno) = self.objects.registration_failure(length) {
            return Err(Error::Staged(errno).into());
        }
        let keys = self.objects.register(MemoryRegion {
            address,
            length,
            iova: address,
            access,
        })?;
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
        self.objects
            .with_memory(|memory| self.buffers.acquire(memory))
    }

    fn release_buffer(&mut self, buffer: BufferId) {
        self.objects
            .with_memory(|memory| self.buffers.release(buffer, memory));
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
        self.objects.check_alive()?;
        let target = self.buffers.range_mut(buffer, offset, source.length)?;
        self.objects
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
        self.objects.check_alive()?;
        let source = self.buffers.range_mut(buffer, offset, length)?;
        self.objects
            .with_memory(|memory| {
                memory.bytes_mut(address, length)?.copy_from_slice(source);
                Ok(())
            })
            .map_err(|_: MemoryFault| fault(UserSlice { address, length }))
    }

    fn read_user(&mut self, address: u64, target: &mut [u8]) -> Result<(), NicError> {
        self.objects.check_alive()?;
        let length = target.len();
        self.objects
            .with_memory(|memory| {
                target.copy_from_slice(memory.bytes(address, length)?);
                Ok(())
            })
            .map_err(|_: MemoryFault| fault(UserSlice { address, length }))
    }

    fn write_user(&mut self, address: u64, source: &[u8]) -> Result<(), NicError> {
        self.objects.check_alive()?;
        let length = source.len();
        self.objects
            .with_memory(|memory| {
                memory.bytes_mut(address, length)?.copy_from_slice(source);
                Ok(())
            })
            .map_err(|_: MemoryFault| fault(UserSlice { address, length }))
    }

    fn post_send(&mut self, request: &SendRequest) -> Result<(), NicError> {
        self.objects.check_alive()?;
        let length = request.header_length;
        self.buffers.range_mut(request.buffer, 0, length)?;
        let mut parts = [Buffer::default(); 2];
        let mut count = 0;
        if length > 0 || request.payload.is_none() {
            parts[0] = self.buffers.describe(request.buffer, length);
            count = 1;
        }
        if let Some((slice, key)) = request.payload {
            parts[count] = user_buffer(slice, key)?;
            count += 1;
        }
        let wr_id = self.posted.insert(Posted {
            context: request.context,
            buffer: Some(request.buffer),
        });
        let opcode = match request.immediate {
            Some(immediate) => SendOpcode::SendWithImmediate(immediate),
            None => SendOpcode::Send,
        };
        let posted = self.queues.send.post(&provider::SendRequest {
            wr_id: wr_id as u64,
            opcode,
            flags: SendFlags::SIGNALED.bits(),
            to: peer(&request.destination),
            data: SendData::Buffers(&parts[..count]),
        });
        if let Err(error) = posted {
            self.posted.remove(wr_id);
            return Err(error.into());
        }
        self.objects
            .with_memory(|memory| self.buffers.lend_to_send(request.buffer, memory));
        self.ring_doorbell()
    }

    fn post_recv(&mut self, buffer: BufferId) -> Result<(), NicError> {
        self.objects.check_alive()?;
        self.buffers.check_owned(buffer)?;
        let whole = self.buffers.describe(buffer, self.attributes.mtu);
        self.queues.recv.post(buffer.0.into(), &[whole])?;
        self.objects
            .with_memory(|memory| self.buffers.lend_to_receive(buffer, memory));
        Ok(())
    }

    fn post_read(&mut self, request: &RdmaRequest) -> Result<(), NicError> {
        if !self.attributes.caps.contains(DeviceCaps::RDMA_READ) {
            return Err(NicError::Unsupported("RDMA read"));
        }
        self.post_rdma(request, |queue, wr_id, rkey, address| {
            queue.rdma_read(wr_id, SendFlags::SIGNALED.bits(), rkey, address);
        })
    }

    fn post_write(&mut self, request: &RdmaRequest) -> Result<(), NicError> {
        if !self.attributes.caps.contains(DeviceCaps::RDMA_WRITE) {
            return Err(NicError::Unsupported("RDMA write"));
        }
        self.post_rdma(request, |queue, wr_id, rkey, address| {
            let flags = SendFlags::SIGNALED.bits();
            queue.rdma_write(wr_id, flags, rkey, address, request.immediate);
        })
    }

    fn poll(&mut self, completions: &mut Vec<Completion>, limit: usize) -> usize {
        if self.objects.check_alive().is_err() {
            return 0;
        }
        let window = self.objects.completion_window();
        let mut count = 0;
        while count < limit {
            while self.pending.len() < window
                && let Some(entry) = self.cq.next(&mut self.queues)
            {
                self.pending.push(entry);
            }
            let chosen = match self.pending.len() {
                0 => break,
                1 => 0,
                several => self.objects.random_below(several),
            };
            let entry = self.pending.remove(chosen);
            let completion = self.translate(&entry);
            completions.push(completion);
            count += 1;
        }
        count
    }
}

fn peer(destination: &Destination) -> UdAddress {
    UdAddress {
        ahn: destination.ahn.0,
        qpn: destination.qpn,
        qkey: destination.qkey,
    }
}

fn user_buffer(slice: UserSlice, key: LocalKey) -> Result<Buffer, NicError> {
    let length = u32::try_from(slice.length).map_err(|_| invalid("length", slice.length as u64))?;
    Ok(Buffer {
        address: slice.address,
        length,
        lkey: key.0,
    })
}

fn fault(slice: UserSlice) -> NicError {
    NicError::MemoryFault {
        address: slice.address,
        length: slice.length,
    }
}

fn invalid(what: &'static str, value: u64) -> NicError {
    NicError::Invalid { what, value }
}
