//! A fake device for unit tests of the engine. It delivers nothing, records the posted requests,
//! and fails requests on demand.

use crate::address::{Ahn, Gid, Qkey, Qpn, RawAddress};

use super::attributes::{DeviceCaps, NicAttributes};
use super::completion::Completion;
use super::error::NicError;
use super::hold::OwnNic;
use super::memory::{Access, BufferId, LocalKey, Region, RemoteKey, UserSlice};
use super::objects::{CompletionQueueId, Domain, QueuePair, QueuePairConfig};
use super::request::{Doorbell, RdmaRequest, SendRequest};

/// Length of a packet buffer in bytes.
const MTU: usize = 8928;

/// A fake domain with the only queue pair in it.
pub(crate) type FakeNic = OwnNic<FakeDomain>;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct FakeDomain {
    attributes: NicAttributes,
    buffers: Vec<Vec<u8>>,
    pub(crate) free: Vec<BufferId>,
    /// Registrations that are in force, by their local keys.
    pub(crate) registered: Vec<u32>,
    next_key: u32,
    /// Registrations from this one on are refused.
    pub(crate) refuse_from_key: u32,
    /// The reason why a registration cannot be ended.
    pub(crate) refuse_deregister: Option<NicError>,
    /// The memory of the user, from address 0 on.
    pub(crate) memory: Vec<u8>,
    /// The posted packets: their bytes in buffers, and their destinations.
    pub(crate) packets: Vec<(Vec<u8>, Qpn)>,
    /// The error that posts of packets return.
    pub(crate) refuse_packets: Option<NicError>,
    /// Packets that were posted without the doorbell, which has not been rung since.
    pub(crate) deferred: usize,
}

#[derive(Debug)]
pub(crate) struct FakeQueuePair(NicAttributes);

/// A device with this many packet buffers.
pub(crate) fn fake_nic(packet_buffers: u32) -> FakeNic {
    let attributes = NicAttributes {
        caps: DeviceCaps::RDMA_READ,
        mtu: MTU,
        max_rdma_size: 1 << 20,
        send_queue_depth: 64,
        recv_queue_depth: 64,
        inline_size: 32,
        vendor_part_id: 0xefa1,
        host_id: 0,
    };
    let queue_pair = FakeQueuePair(attributes.clone());
    let domain = FakeDomain {
        attributes,
        buffers: vec![vec![0; MTU]; packet_buffers as usize],
        free: (0..packet_buffers).map(BufferId).collect(),
        registered: Vec::new(),
        next_key: 1,
        refuse_from_key: u32::MAX,
        refuse_deregister: None,
        memory: Vec::new(),
        packets: Vec::new(),
        refuse_packets: None,
        deferred: 0,
    };
    OwnNic::new(domain, queue_pair)
}

impl Domain for FakeDomain {
    type QueuePair = FakeQueuePair;
    type OpenError = NicError;

    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

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
    ) -> Result<FakeQueuePair, NicError> {
        Ok(FakeQueuePair(self.attributes.clone()))
    }

    fn poll(&mut self, _: CompletionQueueId, _: &mut Vec<Completion>, _: usize) -> usize {
        0
    }

    fn register(&mut self, _: UserSlice, _: Access) -> Result<Region, NicError> {
        let key = self.next_key;
        if key >= self.refuse_from_key {
            return Err(NicError::Exhausted("memory region"));
        }
        self.next_key += 1;
        self.registered.push(key);
        Ok(Region {
            local_key: LocalKey(key),
            remote_key: RemoteKey(key.into()),
        })
    }

    fn deregister(&mut self, region: Region) -> Result<(), NicError> {
        if let Some(error) = self.refuse_deregister {
            return Err(error);
        }
        self.registered.retain(|key| *key != region.local_key.0);
        Ok(())
    }

    fn create_address_handle(&mut self, gid: Gid) -> Result<Ahn, NicError> {
        Ok(Ahn(gid.0[15].into()))
    }

    fn destroy_address_handle(&mut self, _: Ahn) -> Result<(), NicError> {
        Ok(())
    }

    fn acquire_buffer(&mut self) -> Option<BufferId> {
        self.free.pop()
    }

    fn release_buffer(&mut self, buffer: BufferId) {
        assert!(!self.free.contains(&buffer), "released twice");
        self.free.push(buffer);
    }

    fn buffer(&self, buffer: BufferId) -> &[u8] {
        &self.buffers[buffer.0 as usize]
    }

    fn buffer_mut(&mut self, buffer: BufferId) -> &mut [u8] {
        &mut self.buffers[buffer.0 as usize]
    }

    fn copy_from_user(&mut self, _: BufferId, _: usize, source: UserSlice) -> Result<(), NicError> {
        Err(unreachable_memory(source.address, source.length))
    }

    fn copy_to_user(
        &mut self,
        _: BufferId,
        _: usize,
        length: usize,
        address: u64,
    ) -> Result<(), NicError> {
        Err(unreachable_memory(address, length))
    }

    fn write_user(&mut self, address: u64, source: &[u8]) -> Result<(), NicError> {
        Err(unreachable_memory(address, source.len()))
    }

    fn read_user(&mut self, address: u64, target: &mut [u8]) -> Result<(), NicError> {
        target.copy_from_slice(self.user(address, target.len())?);
        Ok(())
    }

    fn exchange_user(
        &mut self,
        address: u64,
        expected: &mut [u8],
        new: &[u8],
    ) -> Result<bool, NicError> {
        let memory = self.user(address, new.len())?;
        let is_expected = *memory == *expected;
        match is_expected {
            true => memory.copy_from_slice(new),
            false => expected.copy_from_slice(memory),
        }
        Ok(is_expected)
    }
}

impl FakeDomain {
    fn user(&mut self, address: u64, length: usize) -> Result<&mut [u8], NicError> {
        let memory = self.memory.get_mut(address as usize..);
        memory
            .and_then(|memory| memory.get_mut(..length))
            .ok_or(unreachable_memory(address, length))
    }
}

fn unreachable_memory(address: u64, length: usize) -> NicError {
    NicError::MemoryFault { address, length }
}

impl QueuePair for FakeQueuePair {
    type Domain = FakeDomain;

    fn attributes(&self) -> &NicAttributes {
        &self.0
    }

    fn address(&self) -> RawAddress {
        RawAddress {
            gid: Gid([9; 16]),
            qpn: Qpn(1),
            qkey: Qkey(0x1234),
        }
    }

    fn completion_queue(&self) -> CompletionQueueId {
        CompletionQueueId(0)
    }

    fn post_send(
        &mut self,
        domain: &mut FakeDomain,
        request: &SendRequest,
        doorbell: Doorbell,
    ) -> Result<(), NicError> {
        if let Some(error) = domain.refuse_packets {
            return Err(error);
        }
        let bytes = domain.buffer(request.buffer)[..request.header_length].to_vec();
        domain.packets.push((bytes, request.destination.qpn));
        domain.deferred = match doorbell {
            Doorbell::Ring => 0,
            Doorbell::Defer => domain.deferred + 1,
        };
        Ok(())
    }

    fn post_read(
        &mut self,
        _: &mut FakeDomain,
        _: &RdmaRequest,
        _: Doorbell,
    ) -> Result<(), NicError> {
        Ok(())
    }

    fn post_write(
        &mut self,
        _: &mut FakeDomain,
        _: &RdmaRequest,
        _: Doorbell,
    ) -> Result<(), NicError> {
        Ok(())
    }

    fn flush(&mut self, domain: &mut FakeDomain) {
        domain.deferred = 0;
    }

    fn post_recv(&mut self, _: &mut FakeDomain, _: BufferId) -> Result<(), NicError> {
        Ok(())
    }

    fn close(self, _: &mut FakeDomain) {}
}
