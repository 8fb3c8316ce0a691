//! What passed between the endpoint under test and the scripted ones: for those who look at a
//! replay.

use efa_core::nic::Status;
use efa_play::operation::EndpointIndex;

/// Something that passed in a replay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exchanged {
    /// Who sent it.
    pub from: EndpointIndex,
    /// Whom it was for.
    pub to: EndpointIndex,
    /// The place in the capture of the frame that it stands for, if it stands for one.
    pub place: Option<usize>,
    /// What it was.
    pub event: WireEvent,
}

/// A packet or request that passed, or its refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WireEvent {
    /// A packet, with its data.
    Packet(Vec<u8>),
    /// A request of a scripted endpoint to read or write memory; the frame that it stands for tells
    /// what it is.
    Rdma,
    /// A request of the endpoint under test to its device.
    Asked {
        /// Whether it writes; it reads otherwise.
        writes: bool,
        /// Bytes.
        length: u64,
    },
    /// The device of the receiver (`from`) did not take a packet or request of `to`.
    Refused(Status),
}
