//! Atomics: requests and responses.

use efa_wire::{PacketType, RtaKind};

use super::follower::Follower;
use crate::check::operation::{AnswerOrder, Operation, OperationKind};
use crate::check::packet::Atomic;
use crate::check::side::{FETCH_IDS, SEND_IDS};

impl Follower<'_> {
    pub(super) fn atomic(&mut self, atomic: Atomic) {
        self.begins_message(atomic.msg_id);
        let (packet_type, you) = (self.parsed.packet_type, self.you);
        let length = atomic.rma_iov.total_len().unwrap_or_default();
        let (kind, source, answer) = match atomic.kind {
            RtaKind::Write => return,
            RtaKind::DcWrite(_) => (OperationKind::Push, self.me, PacketType::Receipt),
            RtaKind::Fetch(_) | RtaKind::Compare(_) => {
                (OperationKind::Fetch, you, PacketType::AtomRsp)
            }
        };
        let number = self.context.number;
        let operations = &mut self.conversation.operations;
        let (id, operation) = operations.begin(number, packet_type, kind, source, length);
        operation.granted = length;
        operation.turn = AnswerOrder::Atomic(atomic.msg_id);
        operation.keys = atomic
            .rma_iov
            .as_slice()
            .iter()
            .map(|iov| iov.key())
            .collect();
        operation.awaits_answer = kind == OperationKind::Fetch;
        operation.delivery_complete = kind == OperationKind::Push;
        if kind == OperationKind::Push {
            operation.runs.add(0, length);
        }
        let turn = operation.turn;
        self.joins(id);
        match atomic.kind {
            RtaKind::DcWrite(send_id) => self.gives_id(&SEND_IDS, send_id.0, id),
            RtaKind::Fetch(recv_id) | RtaKind::Compare(recv_id) => {
                self.gives_id(&FETCH_IDS, recv_id.0, id);
            }
            RtaKind::Write => {}
        }
        self.due(id, you, turn, answer);
    }

    /// Handles an ATOMRSP.
    pub(super) fn atomic_response(&mut self, recv_id: u32) {
        let is_other = |operation: &Operation, payload| payload != operation.length;
        if let Some(id) = self.response(&FETCH_IDS, recv_id, is_other) {
            self.done(id);
        }
    }
}
