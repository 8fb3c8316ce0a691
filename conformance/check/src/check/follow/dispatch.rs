//! What follows a packet, by its content.

use super::follower::Follower;
use crate::check::packet::PacketBody;

impl Follower<'_> {
    pub(in crate::check) fn follow(&mut self) {
        if let Some(msg_id) = self.parsed.body.msg_id() {
            let requests = &mut self.conversation.sides[self.me].requests;
            let is_piece = self.parsed.body.is_piece();
            requests.carries(self.sequence, msg_id, is_piece, self.parsed.packet_type);
        }
        match self.parsed.body {
            PacketBody::Message(message) => self.message(message),
            PacketBody::Read(read) => self.read(read),
            PacketBody::Atomic(atomic) => self.atomic(atomic),
            PacketBody::Cts(window) => self.window(window),
            PacketBody::CtsData { recv_id, offset } => self.data(recv_id, offset),
            PacketBody::ReadRsp(ids) => self.read_response(ids),
            PacketBody::AtomRsp { recv_id } => self.atomic_response(recv_id),
            PacketBody::Eor(ids) => self.acknowledge(ids.send_id, None),
            PacketBody::Receipt { send_id, msg_id } => self.acknowledge(send_id, Some(msg_id)),
            PacketBody::ReadNack(ids) => self.refuse(ids),
            PacketBody::Handshake(announced) => self.handshake(announced),
            PacketBody::Abort(abort) => self.abort(abort),
        }
    }
}
