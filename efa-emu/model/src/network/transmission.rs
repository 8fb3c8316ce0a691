//! The identity of a transmitted frame, on which the network's choices depend.

use efa_core::address::{Gid, Qpn};

use super::random::Draws;
use crate::fault::{Frame, Stage};
use crate::link::{Operation, RequestHeader};

/// The identity of a transmitted frame: all that the network's choices depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmission {
    /// Request or answer.
    pub stage: Stage,
    /// Operation of the request.
    pub operation: Operation,
    /// The initiator.
    pub initiator: Gid,
    /// The responder.
    pub responder: Gid,
    /// The initiator's queue pair.
    pub source_qpn: Qpn,
    /// The number of the request in that queue pair.
    pub sequence: u32,
    /// How often the request was answered with RNR before.
    pub retries: u32,
    /// How often this frame was lost since the last retry.
    pub lost: u32,
}

/// Maximum number of retries that are distinguished. Links transport no more (see `record` of
/// `efa-shm`), and only the choice of RNR must differ for each retry.
const MOST_RETRIES: u32 = RequestHeader::MOST_CARRIED_RETRIES;

impl Transmission {
    /// The first transmission of a request, or of its answer.
    pub fn first(
        stage: Stage,
        initiator: Gid,
        responder: Gid,
        header: &RequestHeader,
    ) -> Transmission {
        Transmission {
            stage,
            operation: header.operation,
            initiator,
            responder,
            source_qpn: header.source_qpn,
            sequence: header.sequence,
            retries: header.retries,
            lost: 0,
        }
    }

    /// The next transmission, after this one was lost.
    pub(super) fn again(self) -> Transmission {
        Transmission {
            lost: self.lost.saturating_add(1),
            ..self
        }
    }

    /// The random numbers for the request at this retry.
    pub(super) fn request_draws(&self, seed: u64, retries: u32) -> Draws {
        let gid = u128::from_be_bytes(self.initiator.0);
        Draws::new(seed)
            .of((gid >> 64) as u64)
            .of(gid as u64)
            .of(u64::from(self.source_qpn.0) << 32 | u64::from(self.sequence))
            .of(retries.into())
    }

    /// The random numbers for this transmission.
    pub(super) fn draws(&self, seed: u64) -> Draws {
        let stage = match self.stage {
            Stage::Request => 0,
            Stage::Answer => 1,
        };
        self.request_draws(seed, self.retries.min(MOST_RETRIES))
            .of(stage << 32 | u64::from(self.lost))
    }

    /// Sender and receiver of the frame.
    pub(super) fn ends(&self) -> (Gid, Gid) {
        match self.stage {
            Stage::Request => (self.initiator, self.responder),
            Stage::Answer => (self.responder, self.initiator),
        }
    }
}

impl From<&Frame<'_>> for Transmission {
    fn from(frame: &Frame<'_>) -> Self {
        Transmission {
            lost: frame.lost,
            ..Transmission::first(frame.stage, frame.initiator, frame.responder, frame.header)
        }
    }
}
