//! What the protocol needs from an EFA device: the shape of SRD verbs and no more.
//!
//! A [`Nic`] is one SRD queue pair together with its completion queue, its address book and its
//! registered packet buffers. Two devices implement it: the deterministic in-process emulator
//! (`efa_emu::sim`) and real verbs (`efa_hw`). The protocol engine is generic over it, so that no
//! call on the hot path is indirect.
//!
//! Memory comes in two kinds. *Packet buffers* belong to the device: they are registered once,
//! lent out as [`BufferId`]s and reused. *User memory* is only ever named by address and length; the
//! device reads and writes it ([`Nic::copy_from_user`], [`Nic::copy_to_user`], gather on send, RDMA)
//! and answers a bad address with an error. So the engine needs no `unsafe` code and each byte is
//! copied at most once.

use crate::address::{Ahn, Gid, Qkey, Qpn, RawAddress};

bitflags::bitflags! {
    /// What a device can do, in the bit numbers of `efadv_device_attr.device_caps`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct DeviceCaps: u32 {
        /// RDMA read.
        const RDMA_READ = 1 << 0;
        /// The number of receiver-not-ready retries can be set per queue pair.
        const RNR_RETRY = 1 << 1;
        /// Completions of unknown senders carry their GID.
        const CQ_WITH_SGID = 1 << 2;
        /// RDMA write.
        const RDMA_WRITE = 1 << 3;
        /// A write with immediate does not consume a receive. Of a device: it can be so; of a
        /// [`Nic`], which has one queue pair: it is so.
        const UNSOLICITED_WRITE_RECV = 1 << 4;
    }

    /// What may be done with a registered region. Local reads are always allowed.
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

/// A device's identity, capabilities and limits. They do not change while it is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NicAttributes {
    /// Capability bits.
    pub caps: DeviceCaps,
    /// Largest packet in bytes (port attribute `max_msg_sz`), 8928 on most devices.
    pub mtu: usize,
    /// Largest RDMA operation in bytes.
    pub max_rdma_size: usize,
    /// Work requests that the send queue holds.
    pub send_queue_depth: usize,
    /// Receives that the receive queue holds.
    pub recv_queue_depth: usize,
    /// Largest payload that can be placed inside a send work request, in bytes.
    pub inline_size: usize,
    /// PCI part id, such as 0xEFA1: the generation of the device.
    pub vendor_part_id: u32,
    /// An identifier of the host, 0 if there is none.
    pub host_id: u64,
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

/// A packet buffer of the device, at least [`NicAttributes::mtu`] bytes long.
///
/// A buffer has one owner at a time: the engine between [`Nic::acquire_buffer`] or a receive
/// completion and the call that gives it back ([`Nic::release_buffer`], [`Nic::post_recv`]), the
/// device between [`Nic::post_send`] or [`Nic::post_recv`] and the completion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BufferId(pub u32);

/// Where a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Destination {
    /// The peer's entry in the local address book.
    pub ahn: Ahn,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// The Q-key of the peer's queue pair.
    pub qkey: Qkey,
}

/// A packet to send: `header_length` bytes of a packet buffer, then optionally user memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendRequest {
    /// The peer.
    pub destination: Destination,
    /// The buffer that holds the first bytes of the packet. It comes back with the completion.
    pub buffer: BufferId,
    /// How many bytes of `buffer` belong to the packet.
    pub header_length: usize,
    /// Registered user memory that follows without a copy, if any.
    pub payload: Option<(UserSlice, LocalKey)>,
    /// Immediate data, handed to the receiver's completion.
    pub immediate: Option<u32>,
    /// Returned in the completion.
    pub context: u64,
}

/// One RDMA operation between local registered memory and a peer's registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RdmaRequest {
    /// The peer.
    pub destination: Destination,
    /// Local memory: the source of a write, the target of a read.
    pub local: UserSlice,
    /// The key of the local memory.
    pub local_key: LocalKey,
    /// The peer's memory address; the length is that of `local`.
    pub remote_address: u64,
    /// The key of the peer's memory.
    pub remote_key: RemoteKey,
    /// Immediate data (writes only).
    pub immediate: Option<u32>,
    /// Returned in the completion.
    pub context: u64,
}

/// The device's completion status, in the numbers of the EFA device (`efa_io_comp_status`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[expect(
    missing_docs,
    reason = "the names are the device's own; `Status::describe` explains them"
)]
pub enum Status {
    Ok = 0,
    Flushed = 1,
    LocalQpInternalError = 2,
    LocalUnsupportedOp = 3,
    LocalInvalidAh = 4,
    LocalInvalidLkey = 5,
    LocalBadLength = 6,
    RemoteBadAddress = 7,
    RemoteAbort = 8,
    RemoteBadDestQpn = 9,
    RemoteRnr = 10,
    RemoteBadLength = 11,
    RemoteBadStatus = 12,
    LocalUnresponsiveRemote = 13,
    RemoteUnknownPeer = 14,
    LocalUnreachableRemote = 15,
    RemoteFeatureMismatch = 18,
}

impl Status {
    /// All statuses, in the order of their codes.
    pub const ALL: [Status; 17] = [
        Status::Ok,
        Status::Flushed,
        Status::LocalQpInternalError,
        Status::LocalUnsupportedOp,
        Status::LocalInvalidAh,
        Status::LocalInvalidLkey,
        Status::LocalBadLength,
        Status::RemoteBadAddress,
        Status::RemoteAbort,
        Status::RemoteBadDestQpn,
        Status::RemoteRnr,
        Status::RemoteBadLength,
        Status::RemoteBadStatus,
        Status::LocalUnresponsiveRemote,
        Status::RemoteUnknownPeer,
        Status::LocalUnreachableRemote,
        Status::RemoteFeatureMismatch,
    ];

    /// The device's code.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The status of a device's code, if the code is known.
    pub fn from_code(code: u8) -> Option<Status> {
        Self::ALL.into_iter().find(|status| status.code() == code)
    }

    /// What happened, in words.
    pub const fn describe(self) -> &'static str {
        match self {
            Status::Ok => "success",
            Status::Flushed => "flushed when the queue pair was destroyed or failed",
            Status::LocalQpInternalError => "internal error of the local queue pair",
            Status::LocalUnsupportedOp => "operation not supported by the local device",
            Status::LocalInvalidAh => "the address handle is not valid",
            Status::LocalInvalidLkey => "the local key is not valid for this memory",
            Status::LocalBadLength => "the local length is not valid",
            Status::RemoteBadAddress => "the peer refused the remote key, address or access",
            Status::RemoteAbort => "the peer aborted the operation",
            Status::RemoteBadDestQpn => "the peer has no such queue pair, or another Q-key",
            Status::RemoteRnr => "the peer had no receive posted",
            Status::RemoteBadLength => "the peer's receive is too short",
            Status::RemoteBadStatus => "the peer answered with an unknown status",
            Status::LocalUnresponsiveRemote => "the peer does not respond",
            Status::RemoteUnknownPeer => "the peer has no address handle for us",
            Status::LocalUnreachableRemote => "the peer cannot be reached",
            Status::RemoteFeatureMismatch => "the peer's device lacks the feature",
        }
    }
}

/// What kind of work finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompletionKind {
    /// A [`SendRequest`]; its buffer is the engine's again.
    Send {
        /// The buffer that held the packet's first bytes.
        buffer: BufferId,
    },
    /// An RDMA read.
    RdmaRead,
    /// An RDMA write.
    RdmaWrite,
    /// A packet arrived; the buffer is the engine's until it is posted or released.
    Recv {
        /// The buffer that holds the packet.
        buffer: BufferId,
        /// The packet's length in bytes.
        length: usize,
        /// Who sent it.
        source: Source,
        /// Immediate data, if the sender gave any.
        immediate: Option<u32>,
    },
    /// A peer's RDMA write with immediate arrived.
    RecvRdmaWithImmediate {
        /// The receive that it consumed; `None` for unsolicited write receive.
        buffer: Option<BufferId>,
        /// Bytes written.
        length: usize,
        /// Who wrote.
        source: Source,
        /// The immediate data.
        immediate: u32,
    },
}

/// The sender of a packet, as far as the device knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source {
    /// The sender's entry in the local address book; `None` if it has none.
    pub ahn: Option<Ahn>,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The sender's GID: reported only for unknown senders, and only by devices with
    /// [`DeviceCaps::CQ_WITH_SGID`].
    pub gid: Option<Gid>,
}

/// One finished piece of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The request's context; 0 for receives.
    pub context: u64,
    /// How it ended. With a status other than [`Status::Ok`] only the buffer is meaningful.
    pub status: Status,
    /// What finished.
    pub kind: CompletionKind,
}

/// Why a device did not take a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NicError {
    /// The queue or pool is full; the same call may succeed after completions were polled.
    #[error("the device's queue is full: poll completions, then try again")]
    QueueFull,
    /// The device has no resources left for another object.
    #[error("the device has no resources left for another {0}")]
    Exhausted(&'static str),
    /// An argument is not valid for this device.
    #[error("{what} {value:#x} is not valid for this device")]
    Invalid {
        /// The argument.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The device lacks the capability.
    #[error("the device does not support {0}")]
    Unsupported(&'static str),
    /// User memory could not be reached.
    #[error("memory {address:#x} + {length} cannot be reached")]
    MemoryFault {
        /// The first byte.
        address: u64,
        /// The length in bytes.
        length: usize,
    },
    /// The device failed and cannot be used any more.
    #[error("the device failed (errno {0})")]
    Device(i32),
}

/// One SRD queue pair of a device, with everything that belongs to it.
///
/// Delivery is reliable and unordered: every posted send completes exactly once, packets arrive in
/// any order, and a completion may be polled after the peer's answer to it.
pub trait Nic {
    /// The device's limits and capabilities.
    fn attributes(&self) -> &NicAttributes;

    /// The address of this queue pair.
    fn local_address(&self) -> RawAddress;

    /// Registers user memory.
    fn register(&mut self, memory: UserSlice, access: Access) -> Result<Region, NicError>;

    /// Ends a registration. Unknown keys are [`NicError::Invalid`].
    fn deregister(&mut self, region: Region) -> Result<(), NicError>;

    /// Puts a GID into the address book, or takes another reference to it.
    fn create_address_handle(&mut self, gid: Gid) -> Result<Ahn, NicError>;

    /// Gives back one reference; with the last one the GID leaves the address book.
    fn destroy_address_handle(&mut self, ahn: Ahn) -> Result<(), NicError>;

    /// Takes a free packet buffer from the pool, `None` if all are in use. The pool holds at least
    /// [`NicAttributes::recv_queue_depth`] + [`NicAttributes::send_queue_depth`] buffers, so that
    /// posted receives never starve the sends.
    fn acquire_buffer(&mut self) -> Option<BufferId>;

    /// Gives a buffer back to the pool.
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

    /// Copies `source` to user memory at `address`: for data that the engine had to keep outside of
    /// packet buffers. It must not need a packet buffer, as it may be called when there is none.
    fn write_user(&mut self, address: u64, source: &[u8]) -> Result<(), NicError>;

    /// Copies user memory from `address` on to `target`, for small values that the engine computes
    /// with. It must not need a packet buffer either.
    fn read_user(&mut self, address: u64, target: &mut [u8]) -> Result<(), NicError>;

    /// Queues a packet. On success the buffer is the device's until the completion.
    fn post_send(&mut self, request: &SendRequest) -> Result<(), NicError>;

    /// Lends a buffer to the receive queue.
    fn post_recv(&mut self, buffer: BufferId) -> Result<(), NicError>;

    /// Queues an RDMA read into `request.local`.
    fn post_read(&mut self, request: &RdmaRequest) -> Result<(), NicError>;

    /// Queues an RDMA write from `request.local`.
    fn post_write(&mut self, request: &RdmaRequest) -> Result<(), NicError>;

    /// Appends up to `limit` completions to `completions` and returns how many there were.
    fn poll(&mut self, completions: &mut Vec<Completion>, limit: usize) -> usize;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_codes_round_trip_and_unknown_codes_are_none() {
        for status in Status::ALL {
            assert_eq!(Status::from_code(status.code()), Some(status));
        }
        assert_eq!(Status::from_code(16), None);
        assert_eq!(Status::from_code(255), None);
    }
}
