//! The state of a responder: the next expected packet, the message that is being received, and the
//! queued answers.

use std::collections::VecDeque;

use super::attributes::MAX_RD_ATOMIC;
use super::completion::WcOperation;
use super::packet::{Reth, Syndrome};
use super::psn::Psn;
use super::receives::RecvWr;
use super::tags::{TagHeader, TaggedBuffer};

/// The destination of a message.
#[derive(Debug)]
pub(super) enum Target {
    /// Into a posted receive.
    Receive(RecvWr, Arrival),
    /// Into a tagged buffer, without its header.
    Tagged(TaggedBuffer, TagHeader),
    /// Into the memory in the request.
    Written(Reth),
}

/// How a message arrives in a posted receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arrival {
    /// A message without tag matching, or an internal one such as the end of a rendezvous.
    Message,
    /// A message whose header contains no tag.
    WithoutTag,
    /// A message that matches no tag.
    Unexpected,
}

impl Arrival {
    /// The operation of the receive's completion.
    pub(super) fn completes_as(self) -> WcOperation {
        match self {
            Arrival::Message => WcOperation::Recv,
            Arrival::WithoutTag => WcOperation::NoTag,
            Arrival::Unexpected => WcOperation::TagRecv,
        }
    }
}

impl Target {
    /// The work request id of the receive that the message uses, and the operation of its
    /// completion.
    pub(super) fn receive(&self) -> Option<(u64, WcOperation)> {
        match self {
            Target::Receive(receive, arrival) => Some((receive.wr_id, arrival.completes_as())),
            Target::Tagged(buffer, _) => Some((buffer.wr_id, WcOperation::TagRecv)),
            Target::Written(_) => None,
        }
    }
}

/// A message that is on its way.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) target: Target,
    /// Number of received bytes, including stripped headers.
    pub(super) received: u32,
    pub(super) is_write: bool,
}

/// A queued answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// The result of all packets up to this one.
    Acknowledgement(Psn, Syndrome),
    /// The data of a read, partly sent.
    Data {
        /// The number of the first packet.
        first: Psn,
        /// The memory.
        from: Reth,
        /// Packets sent.
        sent: u32,
    },
    /// The old value for an atomic operation.
    Word(Psn, u64),
}

/// The state of a responder.
pub(super) struct Responder {
    pub(super) expected: Psn,
    /// Number of completed messages.
    pub(super) messages: u32,
    pub(super) incoming: Option<Incoming>,
    /// A NAK was sent, and no expected packet has arrived since.
    nak_sent: bool,
    pub(super) answers: VecDeque<Answer>,
    /// The last atomic operations, which must not be executed twice.
    atomics: VecDeque<(Psn, u64)>,
}

/// Most queued answers. Requests of a peer that exceeds it are not answered, so the peer retries
/// them.
const MOST_ANSWERS: usize = 4 * MAX_RD_ATOMIC as usize;

impl Responder {
    pub(super) fn new() -> Responder {
        Responder {
            expected: Psn::default(),
            messages: 0,
            incoming: None,
            nak_sent: false,
            answers: VecDeque::new(),
            atomics: VecDeque::new(),
        }
    }

    /// Queues an acknowledgement of all packets up to this one.
    pub(super) fn acknowledge(&mut self, psn: Psn) {
        let answer = Answer::Acknowledgement(psn, Syndrome::Acknowledged);
        match self.answers.back_mut() {
            Some(last @ Answer::Acknowledgement(_, Syndrome::Acknowledged)) => *last = answer,
            _ => self.queue_answer(answer),
        }
    }

    /// Queues a NAK for the expected packet, unless one was sent.
    pub(super) fn nak_once(&mut self, syndrome: Syndrome) {
        if !self.nak_sent {
            self.nak_sent = true;
            self.queue_answer(Answer::Acknowledgement(self.expected, syndrome));
        }
    }

    /// Records that the expected packet has arrived.
    pub(super) fn clear_nak(&mut self) {
        self.nak_sent = false;
    }

    /// Queues an answer. If there is no room it is dropped, like an answer that the network loses.
    pub(super) fn queue_answer(&mut self, answer: Answer) {
        if self.answers.len() < MOST_ANSWERS {
            self.answers.push_back(answer);
        }
    }

    /// Whether there is room for the answer of another read or atomic.
    pub(super) fn has_room(&self) -> bool {
        self.answers.len() + 2 < MOST_ANSWERS
    }

    /// Drops the queued data of a read that is requested again.
    pub(super) fn forget_data(&mut self, from: Psn) {
        let is_behind = |answer: &Answer| match answer {
            Answer::Data { first, sent, .. } => first.plus(*sent).since(from) >= 0,
            Answer::Acknowledgement(..) | Answer::Word(..) => false,
        };
        self.answers.retain(|answer| !is_behind(answer));
    }

    /// Advances the expected number after a request was executed.
    pub(super) fn advance(&mut self, packets: u32) {
        self.expected = self.expected.plus(packets);
    }

    /// Counts a completed message.
    pub(super) fn count_message(&mut self) {
        self.messages = self.messages.wrapping_add(1) & 0x00ff_ffff;
    }

    pub(super) fn note_atomic(&mut self, psn: Psn, original: u64) {
        if self.atomics.len() >= usize::from(MAX_RD_ATOMIC) {
            self.atomics.pop_front();
        }
        self.atomics.push_back((psn, original));
    }

    /// The old value that an executed atomic operation has returned.
    pub(super) fn found_atomic(&self, psn: Psn) -> Option<u64> {
        let mut found = self.atomics.iter().filter(|(of, _)| *of == psn);
        found.next().map(|(_, original)| *original)
    }
}
