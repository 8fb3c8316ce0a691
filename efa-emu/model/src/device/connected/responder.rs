//! The state of a responder: what it expects next, the message that is on its way, and the answers
//! that it owes.

use std::collections::VecDeque;

use super::attributes::MAX_RD_ATOMIC;
use super::completion::WcOperation;
use super::packet::{Reth, Syndrome};
use super::psn::Psn;
use super::receives::RecvWr;
use super::tags::{TagHeader, TaggedBuffer};

/// Where a message goes.
#[derive(Debug)]
pub(super) enum Target {
    /// Into a posted receive.
    Receive(RecvWr, Arrival),
    /// Into a tagged buffer, without its header.
    Tagged(TaggedBuffer, TagHeader),
    /// Into memory that the request names.
    Written(Reth),
}

/// What a message in a posted receive is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arrival {
    /// A message, or one about tags that is not matched: the end of a rendezvous, for one.
    Message,
    /// A message that says that it has no tag.
    WithoutTag,
    /// A message that no tag was there for.
    Unexpected,
}

impl Arrival {
    /// What a receive completes as that has it.
    pub(super) fn completes_as(self) -> WcOperation {
        match self {
            Arrival::Message => WcOperation::Recv,
            Arrival::WithoutTag => WcOperation::NoTag,
            Arrival::Unexpected => WcOperation::TagRecv,
        }
    }
}

impl Target {
    /// The work request id of a receive that the message takes, and what it completes as.
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
    /// Bytes that are there, headers that are left out included.
    pub(super) received: u32,
    pub(super) is_write: bool,
}

/// An answer that is owed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// How it went up to a packet.
    Acknowledgement(Psn, Syndrome),
    /// The data of a read, of which some packets were sent.
    Data {
        /// The number of the first packet.
        first: Psn,
        /// The memory.
        from: Reth,
        /// Packets sent.
        sent: u32,
    },
    /// What a word was before an atomic operation.
    Word(Psn, u64),
}

/// The state of a responder.
pub(super) struct Responder {
    pub(super) expected: Psn,
    /// Messages completed.
    pub(super) messages: u32,
    pub(super) incoming: Option<Incoming>,
    /// What is missing was said, and nothing that is expected has come since.
    has_complained: bool,
    pub(super) answers: VecDeque<Answer>,
    /// The last atomic operations, which must not be carried out twice.
    atomics: VecDeque<(Psn, u64)>,
}

/// Answers owed at most; a peer that asks for more is not answered, and asks again.
const MOST_ANSWERS: usize = 4 * MAX_RD_ATOMIC as usize;

impl Responder {
    pub(super) fn new() -> Responder {
        Responder {
            expected: Psn::default(),
            messages: 0,
            incoming: None,
            has_complained: false,
            answers: VecDeque::new(),
            atomics: VecDeque::new(),
        }
    }

    /// Owes an acknowledgement of all packets up to this one.
    pub(super) fn acknowledge(&mut self, psn: Psn) {
        let answer = Answer::Acknowledgement(psn, Syndrome::Acknowledged);
        match self.answers.back_mut() {
            Some(last @ Answer::Acknowledgement(_, Syndrome::Acknowledged)) => *last = answer,
            _ => self.owe(answer),
        }
    }

    /// Says once that the expected packet is missing.
    pub(super) fn complain(&mut self, syndrome: Syndrome) {
        if !self.has_complained {
            self.has_complained = true;
            self.owe(Answer::Acknowledgement(self.expected, syndrome));
        }
    }

    /// The expected packet is there.
    pub(super) fn is_content(&mut self) {
        self.has_complained = false;
    }

    /// Owes an answer. One for which there is no room is dropped, as if it were lost on its way.
    pub(super) fn owe(&mut self, answer: Answer) {
        if self.answers.len() < MOST_ANSWERS {
            self.answers.push_back(answer);
        }
    }

    /// Whether another read or atomic can be answered.
    pub(super) fn has_room(&self) -> bool {
        self.answers.len() + 2 < MOST_ANSWERS
    }

    /// Forgets the data that is owed for a read which is asked for again.
    pub(super) fn forget_data(&mut self, from: Psn) {
        let is_behind = |answer: &Answer| match answer {
            Answer::Data { first, sent, .. } => first.plus(*sent).since(from) >= 0,
            Answer::Acknowledgement(..) | Answer::Word(..) => false,
        };
        self.answers.retain(|answer| !is_behind(answer));
    }

    /// The expected packet was carried out, which has so many numbers.
    pub(super) fn advance(&mut self, packets: u32) {
        self.expected = self.expected.plus(packets);
    }

    /// A message is complete.
    pub(super) fn count_message(&mut self) {
        self.messages = self.messages.wrapping_add(1) & 0x00ff_ffff;
    }

    pub(super) fn note_atomic(&mut self, psn: Psn, original: u64) {
        if self.atomics.len() >= usize::from(MAX_RD_ATOMIC) {
            self.atomics.pop_front();
        }
        self.atomics.push_back((psn, original));
    }

    /// What an atomic operation that was carried out has found.
    pub(super) fn found_atomic(&self, psn: Psn) -> Option<u64> {
        let mut found = self.atomics.iter().filter(|(of, _)| *of == psn);
        found.next().map(|(_, original)| *original)
    }
}
