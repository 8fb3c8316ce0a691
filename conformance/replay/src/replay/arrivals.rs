//! Packets from the endpoint under test, compared with the expected ones.

use efa_core::rules::{self, Rule, Severity};
use efa_core::wire::fields::{Source, field_of, fields_of};
use efa_core::wire::{ExtraFeatures, Family, PacketType, ReqFlags};
use efa_play::operation::EndpointIndex;

use super::backend::Backend;
use super::exchange::WireEvent;
use super::operations::{number, reference};
use super::requirements;
use super::script::PacketRole;
use super::session::{Replay, Stopped, Strictness};
use crate::compare::{Finding, Recorded};

const fn section(section: &'static str) -> Option<Source> {
    Some(Source::Spec {
        section,
        table: None,
    })
}

/// The definition of a packet type: the source of its first field after the base header.
pub(super) fn source_of(packet_type: PacketType) -> Option<Source> {
    let mut layout = efa_core::wire::fields::layout(packet_type);
    layout.nth(3).map(|place| place.descriptor.source)
}

/// The rule that is violated if a packet of this type is missing.
pub(super) fn owed(packet_type: PacketType) -> &'static Rule {
    match packet_type {
        PacketType::Handshake => &rules::HANDSHAKE_ANSWER,
        PacketType::CtsData => &rules::MESSAGE_WHOLE,
        _ if packet_type.is_req() => &rules::MESSAGE_WHOLE,
        _ => &rules::ANSWER_MISSING,
    }
}

/// The rule that is violated if a packet of this type is unexpected.
fn unasked(packet_type: PacketType) -> &'static Rule {
    match packet_type {
        PacketType::Handshake => &rules::HANDSHAKE_ONCE,
        PacketType::CtsData => &rules::CTS_WINDOW,
        _ if packet_type.is_req() => &rules::REQUEST_AS_ASKED,
        _ => &rules::ANSWER_NAMES_REQUEST,
    }
}

impl<B: Backend> Replay<'_, B> {
    /// Handles a packet of the endpoint under test that arrived at the scripted endpoint `at`.
    pub(super) fn receive(&mut self, at: EndpointIndex, bytes: &[u8]) -> Result<(), Stopped> {
        self.check_queue_pair(at, bytes)?;
        let named =
            reference(bytes).and_then(|(kind, id)| self.bindings.operation_of(at, kind, id));
        let role = self.script.role(at, bytes, named);
        let place = match role {
            PacketRole::Recorded { place } | PacketRole::OtherSubprotocol { place } => Some(place),
            PacketRole::Provocation | PacketRole::Surplus => None,
        };
        self.note(self.dut, at, place, WireEvent::Packet(bytes.to_vec()));
        match role {
            PacketRole::Recorded { place } => {
                self.check_time(place)?;
                self.compare(at, place, bytes)?;
            }
            PacketRole::Provocation => {
                let text = "the endpoint under test asks for a HANDSHAKE; the recorded one did not";
                self.add([Finding::plain(Severity::Note, text)])?;
            }
            PacketRole::OtherSubprotocol { place } => {
                let recorded = &self.trace.capture.frames[place];
                let number = recorded.number;
                let what = PacketType::peek(bytes).map_or("", PacketType::name);
                self.verdict.departed = Some(format!(
                    "it sent {what} where packet {number} of the trace is {}",
                    recorded.kind()
                ));
                return Err(Stopped);
            }
            PacketRole::Surplus => self.surplus(bytes)?,
        }
        self.check_identity(at, bytes)?;
        if PacketType::peek(bytes) == Some(PacketType::Handshake) {
            self.learn_queue_pair(bytes);
            let word = number(bytes, "extra_info").unwrap_or(0);
            self.announce(ExtraFeatures::from_bits_retain(word))?;
        }
        Ok(())
    }

    /// Synthetic packets belong to a step. A packet that arrives earlier has not waited for the
    /// event of that step. The time of recorded packets depends on the machine, and refused packets
    /// arrive late.
    fn check_time(&mut self, place: usize) -> Result<(), Stopped> {
        let scenario = &self.trace.scenario;
        let is_ordered = scenario.is_written() && self.strictness == Strictness::Fields;
        if !is_ordered || !self.script.is_ahead(place, self.step) {
            return Ok(());
        }
        let step = self.trace.step_of[place];
        let frame = &self.trace.capture.frames[place];
        let awaited = scenario.steps[step].describe(step, scenario);
        let mut finding = Finding::plain(
            Severity::Error,
            format!("it was sent before {awaited}, which it has to wait for"),
        );
        finding.packet = Some(frame.number);
        finding.packet_type = frame.kind();
        finding.source = frame.packet_type().and_then(source_of);
        self.add([finding])
    }

    /// Handles the announced features of the endpoint under test.
    fn announce(&mut self, announced: ExtraFeatures) -> Result<(), Stopped> {
        self.announced = Some(announced);
        let needed = requirements::features(self.trace, self.dut);
        self.verdict.unsupported = requirements::lacks(needed, announced);
        match self.verdict.unsupported {
            Some(_) => Err(Stopped),
            None => Ok(()),
        }
    }

    fn compare(&mut self, at: EndpointIndex, place: usize, bytes: &[u8]) -> Result<(), Stopped> {
        let frame = &self.trace.capture.frames[place];
        let recorded = Recorded {
            number: frame.number,
            sender: self.dut,
            receiver: at,
            operation: self.script.operations().operation(place),
            bytes: &frame.payload,
        };
        let same_type = frame.payload.first() == bytes.first();
        // The bindings are needed in any case.
        let mut findings = self.bindings.compare(recorded, bytes);
        let runt = |packet: &[u8]| number(packet, "runt_length");
        if same_type && runt(&frame.payload) != runt(bytes) {
            self.verdict.departed = Some(format!(
                "it sent {} bytes of a message ahead of the read, packet {} of the trace {}",
                runt(bytes).unwrap_or(0),
                frame.number,
                runt(&frame.payload).unwrap_or(0)
            ));
            return Err(Stopped);
        }
        for (name, text) in self.script.take(place, bytes) {
            if let Some(field) = field_of(bytes, name).or_else(|| fields_of(bytes)?.next()) {
                findings.push(recorded.finding(Severity::Error, &field, text));
            }
        }
        self.verdict.compared += 1;
        self.check_eor(frame.packet_type(), at, place)?;
        self.add(findings)
    }

    fn surplus(&mut self, bytes: &[u8]) -> Result<(), Stopped> {
        let packet_type = PacketType::peek(bytes);
        let what = packet_type.map_or_else(|| "a packet".into(), |t| t.to_string());
        let emulates = matches!(
            packet_type.map(PacketType::family),
            Some(Family::Rtr | Family::Rtw)
        );
        if emulates && self.rdma.expects_more() {
            self.verdict.departed = Some(format!("it sent {what} where the trace has RDMA"));
            return Err(Stopped);
        }
        let last = self.script.last_matched().map_or_else(
            || "as its first packet".into(),
            |number| format!("after packet {number}"),
        );
        let rule = packet_type.map_or(&rules::PACKET_FORM, unasked);
        let mut finding = Finding::of(
            rule,
            format!(
                "the endpoint under test sent {what} ({} bytes) {last}, where nothing asks for it",
                bytes.len()
            ),
        );
        finding.source = packet_type.and_then(source_of);
        self.add([finding])
    }

    /// Checks a packet's identification of its sender: a REQ contains the raw address until the
    /// peer's HANDSHAKE has arrived, and an endpoint with connection ids should put its own into
    /// packets for peers that request it.
    fn check_identity(&mut self, at: EndpointIndex, bytes: &[u8]) -> Result<(), Stopped> {
        let Some(packet_type) = PacketType::peek(bytes) else {
            return Ok(());
        };
        let flags = number(bytes, "flags").unwrap_or(0) as u16;
        let flags = ReqFlags::from_bits_retain(flags);
        let has_connid = flags.contains(ReqFlags::CONNID_HDR);
        let has_address = packet_type.is_req() && flags.contains(ReqFlags::RAW_ADDR_HDR);
        let handshake = self.handshakes.get(&at).copied();
        let about = |rule, source, text: &str| Finding {
            packet_type: packet_type.to_string(),
            field: "flags".into(),
            source,
            ..Finding::of(rule, format!("{packet_type}: {text}"))
        };
        if packet_type.is_req() && handshake.is_none() && !has_address {
            let text = "expected the raw address header, because the peer has sent no HANDSHAKE yet; \
                        actual none";
            return self.add([about(&rules::RAW_ADDRESS_FIRST, section("2.2"), text)]);
        }
        let asks = handshake.is_some_and(|word| word.contains(ExtraFeatures::CONNID_HEADER));
        let knows = self
            .announced
            .is_some_and(|word| word.contains(ExtraFeatures::CONNID_HEADER));
        if asks && knows && !has_connid && !has_address {
            let text = "expected the connection id, which the peer asks for and the sender knows; \
                        actual none";
            return self.add([about(&rules::CONNID_GIVEN, section("4.4"), text)]);
        }
        Ok(())
    }
}
