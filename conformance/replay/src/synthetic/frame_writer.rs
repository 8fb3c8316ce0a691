//! The frames of a synthetic trace, and the step to which each belongs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use efa_capture::Direction;
use efa_capture::frame::{FrameKind, Opcode, Rdma, Repr};
use efa_check::capture::CapturedPacket;
use efa_core::nic::Status;
use efa_core::wire::{Family, PacketType, Transfer};
use efa_device_model::link::RemoteRange;
use efa_play::operation::{EndpointIndex, Remote};
use efa_play::scenario::{Action, Scenario, ScenarioError, WrittenPacket, suggest};

use super::invented;
use super::named::{OF_REQUESTS, PacketKeys};
use super::operation::SyntheticOperation;
use super::packet::{PacketContext, unsigned};
use crate::compare::iov_entry;
use crate::replay::operations::number;

/// The frames for the packets in a scenario, and the step of each frame.
pub(super) fn frames(
    scenario: &Scenario,
) -> Result<(Vec<CapturedPacket>, Vec<usize>), ScenarioError> {
    let mut writer = FrameWriter::new(scenario);
    for packet in &scenario.packets {
        writer.write(packet)?;
    }
    Ok((writer.frames, writer.step_of))
}

/// Writes the frames in order.
struct FrameWriter<'s> {
    scenario: &'s Scenario,
    operations: BTreeMap<&'s str, SyntheticOperation>,
    /// Number of messages by sender and receiver.
    messages: BTreeMap<(EndpointIndex, EndpointIndex), u64>,
    /// Pairs of an endpoint and a peer whose HANDSHAKE it has.
    handshakes: BTreeSet<(EndpointIndex, EndpointIndex)>,
    /// Number of requests by initiator.
    requests: BTreeMap<EndpointIndex, u32>,
    frames: Vec<CapturedPacket>,
    step_of: Vec<usize>,
}

/// The time between two frames.
const TICK: Duration = Duration::from_micros(1);

/// Requests that are not packets of the protocol, with the names of `show`.
const REQUESTS: [Opcode; 2] = [Opcode::RdmaReadRequest, Opcode::RdmaWrite];

impl<'s> FrameWriter<'s> {
    fn new(scenario: &'s Scenario) -> Self {
        let steps = scenario.steps.iter().enumerate();
        let operations = steps.filter_map(|(step, it)| match &it.action {
            Action::Start { id, .. } => {
                Some((id.as_str(), SyntheticOperation::of(scenario, step)?))
            }
            _ => None,
        });
        FrameWriter {
            scenario,
            operations: operations.collect(),
            messages: BTreeMap::new(),
            handshakes: BTreeSet::new(),
            requests: BTreeMap::new(),
            frames: Vec::new(),
            step_of: Vec::new(),
        }
    }

    fn write(&mut self, packet: &'s WrittenPacket) -> Result<(), ScenarioError> {
        let mut named = PacketKeys::of(self.scenario, packet);
        let (name, given) = named.need_text("type")?;
        let of_name = |packet_type: &&PacketType| packet_type.name() == name;
        if let Some(&packet_type) = PacketType::ALL.iter().find(of_name) {
            named.read_fields(packet, packet_type)?;
            return self.send(packet, packet_type, &named);
        }
        let request = REQUESTS
            .into_iter()
            .find(|opcode| opcode.to_string() == name);
        let Some(request) = request else {
            let requests: Vec<String> = REQUESTS.iter().map(ToString::to_string).collect();
            let types = PacketType::ALL.iter().map(|packet_type| packet_type.name());
            let known = types.chain(requests.iter().map(String::as_str));
            let problem = format!("unknown packet type `{name}`");
            return Err(named.error(given, problem, suggest(name, known)));
        };
        self.rdma(packet, request, &named)
    }

    /// The operation in the key `of` of a packet.
    fn operation(&self, named: &PacketKeys<'s>) -> Result<Option<&'s str>, ScenarioError> {
        if named.other("of").is_none() {
            return Ok(None);
        }
        let (id, given) = named.need_text("of")?;
        match self.operations.get_key_value(id) {
            Some((id, _)) => Ok(Some(id)),
            None => Err(named.error(
                given,
                format!("no step sends, writes or reads `{id}`"),
                suggest(id, self.operations.keys().copied()),
            )),
        }
    }

    fn send(
        &mut self,
        packet: &'s WrittenPacket,
        packet_type: PacketType,
        named: &PacketKeys<'s>,
    ) -> Result<(), ScenarioError> {
        let WrittenPacket { from, to, .. } = *packet;
        let id = self.operation(named)?;
        let is_message = matches!(packet_type.family(), Family::Rtm | Family::Rta);
        let next = self.messages.get(&(from, to)).copied().unwrap_or(0);
        let mut written = id.map(|id| self.operations[id].clone());
        if let Some(written) = &mut written {
            if is_message && written.msg_id.is_none() {
                written.msg_id = Some(next);
                self.messages.insert((from, to), next + 1);
            }
            // A write that is requested again starts from the beginning.
            if packet_type.family() == Family::Rtw {
                written.start_afresh();
            }
        }
        let situation = PacketContext {
            scenario: self.scenario,
            sender: from,
            has_handshake: self.handshakes.contains(&(from, to)),
            operation: written.as_ref(),
            msg_id: written
                .as_ref()
                .and_then(|written| written.msg_id)
                .unwrap_or(0),
        };
        let emitted = situation.emit(packet_type, named)?;
        if let (Some(id), Some(mut written)) = (id, written) {
            let recv_length = number(&emitted.bytes, "recv_length").unwrap_or(0) as usize;
            written.follow(packet_type, emitted.data.end, recv_length);
            if packet_type.transfer().is_some_and(Transfer::is_read) {
                written.offer(pieces(&emitted.bytes));
            }
            self.operations.insert(id, written);
        }
        if packet_type == PacketType::Handshake {
            self.handshakes.insert((to, from));
        }
        let request = self.request(packet, FrameKind::Send, emitted.bytes.len());
        self.carry(packet, request, &emitted.bytes);
        self.answer(packet, request, Status::Ok);
        Ok(())
    }

    /// Writes an RDMA request and its result.
    fn rdma(
        &mut self,
        packet: &'s WrittenPacket,
        opcode: Opcode,
        named: &PacketKeys<'s>,
    ) -> Result<(), ScenarioError> {
        if let Some(foreign) = packet
            .keys
            .iter()
            .find(|key| !OF_REQUESTS.contains(&key.name.as_str()))
        {
            let list: Vec<String> = OF_REQUESTS.iter().map(|key| format!("`{key}`")).collect();
            return Err(self.scenario.error_at(
                foreign.line,
                &foreign.name,
                format!("{opcode} does not take this key"),
                format!("it takes `from`, `to`, {}", list.join(", ")),
            ));
        }
        let Some(id) = self.operation(named)? else {
            return Err(named.whole("of", "the request needs this key", "name an operation"));
        };
        let written = self.operations[id].clone();
        let total = written.content.len();
        let key = |key: &str| {
            let given = named.other(key);
            given.map(|given| Ok((given, unsigned(named, given, 4)? as usize)))
        };
        let offset = key("offset").transpose()?.map_or(0, |(_, offset)| offset);
        let length = key("length").transpose()?;
        let length = length.map_or(total.saturating_sub(offset), |(_, length)| length);
        let Some(bytes) = written.content.get(offset..offset.saturating_add(length)) else {
            return Err(named.whole(
                "length",
                format!(
                    "bytes {offset} to {} of an operation of {total}",
                    offset + length
                ),
                "correct `length` or `offset`",
            ));
        };
        // A message, and a write that its target reads, are in the memory that the sender has
        // offered. Data that the initiator reads or writes is in the target's memory.
        let is_offered = opcode == Opcode::RdmaReadRequest && !written.is_read;
        let remote = match is_offered {
            true => written.offered(offset, length).ok_or_else(|| {
                let problem = format!("bytes {offset} to {} are in no one piece", offset + length);
                named.whole(
                    "length",
                    problem,
                    "write a request for each entry of `read_iov`",
                )
            })?,
            false => Remote {
                address: written.target.address + offset as u64,
                ..written.target
            },
        };
        let rdma = Rdma {
            remote: RemoteRange::new(remote.address, remote.key as u32),
            total_length: length as u32,
            offset: 0,
        };
        match opcode {
            Opcode::RdmaWrite => {
                let mut request = self.request(packet, FrameKind::RdmaWrite(rdma), length);
                // In network byte order, like stock libfabric.
                request.immediate = written.data.map(|data| (data as u32).swap_bytes());
                self.carry(packet, request, bytes);
                self.answer(packet, request, Status::Ok);
            }
            _ => {
                let request = self.request(packet, FrameKind::RdmaReadRequest(rdma), 0);
                self.carry(packet, request, &[]);
                let data = Repr {
                    payload_length: length as u32,
                    ..answer_to(request, FrameKind::RdmaReadResponse(rdma))
                };
                self.carry(&turned(packet), data, bytes);
            }
        }
        Ok(())
    }

    fn request(&mut self, packet: &WrittenPacket, kind: FrameKind, length: usize) -> Repr {
        let sequence = self.requests.entry(packet.from).or_default();
        *sequence += 1;
        Repr {
            source_qpn: invented::address(packet.from).qpn,
            destination_qpn: invented::address(packet.to).qpn,
            qkey: invented::address(packet.to).qkey,
            sequence: *sequence,
            ..Repr::new(kind, length)
        }
    }

    /// Writes the answer of the responder's device.
    fn answer(&mut self, packet: &WrittenPacket, request: Repr, status: Status) {
        let answer = answer_to(request, FrameKind::Response(status));
        self.carry(&turned(packet), answer, &[]);
    }

    /// Writes a frame at its sender and at its receiver.
    fn carry(&mut self, packet: &WrittenPacket, header: Repr, payload: &[u8]) {
        for (interface, direction) in [
            (packet.from, Direction::Outbound),
            (packet.to, Direction::Inbound),
        ] {
            self.frames.push(CapturedPacket {
                number: self.frames.len() as u64 + 1,
                interface,
                time: TICK * self.frames.len() as u32,
                direction: Some(direction),
                comments: Vec::new(),
                source: invented::address(packet.from).gid,
                destination: invented::address(packet.to).gid,
                header,
                headerless: false,
                payload: payload.to_vec(),
                cut_off: 0,
            });
            self.step_of.push(packet.step);
        }
    }
}

/// The lengths of the memory pieces that a packet offers for reading.
fn pieces(packet: &[u8]) -> Vec<usize> {
    let entries = (0..).map_while(|index| iov_entry(packet, "read_iov", Some(index)));
    entries.map(|entry| entry.length as usize).collect()
}

/// The header of an answer to a request.
fn answer_to(request: Repr, kind: FrameKind) -> Repr {
    Repr {
        kind,
        source_qpn: request.destination_qpn,
        destination_qpn: request.source_qpn,
        immediate: None,
        payload_length: 0,
        ..request
    }
}

/// The packet in the opposite direction.
fn turned(packet: &WrittenPacket) -> WrittenPacket {
    WrittenPacket {
        from: packet.to,
        to: packet.from,
        keys: Vec::new(),
        ..*packet
    }
}
