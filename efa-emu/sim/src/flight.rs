//! A request in flight.

use std::fmt;

use efa_core::address::Gid;
use efa_core::nic::Status;

use super::host_id::HostId;
use efa_device_model::fault::{Frame, Stage};
use efa_device_model::link::{Operation, RequestHeader, Token};
use efa_device_model::network::{Duplicated, Transmission};

/// Identifies a request on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FlightId(pub(super) u32);

impl FlightId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) initiator: HostId,
    /// The incarnation of the initiator that posted the request.
    pub(super) incarnation: u32,
    pub(super) responder: HostId,
    pub(super) from: Gid,
    pub(super) to: Gid,
    pub(super) token: Token,
    pub(super) header: RequestHeader,
    /// The data of a send or write, from the start; the data of a read, after its delivery.
    pub(super) data: Vec<u8>,
    /// The number of times that the current frame was lost.
    pub(super) lost: u32,
    /// The answer that a fault prescribes in place of the responder's.
    pub(super) prescribed: Option<Status>,
    /// The part of the exchange that a fault duplicates.
    pub(super) twice: Duplicated,
    /// The answer, after the responder has handled the request.
    pub(super) outcome: Option<Status>,
    pub(super) path: u16,
}

impl Flight {
    /// The request, or its answer, as a frame.
    pub(super) fn frame(&self, stage: Stage) -> Frame<'_> {
        Frame {
            stage,
            initiator: self.from,
            responder: self.to,
            header: &self.header,
            lost: self.lost,
            status: match stage {
                Stage::Request => None,
                Stage::Answer => self.outcome,
            },
            data: match self.has_data(stage) {
                true => &self.data,
                false => &[],
            },
        }
    }

    /// Identifies the current frame.
    pub(super) fn transmission(&self, stage: Stage) -> Transmission {
        Transmission {
            lost: self.lost,
            ..Transmission::first(stage, self.from, self.to, &self.header)
        }
    }

    /// Whether the data travels in this direction.
    fn has_data(&self, stage: Stage) -> bool {
        (stage == Stage::Answer) == (self.header.operation == Operation::RdmaRead)
    }

    /// Bytes of data in the request or in its answer.
    pub(super) fn data_length(&self, stage: Stage) -> usize {
        match self.has_data(stage) {
            true => self.data.len(),
            false => 0,
        }
    }

    pub(super) fn sender(&self, stage: Stage) -> HostId {
        match stage {
            Stage::Request => self.initiator,
            Stage::Answer => self.responder,
        }
    }

    pub(super) fn receiver(&self, stage: Stage) -> HostId {
        match stage {
            Stage::Request => self.responder,
            Stage::Answer => self.initiator,
        }
    }
}

impl fmt::Display for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operation = match self.header.operation {
            Operation::Send => "SEND",
            Operation::Datagram => "DATAGRAM",
            Operation::RdmaRead => "RDMA_READ",
            Operation::RdmaWrite => "RDMA_WRITE",
            Operation::Connected => "CONNECTED",
        };
        write!(
            f,
            "{}:{} -> {}:{} {operation} length={} sequence={} path={}",
            self.initiator,
            self.header.source_qpn,
            self.responder,
            self.header.destination_qpn,
            self.header.length,
            self.header.sequence,
            self.path
        )?;
        match self.outcome {
            Some(status) => write!(f, " {status:?}"),
            None => Ok(()),
        }
    }
}
