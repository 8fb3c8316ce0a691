//! A fake device for unit tests of the engine. It delivers nothing, records the posted requests,
//! and fails requests on demand.

use crate::address::{Ahn, Gid, Qkey, Qpn, RawAddress};

use super::attributes::{DeviceCaps, NicAttributes};
use super::completion::Completion;
use super::error::NicError;
use super::memory::{Access, BufferId, LocalKey, Region, RemoteKey, UserSlice};
use super::request::{RdmaRequest, SendRequest};
use super::test_device::{Buffers, TestDomain, TestNic, Transport};

/// A fake domain with the only queue pair in it.
pub(crate) type FakeNic = TestNic<Fake>;

/// See the [module documentation](self).
pub(crate) struct Fake {
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
}

/// A device with this many packet buffers.
pub(crate) fn fake_nic(packet_buffers: usize) -> FakeNic {
    let attributes = NicAttributes {
        caps: DeviceCaps::RDMA_READ,
        mtu: 8928,
        max_rdma_size: 1 << 20,
        send_queue_depth: 64,
        recv_queue_depth: 64,
        inline_size: 32,
        vendor_part_id: 0xefa1,
        host_id: 0,
    };
    let address = RawAddress::new(Gid([9; 16]), Qpn(1), Qkey(0x1234));
    let fake = Fake {
        registered: Vec::new(),
        next_key: 1,
        refuse_from_key: u32::MAX,
        refuse_deregister: None,
        memory: Vec::new(),
        packets: Vec::new(),
        refuse_packets: None,
    };
    TestDomain::open(fake, attributes, address, packet_buffers)
}

impl Transport for Fake {
    fn post_send(&mut self, buffers: &mut Buffers, request: &SendRequest) -> Result<(), NicError> {
        if let Some(error) = self.refuse_packets {
            return Err(error);
        }
        let bytes = &buffers.bytes[request.buffer.0 as usize][..request.header_length];
        let packet = (bytes.to_vec(), request.destination.qpn);
        self.packets.push(packet);
        Ok(())
    }

    fn post_recv(&mut self, _: &mut Buffers, _: BufferId) -> Result<(), NicError> {
        Ok(())
    }

    fn post_read(&mut self, _: &RdmaRequest) -> Result<(), NicError> {
        Ok(())
    }

    fn post_write(&mut self, _: &RdmaRequest) -> Result<(), NicError> {
        Ok(())
    }

    fn poll(&mut self, _: &mut Buffers, _: &mut Vec<Completion>, _: usize) -> usize {
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

    fn user<R>(
        &mut self,
        memory: UserSlice,
        access: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, NicError> {
        let UserSlice { address, length } = memory;
        let bytes = self.memory.get_mut(address as usize..);
        let bytes = bytes.and_then(|bytes| bytes.get_mut(..length));
        let bytes = bytes.ok_or(NicError::MemoryFault { address, length })?;
        Ok(access(bytes))
    }
}
