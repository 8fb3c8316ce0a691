//! Messages without a header, which zero-copy receivers accept on a second queue pair. Their
//! HANDSHAKE contains its number.

use efa_capture::Direction;
use efa_core::address::{Qpn, RawAddress};
use efa_core::rules;
use efa_core::wire::{Family, Header, Packet, PacketType};
use efa_play::operation::EndpointIndex;
use efa_play::trace::Trace;

use super::backend::Backend;
use super::exchange::WireEvent;
use super::session::{Replay, Stopped};
use crate::compare::{Finding, compare_data};

/// Whether endpoint `at` of a trace announces a second queue pair.
pub(super) fn is_zero_copy_receiver(trace: &Trace, at: EndpointIndex) -> bool {
    let mut frames = trace.capture.frames.iter();
    frames.any(|frame| {
        frame.direction == Some(Direction::Outbound)
            && trace.endpoint_of[frame.interface] == at
            && frame
                .rdm()
                .is_some_and(|packet| queue_pair(packet).is_some())
    })
}

/// The queue pair in a HANDSHAKE. Its GID is that of the sender.
fn queue_pair(packet: &[u8]) -> Option<(Qpn, efa_core::address::Qkey)> {
    match Packet::parse(packet).ok()?.header {
        Header::Handshake(handshake) => {
            let named = handshake.user_recv_qp?;
            Some((Qpn(named.qpn.try_into().ok()?), named.qkey))
        }
        _ => None,
    }
}

impl<B: Backend> Replay<'_, B> {
    /// Stores the queue pair for messages without a header, if `packet` announces one.
    pub(super) fn learn_queue_pair(&mut self, packet: &[u8]) {
        if let Some((qpn, qkey)) = queue_pair(packet) {
            let address = RawAddress {
                qpn,
                qkey,
                ..self.actual[self.dut]
            };
            for peer in &mut self.peers {
                peer.sends_headerless_to(address);
            }
        }
    }

    /// An endpoint that sends a message with a header before it has learned that the peer accepts
    /// none is not compatible with such a peer.
    pub(super) fn check_queue_pair(
        &mut self,
        at: EndpointIndex,
        bytes: &[u8],
    ) -> Result<(), Stopped> {
        let is_message =
            PacketType::peek(bytes).is_some_and(|packet| packet.family() == Family::Rtm);
        if is_message && !self.handshakes.contains_key(&at) && self.script.expects_headerless(at) {
            let text = "it sends messages before the HANDSHAKE, which says that they must not have a header";
            return Err(self.unsupported(text.into()));
        }
        Ok(())
    }

    /// Handles a message without a header from the endpoint under test.
    pub(super) fn receive_headerless(
        &mut self,
        at: EndpointIndex,
        bytes: &[u8],
        immediate: Option<u32>,
    ) -> Result<(), Stopped> {
        let place = self.script.headerless(at, bytes, immediate);
        self.note(self.dut, at, place, WireEvent::Packet(bytes.to_vec()));
        let Some(place) = place else {
            let text = format!(
                "the endpoint under test sent a message without header ({} bytes), where nothing asks for it",
                bytes.len()
            );
            return self.add([Finding::of(&rules::REQUEST_AS_ASKED, text)]);
        };
        self.verdict.compared += 1;
        let frame = &self.trace.capture.frames[place];
        let about = |rule, field: &str, text: String| {
            let mut finding = Finding::of(rule, text);
            finding.packet = Some(frame.number);
            finding.packet_type = frame.kind();
            finding.field = field.into();
            finding
        };
        let mut findings = Vec::new();
        if let Err(difference) = compare_data(&frame.payload, bytes) {
            let text = format!("expected {difference}");
            findings.push(about(&rules::DATA_AS_GIVEN, "data", text));
        }
        if frame.header.immediate != immediate {
            let show = |data: Option<u32>| data.map_or("none".into(), |data| format!("{data:#x}"));
            let (expected, actual) = (show(frame.header.immediate), show(immediate));
            let text = format!("expected {expected}, actual {actual}");
            findings.push(about(&rules::REQUEST_AS_ASKED, "immediate", text));
        }
        self.add(findings)
    }

    /// Sends the recorded message without a header at `frame`. Returns `false` if the device's
    /// queue is full.
    pub(super) fn send_headerless(&mut self, place: usize, frame: usize) -> Result<bool, Stopped> {
        let captured = &self.trace.capture.frames[frame];
        let immediate = captured.header.immediate;
        match self.peers[place].send_headerless(&captured.payload, immediate) {
            Ok(false) => Ok(false),
            Ok(true) => {
                let at = self.peers[place].endpoint();
                let event = WireEvent::Packet(captured.payload.clone());
                self.note(at, self.dut, Some(frame), event);
                self.verdict.played += 1;
                Ok(true)
            }
            Err(error) => {
                let number = captured.number;
                let text = format!("packet {number} of the trace cannot be sent: {error}");
                Err(self.stop(text))
            }
        }
    }
}
