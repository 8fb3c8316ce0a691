//! The requests of devices below the packets: attempts, refusals and failures.

use std::collections::{HashMap, HashSet, VecDeque};

use efa_core::nic::Status;

use super::operation::OpId;

/// Requests of one endpoint to another that are remembered. More are never under way.
const MOST_REQUESTS: usize = 4096;
/// A packet that was refused may be sent again as a new request. It is recognised by its first bytes, which
/// name the operation and the part of it.
const BEGINNING: usize = 40;

type Beginning = Box<[u8]>;

#[derive(Debug, Default)]
struct Request {
    beginning: Option<Beginning>,
    is_refused: bool,
    operation: Option<OpId>,
}

/// The requests of one endpoint to another, as one of them saw them.
#[derive(Debug, Default)]
pub(super) struct Requests {
    by_sequence: HashMap<u32, Request>,
    order: VecDeque<u32>,
    /// The first bytes of packets that were refused and not sent again yet.
    refused: HashSet<Beginning>,
}

impl Requests {
    /// Takes a request. Returns whether it repeats an earlier one.
    pub(super) fn is_repetition(&mut self, sequence: u32, retransmission: bool) -> bool {
        if let Some(earlier) = self.by_sequence.get_mut(&sequence)
            && (retransmission || earlier.is_refused)
        {
            earlier.is_refused = false;
            return true;
        }
        if self
            .by_sequence
            .insert(sequence, Request::default())
            .is_none()
        {
            self.order.push_back(sequence);
            if self.order.len() > MOST_REQUESTS
                && let Some(oldest) = self.order.pop_front()
            {
                self.by_sequence.remove(&oldest);
            }
        }
        false
    }

    /// Whether a packet is sent again because its last attempt was refused.
    pub(super) fn is_resent(&mut self, sequence: u32, packet: &[u8]) -> bool {
        let beginning = &packet[..packet.len().min(BEGINNING)];
        if let Some(request) = self.by_sequence.get_mut(&sequence) {
            request.beginning = Some(beginning.into());
        }
        self.refused.remove(beginning)
    }

    /// The operation that a request belongs to.
    pub(super) fn belongs(&mut self, sequence: u32, operation: OpId) {
        if let Some(request) = self.by_sequence.get_mut(&sequence) {
            request.operation = Some(operation);
        }
    }

    pub(super) fn operation(&self, sequence: u32) -> Option<OpId> {
        self.by_sequence.get(&sequence)?.operation
    }

    /// Takes the response to a request. Returns the operation that fails with it.
    pub(super) fn answered(&mut self, sequence: u32, status: Status) -> Option<OpId> {
        let request = self.by_sequence.get_mut(&sequence)?;
        request.is_refused = status != Status::Ok;
        // Who does not answer may have taken it.
        let was_taken = matches!(status, Status::Ok | Status::LocalUnresponsiveRemote);
        if let Some(beginning) = &request.beginning
            && !was_taken
            && self.refused.len() < MOST_REQUESTS
        {
            self.refused.insert(beginning.clone());
        }
        match status {
            Status::Ok | Status::RemoteRnr => None,
            _ => request.operation,
        }
    }
}
