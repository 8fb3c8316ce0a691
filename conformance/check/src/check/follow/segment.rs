//! The packets of a message after its first, and what is due after the last.

use efa_wire::rules;
use efa_wire::{Message, PacketType, Transfer};

use super::follower::Follower;
use crate::check::operation::{AnswerOrder, OpId, Operation, OperationKind};
use crate::check::sequence::Shape;
use crate::check::side::SEND_IDS;

impl Follower<'_> {
    /// Whether the packet continues a message that an earlier one began.
    pub(super) fn goes_on(&mut self, msg_id: u32, message: &Message) -> bool {
        let side = &self.conversation.sides[self.me];
        if message.answers_nack
            && let Some(&id) = side.readable.get(&msg_id)
        {
            self.answers_refusal(id, message);
            return true;
        }
        if !message.is_segment() {
            return false;
        }
        let Some(part) = side.sequence.parts.get(&msg_id) else {
            return false;
        };
        let shape = self.shape(message);
        let operation = part.operation;
        let operation = operation.and_then(|id| self.conversation.operations.get(id));
        let runs = operation.map_or(&part.runs, |operation| &operation.runs);
        let end = message.offset.saturating_add(self.parsed.payload);
        let is_another = part.shape != shape || runs.overlaps(message.offset, end);
        let sequence = &mut self.conversation.sides[self.me].sequence;
        if is_another && sequence.give_up(msg_id) {
            return false;
        }
        let side = &self.conversation.sides[self.me];
        let cq_data = self.parsed.request.and_then(|request| request.cq_data);
        let begun = side.sequence.begun;
        let parts = &mut self.conversation.sides[self.me].sequence.parts;
        let Some(mut part) = parts.remove(&msg_id) else {
            return false;
        };
        (part.last, part.begun) = (self.context.number, begun);
        if part.shape != shape {
            let text = format!(
                "message {msg_id} began in packet {} as {:?}, here it is {shape:?}",
                part.first, part.shape
            );
            self.breach(&rules::SEGMENT_AGREEMENT, text);
        }
        if part.cq_data != cq_data {
            let show = |data: Option<u64>| data.map_or("none".into(), |data| format!("{data:#x}"));
            let text = format!(
                "completion data {}, message {msg_id} began with {} in packet {}",
                show(cq_data),
                show(part.cq_data),
                part.first
            );
            self.breach(&rules::CQ_DATA_AGREEMENT, text);
        }
        let payload = self.parsed.payload;
        if let Some(id) = part.operation {
            self.joins(id);
        }
        self.add(
            part.operation,
            &mut part.runs,
            message.offset,
            payload,
            message.in_requests,
            message.length,
        );
        let parts = &mut self.conversation.sides[self.me].sequence.parts;
        parts.insert(msg_id, part);
        self.finish_part(msg_id, message);
        true
    }

    pub(super) fn shape(&self, message: &Message) -> Shape {
        Shape {
            packet_type: self.parsed.packet_type,
            length: message.length,
            in_requests: message.in_requests,
            tag: message.tag,
            send_id: message.send_id,
        }
    }

    /// Handles a LONGCTS_RTM that continues a message whose read was refused.
    fn answers_refusal(&mut self, id: OpId, message: &Message) {
        let (payload, you) = (self.parsed.payload, self.you);
        let packet_type = self.parsed.packet_type;
        let Some(operation) = self.operation(id) else {
            return;
        };
        let (nacked, length) = (operation.nacked, operation.length);
        operation.delivery_complete |= message.delivery_complete;
        operation.kind = OperationKind::Push;
        operation.nacked = None;
        operation.packet_type = packet_type;
        if nacked.is_none() && self.conversation.is_from_start() {
            let text = "the read of this message was not refused".to_owned();
            self.breach(&rules::READ_NACK, text);
        }
        if payload > 0 {
            let text = format!("it carries {payload} bytes");
            self.breach(&rules::READ_NACK, text);
        }
        if message.length != length {
            let text = format!("{} bytes, the refused message had {length}", message.length);
            self.breach(&rules::SEGMENT_AGREEMENT, text);
        }
        self.joins(id);
        if let Some(send_id) = message.send_id {
            self.gives_id(&SEND_IDS, send_id.0, id);
        }
        self.due(id, you, AnswerOrder::Arrival, PacketType::Cts);
    }

    /// Checks whether a message in several requests is complete.
    pub(super) fn finish_part(&mut self, msg_id: u32, message: &Message) {
        let parts = &mut self.conversation.sides[self.me].sequence.parts;
        let Some(part) = parts.get(&msg_id) else {
            return;
        };
        let operation = part
            .operation
            .and_then(|id| self.conversation.operations.get(id));
        let sent = operation.map_or(part.runs.total(), Operation::sent);
        if sent < part.shape.in_requests {
            return;
        }
        let id = part.operation;
        parts.remove(&msg_id);
        if let Some(id) = id {
            self.finish_request(id, message);
        }
    }

    /// Sets the answer that is due after the last request of an operation.
    pub(super) fn finish_request(&mut self, id: OpId, message: &Message) {
        let you = self.you;
        let Some(operation) = self.operation(id) else {
            return;
        };
        let (turn, is_sent) = (operation.turn, operation.is_sent());
        match message.transfer {
            Transfer::RuntRead if is_sent => self.done(id),
            Transfer::LongRead | Transfer::RuntRead => self.due(id, you, turn, PacketType::Eor),
            _ if message.delivery_complete && is_sent => {
                self.due(id, you, turn, PacketType::Receipt)
            }
            _ if is_sent => self.done(id),
            Transfer::LongCts => self.due(id, you, turn, PacketType::Cts),
            Transfer::Eager | Transfer::Medium => {}
        }
    }
}
