//! The traffic between the endpoint under test and the scripted ones, for reports.

use efa_core::nic::Status;
use efa_play::operation::EndpointIndex;

/// A packet, request or refusal in a replay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExchangedEvent {
    /// The endpoint that sent it.
    pub from: EndpointIndex,
    /// The endpoint that it was addressed to.
    pub to: EndpointIndex,
    /// The index of the corresponding frame in the capture, if any.
    pub place: Option<usize>,
    /// What was sent.
    pub event: WireEvent,
}

/// A packet or request that passed, or its refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WireEvent {
    /// A packet, with its data.
    Packet(Vec<u8>),
    /// A request of a scripted endpoint to read or write memory, described by the corresponding
    /// frame.
    Rdma,
    /// A request of the endpoint under test to its device.
    DutRdma {
        /// Whether it writes; otherwise it reads.
        writes: bool,
        /// Length in bytes.
        length: u64,
    },
    /// The device of the receiver (`from`) refused a packet or request of `to`.
    Refused(Status),
}
