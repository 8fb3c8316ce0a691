//! A packet that is being judged, and what every operation does with one.

use efa_wire::PacketType;
use efa_wire::rules;

use crate::check::conversation::Conversation;
use crate::check::frame::FrameContext;
use crate::check::operation::{AnswerOrder, DueAnswer, End, OpId, Operation};
use crate::check::packet::{PacketBody, ParsedPacket};
use crate::check::runs::ByteRanges;
use crate::check::side::IdSpace;

/// A packet that is being judged, with its conversation.
pub(in crate::check) struct Follower<'c> {
    pub(in crate::check) conversation: &'c mut Conversation,
    pub(in crate::check) context: FrameContext,
    pub(in crate::check) parsed: &'c ParsedPacket,
    pub(in crate::check) sequence: u32,
    /// Sender and receiver.
    pub(in crate::check) me: End,
    pub(in crate::check) you: End,
}

impl Follower<'_> {
    pub(super) fn breach(&mut self, rule: &'static rules::Rule, text: String) {
        let kind = self.parsed.packet_type;
        self.conversation.breach(self.context, kind, rule, text);
    }

    pub(super) fn operation(&mut self, id: OpId) -> Option<&mut Operation> {
        self.conversation.operations.get_mut(id)
    }

    /// Records that the packet belongs to an operation.
    pub(super) fn joins(&mut self, id: OpId) {
        let side = &mut self.conversation.sides[self.me];
        side.requests.belongs(self.sequence, id);
    }

    /// Returns the operation to which an id of the other end refers, if it `waits` for this packet;
    /// otherwise reports that there is none. The packet belongs to the operation.
    pub(super) fn named(
        &mut self,
        ids: &IdSpace,
        value: u32,
        waits: impl FnOnce(&Operation) -> bool,
    ) -> Option<OpId> {
        let id = (ids.of)(&mut self.conversation.sides[self.you]).get(value);
        let id = id.filter(|id| self.conversation.operations.get(*id).is_some_and(waits));
        match id {
            Some(id) => self.joins(id),
            None => self.names_nothing(ids.field, value),
        }
        id
    }

    pub(super) fn names_nothing(&mut self, field: &str, value: u32) {
        if self.conversation.is_from_start() {
            let rule = match self.parsed.body {
                PacketBody::CtsData { .. } => &rules::CTSDATA_NAMES_CTS,
                _ => &rules::ANSWER_NAMES_REQUEST,
            };
            let peer = self.conversation.sides[self.you].node;
            let text = format!("{field} {value} names no operation of {peer} that waits for it");
            self.breach(rule, text);
        }
    }

    pub(super) fn due(&mut self, id: OpId, from: End, turn: AnswerOrder, answer: PacketType) {
        let serial = self.conversation.next_serial();
        let due = DueAnswer {
            from,
            turn,
            serial,
            packet: self.context.number,
            packet_type: self.parsed.packet_type,
            answer,
            ripe: None,
        };
        if let Some(operation) = self.operation(id) {
            operation.due = Some(due);
        }
    }

    pub(super) fn answered(&mut self, id: OpId) {
        let packet_type = self.parsed.packet_type;
        self.conversation
            .answered(self.context, packet_type, self.me, id);
    }

    pub(super) fn done(&mut self, id: OpId) {
        let at = self.conversation.at();
        if let Some(operation) = self.operation(id)
            && !operation.is_done
        {
            operation.is_done = true;
            self.conversation.operations.over(id, at);
        }
    }

    /// Assigns an operation an id of `me`.
    pub(super) fn gives_id(&mut self, ids: &IdSpace, value: u32, id: OpId) {
        let conversation = &mut *self.conversation;
        let names = (ids.of)(&mut conversation.sides[self.me]);
        let before = names.insert(value, id);
        if names.len() > 8192 {
            names.retain_known(&conversation.operations);
        }
        if let Some(other) = before.filter(|other| *other != id)
            && let Some(other) = self.operation(other)
            && (ids.holds)(other)
        {
            let (field, request) = (ids.field, other.request);
            let text = format!("{field} {value} names the operation of packet {request}");
            self.breach(&rules::ID_IN_USE, text);
        }
    }

    /// Returns the operation that requested this packet, whose payload may have the wrong length.
    pub(super) fn response(
        &mut self,
        ids: &IdSpace,
        recv_id: u32,
        has_wrong_length: impl FnOnce(&Operation, u64) -> bool,
    ) -> Option<OpId> {
        let id = self.named(ids, recv_id, |operation| operation.awaits_answer)?;
        self.answered(id);
        let payload = self.parsed.payload;
        let operation = self.operation(id)?;
        operation.awaits_answer = false;
        if has_wrong_length(operation, payload) {
            let (length, request) = (operation.length, operation.request);
            let text = format!("{payload} bytes, packet {request} asked for {length}");
            self.breach(&rules::ANSWER_LENGTH, text);
        }
        Some(id)
    }

    /// Counts data. `room` is the number of the message's bytes in packets of this type.
    pub(super) fn add(
        &mut self,
        id: Option<OpId>,
        own: &mut ByteRanges,
        offset: u64,
        payload: u64,
        room: u64,
        length: u64,
    ) {
        let end = offset.checked_add(payload).filter(|end| *end <= room);
        let Some(end) = end.filter(|_| room <= length) else {
            let text =
                format!("{payload} bytes from {offset} on, of {room}, in a message of {length}");
            return self.breach(&rules::SEGMENT_BOUNDS, text);
        };
        let runs = match id.and_then(|id| self.conversation.operations.get_mut(id)) {
            Some(operation) => &mut operation.runs,
            None => own,
        };
        if !runs.add(offset, end) {
            let text = format!("some of the bytes {offset} to {end} were sent before");
            self.breach(&rules::SEGMENT_OVERLAP, text);
        }
    }
}
