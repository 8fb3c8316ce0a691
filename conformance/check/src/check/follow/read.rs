//! Emulated reads: requests and responses.

use efa_wire::PacketType;

use super::follower::Follower;
use crate::check::operation::{AnswerOrder, Operation, OperationKind};
use crate::check::packet::{AnswerIds, Read};
use crate::check::side::{RECV_IDS, SEND_IDS};

impl Follower<'_> {
    pub(super) fn read(&mut self, read: Read) {
        let packet_type = self.parsed.packet_type;
        let you = self.you;
        let (number, kind) = (self.context.number, OperationKind::Read);
        let operations = &mut self.conversation.operations;
        let (id, operation) = operations.begin(number, packet_type, kind, you, read.length);
        operation.granted = read.window.min(read.length);
        operation.recv_id = Some(read.recv_id);
        operation.awaits_answer = true;
        operation.is_short = read.is_short;
        operation.keys = read
            .rma_iov
            .as_slice()
            .iter()
            .map(|iov| iov.key())
            .collect();
        self.joins(id);
        self.gives_id(&RECV_IDS, read.recv_id, id);
        self.due(id, you, AnswerOrder::Arrival, PacketType::ReadRsp);
    }

    /// Handles a READRSP, which states the responder's `send_id`.
    pub(super) fn read_response(&mut self, ids: AnswerIds) {
        let is_short =
            |operation: &Operation, payload| operation.is_short && payload < operation.length;
        if let Some(id) = self.response(&RECV_IDS, ids.recv_id, is_short) {
            self.gives_id(&SEND_IDS, ids.send_id, id);
            self.stream(id, 0);
        }
    }
}
