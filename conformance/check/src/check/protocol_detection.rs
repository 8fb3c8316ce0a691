//! What shows which protocol two endpoints use, and what is known about the order of their frames.

use std::borrow::Cow;

use efa_capture::frame::Repr;

use super::operation::End;
use super::report::Findings;

/// The sends between two endpoints during the lifetime of their queue pairs, which show whether
/// they use the RDM protocol. The next owners of the numbers may use another one.
#[derive(Debug, Default)]
pub(super) struct ProtocolDetection {
    /// Whether a request stated its sender's true address, or a HANDSHAKE was sent.
    pub(super) is_rdm: bool,
    /// Whether the previous owners of the queue pairs used it.
    pub(super) follows_rdm: bool,
    /// The number of sends that could be RDM packets, and of sends that could not.
    pub(super) valid: u64,
    pub(super) invalid: u64,
    /// The number of packets that were judged, each counted once.
    pub(super) packets: u64,
    /// The number of the last packet, and its type, or what an unparsable one is called.
    pub(super) last: Option<(u64, Cow<'static, str>)>,
    /// Findings, without those that lack evidence in the capture.
    pub(super) proven: Findings,
    /// The number of findings without evidence.
    pub(super) unproven: u64,
    /// Whether rules were not applied because the capture lacks a direction.
    pub(super) lacks_direction: bool,
    pub(super) lacks_beginning: bool,
}

impl ProtocolDetection {
    /// Whether the endpoints use the RDM protocol.
    pub(super) fn is_of_rdm(&self) -> bool {
        let weight = if self.follows_rdm { 1 } else { 8 };
        self.is_rdm || self.valid > 0 && self.valid >= weight * self.invalid
    }

    /// Whether the endpoints use another protocol. False without sends.
    pub(super) fn is_foreign(&self) -> bool {
        !self.is_of_rdm() && self.invalid > 0
    }

    /// Adds the findings of another one.
    pub(super) fn append(&mut self, other: ProtocolDetection) {
        self.valid += other.valid;
        self.invalid += other.invalid;
        self.packets += other.packets;
        self.last = other.last.or(self.last.take());
        self.proven.append(other.proven);
        self.unproven += other.unproven;
        self.lacks_direction |= other.lacks_direction;
        self.lacks_beginning |= other.lacks_beginning;
    }
}

/// The frames of a conversation without directions, which may be from two hosts with two clocks.
#[derive(Debug, Default)]
pub(super) struct UndirectedFrames {
    /// The interface of the first frame, and whether another one captured frames too.
    pub(super) interface: Option<usize>,
    pub(super) has_interfaces: bool,
    /// The latest request number of each end, and whether any request was captured twice.
    pub(super) latest: [Option<u32>; 2],
    pub(super) copies: [bool; 2],
    /// Whether a request came after one with a greater number.
    pub(super) is_late: bool,
}

impl UndirectedFrames {
    /// Handles a request, or a second copy of it.
    pub(super) fn sees_request(&mut self, me: End, header: &Repr, is_copy: bool) {
        self.copies[me] |= is_copy;
        let sequence = header.sequence;
        let latest = self.latest[me].get_or_insert(sequence);
        if !header.retransmission {
            // The number 0 begins the next queue pair.
            self.is_late |= sequence > 0 && sequence < *latest;
            *latest = sequence;
        }
    }

    pub(super) fn has_copies(&self) -> bool {
        self.copies.contains(&true)
    }

    /// Whether the first copies of the packets are in a possible order: there is one clock, or each
    /// end's packets were captured at both. The requests of an end that only the other end's host
    /// captured are in the order of that clock.
    pub(super) fn has_possible_order(&self) -> bool {
        match self.has_copies() {
            true => self.copies == self.latest.map(|latest| latest.is_some()),
            false => !self.has_interfaces,
        }
    }
}
