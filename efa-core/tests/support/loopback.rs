//! A device that delivers to itself, and allocates nothing once it is open: for counting and
//! measuring what the engine does by itself.

use std::collections::VecDeque;

use efa_core::address::{Ahn, Gid, Qkey, Qpn, RawAddress};
use efa_core::nic::{
    Access, BufferId, Completion, CompletionKind, CompletionQueueId, DeviceCaps, Domain, Doorbell,
    LocalKey, NicAttributes, NicError, OwnNic, QueuePair, QueuePairConfig, RdmaRequest, Region,
    RemoteKey, SendRequest, Source, Status, UserSlice,
};

pub(crate) const MTU: usize = 1024;
pub(crate) const DEPTH: usize = 256;

/// The device with its only queue pair.
pub(crate) type Loopback = OwnNic<LoopbackDomain>;

/// A domain on the device.
pub(crate) struct LoopbackDomain {
    attributes: NicAttributes,
    address: RawAddress,
    buffers: Vec<Vec<u8>>,
    free: Vec<BufferId>,
    receives: VecDeque<BufferId>,
    completions: VecDeque<Completion>,
    memory: Vec<u8>,
    /// Packets are handed over in pairs, the later one first.
    swap: bool,
    swapped: Option<Completion>,
}

impl LoopbackDomain {
    /// With `swap`, packets are handed over in pairs, the later one first.
    pub(crate) fn new(swap: bool) -> Self {
        LoopbackDomain {
            attributes: NicAttributes {
                caps: DeviceCaps::RDMA_READ | DeviceCaps::RDMA_WRITE,
                mtu: MTU,
                max_rdma_size: 4096,
                send_queue_depth: DEPTH,
                recv_queue_depth: DEPTH,
                inline_size: 32,
                vendor_part_id: 0xEFA1,
                host_id: 0,
            },
            address: RawAddress {
                gid: Gid([7; 16]),
                qpn: Qpn(1),
                qkey: Qkey(2),
            },
            buffers: vec![vec![0; MTU]; 2 * DEPTH],
            free: (0..2 * DEPTH as u32).map(BufferId).collect(),
            receives: VecDeque::with_capacity(DEPTH),
            completions: VecDeque::with_capacity(4 * DEPTH),
            memory: vec![0; 1 << 20],
            swap,
            swapped: None,
        }
    }

    /// The same device as an older generation.
    #[allow(dead_code, reason = "not every user needs one")]
    pub(crate) fn without_rdma_write(mut self) -> Self {
        self.attributes.caps -= DeviceCaps::RDMA_WRITE;
        self
    }

    /// The device with a queue pair.
    pub(crate) fn open(self) -> Loopback {
        let queue_pair = LoopbackQueuePair {
            attributes: self.attributes.clone(),
            address: self.address,
        };
        OwnNic::new(self, queue_pair)
    }

    fn user(&mut self, address: u64, length: usize) -> &mut [u8] {
        &mut self.memory[address as usize..][..length]
    }

    fn rdma(&mut self, context: u64, kind: CompletionKind, from: u64, to: u64, length: usize) {
        self.memory
            .copy_within(from as usize..from as usize + length, to as usize);
        self.complete(context, kind);
    }

    fn source(&self) -> Source {
        Source {
            ahn: Some(ahn(self.address.gid)),
            qpn: self.address.qpn,
            gid: None,
        }
    }

    fn complete(&mut self, context: u64, kind: CompletionKind) {
        self.completions.push_back(Completion {
            queue_pair: self.address.qpn,
            context,
            status: Status::Ok,
            kind,
        });
    }
}

impl LoopbackDomain {
    fn post_send(&mut self, request: &SendRequest) -> Result<(), NicError> {
        let target = self.receives.pop_front().ok_or(NicError::QueueFull)?;
        let mut length = request.header_length;
        let mut packet = core::mem::take(&mut self.buffers[target.0 as usize]);
        packet[..length].copy_from_slice(&self.buffers[request.buffer.0 as usize][..length]);
        if let Some((slice, _)) = request.payload {
            let from = slice.address as usize;
            packet[length..length + slice.length]
                .copy_from_slice(&self.memory[from..from + slice.length]);
            length += slice.length;
        }
        self.buffers[target.0 as usize] = packet;
        let arrival = Completion {
            queue_pair: self.address.qpn,
            context: 0,
            status: Status::Ok,
            kind: CompletionKind::Recv {
                buffer: target,
                length,
                source: self.source(),
                immediate: None,
            },
        };
        match (self.swap, self.swapped.take()) {
            (true, None) => self.swapped = Some(arrival),
            (true, Some(earlier)) => self.completions.extend([arrival, earlier]),
            (false, _) => self.completions.push_back(arrival),
        }
        let buffer = request.buffer;
        self.complete(request.context, CompletionKind::Send { buffer });
        Ok(())
    }

    fn post_recv(&mut self, buffer: BufferId) -> Result<(), NicError> {
        self.receives.push_back(buffer);
        Ok(())
    }

    fn post_read(&mut self, request: &RdmaRequest) -> Result<(), NicError> {
        let (local, remote) = (request.local, request.remote_address);
        let kind = CompletionKind::RdmaRead;
        self.rdma(request.context, kind, remote, local.address, local.length);
        Ok(())
    }

    fn post_write(&mut self, request: &RdmaRequest) -> Result<(), NicError> {
        let (local, remote) = (request.local, request.remote_address);
        let kind = CompletionKind::RdmaWrite;
        self.rdma(request.context, kind, local.address, remote, local.length);
        if let Some(immediate) = request.immediate {
            let buffer = self.receives.pop_front().ok_or(NicError::QueueFull)?;
            let source = self.source();
            let kind = CompletionKind::RecvRdmaWithImmediate {
                buffer: Some(buffer),
                length: local.length,
                source,
                immediate,
            };
            self.complete(0, kind);
        }
        Ok(())
    }
}

impl Domain for LoopbackDomain {
    type QueuePair = LoopbackQueuePair;
    type OpenError = NicError;

    fn create_completion_queue(&mut self, _: usize) -> Result<CompletionQueueId, NicError> {
        Ok(CompletionQueueId(0))
    }

    fn destroy_completion_queue(&mut self, _: CompletionQueueId) -> Result<(), NicError> {
        Ok(())
    }

    fn create_queue_pair(
        &mut self,
        _: CompletionQueueId,
        _: &QueuePairConfig,
    ) -> Result<LoopbackQueuePair, NicError> {
        Ok(LoopbackQueuePair {
            attributes: self.attributes.clone(),
            address: self.address,
        })
    }

    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

    fn register(&mut self, _: UserSlice, _: Access) -> Result<Region, NicError> {
        Ok(Region {
            local_key: LocalKey(1),
            remote_key: RemoteKey(1),
        })
    }

    fn deregister(&mut self, _: Region) -> Result<(), NicError> {
        Ok(())
    }

    fn create_address_handle(&mut self, gid: Gid) -> Result<Ahn, NicError> {
        Ok(ahn(gid))
    }

    fn destroy_address_handle(&mut self, _: Ahn) -> Result<(), NicError> {
        Ok(())
    }

    fn acquire_buffer(&mut self) -> Option<BufferId> {
        self.free.pop()
    }

    fn release_buffer(&mut self, buffer: BufferId) {
        self.free.push(buffer);
    }

    fn buffer(&self, buffer: BufferId) -> &[u8] {
        &self.buffers[buffer.0 as usize]
    }

    fn buffer_mut(&mut self, buffer: BufferId) -> &mut [u8] {
        &mut self.buffers[buffer.0 as usize]
    }

    fn copy_from_user(
        &mut self,
        buffer: BufferId,
        offset: usize,
        source: UserSlice,
    ) -> Result<(), NicError> {
        let from = source.address as usize;
        self.buffers[buffer.0 as usize][offset..offset + source.length]
            .copy_from_slice(&self.memory[from..from + source.length]);
        Ok(())
    }

    fn copy_to_user(
        &mut self,
        buffer: BufferId,
        offset: usize,
        length: usize,
        address: u64,
    ) -> Result<(), NicError> {
        self.memory[address as usize..][..length]
            .copy_from_slice(&self.buffers[buffer.0 as usize][offset..offset + length]);
        Ok(())
    }

    fn write_user(&mut self, address: u64, source: &[u8]) -> Result<(), NicError> {
        self.user(address, source.len()).copy_from_slice(source);
        Ok(())
    }

    fn read_user(&mut self, address: u64, target: &mut [u8]) -> Result<(), NicError> {
        target.copy_from_slice(self.user(address, target.len()));
        Ok(())
    }

    fn poll(
        &mut self,
        _: CompletionQueueId,
        completions: &mut Vec<Completion>,
        limit: usize,
    ) -> usize {
        if self.completions.is_empty() {
            // Nothing follows that could overtake it.
            self.completions.extend(self.swapped.take());
        }
        let count = self.completions.len().min(limit);
        completions.extend(self.completions.drain(..count));
        count
    }
}

/// The only queue pair of a domain.
pub(crate) struct LoopbackQueuePair {
    attributes: NicAttributes,
    address: RawAddress,
}

impl QueuePair for LoopbackQueuePair {
    type Domain = LoopbackDomain;

    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

    fn local_address(&self) -> RawAddress {
        self.address
    }

    fn completion_queue(&self) -> CompletionQueueId {
        CompletionQueueId(0)
    }

    fn post_send(
        &mut self,
        domain: &mut LoopbackDomain,
        request: &SendRequest,
        _: Doorbell,
    ) -> Result<(), NicError> {
        domain.post_send(request)
    }

    fn post_read(
        &mut self,
        domain: &mut LoopbackDomain,
        request: &RdmaRequest,
        _: Doorbell,
    ) -> Result<(), NicError> {
        domain.post_read(request)
    }

    fn post_write(
        &mut self,
        domain: &mut LoopbackDomain,
        request: &RdmaRequest,
        _: Doorbell,
    ) -> Result<(), NicError> {
        domain.post_write(request)
    }

    fn flush(&mut self, _: &mut LoopbackDomain) {}

    fn post_recv(&mut self, domain: &mut LoopbackDomain, buffer: BufferId) -> Result<(), NicError> {
        domain.post_recv(buffer)
    }

    fn close(self, _: &mut LoopbackDomain) {}
}

/// Hosts are told apart by the last two bytes of their GID.
fn ahn(gid: Gid) -> Ahn {
    Ahn(u16::from_be_bytes([gid.0[14], gid.0[15]]))
}
