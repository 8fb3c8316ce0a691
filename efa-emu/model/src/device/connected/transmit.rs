//! Packets sent by a connected queue pair, and its timers.

use std::cmp::Reverse;
use std::time::Duration;

use efa_core::address::{Gid, Qkey, Qpn};
use efa_core::nic::{Access, Status};

use super::completion::WcStatus;
use super::packet::{AtomicEth, Head, LONGEST_HEAD, Opcode, Reth, Syndrome};
use super::pair::{DeviceParts, Pair, SentCounts};
use super::psn::Psn;
use super::requester::{
    MAX_INLINE, Outgoing, Payload, RemoteMemory, SendOperation, Tick, packets_of,
};
use super::responder::Answer;
use super::token::{PacketToken, timer_of, timer_token};
use crate::device::event::DeviceEvent;
use crate::device::queue_pair::QpState;
use crate::device::state::Device;
use crate::link::{HostSegment, Link, LinkBusy, LocalData, Operation, RequestHeader, Token};

/// Most packets of one queue pair in one turn.
const TURN: u32 = 32;

/// The data of a packet after its headers.
enum Content<'a> {
    Nothing,
    Memory(&'a [HostSegment], u32),
    Bytes(&'a [u8]),
}

/// Whether a packet is a request or an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PacketRole {
    Request { is_repeated: bool },
    Answer,
}

/// The reason why a packet was not sent.
enum SendError {
    Busy,
    /// Its local memory is not registered any more.
    NoMemory,
}

impl From<LinkBusy> for SendError {
    fn from(_: LinkBusy) -> Self {
        SendError::Busy
    }
}

impl Device {
    /// A connected queue pair, with the parts of the device that it uses.
    #[inline]
    pub(super) fn connected_pair(&mut self, qpn: Qpn) -> Option<(&mut Pair, DeviceParts<'_>)> {
        let pair = self.connected.pairs.get_mut(qpn)?;
        let around = DeviceParts {
            regions: &self.regions,
            cqs: &mut self.cqs,
            counters: &mut self.counters,
            diagnostics: &mut self.diagnostics,
            initiator: &mut self.initiator,
            shared: &mut self.connected.shared,
        };
        Some((pair, around))
    }

    /// Schedules a connected queue pair if it has packets to send.
    pub(super) fn schedule_connected(&mut self, qpn: Qpn) {
        if let Some((pair, mut around)) = self.connected_pair(qpn) {
            pair.schedule(&mut around);
        }
    }

    /// Sends at most [`TURN`] packets of a connected queue pair. Returns whether there are more.
    #[cold]
    pub(in crate::device) fn transmit_connected(&mut self, qpn: Qpn, link: &mut impl Link) -> bool {
        let Some((pair, mut around)) = self.connected_pair(qpn) else {
            return false;
        };
        let mut failure = None;
        let mut has_more = true;
        for _ in 0..TURN {
            match pair.send_one(&mut around, link) {
                Ok(true) => {}
                Ok(false) => {
                    has_more = false;
                    break;
                }
                Err(SendError::Busy) => {
                    around.diagnostics.full_queues += 1;
                    break;
                }
                Err(SendError::NoMemory) => {
                    failure = Some(DeviceEvent::QpFatal(qpn));
                    break;
                }
            }
        }
        pair.is_scheduled = has_more && failure.is_none();
        pair.request_time(&mut around);
        if failure.is_some() {
            self.fail_connected(qpn, failure);
            return false;
        }
        has_more
    }

    /// Handles the link's acknowledgement of a packet of a connected queue pair
    /// ([`Transfer::acknowledge`](crate::link::Transfer::acknowledge)). Other requests have no such
    /// answer.
    pub fn acknowledged(&mut self, token: Token) {
        match timer_of(token.0) {
            Some(_) => self.packet_left(token, true),
            None => self.complete(Duration::ZERO, token, Status::RemoteBadStatus),
        }
    }

    /// Records that the link has delivered or lost a packet of a connected queue pair.
    #[cold]
    pub(in crate::device) fn packet_left(&mut self, token: Token, is_acknowledged: bool) {
        let found = timer_of(token.0).and_then(|qpn| self.connected_pair(qpn));
        let Some((pair, mut around)) = found else {
            return;
        };
        let packet = PacketToken::of(token);
        if packet.connection != pair.sent_counts.connection {
            return;
        }
        let count = match packet.is_answer {
            true => &mut pair.sent_counts.answers,
            false => &mut pair.sent_counts.requests,
        };
        *count = count.saturating_sub(1);
        if !pair.sends() {
            return;
        }
        if is_acknowledged {
            pair.requester.acknowledge(packet.psn);
            pair.complete_ended(&mut around);
            pair.schedule(&mut around);
        }
        pair.request_time(&mut around);
    }

    /// Handles a due timer of a connected queue pair.
    #[cold]
    pub(in crate::device) fn tick_connected(&mut self, now: Duration, qpn: Qpn) {
        let Some(pair) = self.connected.pairs.get_mut(qpn) else {
            return;
        };
        if pair.tick_at.is_some_and(|at| at <= now) {
            pair.tick_at = None;
        }
        if !pair.sends() {
            return;
        }
        let timeout = pair.timeout();
        let is_carried = pair.sent_counts.requests > 0;
        let tick = pair
            .requester
            .tick(now, timeout, &pair.attributes, is_carried);
        let (next, sends) = match tick {
            Tick::Later(next) => (next, false),
            Tick::Send(next) => (next, true),
            Tick::GivenUp => {
                pair.requester.end_front(WcStatus::RetryExceeded);
                self.counters.retrans_timeout_events += 1;
                return self.fail_connected(qpn, Some(DeviceEvent::QpFatal(qpn)));
            }
        };
        if let Some(at) = next
            && pair.tick_at.is_none_or(|pending| at < pending)
        {
            pair.tick_at = Some(at);
            let timer = Reverse((at, timer_token(qpn)));
            self.initiator.timers.push(timer);
        }
        if sends {
            self.schedule_connected(qpn);
        }
    }

    /// Fails one connected queue pair or all, as a rule stages it. Those that are not ready are not
    /// affected.
    pub(in crate::device) fn stage_connected(&mut self, chosen: Option<Qpn>) {
        let works = |pair: &Pair| {
            let is_chosen = chosen.is_none_or(|chosen| chosen == pair.qpn);
            (is_chosen && pair.attributes.state != QpState::Reset).then_some(pair.qpn)
        };
        let pairs = &self.connected.pairs;
        let all = pairs.numbers().filter_map(|qpn| pairs.get(qpn));
        let failed: Vec<Qpn> = all.filter_map(works).collect();
        for qpn in failed {
            self.fail_connected(qpn, Some(DeviceEvent::QpFatal(qpn)));
        }
    }

    /// Puts a connected queue pair into the error state, and raises an event unless the client
    /// requested the change.
    pub(in crate::device) fn fail_connected(&mut self, qpn: Qpn, event: Option<DeviceEvent>) {
        let Some((pair, mut around)) = self.connected_pair(qpn) else {
            return;
        };
        if pair.attributes.state == QpState::Error {
            return;
        }
        if let Some(event) = event {
            tracing::warn!(%qpn, ?event, "connected queue pair failed");
        }
        // Completions of finished requests precede the flushed ones.
        pair.complete_ended(&mut around);
        pair.fail(&mut around);
        if let Some(event) = event {
            self.cqs.raise(event);
        }
    }
}

impl Pair {
    /// Makes the device send pending packets.
    #[inline]
    pub(super) fn schedule(&mut self, around: &mut DeviceParts<'_>) {
        let has_work = !(self.requester.is_idle() && self.responder.answers.is_empty());
        if has_work && !self.is_scheduled {
            self.is_scheduled = true;
            around.initiator.scheduled.push(self.qpn);
        }
    }

    /// Requests the time, if a time-out begins and the time is not known: by a timer that is due
    /// immediately.
    #[inline]
    fn request_time(&mut self, around: &mut DeviceParts<'_>) {
        let is_due = match self.requester.needs_rnr_time() {
            true => self.tick_at != Some(Duration::ZERO),
            false => {
                self.sent_counts.requests == 0
                    && self.tick_at.is_none()
                    && self.requester.needs_time(self.timeout())
            }
        };
        if is_due {
            self.tick_at = Some(Duration::ZERO);
            let timer = Reverse((Duration::ZERO, timer_token(self.qpn)));
            around.initiator.timers.push(timer);
        }
    }

    /// Sends the next packet. Returns false if there is none.
    #[inline(always)]
    fn send_one(
        &mut self,
        around: &mut DeviceParts<'_>,
        link: &mut impl Link,
    ) -> Result<bool, SendError> {
        if let Some(answer) = self.responder.answers.front().copied() {
            self.send_answer(answer, around, link)?;
            return Ok(true);
        }
        if self.requester.is_idle() || !self.sends() {
            return Ok(false);
        }
        let may_start = self.attributes.state == QpState::ReadyToSend;
        if self.requester.is_stuck(&self.attributes) {
            self.requester.end_front(WcStatus::LocalOperation);
            return Err(SendError::NoMemory);
        }
        let Some(packet) = self.requester.next_packet(&self.attributes, may_start) else {
            return Ok(false);
        };
        self.send_request(&packet, around, link)?;
        self.requester.sent(&packet);
        Ok(true)
    }

    #[inline(never)]
    fn send_answer(
        &mut self,
        answer: Answer,
        around: &mut DeviceParts<'_>,
        link: &mut impl Link,
    ) -> Result<(), SendError> {
        let messages = self.responder.messages;
        let destination = self.attributes.destination;
        let mut head = match answer {
            Answer::Acknowledgement(psn, syndrome) => Head {
                syndrome,
                ..Head::new(Opcode::Acknowledge, destination, psn)
            },
            Answer::Word(psn, original) => Head {
                original,
                ..Head::new(Opcode::AtomicAcknowledge, destination, psn)
            },
            Answer::Data { first, from, sent } => {
                return self.send_data(first, from, sent, around, link);
            }
        };
        head.message_number = messages;
        self.answer(head, Content::Nothing, around, link)?;
        self.responder.answers.pop_front();
        Ok(())
    }

    /// Sends a packet of a read's data.
    fn send_data(
        &mut self,
        first: Psn,
        from: Reth,
        sent: u32,
        around: &mut DeviceParts<'_>,
        link: &mut impl Link,
    ) -> Result<(), SendError> {
        let mtu = self.attributes.mtu();
        let packets = packets_of(from.length.get(), mtu);
        let opcode = match (sent == 0, sent + 1 == packets) {
            (true, true) => Opcode::ReadResponseOnly,
            (true, false) => Opcode::ReadResponseFirst,
            (false, false) => Opcode::ReadResponseMiddle,
            (false, true) => Opcode::ReadResponseLast,
        };
        let psn = first.plus(sent);
        let offset = sent * mtu;
        let length = (from.length.get() - offset).min(mtu);
        let mut head = Head {
            message_number: self.responder.messages,
            ..Head::new(opcode, self.attributes.destination, psn)
        };
        let memory = match length {
            0 => Some(HostSegment::default()),
            _ => {
                let address = from.address.get().wrapping_add(offset.into());
                let (pd, access) = (self.config.pd, Access::REMOTE_READ);
                around
                    .regions
                    .remote(pd, from.key.get(), address, length, access)
            }
        };
        let Some(memory) = memory else {
            // The memory was deregistered meanwhile.
            head.opcode = Opcode::Acknowledge;
            head.syndrome = Syndrome::AccessError;
            self.answer(head, Content::Nothing, around, link)?;
            self.responder.answers.pop_front();
            return Err(SendError::NoMemory);
        };
        let content = match length {
            0 => Content::Nothing,
            _ => Content::Memory(std::slice::from_ref(&memory), length),
        };
        self.answer(head, content, around, link)?;
        if sent + 1 == packets {
            self.responder.answers.pop_front();
        } else if let Some(Answer::Data { sent, .. }) = self.responder.answers.front_mut() {
            *sent += 1;
        }
        Ok(())
    }

    #[inline(always)]
    fn send_request(
        &mut self,
        packet: &Outgoing,
        around: &mut DeviceParts<'_>,
        link: &mut impl Link,
    ) -> Result<(), SendError> {
        let mtu = self.attributes.mtu();
        let index = packet.index;
        let Some(request) = self.requester.request(packet.position) else {
            return Ok(());
        };
        let wr = &request.wr;
        let offset = index * mtu;
        let length = (request.length - offset).min(mtu);
        let is_first = index == 0;
        let is_last = index + 1 == request.packets;
        let mut head = Head::new(Opcode::ReadRequest, self.attributes.destination, packet.psn);
        head.wants_acknowledgement = packet.wants_acknowledgement;
        let reth = |address: u64, key: u32| Reth {
            address: address.into(),
            key: key.into(),
            length: request.length.into(),
        };
        let atomic = |remote: RemoteMemory, swap_or_add: u64, compare: u64| AtomicEth {
            address: remote.address.into(),
            key: remote.key.into(),
            swap_or_add: swap_or_add.into(),
            compare: compare.into(),
        };
        match wr.operation {
            SendOperation::Send(immediate) => {
                head.opcode = match (is_first, is_last, immediate) {
                    (true, false, _) => Opcode::SendFirst,
                    (false, false, _) => Opcode::SendMiddle,
                    (false, true, None) => Opcode::SendLast,
                    (false, true, Some(_)) => Opcode::SendLastImmediate,
                    (true, true, None) => Opcode::SendOnly,
                    (true, true, Some(_)) => Opcode::SendOnlyImmediate,
                };
                head.immediate = immediate.filter(|_| is_last).unwrap_or(0);
                head.is_solicited = wr.is_solicited && is_last;
            }
            SendOperation::Write(remote, immediate) => {
                head.opcode = match (is_first, is_last, immediate) {
                    (true, false, _) => Opcode::WriteFirst,
                    (false, false, _) => Opcode::WriteMiddle,
                    (false, true, None) => Opcode::WriteLast,
                    (false, true, Some(_)) => Opcode::WriteLastImmediate,
                    (true, true, None) => Opcode::WriteOnly,
                    (true, true, Some(_)) => Opcode::WriteOnlyImmediate,
                };
                if is_first {
                    head.reth = reth(remote.address, remote.key);
                }
                head.immediate = immediate.filter(|_| is_last).unwrap_or(0);
                head.is_solicited = wr.is_solicited && is_last && immediate.is_some();
            }
            SendOperation::Read(remote) => {
                // Data that has arrived is not read again.
                let address = remote.address.wrapping_add(offset.into());
                head.reth = Reth {
                    length: (request.length - offset).into(),
                    ..reth(address, remote.key)
                };
            }
            SendOperation::CompareSwap {
                remote,
                compare,
                swap,
            } => {
                head.opcode = Opcode::CompareSwap;
                head.atomic = atomic(remote, swap, compare);
            }
            SendOperation::FetchAdd { remote, add } => {
                head.opcode = Opcode::FetchAdd;
                head.atomic = atomic(remote, add, 0);
            }
        }
        let role = PacketRole::Request {
            is_repeated: packet.is_repeated,
        };
        let memory;
        let content = match &wr.payload {
            _ if wr.operation.is_read_like() => Content::Nothing,
            Payload::Inline(bytes) => {
                let (start, end) = (offset as usize, (offset + length) as usize);
                Content::Bytes(bytes.get(start..end).unwrap_or_default())
            }
            Payload::Buffers(buffers) => {
                let access = (self.config.pd, Access::empty());
                let offset = u64::from(offset);
                match buffers.resolve(around.regions, access, offset, length) {
                    Some(found) => memory = found,
                    None => {
                        self.requester
                            .fail_at(packet.position, WcStatus::LocalProtection);
                        return Err(SendError::NoMemory);
                    }
                }
                Content::Memory(memory.segments(), length)
            }
        };
        let from = (self.qpn, self.attributes.peer);
        self.sent_counts
            .send(from, head, content, role, around, link)
    }

    #[inline(never)]
    fn answer(
        &mut self,
        head: Head,
        content: Content<'_>,
        around: &mut DeviceParts<'_>,
        link: &mut impl Link,
    ) -> Result<(), SendError> {
        let (from, role) = ((self.qpn, self.attributes.peer), PacketRole::Answer);
        self.sent_counts
            .send(from, head, content, role, around, link)
    }
}

impl SentCounts {
    /// Offers the link a packet of a queue pair for its peer.
    #[inline(always)]
    fn send(
        &mut self,
        (qpn, peer): (Qpn, Gid),
        mut head: Head,
        content: Content<'_>,
        role: PacketRole,
        around: &mut DeviceParts<'_>,
        link: &mut impl Link,
    ) -> Result<(), SendError> {
        let payload = match &content {
            Content::Nothing => 0,
            Content::Memory(_, length) => *length,
            Content::Bytes(bytes) => bytes.len() as u32,
        };
        let padding = payload.next_multiple_of(4) - payload;
        head.padding = padding as u8;
        let mut bytes = [0; LONGEST_HEAD + MAX_INLINE];
        let mut length = head.emit(&mut bytes);
        let total = length as u32 + payload + padding;
        let segments = match content {
            Content::Nothing => &[],
            Content::Memory(memory, _) => memory,
            Content::Bytes(part) => {
                bytes[length..length + part.len()].copy_from_slice(part);
                length += part.len();
                &[]
            }
        };
        let Ok(destination) = u16::try_from(head.destination) else {
            // No queue pair has such a number.
            return Ok(());
        };
        let is_repeated = matches!(role, PacketRole::Request { is_repeated: true });
        let header = RequestHeader {
            operation: Operation::Connected,
            source_qpn: qpn,
            destination_qpn: Qpn(destination),
            qkey: Qkey(0),
            sequence: self.frames,
            retries: u32::from(is_repeated),
            immediate: None,
            remote: None,
            length: total,
        };
        let data = LocalData::Packet {
            head: &bytes[..length],
            segments,
            padding: padding as usize,
        };
        let token = PacketToken {
            psn: head.psn,
            is_answer: role == PacketRole::Answer,
            connection: self.connection,
        };
        link.try_send(peer, token.token(qpn), &header, data)?;
        self.frames = self.frames.wrapping_add(1);
        match role {
            PacketRole::Answer => self.answers += 1,
            PacketRole::Request { .. } => self.requests += 1,
        }
        around.counters.tx_pkts += 1;
        around.counters.tx_bytes += u64::from(payload);
        if is_repeated {
            around.counters.retrans_pkts += 1;
            around.counters.retrans_bytes += u64::from(payload);
        }
        Ok(())
    }
}
