//! Packets received by a connected queue pair.

use std::time::Duration;

use efa_core::address::{Gid, Qpn};
use efa_core::nic::{Access, Status};

use super::attributes::REMOTE_ATOMIC;
use super::completion::{ConnectedFlags, WcOperation, WcStatus};
use super::packet::{Head, LONGEST_HEAD, Opcode, Reth, Syndrome};
use super::pair::{DeviceParts, Pair};
use super::receives::RecvWr;
use super::requester::{Payload, Purpose, RemoteMemory, SendOperation, SendWr, packets_of};
use super::responder::{Answer, Arrival, Incoming, Target};
use super::tags::{
    MAX_RENDEZVOUS_HEADER, RVH, RendezvousHeader, TMH, TagHeader, TagOperation, TaggedBuffer,
};
use crate::device::event::DeviceEvent;
use crate::device::state::Device;
use crate::limits::MAX_MESSAGE;
use crate::link::{RequestHeader, Transfer};

/// The delays of RNR NAKs in units of 10 microseconds, by their codes (InfiniBand Architecture
/// Specification, volume 1, table 45).
const NOT_READY_TIMES: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// A received packet.
struct Packet<'a, T> {
    head: &'a Head,
    /// The offset of the payload in the transfer, and its length in bytes.
    at: u32,
    length: u32,
    transfer: &'a mut T,
}

impl<T> Packet<'_, T> {
    /// The flags of a completion whose sender requested a solicited event.
    fn wakes(&self) -> ConnectedFlags {
        match self.head.is_solicited {
            true => ConnectedFlags::SOLICITED,
            false => ConnectedFlags::empty(),
        }
    }
}

/// The reason why a request ends the connection: the syndrome for the peer and the event for the
/// client.
struct Refusal {
    syndrome: Syndrome,
    event: fn(Qpn) -> DeviceEvent,
}

const INVALID: Refusal = Refusal {
    syndrome: Syndrome::InvalidRequest,
    event: DeviceEvent::QpRequestError,
};

const FORBIDDEN: Refusal = Refusal {
    syndrome: Syndrome::AccessError,
    event: DeviceEvent::QpAccessError,
};

const FAILED: Refusal = Refusal {
    syndrome: Syndrome::OperationError,
    event: DeviceEvent::QpFatal,
};

/// The outcome of the next expected request.
enum RequestOutcome {
    /// It was executed.
    Done,
    /// There is no receive. The peer must retry it.
    NotReady,
    /// There is no room for its answer. It is dropped, and the peer retries it.
    NoRoom,
}

/// The part of a message that a packet contains.
struct MessagePart {
    is_write: bool,
    is_first: bool,
    is_last: bool,
}

impl MessagePart {
    #[inline]
    fn of(opcode: Opcode) -> Option<MessagePart> {
        let (is_write, is_first, is_last) = match opcode {
            Opcode::SendFirst => (false, true, false),
            Opcode::SendMiddle => (false, false, false),
            Opcode::SendLast | Opcode::SendLastImmediate => (false, false, true),
            Opcode::SendOnly | Opcode::SendOnlyImmediate => (false, true, true),
            Opcode::WriteFirst => (true, true, false),
            Opcode::WriteMiddle => (true, false, false),
            Opcode::WriteLast | Opcode::WriteLastImmediate => (true, false, true),
            Opcode::WriteOnly | Opcode::WriteOnlyImmediate => (true, true, true),
            _ => return None,
        };
        Some(MessagePart {
            is_write,
            is_first,
            is_last,
        })
    }
}

impl Device {
    /// Handles a packet of a connection. An invalid packet is dropped without an answer.
    #[cold]
    pub(in crate::device) fn deliver_connected(
        &mut self,
        from: Gid,
        header: &RequestHeader,
        transfer: &mut impl Transfer,
    ) -> Status {
        let qpn = header.destination_qpn;
        let event = self.take_packet(from, header, transfer);
        match event {
            Some(event) => {
                self.counters.rx_pkts += 1;
                if let Some(event) = event {
                    self.fail_connected(qpn, Some(event));
                    self.schedule_connected(qpn);
                }
            }
            None => {
                tracing::debug!(peer = %from, %qpn, "packet of a connection dropped");
                self.counters.rx_drops += 1;
            }
        }
        Status::Ok
    }

    /// Returns `None` if the packet was dropped, otherwise the event if it ends the queue pair.
    fn take_packet(
        &mut self,
        from: Gid,
        header: &RequestHeader,
        transfer: &mut impl Transfer,
    ) -> Option<Option<DeviceEvent>> {
        let mut bytes = [0; LONGEST_HEAD];
        let there = (header.length as usize).min(LONGEST_HEAD);
        transfer.peek(0, &mut bytes[..there]).ok()?;
        let (head, at) = Head::parse(&bytes[..there])?;
        let at = at as u32;
        let length = header.length.checked_sub(at + u32::from(head.padding))?;
        let (pair, mut around) = self.connected_pair(header.destination_qpn)?;
        let is_for_it = pair.attributes.peer == from
            && head.destination == u32::from(header.destination_qpn.0)
            && length <= pair.attributes.mtu();
        if !is_for_it {
            return None;
        }
        let mut packet = Packet {
            head: &head,
            at,
            length,
            transfer,
        };
        let event = match head.opcode.is_response() {
            true if pair.sends() => pair.take_response(&mut packet, &mut around),
            false if pair.receives() => pair.take_request(&mut packet, &mut around),
            _ => return None,
        };
        pair.complete_ended(&mut around);
        if event.is_none() {
            pair.schedule(&mut around);
        }
        Some(event)
    }
}

impl Pair {
    /// A request of the peer. Returns how it ends the queue pair, if it does.
    #[inline(always)]
    fn take_request<T: Transfer>(
        &mut self,
        packet: &mut Packet<'_, T>,
        around: &mut DeviceParts<'_>,
    ) -> Option<DeviceEvent> {
        let psn = packet.head.psn;
        let ahead = psn.since(self.responder.expected);
        if ahead > 0 {
            self.responder.nak_once(Syndrome::OutOfSequence);
            return None;
        }
        if ahead < 0 {
            self.take_duplicate(packet, around);
            return None;
        }
        self.responder.clear_nak();
        let outcome = match packet.head.opcode {
            Opcode::ReadRequest => self.take_read(packet, around),
            Opcode::CompareSwap | Opcode::FetchAdd => self.take_atomic(packet, around),
            _ => self.take_message(packet, around),
        };
        match outcome {
            Ok(RequestOutcome::Done) => None,
            Ok(RequestOutcome::NotReady) => {
                around.diagnostics.rnr_refusals += 1;
                let timer = self.attributes.min_rnr_timer;
                self.responder.nak_once(Syndrome::NotReady(timer));
                None
            }
            Ok(RequestOutcome::NoRoom) => None,
            Err(refusal) => {
                let refused = Answer::Acknowledgement(psn, refusal.syndrome);
                self.responder.queue_answer(refused);
                Some((refusal.event)(self.qpn))
            }
        }
    }

    /// Handles a duplicate of an executed request: its answer was lost.
    #[cold]
    fn take_duplicate<T: Transfer>(
        &mut self,
        packet: &mut Packet<'_, T>,
        around: &mut DeviceParts<'_>,
    ) {
        let head = packet.head;
        match head.opcode {
            Opcode::ReadRequest => {
                let packets = packets_of(head.reth.length.get(), self.attributes.mtu());
                let is_past = head.psn.plus(packets).since(self.responder.expected) <= 0;
                if is_past
                    && self.responder.has_room()
                    && self.may_access(&head.reth, Access::REMOTE_READ, around)
                {
                    self.responder.forget_data(head.psn);
                    self.responder.queue_answer(Answer::Data {
                        first: head.psn,
                        from: head.reth,
                        sent: 0,
                    });
                }
            }
            Opcode::CompareSwap | Opcode::FetchAdd => {
                if let Some(original) = self.responder.found_atomic(head.psn) {
                    self.responder
                        .queue_answer(Answer::Word(head.psn, original));
                }
            }
            _ => self.responder.acknowledge(self.responder.expected.before()),
        }
    }

    /// Whether the peer has this access to memory.
    fn may_access(&self, reth: &Reth, access: Access, around: &DeviceParts<'_>) -> bool {
        let pd = self.config.pd;
        let (address, key, length) = (reth.address.get(), reth.key.get(), reth.length.get());
        let is_there = || {
            length == 0
                || around
                    .regions
                    .remote(pd, key, address, length, access)
                    .is_some()
        };
        self.attributes.access.contains(access) && length <= MAX_MESSAGE && is_there()
    }

    #[inline(never)]
    fn take_read<T: Transfer>(
        &mut self,
        packet: &mut Packet<'_, T>,
        around: &mut DeviceParts<'_>,
    ) -> Result<RequestOutcome, Refusal> {
        let Head { reth, psn, .. } = *packet.head;
        if self.responder.incoming.is_some() || packet.length > 0 {
            return Err(INVALID);
        }
        if !self.may_access(&reth, Access::REMOTE_READ, around) {
            return Err(FORBIDDEN);
        }
        if !self.responder.has_room() {
            return Ok(RequestOutcome::NoRoom);
        }
        self.responder.queue_answer(Answer::Data {
            first: psn,
            from: reth,
            sent: 0,
        });
        let packets = packets_of(reth.length.get(), self.attributes.mtu());
        self.responder.advance(packets);
        self.responder.count_message();
        around.counters.rdma_read_resp_bytes += u64::from(reth.length.get());
        Ok(RequestOutcome::Done)
    }

    #[inline(never)]
    fn take_atomic<T: Transfer>(
        &mut self,
        packet: &mut Packet<'_, T>,
        around: &mut DeviceParts<'_>,
    ) -> Result<RequestOutcome, Refusal> {
        let Head { atomic, psn, .. } = *packet.head;
        let is_aligned = atomic.address.get().is_multiple_of(8);
        if self.responder.incoming.is_some() || packet.length > 0 || !is_aligned {
            return Err(INVALID);
        }
        let reth = Reth {
            address: atomic.address,
            key: atomic.key,
            length: 8.into(),
        };
        let access = REMOTE_ATOMIC;
        if !self.may_access(&reth, access, around) {
            return Err(FORBIDDEN);
        }
        if !self.responder.has_room() {
            return Ok(RequestOutcome::NoRoom);
        }
        let (pd, key, address) = (self.config.pd, atomic.key.get(), atomic.address.get());
        let word = around.regions.remote(pd, key, address, 8, access);
        let word = word.filter(|word| word.address.is_multiple_of(8));
        let word = word.ok_or(INVALID)?;
        let swaps = packet.head.opcode == Opcode::CompareSwap;
        let change = |before: u64| match (swaps, before == atomic.compare.get()) {
            (false, _) => before.wrapping_add(atomic.swap_or_add.get()),
            (true, true) => atomic.swap_or_add.get(),
            (true, false) => before,
        };
        let updated = packet.transfer.update(word.address, &change);
        let original = updated.map_err(|_| FAILED)?;
        self.responder.note_atomic(psn, original);
        self.responder.queue_answer(Answer::Word(psn, original));
        self.responder.advance(1);
        self.responder.count_message();
        Ok(RequestOutcome::Done)
    }

    /// A packet of a send or a write.
    #[inline(always)]
    fn take_message<T: Transfer>(
        &mut self,
        packet: &mut Packet<'_, T>,
        around: &mut DeviceParts<'_>,
    ) -> Result<RequestOutcome, Refusal> {
        let part = MessagePart::of(packet.head.opcode).ok_or(INVALID)?;
        let mtu = self.attributes.mtu();
        let is_in_order = match &self.responder.incoming {
            None => part.is_first,
            Some(incoming) => !part.is_first && incoming.is_write == part.is_write,
        };
        let has_its_length = match (part.is_first, part.is_last) {
            (_, false) => packet.length == mtu,
            (false, true) => packet.length > 0,
            (true, true) => true,
        };
        if !is_in_order || !has_its_length {
            return Err(INVALID);
        }
        // A receive must be posted before the packet has any effect.
        let notice = match packet.head.immediate() {
            Some(_) if part.is_write => match self.take_receive(around) {
                None => return Ok(RequestOutcome::NotReady),
                receive => receive,
            },
            _ => None,
        };
        let mut incoming = match part.is_first {
            false => self.responder.incoming.take().ok_or(INVALID)?,
            true => match self.begin_message(packet, &part, around)? {
                None => return Ok(RequestOutcome::NotReady),
                Some(target) => Incoming {
                    target,
                    received: 0,
                    is_write: part.is_write,
                },
            },
        };
        let moved = self.move_payload(packet, &incoming, part.is_last, around);
        if let Err((status, refusal)) = moved {
            self.report_failure(&incoming, status, around);
            if let Some(RecvWr { wr_id, .. }) = notice {
                let completion = self.completion(wr_id, WcOperation::Recv, WcStatus::Flushed);
                self.report(around, &completion);
            }
            return Err(refusal);
        }
        incoming.received += packet.length;
        self.responder.advance(1);
        if part.is_last {
            self.responder.count_message();
            self.complete_message(packet, &incoming, notice, around);
        } else {
            if let Target::Tagged(buffer, header) = &incoming.target
                && part.is_first
            {
                self.report_match(buffer, *header, ConnectedFlags::TM_MATCH, 0, around);
            }
            self.responder.incoming = Some(incoming);
        }
        if packet.head.wants_acknowledgement {
            // The link's acknowledgement may overtake packets. It must not overtake data of reads.
            let is_alone = self.responder.answers.is_empty() && self.sent_counts.answers == 0;
            if !(is_alone && packet.transfer.acknowledge()) {
                self.responder.acknowledge(packet.head.psn);
            }
        }
        Ok(RequestOutcome::Done)
    }

    /// The next receive, of the queue pair or of the queue that it shares.
    #[inline]
    fn take_receive(&mut self, around: &mut DeviceParts<'_>) -> Option<RecvWr> {
        let Some(id) = self.config.shared else {
            return self.receives.take();
        };
        let queue = around.shared.get_mut(id.0 as usize)?;
        let receive = queue.receives.take()?;
        if queue.has_reached_limit() {
            around.cqs.raise(DeviceEvent::SrqLimit(id));
        }
        Some(receive)
    }

    /// The destination of the message that begins with this packet. `None` if there is no receive.
    #[inline(always)]
    fn begin_message<T: Transfer>(
        &mut self,
        packet: &mut Packet<'_, T>,
        part: &MessagePart,
        around: &mut DeviceParts<'_>,
    ) -> Result<Option<Target>, Refusal> {
        if part.is_write {
            let reth = packet.head.reth;
            return match self.may_access(&reth, Access::REMOTE_WRITE, around) {
                true => Ok(Some(Target::Written(reth))),
                false => Err(FORBIDDEN),
            };
        }
        let matches_tags = self
            .config
            .shared
            .and_then(|id| around.shared.get(id.0 as usize))
            .is_some_and(|queue| queue.tags.is_some());
        let arrival = match matches_tags {
            false => Arrival::Message,
            true => match self.match_tag(packet, part, around)? {
                Ok(target) => return Ok(Some(target)),
                Err(arrival) => arrival,
            },
        };
        let Some(receive) = self.take_receive(around) else {
            return Ok(None);
        };
        if arrival == Arrival::Unexpected
            && let Some(tags) = self.tags(around)
        {
            tags.begin_unexpected();
        }
        Ok(Some(Target::Receive(receive, arrival)))
    }

    /// Ends a message: it has arrived completely, or never will.
    #[inline]
    fn end_message(&self, incoming: &Incoming, is_there: bool, around: &mut DeviceParts<'_>) {
        if matches!(incoming.target, Target::Receive(_, Arrival::Unexpected))
            && let Some(tags) = self.tags(around)
        {
            tags.end_unexpected(is_there);
        }
    }

    /// Aborts the message that is being received, and returns it.
    pub(super) fn abort_incoming(&mut self, around: &mut DeviceParts<'_>) -> Option<Incoming> {
        let incoming = self.responder.incoming.take()?;
        self.end_message(&incoming, false, around);
        Some(incoming)
    }

    fn tags<'a>(&self, around: &'a mut DeviceParts<'_>) -> Option<&'a mut super::tags::TagList> {
        let queue = around.shared.get_mut(self.config.shared?.0 as usize)?;
        queue.tags.as_mut()
    }

    /// Matches a message that begins with this packet with the tags of the shared receive queue. If
    /// none matches, returns the kind of the message for a posted receive.
    #[inline(never)]
    fn match_tag<T: Transfer>(
        &mut self,
        packet: &mut Packet<'_, T>,
        part: &MessagePart,
        around: &mut DeviceParts<'_>,
    ) -> Result<Result<Target, Arrival>, Refusal> {
        let mut bytes = [0; TMH];
        if (packet.length as usize) < TMH {
            // Too short for a header with a tag.
            return Ok(Err(Arrival::WithoutTag));
        }
        let read = packet.transfer.peek(packet.at, &mut bytes);
        read.map_err(|_| FAILED)?;
        let Some(header) = TagHeader::parse(&bytes) else {
            return Ok(Err(Arrival::Message));
        };
        match header.operation {
            TagOperation::NoTag => return Ok(Err(Arrival::WithoutTag)),
            TagOperation::Finish => return Ok(Err(Arrival::Message)),
            TagOperation::Eager => {}
            TagOperation::Rendezvous => {
                let has_headers = packet.length as usize >= TMH + RVH;
                if !part.is_last || !has_headers || packet.length > MAX_RENDEZVOUS_HEADER {
                    return Ok(Err(Arrival::Unexpected));
                }
            }
        }
        let Some(tags) = self.tags(around) else {
            return Ok(Err(Arrival::Message));
        };
        match tags.take_match(header.tag) {
            Some(buffer) => Ok(Ok(Target::Tagged(buffer, header))),
            None => Ok(Err(Arrival::Unexpected)),
        }
    }

    /// Copies the payload to its destination. If that is not possible, returns the status of the
    /// receive and the answer to the peer.
    #[inline(always)]
    fn move_payload<T: Transfer>(
        &mut self,
        packet: &mut Packet<'_, T>,
        incoming: &Incoming,
        is_last: bool,
        around: &mut DeviceParts<'_>,
    ) -> Result<(), (WcStatus, Refusal)> {
        let received = incoming.received;
        let shared = self.config.shared;
        // The receives of a shared queue belong to its protection domain.
        let queue = shared.and_then(|id| around.shared.get(id.0 as usize));
        let pd = queue.map_or(self.config.pd, |queue| queue.config.pd);
        let (buffers, skipped) = match &incoming.target {
            Target::Written(reth) => {
                return self.write(packet, reth, received, is_last, around);
            }
            Target::Receive(receive, _) => (&receive.buffers, 0),
            Target::Tagged(_, header) if header.operation == TagOperation::Rendezvous => {
                return Ok(());
            }
            Target::Tagged(buffer, _) => (&buffer.buffers, TMH as u32),
        };
        let from = skipped.saturating_sub(received).min(packet.length);
        let offset = received.saturating_sub(skipped);
        let length = packet.length - from;
        let end = u64::from(offset) + u64::from(length);
        if end > buffers.length() || end > u64::from(MAX_MESSAGE) {
            return Err((WcStatus::LocalLength, INVALID));
        }
        let access = (pd, Access::LOCAL_WRITE);
        let resolved = buffers.resolve(around.regions, access, offset.into(), length);
        let resolved = resolved.ok_or((WcStatus::LocalProtection, FAILED))?;
        let mut at = packet.at + from;
        for segment in resolved.segments() {
            let moved = packet.transfer.fetch(at, *segment);
            moved.map_err(|_| (WcStatus::LocalProtection, FAILED))?;
            at += segment.length;
        }
        Ok(())
    }

    #[inline(never)]
    fn write<T: Transfer>(
        &self,
        packet: &mut Packet<'_, T>,
        reth: &Reth,
        received: u32,
        is_last: bool,
        around: &mut DeviceParts<'_>,
    ) -> Result<(), (WcStatus, Refusal)> {
        let status = WcStatus::LocalProtection;
        let end = u64::from(received) + u64::from(packet.length);
        let is_all = end == u64::from(reth.length.get());
        if is_all != is_last || end > u64::from(reth.length.get()) {
            return Err((status, INVALID));
        }
        if packet.length > 0 {
            let address = reth.address.get().wrapping_add(received.into());
            let (pd, access) = (self.config.pd, Access::REMOTE_WRITE);
            // The memory may have been deregistered since the message began.
            let segment = around
                .regions
                .remote(pd, reth.key.get(), address, packet.length, access);
            let segment = segment.ok_or((status, FORBIDDEN))?;
            let moved = packet.transfer.fetch(packet.at, segment);
            moved.map_err(|_| (status, FAILED))?;
        }
        around.counters.rdma_write_recv_bytes += u64::from(packet.length);
        Ok(())
    }

    /// Completes the receive of a message that could not be received.
    #[cold]
    fn report_failure(
        &mut self,
        incoming: &Incoming,
        status: WcStatus,
        around: &mut DeviceParts<'_>,
    ) {
        self.end_message(incoming, false, around);
        let Some((wr_id, operation)) = incoming.target.receive() else {
            return;
        };
        let completion = self.completion(wr_id, operation, status);
        self.report(around, &completion);
    }

    /// Completes a message, all of which has arrived.
    #[inline(always)]
    fn complete_message<T: Transfer>(
        &mut self,
        packet: &mut Packet<'_, T>,
        incoming: &Incoming,
        notice: Option<RecvWr>,
        around: &mut DeviceParts<'_>,
    ) {
        around.counters.rx_bytes += u64::from(incoming.received);
        self.end_message(incoming, true, around);
        let immediate = packet.head.immediate();
        let (wr_id, operation) = match &incoming.target {
            Target::Written(_) => match notice {
                Some(receive) => (receive.wr_id, WcOperation::RecvRdmaWithImmediate),
                None => return,
            },
            Target::Receive(receive, arrival) => {
                around.counters.recv_wrs += 1;
                around.counters.recv_bytes += u64::from(incoming.received);
                (receive.wr_id, arrival.completes_as())
            }
            Target::Tagged(buffer, header) => {
                around.counters.recv_wrs += 1;
                return self.complete_tagged(packet, incoming, buffer, *header, around);
            }
        };
        let mut completion = self.completion(wr_id, operation, WcStatus::Success);
        completion.length = incoming.received;
        completion.flags = packet.wakes();
        if let Some(immediate) = immediate {
            completion.flags |= ConnectedFlags::WITH_IMM;
            completion.data = immediate;
        }
        self.report(around, &completion);
    }

    #[inline(never)]
    fn complete_tagged<T: Transfer>(
        &mut self,
        packet: &mut Packet<'_, T>,
        incoming: &Incoming,
        buffer: &TaggedBuffer,
        header: TagHeader,
        around: &mut DeviceParts<'_>,
    ) {
        if header.operation == TagOperation::Rendezvous {
            return self.begin_rendezvous(packet, buffer, header, around);
        }
        let mut flags = ConnectedFlags::TM_DATA_VALID | packet.wakes();
        // The match of a single packet was not reported before.
        if incoming.received == packet.length {
            flags |= ConnectedFlags::TM_MATCH;
        }
        let length = incoming.received - TMH as u32;
        around.counters.recv_bytes += u64::from(length);
        self.report_match(buffer, header, flags, length, around);
    }

    fn report_match(
        &mut self,
        buffer: &TaggedBuffer,
        header: TagHeader,
        flags: ConnectedFlags,
        length: u32,
        around: &mut DeviceParts<'_>,
    ) {
        let operation = WcOperation::TagRecv;
        let mut completion = self.completion(buffer.wr_id, operation, WcStatus::Success);
        completion.flags = flags;
        completion.length = length;
        (completion.tag, completion.data) = (header.tag, header.data);
        self.report(around, &completion);
    }

    /// Begins a matched rendezvous: reads its data, then notifies the sender.
    fn begin_rendezvous<T: Transfer>(
        &mut self,
        packet: &mut Packet<'_, T>,
        buffer: &TaggedBuffer,
        header: TagHeader,
        around: &mut DeviceParts<'_>,
    ) {
        let mut bytes = [0; TMH + RVH];
        if packet.transfer.peek(packet.at, &mut bytes).is_err() {
            return;
        }
        let (_, rest) = bytes.split_at(TMH);
        let Some(rendezvous) = rest.first_chunk().map(RendezvousHeader::parse) else {
            return;
        };
        let RendezvousHeader {
            address,
            key,
            length,
        } = rendezvous;
        if u64::from(length) > buffer.buffers.length() || length > MAX_MESSAGE {
            return self.report_incomplete(packet, buffer, header, around);
        }
        let flags = ConnectedFlags::TM_MATCH | packet.wakes();
        self.report_match(buffer, header, flags, length, around);
        let operation = SendOperation::Read(RemoteMemory { address, key });
        let mtu = self.attributes.mtu();
        let request = SendWr {
            wr_id: buffer.wr_id,
            operation,
            payload: Payload::Buffers(buffer.buffers.clone().cut(length)),
            is_signaled: true,
            is_fenced: false,
            is_solicited: false,
        };
        let purpose = Purpose::Rendezvous {
            tag: header.tag,
            data: header.data,
        };
        self.requester.push(request, purpose, mtu);
        let finish = TagHeader {
            operation: TagOperation::Finish,
            ..header
        };
        let mut finished = [0; TMH + RVH];
        finished[..TMH].copy_from_slice(&finish.to_bytes());
        finished[TMH..].copy_from_slice(&rendezvous.to_bytes());
        if let Some(payload) = Payload::inline(&finished) {
            let request = SendWr {
                wr_id: buffer.wr_id,
                operation: SendOperation::Send(None),
                payload,
                is_signaled: true,
                is_fenced: true,
                is_solicited: false,
            };
            self.requester.push(request, Purpose::Finish, mtu);
        }
    }

    /// Reports a rendezvous whose tagged buffer is too small. The buffer gets the headers, and the
    /// program must continue.
    fn report_incomplete<T: Transfer>(
        &mut self,
        packet: &mut Packet<'_, T>,
        buffer: &TaggedBuffer,
        header: TagHeader,
        around: &mut DeviceParts<'_>,
    ) {
        let queue = self.config.shared;
        let queue = queue.and_then(|id| around.shared.get(id.0 as usize));
        let pd = queue.map_or(self.config.pd, |queue| queue.config.pd);
        let length = (TMH + RVH) as u32;
        let access = (pd, Access::LOCAL_WRITE);
        let place = buffer.buffers.resolve(around.regions, access, 0, length);
        let mut at = packet.at;
        let mut is_moved = place.is_some();
        for segment in place.iter().flat_map(|place| place.segments()) {
            is_moved &= packet.transfer.fetch(at, *segment).is_ok();
            at += segment.length;
        }
        let status = match is_moved {
            true => WcStatus::RendezvousIncomplete,
            false => WcStatus::LocalLength,
        };
        let mut completion = self.completion(buffer.wr_id, WcOperation::TagRecv, status);
        completion.flags = ConnectedFlags::TM_MATCH;
        completion.length = if is_moved { length } else { 0 };
        (completion.tag, completion.data) = (header.tag, header.data);
        self.report(around, &completion);
    }

    /// An answer of the peer. Returns how it ends the queue pair, if it does.
    #[inline(never)]
    fn take_response<T: Transfer>(
        &mut self,
        packet: &mut Packet<'_, T>,
        around: &mut DeviceParts<'_>,
    ) -> Option<DeviceEvent> {
        let Head {
            psn,
            opcode,
            syndrome,
            ..
        } = *packet.head;
        let failure = match (opcode, syndrome) {
            (Opcode::Acknowledge, Syndrome::Acknowledged) => {
                self.requester.acknowledge(psn);
                None
            }
            (Opcode::Acknowledge, Syndrome::NotReady(timer)) => {
                let units = NOT_READY_TIMES[usize::from(timer & 31)];
                let delay = Duration::from_micros(10 * units);
                let goes_on = self.requester.rnr_nak(psn, delay, &self.attributes);
                (!goes_on).then_some(WcStatus::RnrRetryExceeded)
            }
            (Opcode::Acknowledge, Syndrome::OutOfSequence) => {
                let goes_on = self.requester.sequence_nak(psn, &self.attributes);
                (!goes_on).then_some(WcStatus::RetryExceeded)
            }
            (Opcode::Acknowledge, refusal) => {
                let status = match refusal {
                    Syndrome::AccessError => WcStatus::RemoteAccess,
                    Syndrome::OperationError => WcStatus::RemoteOperation,
                    _ => WcStatus::RemoteInvalidRequest,
                };
                let is_of_request = self.requester.error_nak(psn, status);
                return is_of_request.then_some(DeviceEvent::QpFatal(self.qpn));
            }
            _ => self.take_data(packet, around),
        };
        let status = failure?;
        self.requester.end_front(status);
        Some(DeviceEvent::QpFatal(self.qpn))
    }

    /// Handles data of a read, or the old value of an atomic. Returns the status if the request
    /// fails.
    fn take_data<T: Transfer>(
        &mut self,
        packet: &mut Packet<'_, T>,
        around: &mut DeviceParts<'_>,
    ) -> Option<WcStatus> {
        let mtu = self.attributes.mtu();
        let pd = self.config.pd;
        let shared = self.config.shared;
        let request = self.requester.awaited(packet.head.psn)?;
        let is_word = packet.head.opcode == Opcode::AtomicAcknowledge;
        let offset = u64::from(request.answered) * u64::from(mtu);
        let due = (u64::from(request.length) - offset).min(mtu.into()) as u32;
        let has_length = match is_word {
            true => packet.length == 0,
            false => packet.length == due,
        };
        if is_word != request.wr.operation.is_atomic() || !has_length {
            return Some(WcStatus::BadResponse);
        }
        let Payload::Buffers(buffers) = &request.wr.payload else {
            return Some(WcStatus::LocalProtection);
        };
        // A tagged buffer belongs to the protection domain of its shared queue.
        let of_tag = matches!(request.purpose, Purpose::Rendezvous { .. });
        let queue = shared
            .filter(|_| of_tag)
            .and_then(|id| around.shared.get(id.0 as usize));
        let pd = queue.map_or(pd, |queue| queue.config.pd);
        let access = (pd, Access::LOCAL_WRITE);
        let Some(place) = buffers.resolve(around.regions, access, offset, due) else {
            return Some(WcStatus::LocalProtection);
        };
        let word = packet.head.original.to_ne_bytes();
        let mut rest = &word[..];
        let mut at = packet.at;
        for segment in place.segments() {
            let moved = match is_word {
                false => packet.transfer.fetch(at, *segment),
                true => {
                    let (part, behind) = rest.split_at(segment.length as usize);
                    rest = behind;
                    packet.transfer.fill(segment.address, part)
                }
            };
            if moved.is_err() {
                return Some(WcStatus::LocalProtection);
            }
            at += segment.length;
        }
        self.requester.take_answer();
        None
    }
}
