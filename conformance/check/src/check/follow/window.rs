//! Windows, and the data that is sent in them.

use efa_wire::PacketType;
use efa_wire::rules;

use super::follower::Follower;
use crate::check::operation::{AnswerOrder, OpId, OperationKind};
use crate::check::packet::Window;
use crate::check::runs::ByteRanges;
use crate::check::side::{RECV_IDS, SEND_IDS};

impl Follower<'_> {
    /// Handles a CTS: the owner of `send_id` may send `length` bytes, in packets with `recv_id`.
    pub(super) fn window(&mut self, window: Window) {
        let Window { ids, length, .. } = window;
        let Some(id) = self.named(&SEND_IDS, ids.send_id, |operation| !operation.is_done) else {
            return;
        };
        self.answered(id);
        let serial = self.conversation.next_serial();
        let Some(operation) = self.operation(id) else {
            return;
        };
        let (sent, granted) = (operation.sent(), operation.granted);
        let (known, total) = (operation.recv_id, operation.length);
        let request = operation.request;
        let is_read = operation.kind == OperationKind::Read;
        let after = granted.saturating_add(length);
        operation.granted = after;
        operation.window = Some((serial, sent));
        operation.recv_id = Some(ids.recv_id);
        if window.is_read != is_read {
            let (has, what) = match is_read {
                true => ("lacks", "an emulated read"),
                false => ("has", "no emulated read"),
            };
            let text = format!("it {has} the flag 0x80, and packet {request} began {what}");
            self.breach(&rules::CTS_READ_FLAG, text);
        }
        if sent < granted {
            let text = format!(
                "{sent} bytes of the operation of packet {request} had arrived, {granted} were granted"
            );
            self.breach(&rules::CTS_EARLY, text);
        }
        if after > total {
            let text = format!(
                "{after} bytes are granted, but the message of packet {request} has {total}"
            );
            self.breach(&rules::CTS_WINDOW, text);
        }
        if known.is_some_and(|known| known != ids.recv_id) {
            self.names_nothing("recv_id", ids.recv_id);
        }
        self.gives_id(&RECV_IDS, ids.recv_id, id);
    }

    /// Handles a CTSDATA.
    pub(super) fn data(&mut self, recv_id: u32, offset: u64) {
        let Some(id) = self.named(&RECV_IDS, recv_id, |_| true) else {
            return;
        };
        let peer = &self.conversation.sides[self.you];
        if peer.handshake.is_none() && self.conversation.is_from_start() {
            let text = format!("{} has sent no HANDSHAKE", peer.node);
            self.breach(&rules::CTSDATA_EARLY, text);
        }
        self.stream(id, offset);
    }

    /// Counts data that was sent within windows.
    pub(super) fn stream(&mut self, id: OpId, offset: u64) {
        let payload = self.parsed.payload;
        let (me, you) = (self.me, self.you);
        let Some(length) = self.operation(id).map(|operation| operation.length) else {
            return;
        };
        self.add(
            Some(id),
            &mut ByteRanges::default(),
            offset,
            payload,
            length,
            length,
        );
        let Some(operation) = self.operation(id) else {
            return;
        };
        let (sent, granted, request) = (operation.sent(), operation.granted, operation.request);
        let is_full = sent >= granted;
        let opened = operation.window.take_if(|_| is_full);
        let ends_so = !operation.delivery_complete && !operation.awaits_answer;
        let is_receipt_due = operation.delivery_complete && sent >= length;
        let is_window_due = !operation.awaits_answer && is_full && sent < length;
        if sent > granted {
            let text = format!(
                "{sent} bytes of the operation of packet {request} were sent, {granted} were granted"
            );
            self.breach(&rules::CTS_WINDOW, text);
        }
        if let Some((opened, _)) = opened {
            let filled = &mut self.conversation.sides[me].filled;
            if filled.len() >= 64 {
                filled.pop_front();
            }
            filled.push_back(opened);
        }
        if sent >= length && ends_so {
            self.done(id);
        } else if is_receipt_due {
            self.due(id, you, AnswerOrder::Arrival, PacketType::Receipt);
        } else if is_window_due {
            self.due(id, you, AnswerOrder::Arrival, PacketType::Cts);
        }
    }
}
