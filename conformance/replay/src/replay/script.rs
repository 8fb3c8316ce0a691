//! The dependencies between packets, derived from a trace.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use efa_capture::Direction;
use efa_capture::frame::FrameKind;
use efa_check::capture::CapturedPacket;
use efa_core::wire::{self, Family, PacketType};
use efa_play::operation::EndpointIndex;
use efa_play::trace::Trace;

use super::frames::{comes_again, is_node_of, packet_key, sent_requests};
use super::operations::{Operations, data, is_provocation, number, segment};
use super::ranges::Ranges;
use crate::compare::policy::may_repeat;
use crate::compare::{OperationIndex, compare_data};

/// An action of a scripted endpoint.
#[derive(Clone, Debug)]
pub struct ScriptedSend {
    /// The index of the frame with the packet, or with the request to read or write.
    pub place: usize,
    /// The step during which it was sent.
    step: usize,
    /// Packets of the endpoint under test that its sender had received before, as indices of
    /// `expected`.
    needs: Vec<usize>,
    /// Bytes of its data that have been sent: fewer than all if the endpoint under test grants less
    /// than the recorded one.
    pub sent: usize,
}

/// The condition for an expected packet to count as sent.
#[derive(Clone, PartialEq, Eq, Debug)]
enum SendCondition {
    /// A packet that is matched with it.
    Packet,
    /// These bytes of the operation's data, in packets of any size.
    Bytes(Range<u64>),
    /// A grant for the operation's data up to this byte, in steps of any size.
    Grant(u64),
    /// Any packet to the same receiver.
    Anything,
}

/// A packet that the endpoint under test is expected to send.
#[derive(Clone, Debug)]
struct Expected {
    place: usize,
    step: usize,
    receiver: EndpointIndex,
    operation: Option<OperationIndex>,
    need: SendCondition,
    matched: bool,
}

/// The progress of an operation's data. Data in packets flows in one direction only.
#[derive(Clone, Debug, Default)]
struct Transfer {
    sent: Ranges,
    /// The end of the bytes that its receiver has granted.
    granted: u64,
}

/// The meaning of a packet from the endpoint under test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PacketRole {
    /// The counterpart of the recorded packet at `place`.
    Recorded {
        /// The index of the recorded packet.
        place: usize,
    },
    /// It requests a HANDSHAKE, which the recorded endpoint did not do. That is always allowed.
    Provocation,
    /// It starts an operation that the recorded endpoint started with the packet at `place`, by
    /// another subprotocol.
    OtherSubprotocol {
        /// The index of the recorded packet.
        place: usize,
    },
    /// No recorded packet: the packet is surplus.
    Surplus,
}

/// The remaining events of a replay.
pub struct Script<'t> {
    trace: &'t Trace,
    operations: Operations,
    expected: Vec<Expected>,
    peers: BTreeMap<EndpointIndex, (Vec<ScriptedSend>, usize)>,
    transfers: HashMap<OperationIndex, Transfer>,
    /// The end of the bytes that each recorded CTS grants.
    grants: HashMap<usize, u64>,
    /// Scripted endpoints that have received a packet.
    reached: BTreeSet<EndpointIndex>,
    last_matched: Option<u64>,
}

impl<'t> Script<'t> {
    /// The script for testing `dut`.
    pub fn new(trace: &'t Trace, dut: EndpointIndex) -> Self {
        let frames = &trace.capture.frames;
        let operations = Operations::of(trace);
        let grants = grants(trace, &operations);
        let sender_copy: HashMap<_, _> = sent_requests(trace)
            .map(|place| (packet_key(&frames[place]), place))
            .collect();
        let mut expected: Vec<Expected> = Vec::new();
        let mut by_place = HashMap::new();
        let mut peers: BTreeMap<EndpointIndex, (Vec<ScriptedSend>, usize)> = BTreeMap::new();
        let mut received: BTreeMap<EndpointIndex, Vec<usize>> = BTreeMap::new();
        for (place, frame) in frames.iter().enumerate() {
            if frame.header.retransmission || comes_again(trace, place) {
                continue;
            }
            let at = trace.endpoint_of[frame.interface];
            let step = trace.step_of[place];
            let is_rdma = match frame.header.kind {
                FrameKind::RdmaReadRequest(_) => true,
                FrameKind::RdmaWrite(rdma) => rdma.offset == 0,
                _ => false,
            };
            let is_played = matches!(frame.header.kind, FrameKind::Send) || (is_rdma && at != dut);
            if !is_played {
                continue;
            }
            match frame.direction {
                Some(Direction::Outbound) if at == dut && trace.refused.contains_key(&place) => {
                    // The packet has no receiver.
                }
                Some(Direction::Outbound) if at == dut => {
                    by_place.insert(place, expected.len());
                    expected.push(Expected {
                        place,
                        step,
                        receiver: operations.receiver(place).unwrap_or(dut),
                        operation: operations.operation(place),
                        need: need(frame, grants.get(&place)),
                        matched: false,
                    });
                }
                Some(Direction::Outbound) => {
                    let node = (frame.destination, frame.header.destination_qpn);
                    if !is_rdma && operations.receiver(place) != Some(dut) {
                        continue;
                    }
                    if is_rdma && !is_node_of(trace, dut, node) {
                        continue;
                    }
                    let needs = received.remove(&at).unwrap_or_default();
                    peers.entry(at).or_default().0.push(ScriptedSend {
                        place,
                        step,
                        needs,
                        sent: 0,
                    });
                }
                Some(Direction::Inbound) if at != dut => {
                    if let Some(sent) = sender_copy.get(&packet_key(frame))
                        && let Some(&index) = by_place.get(sent)
                    {
                        received.entry(at).or_default().push(index);
                    }
                }
                Some(Direction::Inbound) | None => {}
            }
        }
        Script {
            trace,
            operations,
            expected,
            peers,
            transfers: HashMap::new(),
            grants,
            reached: BTreeSet::new(),
            last_matched: None,
        }
    }

    /// The operations of the trace.
    pub fn operations(&self) -> &Operations {
        &self.operations
    }

    fn recorded(&self, expected: &Expected) -> &'t [u8] {
        &self.trace.capture.frames[expected.place].payload
    }

    /// The meaning of a packet that arrived at `receiver`. `named` is the operation that it refers
    /// to by an id of the receiver, if any.
    pub fn role(
        &mut self,
        receiver: EndpointIndex,
        bytes: &[u8],
        named: Option<OperationIndex>,
    ) -> PacketRole {
        self.reached.insert(receiver);
        let role = self.find_role(receiver, bytes, named);
        if let PacketRole::Recorded { place } = role {
            self.last_matched = Some(self.trace.capture.frames[place].number);
        }
        role
    }

    fn find_role(
        &mut self,
        receiver: EndpointIndex,
        bytes: &[u8],
        named: Option<OperationIndex>,
    ) -> PacketRole {
        let Some(packet_type) = PacketType::peek(bytes) else {
            return self.first_open(receiver, bytes);
        };
        let trace = self.trace;
        let type_of = |expected: &Expected| trace.capture.frames[expected.place].packet_type();
        if is_provocation(bytes) {
            let open = self.expected.iter_mut().find(|expected| {
                expected.receiver == receiver
                    && !expected.matched
                    && expected.need == SendCondition::Anything
            });
            return match open {
                Some(expected) => {
                    expected.matched = true;
                    let place = expected.place;
                    PacketRole::Recorded { place }
                }
                None => PacketRole::Provocation,
            };
        }
        let operation = match packet_type.family() {
            Family::Rtm | Family::Rta => {
                let msg_id = number(bytes, "msg_id");
                let same = |expected: &&Expected| {
                    let starts = type_of(expected).is_some_and(|recorded| {
                        matches!(recorded.family(), Family::Rtm | Family::Rta)
                    });
                    starts
                        && expected.receiver == receiver
                        && number(self.recorded(expected), "msg_id") == msg_id
                };
                self.expected.iter().find(same).and_then(|e| e.operation)
            }
            family @ (Family::Rtw | Family::Rtr) => {
                let length = number(bytes, "rma_iov.len");
                let open = || {
                    self.expected.iter().filter(|expected| {
                        expected.receiver == receiver
                            && !expected.matched
                            && expected.need != SendCondition::Anything
                            && type_of(expected).map(PacketType::family) == Some(family)
                    })
                };
                // Operations of one kind may start in any order.
                let key = |packet: &[u8]| (length_and_data(packet), packet.first().copied());
                let alike = open().find(|expected| key(self.recorded(expected)) == key(bytes));
                alike
                    .or_else(|| open().find(|e| number(self.recorded(e), "rma_iov.len") == length))
                    .or_else(|| open().next())
                    .and_then(|expected| expected.operation)
            }
            _ => named,
        };
        if packet_type == PacketType::Handshake {
            let open = self.expected.iter_mut().find(|expected| {
                expected.receiver == receiver
                    && !expected.matched
                    && type_of(expected) == Some(packet_type)
            });
            return open.map_or(PacketRole::Surplus, |expected| {
                expected.matched = true;
                PacketRole::Recorded {
                    place: expected.place,
                }
            });
        }
        let Some(operation) = operation else {
            return self.first_open(receiver, bytes);
        };
        self.place_in(operation, receiver, packet_type, bytes)
    }

    /// Whether `receiver` expects messages without a header.
    pub fn expects_headerless(&self, receiver: EndpointIndex) -> bool {
        self.expected.iter().any(|expected| {
            let frame = &self.trace.capture.frames[expected.place];
            expected.receiver == receiver && frame.headerless
        })
    }

    /// The recorded counterpart of a message without a header that arrived at `receiver`: one with
    /// the same content, otherwise the first that has not arrived.
    pub fn headerless(
        &mut self,
        receiver: EndpointIndex,
        bytes: &[u8],
        immediate: Option<u32>,
    ) -> Option<usize> {
        self.reached.insert(receiver);
        let frames = &self.trace.capture.frames;
        let open = |expected: &Expected| {
            !expected.matched && expected.receiver == receiver && frames[expected.place].headerless
        };
        let same = |expected: &Expected| {
            let frame = &frames[expected.place];
            frame.payload == bytes && frame.header.immediate == immediate
        };
        let found = self.expected.iter().position(|e| open(e) && same(e));
        let found = found.or_else(|| self.expected.iter().position(open))?;
        let expected = &mut self.expected[found];
        expected.matched = true;
        self.last_matched = Some(frames[expected.place].number);
        Some(expected.place)
    }

    /// The recorded counterpart of a packet that belongs to this operation.
    fn place_in(
        &mut self,
        operation: OperationIndex,
        receiver: EndpointIndex,
        packet_type: PacketType,
        bytes: &[u8],
    ) -> PacketRole {
        let trace = self.trace;
        let type_of = |expected: &Expected| trace.capture.frames[expected.place].packet_type();
        let start = segment(bytes).map(|(start, _)| start);
        // A packet without data cannot be divided.
        let is_empty = segment(bytes).is_some_and(|(_, data)| data.is_empty());
        let of_operation = |expected: &Expected| {
            expected.operation == Some(operation) && expected.receiver == receiver
        };
        let find = |test: &dyn Fn(&Expected) -> bool| {
            self.expected
                .iter()
                .position(|expected| of_operation(expected) && test(expected))
        };
        let same = |expected: &Expected| type_of(expected) == Some(packet_type);
        let divided = |expected: &Expected| {
            type_of(expected).is_some_and(|recorded| may_repeat(recorded, packet_type))
        };
        let found = find(&|e| {
            same(e) && !e.matched && segment(self.recorded(e)).map(|(start, _)| start) == start
        })
        .or_else(|| find(&|e| same(e) && !e.matched))
        .or_else(|| find(&divided).filter(|_| !is_empty));
        if let Some(found) = found {
            let expected = &mut self.expected[found];
            expected.matched = true;
            return PacketRole::Recorded {
                place: expected.place,
            };
        }
        // The same operation uses the same amount of memory in any subprotocol. With another amount
        // this is not another form of the operation, but perhaps a duplicate of an earlier one.
        let memory = |bytes: &[u8]| number(bytes, "rma_iov.len");
        let other = |expected: &Expected| {
            !expected.matched
                && memory(self.recorded(expected)) == memory(bytes)
                && type_of(expected)
                    .is_some_and(|recorded| is_other_subprotocol(recorded, packet_type))
        };
        if let Some(found) = find(&other) {
            return PacketRole::OtherSubprotocol {
                place: self.expected[found].place,
            };
        }
        // A request with a wrong type or number is compared with the right one.
        if packet_type.is_req() {
            return self.first_open(receiver, bytes);
        }
        PacketRole::Surplus
    }

    /// The counterpart of a packet that belongs to no operation of the trace: the outstanding
    /// recorded packet with the fewest differences, so that a single wrong field is reported as
    /// such.
    fn first_open(&mut self, receiver: EndpointIndex, bytes: &[u8]) -> PacketRole {
        /// Most differing bytes of a counterpart with another type.
        const NEAR: usize = 8;
        let frames = &self.trace.capture.frames;
        let is_same_type =
            |expected: &Expected| frames[expected.place].payload.first() == bytes.first();
        let distance =
            |expected: &Expected| differing_bytes(&frames[expected.place].payload, bytes);
        let nearest = self
            .expected
            .iter_mut()
            .filter(|expected| !expected.matched && expected.receiver == receiver)
            .filter(|expected| !frames[expected.place].headerless)
            .filter(|expected| is_same_type(expected) || distance(expected) <= NEAR)
            .min_by_key(|expected| (!is_same_type(expected), distance(expected)));
        nearest.map_or(PacketRole::Surplus, |expected| {
            expected.matched = true;
            PacketRole::Recorded {
                place: expected.place,
            }
        })
    }

    /// Notes the data and grants in a packet of the endpoint under test, for the operation of the
    /// recorded packet at `place`. Returns the problems.
    pub fn take(&mut self, place: usize, bytes: &[u8]) -> Vec<(&'static str, String)> {
        let mut wrong = Vec::new();
        let Some(operation) = self.operations.operation(place) else {
            return wrong;
        };
        let Some(packet_type) = PacketType::peek(bytes) else {
            return wrong;
        };
        let content = &self.operations.get(operation).content;
        let transfer = self.transfers.entry(operation).or_default();
        if let Some((start, data)) = segment(bytes) {
            let end = start.saturating_add(data.len() as u64);
            if let Some(length) = number(bytes, "seg_length")
                && length != data.len() as u64
            {
                wrong.push((
                    "seg_length",
                    format!(
                        "expected {}, the length of the data, actual {length}",
                        data.len()
                    ),
                ));
            }
            let total = content.len() as u64;
            if end > total && !data.is_empty() {
                let text = format!("data from byte {start} to {end} of {total}");
                wrong.push(("data", text));
            }
            if packet_type == PacketType::CtsData && end > transfer.granted {
                let text = format!(
                    "data from byte {start} to {end}; the receiver has permitted {}",
                    transfer.granted
                );
                wrong.push(("seg_offset", text));
            }
            if let Some(length) = number(bytes, "msg_length")
                && length != total
                && total > 0
                && is_whole_in_packets(packet_type)
            {
                let text = format!("expected {total}, the length of the message, actual {length}");
                wrong.push(("msg_length", text));
            }
            let known = transfer.sent.insert(start..end);
            if known > 0 {
                wrong.push((
                    "seg_offset",
                    format!("{known} of the bytes from {start} to {end} were sent before"),
                ));
            }
            let from = content.get(start as usize..).unwrap_or_default();
            let wanted = &from[..from.len().min(data.len())];
            if let Err(difference) = compare_data(wanted, &data[..wanted.len()]) {
                wrong.push(("data", format!("expected {difference}")));
            }
            if let Some(runt) = number(bytes, "runt_length")
                && (runt == 0 || runt > number(bytes, "msg_length").unwrap_or(0))
            {
                wrong.push(("runt_length", format!("{runt} bytes of the message")));
            }
        }
        permit(transfer, packet_type, bytes);
        wrong
    }

    /// The next packet of the scripted endpoint `at`, if it may be sent now.
    pub fn due(&self, at: EndpointIndex, step: usize) -> Option<ScriptedSend> {
        let (entries, next) = self.peers.get(&at)?;
        let entry = entries.get(*next)?;
        if entry.step > step {
            return None;
        }
        let frames = &self.trace.capture.frames;
        let frame = &frames[entry.place];
        if frame.packet_type() == Some(PacketType::Handshake) && !entry.needs.is_empty() {
            // It answers the first packet, regardless of its type.
            return self.reached.contains(&at).then(|| entry.clone());
        }
        let operation = self.operations.operation(entry.place);
        let is_data = frame.packet_type() == Some(PacketType::CtsData);
        let has_come = |&index: &usize| {
            let expected = &self.expected[index];
            let is_permission = is_data
                && expected.operation == operation
                && matches!(expected.need, SendCondition::Grant(_));
            // Data that its packet had no room for follows when it is granted, and a missing grant
            // may follow later.
            let has_begun = expected.matched
                && frames[expected.place]
                    .packet_type()
                    .is_some_and(|packet_type| {
                        waits_for_permission(packet_type) || packet_type == PacketType::Cts
                    });
            is_permission || has_begun || self.is_met(expected) || self.is_window_open(expected)
        };
        entry.needs.iter().all(has_come).then(|| entry.clone())
    }

    /// The next HANDSHAKE of the scripted endpoint `at`, if it has received a packet that it
    /// answers.
    pub fn early_handshake(&self, at: EndpointIndex) -> Option<ScriptedSend> {
        let (entries, next) = self.peers.get(&at)?;
        let entry = entries.get(*next)?;
        let frame = &self.trace.capture.frames[entry.place];
        let is_answer = frame.packet_type() == Some(PacketType::Handshake)
            && !entry.needs.is_empty()
            && self.reached.contains(&at);
        is_answer.then(|| entry.clone())
    }

    /// The number of bytes of its operation's data that the scripted sender of `place` may have
    /// sent by now.
    pub fn permitted(&self, place: usize) -> u64 {
        let operation = self.operations.operation(place);
        let transfer = operation.and_then(|operation| self.transfers.get(&operation));
        transfer.map_or(0, |transfer| transfer.granted)
    }

    /// The grant of the CTS at `place` if the endpoint under test has divided its data otherwise
    /// than the recorded one: chosen so that both may send up to the same byte.
    pub fn grant(&self, place: usize) -> Option<u64> {
        let end = self.grants.get(&place)?;
        end.checked_sub(self.permitted(place))
            .filter(|length| *length > 0)
    }

    /// Notes a packet that a scripted endpoint has sent as the recorded one at `place`.
    pub fn sent(&mut self, place: usize, bytes: &[u8]) {
        let Some(operation) = self.operations.operation(place) else {
            return;
        };
        let Some(packet_type) = PacketType::peek(bytes) else {
            return;
        };
        let transfer = self.transfers.entry(operation).or_default();
        if let Some((start, data)) = segment(bytes) {
            transfer.sent.insert(start..start + data.len() as u64);
        }
        permit(transfer, packet_type, bytes);
    }

    /// Records that the scripted endpoint `at` has sent this many bytes of the due packet's data,
    /// but not all.
    pub fn sent_part(&mut self, at: EndpointIndex, bytes: usize) {
        if let Some((entries, next)) = self.peers.get_mut(&at)
            && let Some(entry) = entries.get_mut(*next)
        {
            entry.sent += bytes;
        }
    }

    /// Records that the scripted endpoint `at` has executed its due action.
    pub fn done(&mut self, at: EndpointIndex) {
        if let Some((_, next)) = self.peers.get_mut(&at) {
            *next += 1;
        }
    }

    /// The number of the last matched packet.
    pub fn last_matched(&self) -> Option<u64> {
        self.last_matched
    }

    /// Whether a CTS cannot be expected yet, because the data that the previous one grants has not
    /// been sent: the endpoint under test grants more at a time than the recorded one.
    fn is_window_open(&self, expected: &Expected) -> bool {
        let transfer = expected
            .operation
            .and_then(|operation| self.transfers.get(&operation));
        matches!(expected.need, SendCondition::Grant(_))
            && transfer.is_some_and(|transfer| transfer.granted > transfer.sent.count())
    }

    fn is_met(&self, expected: &Expected) -> bool {
        let transfer = expected
            .operation
            .and_then(|operation| self.transfers.get(&operation));
        match &expected.need {
            SendCondition::Packet => expected.matched,
            SendCondition::Bytes(range) => {
                transfer.is_some_and(|transfer| transfer.sent.contains(range))
            }
            SendCondition::Grant(end) => transfer.is_some_and(|transfer| transfer.granted >= *end),
            SendCondition::Anything => self.reached.contains(&expected.receiver),
        }
    }

    /// Whether all events up to `step` have happened.
    pub fn is_done(&self, step: usize) -> bool {
        self.missing(step).is_none()
            && self
                .peers
                .values()
                .all(|(entries, next)| entries.get(*next).is_none_or(|entry| entry.step > step))
    }

    /// The first packet up to `step` that the endpoint under test has not sent.
    pub fn missing(&self, step: usize) -> Option<usize> {
        self.expected
            .iter()
            .find(|expected| expected.step <= step && !self.is_met(expected))
            .map(|expected| expected.place)
    }

    /// Whether the packet at `place` arrived before its step, and before an earlier packet of a
    /// scripted endpoint was sent.
    pub fn is_ahead(&self, place: usize, step: usize) -> bool {
        let is_due_before = |(entries, next): &(Vec<ScriptedSend>, usize)| {
            let rest = entries.get(*next..).unwrap_or_default();
            rest.iter().any(|entry| entry.place < place)
        };
        self.trace.step_of[place] > step && self.peers.values().any(is_due_before)
    }

    /// All packets that the endpoint under test has not sent.
    pub fn all_missing(&self) -> Vec<usize> {
        let missing = self
            .expected
            .iter()
            .filter(|expected| !self.is_met(expected));
        missing.map(|expected| expected.place).collect()
    }
}

/// The condition for a recorded packet to count as sent by the endpoint under test.
fn need(frame: &CapturedPacket, grant: Option<&u64>) -> SendCondition {
    let Some(packet) = frame.rdm() else {
        return SendCondition::Packet;
    };
    if is_provocation(packet) {
        return SendCondition::Anything;
    }
    if let Some(end) = grant {
        return SendCondition::Grant(*end);
    }
    match segment(packet) {
        Some((start, data)) if !data.is_empty() => {
            SendCondition::Bytes(start..start + data.len() as u64)
        }
        _ => SendCondition::Packet,
    }
}

/// The end of the bytes of its operation that each CTS of a trace grants.
fn grants(trace: &Trace, operations: &Operations) -> HashMap<usize, u64> {
    let mut transfers: HashMap<OperationIndex, Transfer> = HashMap::new();
    let mut grants = HashMap::new();
    for place in sent_requests(trace) {
        let packet = &trace.capture.frames[place].payload[..];
        let (Some(operation), Some(packet_type)) =
            (operations.operation(place), PacketType::peek(packet))
        else {
            continue;
        };
        let transfer = transfers.entry(operation).or_default();
        if let Some((start, data)) = segment(packet) {
            transfer
                .sent
                .insert(start..start.saturating_add(data.len() as u64));
        }
        permit(transfer, packet_type, packet);
        if packet_type == PacketType::Cts {
            grants.insert(place, transfer.granted);
        }
    }
    grants
}

/// Adds a packet's grant for an operation's data. Data in the request needs no grant; after a
/// READ_NACK, the runt data neither.
fn permit(transfer: &mut Transfer, packet_type: PacketType, bytes: &[u8]) {
    use PacketType as T;
    match packet_type {
        T::ReadRsp => {}
        _ if waits_for_permission(packet_type) => transfer.granted = transfer.sent.count(),
        T::LongctsRtr | T::ShortRtr => {
            transfer.granted = number(bytes, "recv_length").unwrap_or(0);
        }
        T::Cts => {
            let length = number(bytes, "recv_length").unwrap_or(0);
            transfer.granted = transfer.granted.saturating_add(length);
        }
        _ => {}
    }
}

/// Whether a packet starts the same operation as the recorded one, by another subprotocol. Delivery
/// complete is the application's request, and not a choice.
fn is_other_subprotocol(recorded: PacketType, found: PacketType) -> bool {
    recorded != found
        && recorded.is_req()
        && recorded.family() == found.family()
        && recorded.is_tagged() == found.is_tagged()
        && recorded.family() != Family::Rta
        && (recorded.is_delivery_complete() == found.is_delivery_complete()
            || is_read(recorded)
            || is_read(found))
}

/// Whether an EOR ends it, which implies a RECEIPT.
fn is_read(packet_type: PacketType) -> bool {
    packet_type.transfer().is_some_and(wire::Transfer::is_read)
}

/// A key to distinguish emulated writes and reads, independent of their ids.
fn length_and_data(packet: &[u8]) -> (Option<u64>, Vec<u8>) {
    const SOME: usize = 64;
    let data = data(packet);
    let some = &data[..data.len().min(SOME)];
    (number(packet, "rma_iov.len"), some.to_vec())
}

/// Whether a packet begins a transfer whose remaining data needs a grant.
fn waits_for_permission(packet_type: PacketType) -> bool {
    packet_type.transfer() == Some(wire::Transfer::LongCts) || packet_type == PacketType::ReadRsp
}

/// Whether packets of this type transport all data of a message.
fn is_whole_in_packets(packet_type: PacketType) -> bool {
    packet_type.transfer() == Some(wire::Transfer::Medium)
}

/// The number of bytes in which two packets' headers differ.
fn differing_bytes(a: &[u8], b: &[u8]) -> usize {
    const HEADERS: usize = 256;
    let differing = a.iter().zip(b).take(HEADERS).filter(|(a, b)| a != b);
    differing.count() + a.len().abs_diff(b.len())
}
