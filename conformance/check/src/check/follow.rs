//! Following operations from packet to packet.

use efa_capture::frame::header::FIRST_TAPPED_SEQUENCE;
use efa_wire::rules;
use efa_wire::{ExtraFeatures, OpeType, PacketType, RtaKind};

use super::conversation::Conversation;
use super::frame::FrameContext;
use super::node::NodeId;
use super::operation::{AnswerOrder, DueAnswer, End, OpId, Operation, OperationKind, regions};
use super::packet::{
    Abort, AnswerIds, Atomic, HandshakeContent, PacketBody, ParsedPacket, Read, Window,
};
use super::runs::ByteRanges;
use super::sequence::{IdGap, IdState, PartialMessage, Shape};
use super::side::{FETCH_IDS, IdSpace, RECV_IDS, SEND_IDS};
use efa_wire::{Message, Transfer};

/// A packet that is being judged, with its conversation.
pub(super) struct Follower<'c> {
    pub(super) conversation: &'c mut Conversation,
    pub(super) context: FrameContext,
    pub(super) parsed: &'c ParsedPacket,
    pub(super) sequence: u32,
    /// Sender and receiver.
    pub(super) me: End,
    pub(super) you: End,
}

impl Follower<'_> {
    pub(super) fn follow(&mut self) {
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

    fn breach(&mut self, rule: &'static rules::Rule, text: String) {
        let kind = self.parsed.packet_type;
        self.conversation.breach(self.context, kind, rule, text);
    }

    fn operation(&mut self, id: OpId) -> Option<&mut Operation> {
        self.conversation.operations.get_mut(id)
    }

    /// Records that the packet belongs to an operation.
    fn joins(&mut self, id: OpId) {
        let side = &mut self.conversation.sides[self.me];
        side.requests.belongs(self.sequence, id);
    }

    /// Returns the operation to which an id of the other end refers, if it `waits` for this packet;
    /// otherwise reports that there is none. The packet belongs to the operation.
    fn named(
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

    fn names_nothing(&mut self, field: &str, value: u32) {
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

    fn due(&mut self, id: OpId, from: End, turn: AnswerOrder, answer: PacketType) {
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

    fn answered(&mut self, id: OpId) {
        let packet_type = self.parsed.packet_type;
        self.conversation
            .answered(self.context, packet_type, self.me, id);
    }

    fn done(&mut self, id: OpId) {
        let at = self.conversation.at();
        if let Some(operation) = self.operation(id)
            && !operation.is_done
        {
            operation.is_done = true;
            self.conversation.operations.over(id, at);
        }
    }

    /// Assigns an operation an id of `me`.
    fn gives_id(&mut self, ids: &IdSpace, value: u32, id: OpId) {
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

    fn message(&mut self, message: Message) {
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

    fn shape(&self, message: &Message) -> Shape {
        Shape {
            packet_type: self.parsed.packet_type,
            length: message.length,
            in_requests: message.in_requests,
            tag: message.tag,
            send_id: message.send_id,
        }
    }

    /// Whether the packet continues a message that an earlier one began.
    fn goes_on(&mut self, msg_id: u32, message: &Message) -> bool {
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

    /// Begins a message. Returns the relation of its msg_id to earlier ones.
    fn begins_message(&mut self, msg_id: u32) -> IdState {
        let from_start = self.conversation.is_from_start();
        let packet_type = self.parsed.packet_type;
        let sequence = &mut self.conversation.sides[self.me].sequence;
        let (id, gap) = sequence.begin(msg_id, self.context.number, packet_type, from_start);
        match id {
            IdState::New | IdState::GivenUp => {}
            IdState::Again => {
                let text = format!("the device failed to send the first message {msg_id}");
                self.breach(&rules::MSG_ID_AGAIN, text);
            }
            IdState::Used => {
                let requests = &self.conversation.sides[self.me].requests;
                let text = match requests.refused(msg_id) {
                    Some(packet) => format!(
                        "packet {packet} of message {msg_id} was refused, and this one is another"
                    ),
                    None => format!("message {msg_id} was sent before"),
                };
                self.breach(&rules::MSG_ID_ONCE, text);
            }
        }
        self.skips(gap);
        id
    }

    /// Reports messages of the near end that are never sent.
    fn skips(&mut self, gap: Option<IdGap>) {
        if let Some(gap) = gap
            && self.me == 0
        {
            self.conversation.gap(gap, self.context.interface);
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

    /// Counts data. `room` is the number of the message's bytes in packets of this type.
    fn add(
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

    /// Checks whether a message in several requests is complete.
    fn finish_part(&mut self, msg_id: u32, message: &Message) {
        let parts = &mut self.conversation.sides[self.me].sequence.parts;
        let Some(part) = parts.get(&msg_id) else {
            return;
        };
        let operation = part
            .operation
            .and_then(|id| self.conversation.operations.get(id));
        let sent = operation.map_or(part.runs.total(), Operation::sent);
        let room = match message.transfer {
            Transfer::RuntRead => message.in_requests,
            _ => part.shape.length,
        };
        if sent < room {
            return;
        }
        let id = part.operation;
        parts.remove(&msg_id);
        if let Some(id) = id {
            self.finish_request(id, message);
        }
    }

    /// Sets the answer that is due after the last request of an operation.
    fn finish_request(&mut self, id: OpId, message: &Message) {
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

    fn read(&mut self, read: Read) {
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

    fn atomic(&mut self, atomic: Atomic) {
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

    /// Handles a CTS: the owner of `send_id` may send `length` bytes, in packets with `recv_id`.
    fn window(&mut self, window: Window) {
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
    fn data(&mut self, recv_id: u32, offset: u64) {
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
    fn stream(&mut self, id: OpId, offset: u64) {
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

    /// Handles a READRSP, which states the responder's `send_id`.
    fn read_response(&mut self, ids: AnswerIds) {
        let is_short =
            |operation: &Operation, payload| operation.is_short && payload < operation.length;
        if let Some(id) = self.response(&RECV_IDS, ids.recv_id, is_short) {
            self.gives_id(&SEND_IDS, ids.send_id, id);
            self.stream(id, 0);
        }
    }

    /// Handles an ATOMRSP.
    fn atomic_response(&mut self, recv_id: u32) {
        let is_other = |operation: &Operation, payload| payload != operation.length;
        if let Some(id) = self.response(&FETCH_IDS, recv_id, is_other) {
            self.done(id);
        }
    }

    /// Returns the operation that requested this packet, whose payload may have the wrong length.
    fn response(
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

    /// Handles an EOR, which ends a read-based operation, or a RECEIPT, which ends one with
    /// delivery complete and contains the id of its message.
    fn acknowledge(&mut self, send_id: u32, receipt_of: Option<u32>) {
        let is_eor = receipt_of.is_none();
        let Some(id) = self.named(&SEND_IDS, send_id, |operation| match is_eor {
            true => operation.is_to_be_read,
            false => operation.delivery_complete,
        }) else {
            return;
        };
        self.answered(id);
        let number = self.context.number;
        // A tap does not capture the reads of peers that its device serves.
        let is_tapped = self.sequence >= FIRST_TAPPED_SEQUENCE;
        // A capture without directions does not show the end of a read that its frames belong to.
        let reads_are_seen = self.conversation.has_order() && !is_tapped;
        let Some(operation) = self.operation(id) else {
            return;
        };
        let request = operation.request;
        let (is_message, msg_id) = (operation.is_message, operation.msg_id);
        if is_message && receipt_of.is_some() && receipt_of != msg_id {
            let (receipt, is) = (receipt_of.unwrap_or(0), msg_id.unwrap_or(0));
            let text = format!("its msg_id is {receipt}, send_id {send_id} names message {is}");
            self.breach(&rules::RECEIPT_MESSAGE, text);
        }
        let Some(operation) = self.operation(id) else {
            return;
        };
        let before = operation.acknowledged.replace(number);
        let short_runt = is_eor
            .then(|| ShortRunt::of(operation))
            .flatten()
            .filter(|_| self.conversation.is_from_start());
        if let Some(runt) = short_runt {
            self.short_runt(&runt, is_tapped);
        }
        let Some(operation) = self.operation(id) else {
            return;
        };
        let is_early = if is_eor {
            let reads_are_known = reads_are_seen
                && !operation.shares_memory
                && !operation.regions.is_empty()
                && operation.length > operation.in_requests;
            let begun = operation.reads_begun;
            let text = match operation.reads_under_way {
                _ if begun == 0 => "none of its memory was read".to_owned(),
                under_way => format!("{under_way} of {begun} reads of its memory are under way"),
            };
            let is_early = begun == 0 || operation.reads_under_way > 0;
            (reads_are_known && is_early && operation.nacked.is_none()).then_some(text)
        } else {
            let (sent, length) = (operation.sent(), operation.length);
            (sent < length).then(|| format!("{sent} of {length} bytes had arrived"))
        };
        let is_refused = operation.nacked.is_some();
        if let Some(before) = before {
            let text =
                format!("the operation of packet {request} was acknowledged in packet {before}");
            self.breach(&rules::ONE_ANSWER, text);
        } else if let Some(text) = is_early
            && self.conversation.is_from_start()
        {
            let text = format!("{text} (packet {request})");
            let rule = if is_eor {
                &rules::EOR_EARLY
            } else {
                &rules::RECEIPT_EARLY
            };
            self.breach(rule, text);
        }
        if is_eor && is_refused {
            let text = format!("the read of packet {request} was refused before");
            self.breach(&rules::READ_NACK, text);
        }
        self.done(id);
    }

    /// Handles an EOR of a runting read with missing segments. If the peer has read the rest from
    /// that offset on, `runt_length` is wrong.
    fn short_runt(&mut self, runt: &ShortRunt, is_tapped: bool) {
        let ShortRunt { sent, length, .. } = *runt;
        if runt.read_from != Some(sent) || is_tapped {
            let text = format!("{sent} of {length} bytes of the runt had arrived");
            return self.breach(&rules::EOR_EARLY, text);
        }
        let text = format!("it says {length}, the segments have {sent} bytes");
        let context = FrameContext {
            number: runt.request,
            is_judged: runt.is_judged,
            ..self.context
        };
        let rule = &rules::RUNT_LENGTH;
        let kind = runt.packet_type;
        self.conversation.breach(context, kind, rule, text);
    }

    fn refuse(&mut self, ids: AnswerIds) {
        let Some(id) = self.named(&SEND_IDS, ids.send_id, |_| true) else {
            return;
        };
        self.answered(id);
        let number = self.context.number;
        let Some(operation) = self.operation(id) else {
            return;
        };
        let request = operation.request;
        let is_readable = operation.kind == OperationKind::LongRead
            && operation.acknowledged.is_none()
            && operation.nacked.is_none();
        let (sent, runt) = (operation.sent(), operation.in_requests);
        let is_message = operation.is_message;
        operation.nacked.get_or_insert(number);
        if !is_readable {
            let text = format!("packet {request} is not to be read (any more)");
            self.breach(&rules::READ_NACK, text);
        } else if sent < runt && self.conversation.is_from_start() {
            let text = format!("{sent} of {runt} bytes of the runt had arrived");
            self.breach(&rules::NACK_RUNT, text);
        }
        if !is_message {
            // The write is repeated, as another operation.
            self.done(id);
        }
    }

    /// One side of a message aborts it: no packet of the other side is due any more.
    fn abort(&mut self, abort: Abort) {
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

    fn handshake(&mut self, announced: HandshakeContent) {
        let you_read_the_version = {
            let peer = &self.conversation.sides[self.you];
            peer.handshake.is_some() && peer.features.contains(ExtraFeatures::READ_NACK)
        };
        let side = &mut self.conversation.sides[self.me];
        match side.handshake {
            Some(first) => {
                let text = format!("the first was in packet {first}");
                self.breach(&rules::HANDSHAKE_ONCE, text);
            }
            None => {
                side.handshake = Some(self.context.number);
                side.features = announced.features;
                let (number, me, you) = (self.context.number, self.me, self.you);
                self.conversation.check_early(number, me, you);
            }
        }
        if you_read_the_version && announced.device_version.is_none() {
            let text = "the receiver reads the field without looking whether it is there".into();
            self.breach(&rules::DEVICE_VERSION, text);
        }
    }
}

impl Conversation {
    /// Whether the conversation waits for a packet without an id from a node: then an equal earlier
    /// packet had no effect. A packet whose ids name no operation is not awaited, unless it is a
    /// request. `None` if it cannot be determined.
    pub(super) fn misses(&mut self, parsed: &ParsedPacket, from: NodeId) -> Option<bool> {
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

/// A runting read that was acknowledged before all its segments had arrived.
struct ShortRunt {
    request: u64,
    packet_type: PacketType,
    is_judged: bool,
    /// The number of bytes in segments so far.
    sent: u64,
    /// The number of bytes in all segments, as these state it.
    length: u64,
    /// The offset in the message where the peer began to read.
    read_from: Option<u64>,
}

impl ShortRunt {
    fn of(operation: &Operation) -> Option<ShortRunt> {
        let is_short = operation.sent() < operation.in_requests && operation.nacked.is_none();
        is_short.then(|| ShortRunt {
            request: operation.request,
            packet_type: operation.packet_type,
            is_judged: operation.is_judged,
            sent: operation.sent(),
            length: operation.in_requests,
            read_from: operation.read_from,
        })
    }
}
