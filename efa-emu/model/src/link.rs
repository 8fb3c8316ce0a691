//! The interface between the device model and the links that carry its requests.
//!
//! The device model ([`crate::device`]) implements queues, keys and completions but does not
//! transport bytes to another host. A *link* does: the deterministic network of `efa-sim`, or the
//! shared memory of `efa-shm`. It transports each request once, reliably and in no particular
//! order:
//!
//! 1. the initiating device offers it to its link ([`Link::try_send`]);
//! 2. the link delivers it to the responding device, which checks it, transfers its data through
//!    [`Transfer`] and answers with a [`Status`] (`Device::deliver`);
//! 3. the link returns the status to the initiator (`Device::complete`).
//!
//! The link itself answers a request whose target host, process or queue pair does not exist.

use efa_core::address::{Gid, Qkey, Qpn};
use efa_core::nic::Status;

/// The operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// SRD send: data into a posted receive.
    Send,
    /// UD send: as `Send`, with a 40-byte GRH in front of the data. Loss is not reported.
    Datagram,
    /// RDMA read of the responder's memory.
    RdmaRead,
    /// RDMA write of the responder's memory, with a completion there if it has an immediate.
    RdmaWrite,
    /// A packet of a reliable connection, with all its headers in front of its data. As with
    /// `Datagram`, the link transports it once and returns no answer: the two devices implement
    /// reliability. It completes when it has reached the responder's device or was lost. A link
    /// without loss may also return acknowledgements of such packets ([`Transfer::acknowledge`]).
    Connected,
}

impl Operation {
    /// Whether the initiator does not learn the outcome of the request.
    #[inline]
    pub const fn is_unanswered(self) -> bool {
        matches!(self, Operation::Datagram | Operation::Connected)
    }
}

/// The responder's memory in an RDMA request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteRange {
    /// Address of the first byte.
    pub address: u64,
    /// The responder's key for it.
    pub key: u32,
}

impl RemoteRange {
    /// The memory from `address` on.
    #[inline]
    pub const fn new(address: u64, key: u32) -> Self {
        RemoteRange { address, key }
    }
}

/// All fields of a request except its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestHeader {
    /// The requested operation.
    pub operation: Operation,
    /// The initiator's queue pair.
    pub source_qpn: Qpn,
    /// The responder's queue pair.
    pub destination_qpn: Qpn,
    /// The Q-key that the responder's queue pair must have.
    pub qkey: Qkey,
    /// Number of the request in the initiating queue pair, from 0, wrapping. A retry keeps its
    /// number.
    pub sequence: u32,
    /// Number of earlier attempts that were answered with RNR. A link transports at most
    /// [`RequestHeader::MOST_CARRIED_RETRIES`].
    pub retries: u32,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// The responder's memory; `Some` if and only if it is RDMA.
    pub remote: Option<RemoteRange>,
    /// Bytes of data to send, read or write.
    pub length: u32,
}

impl RequestHeader {
    /// Largest number of retries in a header.
    pub const MOST_CARRIED_RETRIES: u32 = 15;
}

/// Memory of the device's host, checked against its registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostSegment {
    /// Address of the first byte in the process, or in the simulated host.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
}

impl HostSegment {
    /// The `length` bytes from `address` on.
    #[inline]
    pub const fn new(address: u64, length: u32) -> Self {
        HostSegment { address, length }
    }
}

/// The initiator's side of a request's data.
#[derive(Clone, Copy, Debug)]
pub enum LocalData<'a> {
    /// Bytes inside the work request.
    Inline(&'a [u8]),
    /// Registered memory: the source of a send or write, the target of a read.
    Segments(&'a [HostSegment]),
    /// Headers made by the device, then registered memory, then zeroes: a packet of
    /// [`Operation::Connected`]. The link reads it before [`Link::try_send`] returns.
    Packet {
        /// The headers.
        head: &'a [u8],
        /// The payload.
        segments: &'a [HostSegment],
        /// Zeroes that pad the last word.
        padding: usize,
    },
}

/// Identifies an outstanding request of a device; unique until it completes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token(pub u64);

/// The link cannot accept another request now. The device keeps it in its send queue and tries
/// again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkBusy;

/// The transport of a device's requests.
pub trait Link {
    /// Sends a request to the host with GID `to`.
    ///
    /// For sends and writes the link reads `data` before it returns or before the request
    /// completes; the memory stays registered until then. A link that has accepted a request
    /// completes `token` exactly once, later, never during this call.
    fn try_send(
        &mut self,
        to: Gid,
        token: Token,
        header: &RequestHeader,
        data: LocalData<'_>,
    ) -> Result<(), LinkBusy>;
}

/// Moves the data of a delivered request. The link passes it to `Device::deliver`.
///
/// The device passes only memory that it has checked. Offsets count from the start of the request's
/// data, and the device never exceeds `RequestHeader::length`.
pub trait Transfer {
    /// Copies `to.length` bytes of the request's data, from `offset` on, into the responder's
    /// memory. The device does not call it for reads.
    fn fetch(&mut self, _offset: u32, _to: HostSegment) -> Result<(), Status> {
        Err(Status::RemoteAbort)
    }

    /// Copies the responder's memory `from` into the initiator's buffer at `offset`. The device
    /// calls it only for reads.
    fn store(&mut self, _offset: u32, _from: HostSegment) -> Result<(), Status> {
        Err(Status::RemoteAbort)
    }

    /// Writes bytes made by the device (the GRH of a UD receive) into the responder's memory.
    fn fill(&mut self, to: u64, bytes: &[u8]) -> Result<(), Status>;

    /// Copies bytes of the request's data, from `offset` on, into the device itself: the headers of
    /// a packet of [`Operation::Connected`]. Links with such packets implement it.
    fn peek(&mut self, _offset: u32, _into: &mut [u8]) -> Result<(), Status> {
        Err(Status::RemoteAbort)
    }

    /// Makes the link acknowledge a packet of [`Operation::Connected`] together with its
    /// completion: `Device::acknowledged`. Returns false if the link cannot; then the device sends
    /// an acknowledgement packet.
    fn acknowledge(&mut self) -> bool {
        false
    }

    /// Atomically replaces the 8 bytes of the responder's memory at `at`, a multiple of 8, by the
    /// result of `change`. Returns the old value. Links with packets of [`Operation::Connected`]
    /// implement it.
    fn update(&mut self, _at: u64, _change: &dyn Fn(u64) -> u64) -> Result<u64, Status> {
        Err(Status::RemoteAbort)
    }

    /// Whether the request's data is complete after this transfer.
    ///
    /// A link may split a long RDMA request: it delivers the same request several times, and each
    /// time transfers another part of the data. The device checks the request each time, and counts
    /// and completes it only at the last part.
    fn is_last(&self) -> bool {
        true
    }

    /// Whether the link will deliver this request again after its transfer has failed, because its
    /// data waits for space or is sent in another way. Such a request was not dropped.
    fn is_deferred(&self) -> bool {
        false
    }
}
