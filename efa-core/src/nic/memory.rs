//! User memory, and the packet buffers of a domain.

bitflags::bitflags! {
    /// Access allowed to a registered region. Local reads are always allowed.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Access: u32 {
        /// The device may write the region for local work requests (receives, RDMA read targets).
        const LOCAL_WRITE = 1 << 0;
        /// Peers may write the region by RDMA.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read the region by RDMA.
        const REMOTE_READ = 1 << 2;
    }
}

/// Names the memory region to the local device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LocalKey(pub u32);

/// Names the memory region to peers. Devices use 32 bits; the protocol's field has 64.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteKey(pub u64);

/// A registered region of user memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// The key for local work requests.
    pub local_key: LocalKey,
    /// The key for the peers' RDMA operations.
    pub remote_key: RemoteKey,
}

/// A piece of user memory, as an address in the application's (or simulated host's) address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserSlice {
    /// First byte.
    pub address: u64,
    /// Length in bytes.
    pub length: usize,
}

impl UserSlice {
    /// The `length` bytes from `address` on.
    #[inline]
    pub const fn new(address: u64, length: usize) -> Self {
        UserSlice { address, length }
    }
}

/// A packet buffer of a domain, at least [`NicAttributes::mtu`](super::NicAttributes::mtu) bytes
/// long.
///
/// A buffer has one owner at a time: the pool; the endpoint that acquired it from the pool or
/// received it with a completion; or the device, from the post until the completion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BufferId(pub u32);
