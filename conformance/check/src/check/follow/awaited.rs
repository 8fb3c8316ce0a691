//! The packets that a conversation waits for.

use efa_wire::Message;

use crate::check::conversation::Conversation;
use crate::check::node::NodeId;
use crate::check::operation::End;
use crate::check::packet::{PacketBody, ParsedPacket};
use crate::check::side::{FETCH_IDS, IdSpace, RECV_IDS, SEND_IDS};

impl Conversation {
    /// Whether the conversation waits for a packet without an id from a node: then an equal earlier
    /// packet had no effect. A packet whose ids name no operation is not awaited, unless it is a
    /// request. `None` if it cannot be determined.
    pub(in crate::check) fn misses(&mut self, parsed: &ParsedPacket, from: NodeId) -> Option<bool> {
        let (me, you) = self.ends(from);
        let sides = &mut self.sides;
        let mut of = |ids: &IdSpace, end: End, id: u32| (ids.of)(&mut sides[end]).get(id);
        let named = match parsed.body {
            PacketBody::Cts(window) => of(&SEND_IDS, you, window.ids.send_id),
            PacketBody::CtsData { recv_id, .. } => of(&RECV_IDS, you, recv_id),
            PacketBody::ReadRsp(ids) => of(&RECV_IDS, you, ids.recv_id),
            PacketBody::AtomRsp { recv_id } => of(&FETCH_IDS, you, recv_id),
            PacketBody::Eor(ids) | PacketBody::ReadNack(ids) => of(&SEND_IDS, you, ids.send_id),
            PacketBody::Receipt { send_id, .. } => of(&SEND_IDS, you, send_id),
            PacketBody::Read(read) => of(&RECV_IDS, me, read.recv_id),
            PacketBody::Message(Message {
                send_id: Some(id), ..
            }) => of(&SEND_IDS, me, id.0),
            PacketBody::Handshake(_) => return Some(self.sides[me].handshake.is_none()),
            PacketBody::Message(_) | PacketBody::Atomic(_) | PacketBody::Abort(_) => return None,
        };
        let Some(operation) = named.and_then(|id| self.operations.get(id)) else {
            let is_waited_for = matches!(parsed.body, PacketBody::Read(_) | PacketBody::Message(_));
            return Some(is_waited_for);
        };
        Some(match parsed.body {
            PacketBody::Cts(_) => {
                let (sent, granted) = (operation.sent(), operation.granted);
                !operation.is_done && sent >= granted && granted < operation.length
            }
            PacketBody::CtsData { offset, .. } => {
                let end = offset.saturating_add(parsed.payload);
                !operation.runs.overlaps(offset, end)
            }
            PacketBody::ReadRsp(_) | PacketBody::AtomRsp { .. } => operation.awaits_answer,
            PacketBody::ReadNack(_) => operation.nacked.is_none(),
            PacketBody::Read(_) => !operation.holds_recv_id(),
            PacketBody::Message(_) => !operation.holds_send_id(),
            _ => operation.acknowledged.is_none(),
        })
    }
}
