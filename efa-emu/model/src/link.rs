//! The interface between the device model and the links that carry its requests.
//!
//! The device model ([`crate::device`]) knows queues, keys and completions but not how bytes reach
//! another host. A *link* does: the deterministic network of `efa-sim`, or the shared memory of
//! `efa-shm`. A request travels once, reliably and in no particular order:
//!
//! 1. the initiating device offers it to its link ([`Link::try_send`]);
//! 2. the link brings it to the responding device, which checks it, moves its data through
//!    [`Transfer`] and answers with a [`Status`] (`Device::deliver`);
//! 3. the link brings the status back (`Device::complete`).
//!
//! A request whose target host, process or queue pair is gone is answered by the link itself.

use efa_core::address::{Gid, Qkey, Qpn};
use efa_core::nic::Status;

/// Operation requested of the responder.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// SRD send: data into a posted receive.
    Send,
    /// UD send: as `Send`, behind a 40-byte GRH, and lost without an error if it is not received.
    Datagram,
    /// RDMA read of the responder's memory.
    RdmaRead,
    /// RDMA write of the responder's memory, with a completion there if it has an immediate.
    RdmaWrite,
    /// A packet of a reliable connection, with all its headers in front of its data. As `Datagram`,
    /// the link carries it once and answers nothing: the devices at both ends see to the rest. It
    /// completes when the responder's device has it, or the link has lost it. A link that loses
    /// nothing may bring acknowledgements of such packets ([`Transfer::acknowledge`]).
    Connected,
}

impl Operation {
    /// Whether nothing tells the initiator what became of the request.
    #[inline]
    pub const fn is_unanswered(self) -> bool {
        matches!(self, Operation::Datagram | Operation::Connected)
    }
}

/// The responder's memory that an RDMA request names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteRange {
    /// First byte.
    pub address: u64,
    /// The responder's key for it.
    pub key: u32,
}

/// Everything about a request but its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestHeader {
    /// The requested operation.
    pub operation: Operation,
    /// The initiator's queue pair.
    pub source_qpn: Qpn,
    /// The responder's queue pair.
    pub destination_qpn: Qpn,
    /// The Q-key that the initiator expects of the responder's queue pair.
    pub qkey: Qkey,
    /// Counts the requests of the initiating queue pair, from 0, wrapping. A retry keeps its
    /// number.
    pub sequence: u32,
    /// How often the device made this request before, because the receiver was not ready. A link
    /// brings [`RequestHeader::MOST_CARRIED_RETRIES`] at most.
    pub retries: u32,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// The responder's memory; `Some` exactly for RDMA.
    pub remote: Option<RemoteRange>,
    /// Bytes of data: sent, to be read, or to be written.
    pub length: u32,
}

impl RequestHeader {
    /// Most retries that the responder is told of.
    pub const MOST_CARRIED_RETRIES: u32 = 15;
}

/// A piece of memory of the host that the device belongs to, checked against its registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostSegment {
    /// First byte in the address space of the process (or of the simulated host).
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
}

/// The initiator's side of a request's data.
#[derive(Clone, Copy, Debug)]
pub enum LocalData<'a> {
    /// Bytes that were placed inside the work request.
    Inline(&'a [u8]),
    /// Registered memory: the source of a send or write, the target of a read.
    Segments(&'a [HostSegment]),
    /// Bytes that the device has made, then registered memory, then zeroes: a packet of
    /// [`Operation::Connected`]. The link reads it before [`Link::try_send`] returns.
    Packet {
        /// The headers.
        head: &'a [u8],
        /// The payload.
        segments: &'a [HostSegment],
        /// Zeroes that fill the last word.
        padding: usize,
    },
}

/// Names one outstanding request of a device; unique until it completed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token(pub u64);

/// The link cannot take another request now. The device keeps the work request in its send queue
/// and offers it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkBusy;

/// Carrier of a device's requests.
pub trait Link {
    /// Takes a request for the host with GID `to`.
    ///
    /// For sends and writes the link reads `data` before it returns or before the request
    /// completes; the memory stays registered that long. A link that took a request completes
    /// `token` exactly once, later, never from inside this call.
    fn try_send(
        &mut self,
        to: Gid,
        token: Token,
        header: &RequestHeader,
        data: LocalData<'_>,
    ) -> Result<(), LinkBusy>;
}

/// Moves the data of a delivered request; handed to `Device::deliver` by the link.
///
/// The device names only memory that it has checked. Offsets count from the start of the request's
/// data, and the device never goes beyond `RequestHeader::length`.
pub trait Transfer {
    /// Copies `to.length` bytes of the request's data, from `offset` on, into the responder's
    /// memory. The device calls it for requests with data, so not for reads.
    fn fetch(&mut self, _offset: u32, _to: HostSegment) -> Result<(), Status> {
        Err(Status::RemoteAbort)
    }

    /// Copies the responder's memory `from` into the initiator's buffer at `offset`. The device
    /// calls it for reads only.
    fn store(&mut self, _offset: u32, _from: HostSegment) -> Result<(), Status> {
        Err(Status::RemoteAbort)
    }

    /// Writes bytes that the device itself makes (a UD receive's GRH) into the responder's memory.
    fn fill(&mut self, to: u64, bytes: &[u8]) -> Result<(), Status>;

    /// Copies bytes of the request's data, from `offset` on, into the device itself: the headers of
    /// a packet of [`Operation::Connected`]. Links that bring such packets have it.
    fn peek(&mut self, _offset: u32, _into: &mut [u8]) -> Result<(), Status> {
        Err(Status::RemoteAbort)
    }

    /// Has the link bring the acknowledgement of a packet of [`Operation::Connected`], together with
    /// the news that it was carried: `Device::acknowledged`. Returns false if the link cannot, and
    /// then the device sends a packet.
    fn acknowledge(&mut self) -> bool {
        false
    }

    /// Replaces the 8 bytes of the responder's memory at `at`, a multiple of 8, by what `change`
    /// makes of them, in one step for all devices. Returns what they were. Links that bring packets
    /// of [`Operation::Connected`] have it.
    fn update(&mut self, _at: u64, _change: &dyn Fn(u64) -> u64) -> Result<u64, Status> {
        Err(Status::RemoteAbort)
    }

    /// Whether the request's data is complete once this transfer has moved its part.
    ///
    /// A link may bring a long RDMA request in parts: it delivers the same request several times,
    /// and every time moves another part of what the device names. The device checks the request
    /// each time, and counts and completes it only the last time.
    fn is_last(&self) -> bool {
        true
    }

    /// Whether the link hands the request, whose transfer has failed, to the device again: its data
    /// waits for room, or will come another way. Such a request was not dropped.
    fn is_deferred(&self) -> bool {
        false
    }
}
