//! The end of a message that one of its sides aborts.

use efa_wire::OpeType;
use efa_wire::rules;

use super::follower::Follower;
use crate::check::operation::Operation;
use crate::check::packet::Abort;

impl Follower<'_> {
    /// One side of a message aborts it: no packet of the other side is due any more.
    pub(super) fn abort(&mut self, abort: Abort) {
        let Abort {
            msg_id,
            op_id,
            emitter,
        } = abort;
        if emitter.name().is_none() {
            let text = format!("emitter_ope_type {} names no side of a message", emitter.0);
            return self.breach(&rules::PEER_ERROR_MESSAGE, text);
        }
        let is_source = emitter == OpeType::TXE;
        let source = if is_source { self.me } else { self.you };
        let names = &self.conversation.sides[self.you];
        let names = if is_source {
            &names.recv_ids
        } else {
            &names.send_ids
        };
        let operations = &self.conversation.operations;
        let named = op_id.and_then(|op_id| names.get(op_id));
        let named = named.and_then(|id| Some((id, operations.get(id)?)));
        // Ids are reused, so a known message decides, independent of the operation of its op_id.
        let sequence = &self.conversation.sides[source].sequence;
        let is_unknown = self.conversation.is_from_start() && !sequence.knows(msg_id);
        if let Some((_, operation)) = named
            && !operation.is_message
            && is_unknown
        {
            let text = format!(
                "op_id {} names the operation of packet {}",
                op_id.unwrap_or(0),
                operation.request
            );
            return self.breach(&rules::PEER_ERROR_MESSAGE, text);
        }
        let is_it = |operation: &Operation| {
            operation.source == source && operation.msg_id == Some(msg_id) && operation.is_message
        };
        let id = match named {
            Some((id, operation)) if is_it(operation) => Some(id),
            _ => operations.find(|operation| is_it(operation) && !operation.is_done),
        };
        if let Some(id) = id {
            self.joins(id);
            if let Some(operation) = self.operation(id) {
                operation.has_failed = true;
            }
        }
        if is_source {
            let from_start = self.conversation.is_from_start();
            let packet_type = self.parsed.packet_type;
            self.conversation.sides[self.me].take_back(msg_id);
            let sequence = &mut self.conversation.sides[self.me].sequence;
            let gap = sequence.abort(msg_id, self.context.number, packet_type, from_start);
            self.skips(gap);
        }
    }
}
