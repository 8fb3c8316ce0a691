//! The requests of devices below the packets: attempts, refusals and failures.

use std::collections::VecDeque;

use efa_capture::frame::Repr;
use efa_wire::address::Qkey;
use efa_wire::{PacketType, Status};
use foldhash::HashMap;

use super::content::Content;
use super::operation::OpId;

/// Requests of one endpoint to another that are remembered. More are never in flight.
const MOST_REQUESTS: usize = 4096;

/// Number of equal adjacent repetitions which show that a capture has not lost equal frames. If
/// repetitions are adjacent only because all frames between them were removed, there are not more
/// of them at once.
const EQUAL_REPETITIONS: u32 = 2;

/// The position of a frame in a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Position {
    /// Its number.
    pub(super) number: u64,
    pub(super) interface: usize,
    /// The number of judged frames up to this one, of the whole capture and of its interface.
    pub(super) at: u64,
    pub(super) of_interface: u64,
}

impl Position {
    /// Whether at most one frame of the interface is between this frame and a later one, and none
    /// that is not judged.
    fn is_next_to(self, later: Position) -> bool {
        later.interface == self.interface
            && later.of_interface - self.of_interface <= 2
            && later.number.checked_sub(self.number) == Some(later.at - self.at)
    }
}

/// The latest repetition of a device.
#[derive(Debug)]
struct Repetition {
    header: Repr,
    identity: u64,
    position: Position,
}

/// The endpoints that a packet names: its sender, if it does, and its receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct NamedEndpoints {
    pub(super) connid: Option<u32>,
    pub(super) qkey: Qkey,
}

impl NamedEndpoints {
    /// Whether the sender and the receiver of two packets may be the same endpoints.
    fn may_be(self, other: NamedEndpoints) -> bool {
        let connids = self.connid.zip(other.connid);
        self.qkey == other.qkey && connids.is_none_or(|(one, other)| one == other)
    }
}

/// Operation and message that a packet belongs to.
#[derive(Clone, Copy, Debug, Default)]
struct PacketOrigin {
    /// The packet's number.
    packet: u64,
    named: NamedEndpoints,
    operation: Option<OpId>,
    msg_id: Option<u32>,
    /// It is one of several packets of a message.
    is_piece: bool,
    packet_type: Option<PacketType>,
}

/// How a request fits those before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Attempt {
    /// It is the first of its number that the queue pair has sent.
    First,
    /// It repeats an earlier one.
    Repetition,
    /// It is an earlier one, captured at another place.
    Sighting,
}

/// Whether a new request sends a packet that was sent before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resent {
    /// No equal packet is due to be sent again.
    No,
    /// It is a refused packet.
    Yes,
    /// An equal packet was refused or repeated, and may have been refused again where the capture
    /// lacks a frame. The packets that the conversation still misses decide. If they do not, the
    /// decision depends on whether the packet has been sent again since the last refusal.
    Perhaps {
        /// It has not.
        is_due: bool,
    },
}

/// Packets without an id that did not arrive at the first attempt.
#[derive(Debug, Default)]
struct UndeliveredPackets {
    /// The part of each packet, and whether the packet was refused and not sent again since.
    parts: HashMap<Content, (PacketOrigin, bool)>,
    order: VecDeque<Content>,
}

impl UndeliveredPackets {
    fn insert(&mut self, content: Content, part: PacketOrigin, is_refused: bool) {
        if self
            .parts
            .insert(content.clone(), (part, is_refused))
            .is_none()
        {
            self.order.push_back(content);
            if self.order.len() > MOST_REQUESTS
                && let Some(oldest) = self.order.pop_front()
            {
                self.parts.remove(&oldest);
            }
        }
    }
}

#[derive(Debug, Default)]
struct Request {
    sequence: u32,
    /// The number of frames of the capture up to this one.
    at: u64,
    /// The endpoint to which it is addressed, and a digest of its content.
    identity: (Qkey, u64),
    /// Present for packets that have not been answered.
    content: Option<Content>,
    part: PacketOrigin,
    /// Whether its last captured attempt was refused.
    is_behind: bool,
    /// The device has repeated it.
    is_repeated: bool,
}

/// Consequence of a request's end for its packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestOutcome {
    /// The receiver has it.
    Arrived {
        /// The message or atomic that it belongs to.
        msg_id: Option<u32>,
        /// It is one of several packets of a message.
        is_piece: bool,
        /// An earlier attempt of the device was refused.
        was_refused: bool,
    },
    /// The receiver was not ready for it.
    NotReady {
        /// The message or atomic that it belongs to, unless it was refused before.
        msg_id: Option<u32>,
        /// The packet's number and type.
        packet: (u64, Option<PacketType>),
        /// The device has repeated it, so that the next repetition is an equal frame.
        is_repeated: bool,
    },
    /// It failed permanently.
    Failed {
        /// The operation that fails with it.
        operation: Option<OpId>,
        /// The message or atomic to which it belongs, if the receiver certainly did not get the
        /// packet.
        not_delivered: Option<u32>,
    },
}

/// Requests in the order of their frames. This is the order of their numbers as long as no frame is
/// late and no queue pair restarts its numbers; then finding a request needs no index.
#[derive(Debug, Default)]
struct RequestHistory {
    requests: VecDeque<Request>,
    /// By number, in the order of all that there were, once the order is not that of the numbers.
    index: Option<HashMap<u32, u64>>,
    /// The number of forgotten requests.
    forgotten: u64,
}

impl RequestHistory {
    fn place(&self, sequence: u32) -> Option<usize> {
        let last = self.requests.back()?.sequence;
        match &self.index {
            _ if last == sequence => Some(self.requests.len() - 1),
            None if last < sequence => None,
            None => {
                let of = |request: &Request| request.sequence;
                self.requests.binary_search_by_key(&sequence, of).ok()
            }
            Some(index) => {
                let number = index.get(&sequence)?;
                Some((number - self.forgotten) as usize)
            }
        }
    }

    fn get(&self, sequence: u32) -> Option<&Request> {
        self.place(sequence).map(|at| &self.requests[at])
    }

    fn get_mut(&mut self, sequence: u32) -> Option<&mut Request> {
        self.place(sequence).map(|at| &mut self.requests[at])
    }

    /// Adds a request whose number no other has.
    #[inline]
    fn push(&mut self, request: Request) {
        let last = self.requests.back();
        if self.index.is_none() && last.is_some_and(|last| last.sequence > request.sequence) {
            let numbers = self.requests.iter().map(|it| it.sequence);
            self.index = Some(numbers.zip(self.forgotten..).collect());
        }
        if let Some(index) = &mut self.index {
            let number = self.forgotten + self.requests.len() as u64;
            index.insert(request.sequence, number);
        }
        self.requests.push_back(request);
    }

    /// Forgets the oldest request. Returns its number.
    fn pop(&mut self) -> Option<u32> {
        let oldest = self.requests.front()?.sequence;
        self.requests.pop_front();
        self.forgotten += 1;
        if let Some(index) = &mut self.index {
            index.remove(&oldest);
        }
        if self.requests.is_empty() {
            self.index = None;
        }
        Some(oldest)
    }

    fn shrink(&mut self) {
        // The same number of requests is added before requests are forgotten the next time.
        self.requests.shrink_to(3 * self.requests.len());
        if let Some(index) = &mut self.index {
            index.shrink_to(3 * self.requests.len());
        }
    }
}

/// The requests of one endpoint to another, in the view of one of them.
#[derive(Debug, Default)]
pub(super) struct Requests {
    remembered: RequestHistory,
    /// Packets of messages and atomics that were refused and not sent again yet. Such a packet may
    /// be sent again as a new request, and may then identify its sender in another way.
    refused: HashMap<Content, PacketOrigin>,
    /// The same for other packets, whether sent again or not: equal packets may follow.
    undelivered: UndeliveredPackets,
    /// The latest request that is not remembered any more.
    forgotten: Option<u32>,
    last_repetition: Option<Repetition>,
    /// The number of repetitions that were equal to the previous one, and next to it.
    equal_repetitions: u32,
}

impl Requests {
    /// Records a request. Its header shows whether it repeats an earlier one: a new queue pair
    /// restarts its sequence numbers. An equal request without that mark was captured twice.
    pub(super) fn take(&mut self, header: &Repr, identity: u64, position: Position) -> Attempt {
        let sequence = header.sequence;
        let is_forgotten = header.retransmission && self.is_forgotten(sequence);
        let request = || Request {
            sequence,
            at: position.at,
            identity: (header.qkey, identity),
            content: None,
            part: PacketOrigin::default(),
            is_behind: false,
            is_repeated: header.retransmission,
        };
        match self.remembered.get_mut(sequence) {
            Some(known) if header.retransmission => {
                known.is_repeated = true;
                self.repeats(header, identity, position);
                Attempt::Repetition
            }
            Some(known) if known.identity == (header.qkey, identity) => Attempt::Sighting,
            Some(known) => {
                *known = request();
                Attempt::First
            }
            // It may repeat one of the forgotten requests.
            None if is_forgotten => Attempt::Repetition,
            None => {
                self.remembered.push(request());
                if self.remembered.requests.len() > MOST_REQUESTS {
                    self.forget();
                }
                Attempt::First
            }
        }
    }

    /// Forgets the oldest request.
    fn forget(&mut self) {
        self.forgotten = self.remembered.pop().or(self.forgotten);
    }

    /// Whether a request precedes a forgotten one.
    fn is_forgotten(&self, sequence: u32) -> bool {
        let latest = self.forgotten;
        latest.is_some_and(|latest| latest.wrapping_sub(sequence) < u32::MAX / 2)
    }

    /// Compares a repetition with the previous one.
    fn repeats(&mut self, header: &Repr, identity: u64, position: Position) {
        let repetition = Repetition {
            header: *header,
            identity,
            position,
        };
        let before = self.last_repetition.replace(repetition);
        let is_equal = before.is_some_and(|before| {
            before.header == *header
                && before.identity == identity
                && before.position.is_next_to(position)
        });
        self.equal_repetitions += u32::from(is_equal);
    }

    /// Whether the capture has not lost equal frames that follow each other closely (`editcap -d`),
    /// as far as repetitions show this.
    pub(super) fn keeps_equal_frames(&self) -> bool {
        self.equal_repetitions >= EQUAL_REPETITIONS
    }

    /// Forgets requests from before a frame. Returns how many are left.
    pub(super) fn forget_before(&mut self, at: u64) -> usize {
        while let Some(oldest) = self.remembered.requests.front()
            && oldest.at < at
        {
            self.forget();
        }
        self.remembered.shrink();
        self.remembered.requests.len()
    }

    /// Records the packet of a request, with its number. Returns whether it is sent again because
    /// its last attempt was refused, by the device or as a new request. The same packet of another
    /// endpoint is another packet. A packet that the device repeats may be refused again without
    /// being captured: a message or atomic is identified when it is sent again. Other packets may
    /// be followed by equal ones.
    pub(super) fn is_resent(
        &mut self,
        is_repetition: bool,
        sequence: u32,
        packet: u64,
        content: Content,
        has_msg_id: bool,
        named: NamedEndpoints,
    ) -> Resent {
        let mut request = self.remembered.get_mut(sequence);
        let is_behind = request
            .as_mut()
            .is_some_and(|it| std::mem::take(&mut it.is_behind));
        let is_empty = match has_msg_id {
            true => self.refused.is_empty(),
            false => self.undelivered.parts.is_empty(),
        };
        let key = (is_repetition || !is_empty).then(|| content.without_sender());
        let mut is_due = false;
        let earlier = match &key {
            Some(_) if is_repetition => None,
            Some(key) if has_msg_id => self.refused.remove(key),
            Some(key) => self
                .undelivered
                .parts
                .get_mut(key)
                .map(|(part, is_refused)| {
                    is_due = std::mem::take(is_refused);
                    *part
                }),
            None => None,
        };
        let earlier = earlier.filter(|part| part.named.may_be(named));
        if let Some(request) = request {
            request.content = Some(content);
            if let Some(part) = earlier {
                request.part = part;
            }
            request.part.packet = packet;
            request.part.named = named;
            // The refusal may be missing from the capture.
            let part = request.part;
            match key {
                Some(key) if is_repetition && !has_msg_id => {
                    self.undelivered.insert(key, part, false);
                }
                Some(key) if is_repetition && self.refused.len() < MOST_REQUESTS => {
                    self.refused.entry(key).or_insert(part);
                }
                _ => {}
            }
        }
        match earlier {
            Some(_) if has_msg_id => Resent::Yes,
            Some(_) => Resent::Perhaps { is_due },
            None if is_behind && is_repetition => Resent::Yes,
            None => Resent::No,
        }
    }

    /// The number of the first packet of a message or atomic that was refused and has not been sent
    /// again.
    pub(super) fn refused(&self, msg_id: u32) -> Option<u64> {
        let of_message = self
            .refused
            .values()
            .filter(|part| part.msg_id == Some(msg_id));
        of_message.map(|part| part.packet).min()
    }

    /// The operation that a request belongs to.
    pub(super) fn belongs(&mut self, sequence: u32, operation: OpId) {
        if let Some(request) = self.remembered.get_mut(sequence) {
            request.part.operation = Some(operation);
        }
    }

    /// The message or atomic that a request belongs to.
    pub(super) fn carries(
        &mut self,
        sequence: u32,
        msg_id: u32,
        is_piece: bool,
        packet_type: PacketType,
    ) {
        if let Some(request) = self.remembered.get_mut(sequence) {
            request.part.msg_id = Some(msg_id);
            request.part.is_piece = is_piece;
            request.part.packet_type = Some(packet_type);
        }
    }

    /// Whether a request has been captured.
    pub(super) fn knows(&self, sequence: u32) -> bool {
        self.remembered.get(sequence).is_some()
    }

    pub(super) fn operation(&self, sequence: u32) -> Option<OpId> {
        self.remembered.get(sequence)?.part.operation
    }

    /// Records the response to a request.
    pub(super) fn answered(&mut self, sequence: u32, status: Status) -> RequestOutcome {
        let mut unknown = Request::default();
        let request = self.remembered.get_mut(sequence).unwrap_or(&mut unknown);
        let part = request.part;
        if status == Status::Ok {
            let is_empty = self.refused.is_empty() && self.undelivered.parts.is_empty();
            let content = request.content.take().filter(|_| !is_empty);
            if let Some(content) = content.map(|content| content.without_sender()) {
                self.refused.remove(&content);
                self.undelivered.parts.remove(&content);
            }
            return RequestOutcome::Arrived {
                msg_id: part.msg_id,
                is_piece: part.is_piece,
                was_refused: std::mem::take(&mut request.is_behind),
            };
        }
        // A receiver that does not answer may have received it.
        let is_refused = status != Status::LocalUnresponsiveRemote;
        let is_new = !std::mem::replace(&mut request.is_behind, status == Status::RemoteRnr);
        let is_repeated = request.is_repeated;
        if let Some(content) = request.content.as_ref().filter(|_| is_refused) {
            let content = content.without_sender();
            if part.msg_id.is_none() {
                self.undelivered.insert(content, part, true);
            } else if self.refused.len() < MOST_REQUESTS {
                self.refused.insert(content, part);
            }
        }
        match status {
            Status::RemoteRnr => RequestOutcome::NotReady {
                msg_id: part.msg_id.filter(|_| is_new),
                packet: (part.packet, part.packet_type),
                is_repeated,
            },
            _ => RequestOutcome::Failed {
                operation: part.operation,
                not_delivered: part.msg_id.filter(|_| is_refused),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Request, RequestHistory};

    proptest! {
        #[test]
        fn requests_are_found_in_any_order(
            steps in prop::collection::vec((0..40_u32, 0..4_u8), 0..200),
        ) {
            let (mut remembered, mut expected) = (RequestHistory::default(), Vec::<u32>::new());
            for (at, (number, action)) in steps.into_iter().enumerate() {
                let next = expected.last().map_or(0, |last| last + 1);
                // Mostly in order.
                let sequence = if action == 0 { number } else { next };
                if action == 1 {
                    let oldest = (!expected.is_empty()).then(|| expected.remove(0));
                    prop_assert_eq!(remembered.pop(), oldest);
                } else if !expected.contains(&sequence) {
                    expected.push(sequence);
                    remembered.push(Request { sequence, at: at as u64, ..Request::default() });
                }
                for sequence in 0..240 {
                    let found = remembered.get(sequence).map(|it| it.sequence);
                    let known = expected.contains(&sequence).then_some(sequence);
                    prop_assert_eq!(found, known);
                }
            }
        }
    }
}
