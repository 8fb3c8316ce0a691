//! A device of tests: a pool of packet buffers and one queue pair, over a carrier.
//!
//! It serves the unit tests of the engine and, in the package `efa-testing`, those of all others.
//! The unit tests cannot take it from there: that package depends on this one without its tests,
//! whose traits are other ones. So it is not only compiled for tests.

use std::marker::PhantomData;

use crate::address::{Ahn, Gid, RawAddress};
use crate::nic::{
    Access, BufferId, Completion, CompletionQueueId, Domain, Doorbell, NicAttributes, NicError,
    OwnNic, QueuePair, QueuePairConfig, RdmaRequest, Region, SendRequest, UserSlice,
};

/// A device with its only queue pair.
pub type TestNic<C> = OwnNic<TestDomain<C>>;

/// Transports a device's requests. Each method corresponds to the one of [`Domain`] or
/// [`QueuePair`] with the same name.
pub trait Transport {
    fn post_send(&mut self, buffers: &mut Buffers, request: &SendRequest) -> Result<(), NicError>;
    fn post_recv(&mut self, buffers: &mut Buffers, buffer: BufferId) -> Result<(), NicError>;
    fn post_read(&mut self, request: &RdmaRequest) -> Result<(), NicError>;
    fn post_write(&mut self, request: &RdmaRequest) -> Result<(), NicError>;
    fn poll(
        &mut self,
        buffers: &mut Buffers,
        completions: &mut Vec<Completion>,
        limit: usize,
    ) -> usize;
    fn register(&mut self, memory: UserSlice, access: Access) -> Result<Region, NicError>;
    fn deregister(&mut self, region: Region) -> Result<(), NicError>;
    fn create_address_handle(&mut self, gid: Gid) -> Result<Ahn, NicError>;
    fn destroy_address_handle(&mut self, ahn: Ahn) -> Result<(), NicError>;

    /// Calls `access` with a part of the user's memory.
    fn user<R>(
        &mut self,
        memory: UserSlice,
        access: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, NicError>;
}

/// The packet buffers of a device.
pub struct Buffers {
    /// Each buffer's bytes; empty while a carrier has taken them away.
    pub bytes: Vec<Vec<u8>>,
    free: Vec<BufferId>,
}

impl Buffers {
    fn new(count: usize, length: usize) -> Self {
        Buffers {
            bytes: vec![vec![0; length]; count],
            free: (0..count as u32).map(BufferId).collect(),
        }
    }

    fn bytes_of(&mut self, buffer: BufferId) -> &mut Vec<u8> {
        &mut self.bytes[buffer.0 as usize]
    }

    /// Takes the bytes of a buffer, for a carrier that writes into them while it uses the device.
    pub fn take(&mut self, buffer: BufferId) -> Vec<u8> {
        let bytes = std::mem::take(self.bytes_of(buffer));
        assert!(!bytes.is_empty(), "{buffer:?} was posted twice");
        bytes
    }

    /// Returns the bytes of a buffer.
    pub fn give_back(&mut self, buffer: BufferId, bytes: Vec<u8>) {
        *self.bytes_of(buffer) = bytes;
    }

    /// Only with debug assertions, so that benchmarks do not include it.
    fn check_owned(&self, buffer: BufferId) {
        debug_assert!(!self.free.contains(&buffer), "{buffer:?} is in the pool");
    }
}

/// A domain on a device.
pub struct TestDomain<C> {
    /// The transport of its packets.
    pub carrier: C,
    /// Packets that were posted without the doorbell, which has not been rung since.
    pub deferred: usize,
    attributes: NicAttributes,
    address: RawAddress,
    buffers: Buffers,
    rival: Option<fn(&mut [u8])>,
}

impl<C: Transport> TestDomain<C> {
    /// Opens a device with this many packet buffers, and its queue pair.
    pub fn open(
        carrier: C,
        attributes: NicAttributes,
        address: RawAddress,
        packet_buffers: usize,
    ) -> TestNic<C> {
        let domain = TestDomain {
            carrier,
            deferred: 0,
            buffers: Buffers::new(packet_buffers, attributes.mtu),
            attributes,
            address,
            rival: None,
        };
        let queue_pair = domain.only_queue_pair();
        OwnNic::new(domain, queue_pair)
    }

    fn only_queue_pair(&self) -> TestQueuePair<C> {
        TestQueuePair {
            attributes: self.attributes.clone(),
            address: self.address,
            domain: PhantomData,
        }
    }

    /// Makes another thread change user memory, once, directly after the user has read it.
    pub fn set_rival(&mut self, change: fn(&mut [u8])) {
        self.rival = Some(change);
    }

    /// Packet buffers in the pool.
    pub fn free_buffers(&self) -> usize {
        self.buffers.free.len()
    }
}

impl<C: Transport> Domain for TestDomain<C> {
    type QueuePair = TestQueuePair<C>;
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
    ) -> Result<TestQueuePair<C>, NicError> {
        Ok(self.only_queue_pair())
    }

    fn poll(
        &mut self,
        _: CompletionQueueId,
        completions: &mut Vec<Completion>,
        limit: usize,
    ) -> usize {
        self.carrier.poll(&mut self.buffers, completions, limit)
    }

    fn register(&mut self, memory: UserSlice, access: Access) -> Result<Region, NicError> {
        self.carrier.register(memory, access)
    }

    fn deregister(&mut self, region: Region) -> Result<(), NicError> {
        self.carrier.deregister(region)
    }

    fn create_address_handle(&mut self, gid: Gid) -> Result<Ahn, NicError> {
        self.carrier.create_address_handle(gid)
    }

    fn destroy_address_handle(&mut self, ahn: Ahn) -> Result<(), NicError> {
        self.carrier.destroy_address_handle(ahn)
    }

    fn acquire_buffer(&mut self) -> Option<BufferId> {
        self.buffers.free.pop()
    }

    fn release_buffer(&mut self, buffer: BufferId) {
        self.buffers.check_owned(buffer);
        self.buffers.free.push(buffer);
    }

    fn buffer(&self, buffer: BufferId) -> &[u8] {
        &self.buffers.bytes[buffer.0 as usize]
    }

    fn buffer_mut(&mut self, buffer: BufferId) -> &mut [u8] {
        self.buffers.bytes_of(buffer)
    }

    fn copy_from_user(
        &mut self,
        buffer: BufferId,
        offset: usize,
        source: UserSlice,
    ) -> Result<(), NicError> {
        let target = &mut self.buffers.bytes_of(buffer)[offset..offset + source.length];
        self.carrier
            .user(source, |user| target.copy_from_slice(user))
    }

    fn copy_to_user(
        &mut self,
        buffer: BufferId,
        offset: usize,
        length: usize,
        address: u64,
    ) -> Result<(), NicError> {
        let source = &self.buffers.bytes_of(buffer)[offset..offset + length];
        let target = UserSlice { address, length };
        self.carrier
            .user(target, |user| user.copy_from_slice(source))
    }

    fn write_user(&mut self, address: u64, source: &[u8]) -> Result<(), NicError> {
        let length = source.len();
        let target = UserSlice { address, length };
        self.carrier
            .user(target, |user| user.copy_from_slice(source))
    }

    fn read_user(&mut self, address: u64, target: &mut [u8]) -> Result<(), NicError> {
        let length = target.len();
        let source = UserSlice { address, length };
        self.carrier
            .user(source, |user| target.copy_from_slice(user))?;
        match self.rival.take() {
            Some(change) => self.carrier.user(source, change),
            None => Ok(()),
        }
    }

    fn exchange_user(
        &mut self,
        address: u64,
        expected: &mut [u8],
        new: &[u8],
    ) -> Result<bool, NicError> {
        let length = new.len();
        self.carrier.user(UserSlice { address, length }, |user| {
            let is_expected = user == expected;
            match is_expected {
                true => user.copy_from_slice(new),
                false => expected.copy_from_slice(user),
            }
            is_expected
        })
    }
}

/// The only queue pair of a domain.
pub struct TestQueuePair<C> {
    attributes: NicAttributes,
    address: RawAddress,
    domain: PhantomData<TestDomain<C>>,
}

impl<C: Transport> QueuePair for TestQueuePair<C> {
    type Domain = TestDomain<C>;

    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

    fn address(&self) -> RawAddress {
        self.address
    }

    fn completion_queue(&self) -> CompletionQueueId {
        CompletionQueueId(0)
    }

    fn post_send(
        &mut self,
        domain: &mut TestDomain<C>,
        request: &SendRequest,
        doorbell: Doorbell,
    ) -> Result<(), NicError> {
        domain.buffers.check_owned(request.buffer);
        domain.carrier.post_send(&mut domain.buffers, request)?;
        domain.deferred = match doorbell {
            Doorbell::Ring => 0,
            Doorbell::Defer => domain.deferred + 1,
        };
        Ok(())
    }

    fn post_recv(&mut self, domain: &mut TestDomain<C>, buffer: BufferId) -> Result<(), NicError> {
        domain.buffers.check_owned(buffer);
        domain.carrier.post_recv(&mut domain.buffers, buffer)
    }

    fn post_read(
        &mut self,
        domain: &mut TestDomain<C>,
        request: &RdmaRequest,
        _: Doorbell,
    ) -> Result<(), NicError> {
        domain.carrier.post_read(request)
    }

    fn post_write(
        &mut self,
        domain: &mut TestDomain<C>,
        request: &RdmaRequest,
        _: Doorbell,
    ) -> Result<(), NicError> {
        domain.carrier.post_write(request)
    }

    fn flush(&mut self, domain: &mut TestDomain<C>) {
        domain.deferred = 0;
    }

    fn close(self, _: &mut TestDomain<C>) {}
}
