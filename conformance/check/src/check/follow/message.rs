//! Messages and writes: their first packets.

use efa_wire::rules;
use efa_wire::{ExtraFeatures, Message, Transfer};

use super::follower::Follower;
use crate::check::operation::{AnswerOrder, OpId, OperationKind, regions};
use crate::check::runs::ByteRanges;
use crate::check::sequence::{IdState, PartialMessage};
use crate::check::side::SEND_IDS;

impl Follower<'_> {
    pub(super) fn message(&mut self, message: Message) {
        let msg_id = message.msg_id.map(|id| id.0);
        if let Some(msg_id) = msg_id
            && self.goes_on(msg_id, &message)
        {
            return;
        }
        self.check_user_recv_qp(&message);
        let id = match msg_id {
            Some(msg_id) if !message.answers_nack => self.begins_message(msg_id),
            Some(msg_id) => {
                if self.conversation.is_from_start() {
                    let text = format!("no read of message {msg_id} was refused");
                    self.breach(&rules::READ_NACK, text);
                }
                IdState::Used
            }
            None => IdState::New,
        };
        let (is_new, is_given_up) = (id != IdState::Used, id == IdState::GivenUp);
        let in_parts = message.is_segment();
        let id = message
            .send_id
            .map(|send_id| self.begin_push(send_id.0, &message));
        if let Some(operation) = id.and_then(|id| self.operation(id)) {
            operation.has_failed = is_given_up;
        }
        let mut runs = ByteRanges::default();
        let mut payload = match message.transfer {
            Transfer::LongRead => 0,
            _ => self.parsed.payload,
        };
        let mut room = message.in_requests;
        if message.transfer == Transfer::LongCts && payload > message.length {
            let text = format!("{payload} bytes, in a message of {}", message.length);
            self.breach(&rules::SEGMENT_BOUNDS, text);
            (payload, room) = (message.length, message.length);
        }
        self.add(id, &mut runs, message.offset, payload, room, message.length);
        if in_parts
            && is_new
            && let Some(msg_id) = msg_id
        {
            let part = PartialMessage {
                first: self.context.number,
                last: self.context.number,
                shape: self.shape(&message),
                cq_data: self.parsed.request.and_then(|request| request.cq_data),
                runs,
                operation: id,
                begun: self.conversation.sides[self.me].sequence.begun,
                is_given_up,
            };
            let parts = &mut self.conversation.sides[self.me].sequence.parts;
            parts.insert(msg_id, part);
            self.finish_part(msg_id, &message);
        } else if let Some(id) = id {
            self.finish_request(id, &message);
        }
    }

    /// Judges whether a message has to be sent to the receiver's user receive queue pair. A sender
    /// that omits its raw address has provably received the announcement of that queue pair.
    fn check_user_recv_qp(&mut self, message: &Message) {
        let peer = &self.conversation.sides[self.you];
        let is_zero_copy = peer.features.contains(ExtraFeatures::USER_RECV_QP);
        if is_zero_copy && message.msg_id.is_some() && self.parsed.raw_address().is_none() {
            let text = format!("{} receives messages on another queue pair", peer.node);
            self.breach(&rules::USER_RECV_QP, text);
        }
    }

    /// Begins a message or write with a send_id.
    fn begin_push(&mut self, send_id: u32, message: &Message) -> OpId {
        let kind = match message.transfer.is_read() {
            true => OperationKind::LongRead,
            false => OperationKind::Push,
        };
        let packet_type = self.parsed.packet_type;
        let (number, length) = (self.context.number, message.length);
        let operations = &mut self.conversation.operations;
        let (id, operation) = operations.begin(number, packet_type, kind, self.me, length);
        operation.granted = message.in_requests.min(message.length);
        operation.in_requests = message.in_requests;
        operation.is_judged = self.context.is_judged;
        operation.is_message = message.msg_id.is_some();
        let msg_id = message.msg_id.map(|id| id.0);
        operation.msg_id = msg_id;
        operation.delivery_complete = message.delivery_complete;
        operation.turn = match msg_id {
            Some(msg_id) => AnswerOrder::Match(message.tag, msg_id),
            None => AnswerOrder::Arrival,
        };
        if let Some(iov) = message.rma_iov {
            operation.keys = iov.as_slice().iter().map(|iov| iov.key()).collect();
        }
        if let Some(iov) = message.read_iov {
            operation.is_to_be_read = true;
            operation.regions = regions(iov);
        }
        self.joins(id);
        self.gives_id(&SEND_IDS, send_id, id);
        if kind == OperationKind::LongRead {
            let conversation = &mut *self.conversation;
            let side = &mut conversation.sides[self.me];
            let operations = &conversation.operations;
            let is_live = |id: &OpId| operations.get(*id).is_some_and(|other| !other.is_done);
            side.long_reads.retain(is_live);
            side.long_reads.push(id);
            side.readable.retain(|_, id| is_live(id));
            if let Some(msg_id) = msg_id {
                side.readable.insert(msg_id, id);
            }
            conversation.operations.share_memory(id, &side.long_reads);
        }
        id
    }
}
