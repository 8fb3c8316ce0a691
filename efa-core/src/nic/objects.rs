//! The objects of a device: device, domain, queue pair.

use crate::address::{Ahn, Gid, Qkey, RawAddress};

use super::attributes::NicAttributes;
use super::completion::Completion;
use super::error::NicError;
use super::memory::{Access, BufferId, LocalKey, Region, UserSlice};
use super::request::{Doorbell, RdmaRequest, SendRequest};

/// An open device.
pub trait Device {
    /// Its domains.
    type Domain: Domain;

    /// The device's identity, capabilities and limits.
    fn attributes(&self) -> NicAttributes;

    /// Opens a domain.
    ///
    /// # Errors
    /// The device has no room for another one, or there is no memory for its packet buffers.
    fn open_domain(
        &self,
        config: &DomainConfig,
    ) -> Result<Self::Domain, <Self::Domain as Domain>::OpenError>;
}

/// How a domain is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DomainConfig {
    /// Packet buffers, shared by all queue pairs of the domain. If there are as many as all
    /// requests that their queues can hold, posted receives never starve the sends.
    pub packet_buffers: usize,
}

/// How a queue pair is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuePairConfig {
    /// Work requests that the send queue holds, at most the device's `send_queue_depth`.
    pub send_queue_depth: usize,
    /// Receives that the receive queue holds, at most the device's `recv_queue_depth`.
    pub recv_queue_depth: usize,
    /// The Q-key; a random one if `None`. Its upper bit must be clear: Q-keys with that bit set are
    /// privileged.
    pub qkey: Option<Qkey>,
    /// The number of device retries of a send to a receiver that is not ready, before the send
    /// completes with [`Status::RemoteRnr`](super::Status::RemoteRnr): 0 to 6, or 7 for unlimited.
    /// Stock libfabric sets 3.
    pub rnr_retry: u8,
    /// Writes with immediate data from peers consume no receive, if the device supports that. Peers
    /// must know this setting, because stock libfabric requires both sides to agree.
    pub unsolicited_write_recv: bool,
    /// The service level of outgoing packets: 0, or [`QueuePairConfig::LOW_LATENCY`]. A device may
    /// refuse any other value.
    pub service_level: u8,
}

impl QueuePairConfig {
    /// The service level for low latency, as stock libfabric sets it for `FI_TC_LOW_LATENCY` from
    /// 2.0 on.
    pub const LOW_LATENCY: u8 = 8;

    /// The number of entries for a completion queue that can hold the completions of all posted
    /// requests. Unsolicited writes add an unbounded number of completions; the queue has the same
    /// number of additional entries for them.
    pub fn completions(&self) -> usize {
        let queued = self.send_queue_depth.saturating_add(self.recv_queue_depth);
        match self.unsolicited_write_recv {
            true => queued.saturating_mul(2),
            false => queued,
        }
    }
}

/// Names a completion queue of a domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CompletionQueueId(pub u32);

/// Shared by queue pairs of a device: registrations, address handles, packet buffers, completion
/// queues. It exists before the first queue pair.
pub trait Domain: Sized {
    /// Its queue pairs.
    type QueuePair: QueuePair<Domain = Self>;

    /// The reason why an object cannot be made.
    type OpenError: core::error::Error + 'static;

    /// The device's identity, capabilities and limits.
    fn attributes(&self) -> &NicAttributes;

    /// Makes a completion queue for `entries` completions, or the device's maximum if that is less.
    ///
    /// # Errors
    /// The device has no resources for it.
    fn create_completion_queue(
        &mut self,
        entries: usize,
    ) -> Result<CompletionQueueId, Self::OpenError>;

    /// Destroys a completion queue that no queue pair uses any more.
    ///
    /// # Errors
    /// [`NicError::Invalid`] if there is no such queue, or it is in use.
    fn destroy_completion_queue(&mut self, queue: CompletionQueueId) -> Result<(), NicError>;

    /// Makes an SRD queue pair, ready to send, whose completions go to `queue`.
    ///
    /// # Errors
    /// The configuration is beyond the device's limits, or the device has no room.
    fn create_queue_pair(
        &mut self,
        queue: CompletionQueueId,
        config: &QueuePairConfig,
    ) -> Result<Self::QueuePair, Self::OpenError>;

    /// Appends up to `limit` completions to `completions` and returns their number. A completion
    /// names its queue pair; completions of a closed queue pair never appear.
    fn poll(
        &mut self,
        queue: CompletionQueueId,
        completions: &mut Vec<Completion>,
        limit: usize,
    ) -> usize;

    /// Registers user memory, for all queue pairs of the domain.
    fn register(&mut self, memory: UserSlice, access: Access) -> Result<Region, NicError>;

    /// Ends a registration. Unknown keys are [`NicError::Invalid`].
    fn deregister(&mut self, region: Region) -> Result<(), NicError>;

    /// Registers unregistered user memory for one operation. The device may return a cached
    /// registration of an earlier operation, if the memory is certain to have the same pages.
    ///
    /// # Errors
    /// As for [`Domain::register`].
    fn lease(&mut self, memory: UserSlice, access: Access) -> Result<Region, NicError> {
        self.register(memory, access)
    }

    /// Ends the lease of a region from [`Domain::lease`], at the end of the operation. The device
    /// may cache the registration for later operations.
    ///
    /// # Errors
    /// As for [`Domain::deregister`].
    fn end_lease(&mut self, region: Region) -> Result<(), NicError> {
        self.deregister(region)
    }

    /// Adds a GID to the address book, or another reference to it.
    fn create_address_handle(&mut self, gid: Gid) -> Result<Ahn, NicError>;

    /// Releases one reference. The last release removes the GID from the address book.
    fn destroy_address_handle(&mut self, ahn: Ahn) -> Result<(), NicError>;

    /// Acquires a free packet buffer from the pool, `None` if all are in use.
    fn acquire_buffer(&mut self) -> Option<BufferId>;

    /// Returns a buffer to the pool.
    fn release_buffer(&mut self, buffer: BufferId);

    /// The bytes of a buffer that the caller owns.
    fn buffer(&self, buffer: BufferId) -> &[u8];

    /// The bytes of a buffer that the caller owns, to fill in.
    fn buffer_mut(&mut self, buffer: BufferId) -> &mut [u8];

    /// Copies `source` into `buffer` from byte `offset` on.
    fn copy_from_user(
        &mut self,
        buffer: BufferId,
        offset: usize,
        source: UserSlice,
    ) -> Result<(), NicError>;

    /// Copies `length` bytes of `buffer` from byte `offset` on to user memory at `address`.
    fn copy_to_user(
        &mut self,
        buffer: BufferId,
        offset: usize,
        length: usize,
        address: u64,
    ) -> Result<(), NicError>;

    /// Copies `source` to user memory at `address`, for data that the engine kept outside of packet
    /// buffers. It must not need a packet buffer, because it may be called when none is free.
    fn write_user(&mut self, address: u64, source: &[u8]) -> Result<(), NicError>;

    /// Copies user memory from `address` on to `target`, for elements that the engine computes
    /// with: `target` is as long as one. It must not need a packet buffer either.
    fn read_user(&mut self, address: u64, target: &mut [u8]) -> Result<(), NicError>;

    /// Replaces the element of user memory at `address` by `new` if it equals `expected`,
    /// atomically. Returns whether it did. Otherwise `expected` receives the current value. An
    /// element has at most 32 bytes.
    ///
    /// If several threads share the memory through the device, the exchange is atomic for all of
    /// them where the processor supports it, and otherwise only among the users of the device.
    fn exchange_user(
        &mut self,
        address: u64,
        expected: &mut [u8],
        new: &[u8],
    ) -> Result<bool, NicError>;
}

/// One SRD queue pair. The `domain` argument of each call is the domain in which the queue pair was
/// created.
///
/// Delivery is reliable and unordered: every posted request completes exactly once, packets arrive
/// in any order, and a completion may be polled after the peer's answer to it.
///
/// Dropping a queue pair destroys it on the device. A program that continues to use the domain
/// calls [`QueuePair::close`] instead, which also returns the buffers.
pub trait QueuePair: Sized {
    /// The domain that it is in.
    type Domain: Domain<QueuePair = Self>;

    /// The attributes of the device, with the queue depths of this queue pair and the capabilities
    /// that it was made with.
    fn attributes(&self) -> &NicAttributes;

    /// The queue pair's address.
    fn address(&self) -> RawAddress;

    /// The completion queue of its requests and receives.
    fn completion_queue(&self) -> CompletionQueueId;

    /// Queues a packet. On success the buffer is the device's until the completion.
    fn post_send(
        &mut self,
        domain: &mut Self::Domain,
        request: &SendRequest,
        doorbell: Doorbell,
    ) -> Result<(), NicError>;

    /// Queues an RDMA read into `request.local`.
    fn post_read(
        &mut self,
        domain: &mut Self::Domain,
        request: &RdmaRequest,
        doorbell: Doorbell,
    ) -> Result<(), NicError>;

    /// Queues an RDMA write from `request.local`.
    fn post_write(
        &mut self,
        domain: &mut Self::Domain,
        request: &RdmaRequest,
        doorbell: Doorbell,
    ) -> Result<(), NicError>;

    /// Rings the doorbell for requests that were posted with [`Doorbell::Defer`]. It cannot fail:
    /// if the device has failed, the requests complete with an error.
    fn flush(&mut self, domain: &mut Self::Domain);

    /// Passes a buffer to the receive queue.
    fn post_recv(&mut self, domain: &mut Self::Domain, buffer: BufferId) -> Result<(), NicError>;

    /// Passes buffers to the receive queue, from the last one on, and removes the posted ones from
    /// `buffers`. If the device supports it, one doorbell covers several buffers.
    ///
    /// # Errors
    /// [`NicError::QueueFull`] if the remaining buffers do not fit; otherwise the reason why the
    /// last remaining buffer was refused.
    fn post_recvs(
        &mut self,
        domain: &mut Self::Domain,
        buffers: &mut Vec<BufferId>,
    ) -> Result<(), NicError> {
        while let Some(&buffer) = buffers.last() {
            self.post_recv(domain, buffer)?;
            buffers.pop();
        }
        Ok(())
    }

    /// Posts registered user memory to the receive queue, for one packet of at most its length. The
    /// device writes the packet there. `context` is returned in the completion, a
    /// [`CompletionKind::RecvUser`](super::CompletionKind::RecvUser). A queue pair accepts either
    /// packet buffers or user memory, so a packet never lands in the wrong kind of memory.
    ///
    /// # Errors
    /// [`NicError::Unsupported`] from a device without this feature, [`NicError::QueueFull`] if the
    /// queue is full.
    fn post_user_recv(
        &mut self,
        _domain: &mut Self::Domain,
        _memory: UserSlice,
        _key: LocalKey,
        _context: u64,
    ) -> Result<(), NicError> {
        Err(NicError::Unsupported("receiving into memory of the user"))
    }

    /// Destroys the queue pair. Posted buffers return to the pool. Outstanding requests never
    /// complete.
    fn close(self, domain: &mut Self::Domain);
}
