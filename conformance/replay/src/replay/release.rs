//! The packets that the scripted endpoints send.

use efa_capture::frame::FrameKind;
use efa_core::wire::fields::field_of;
use efa_core::wire::{ExtraFeatures, PacketType};

use super::backend::Backend;
use super::exchange::WireEvent;
use super::operations::{data, number};
use super::script::ScriptedSend;
use super::session::{Replay, Stopped};
use crate::compare::Recorded;

/// The result of an attempt to send.
enum SendProgress {
    /// The entry is complete.
    Done,
    /// It was sent as far as the endpoint under test has granted.
    Partly,
    /// Nothing was sent: the device's queue is full, or the endpoint under test has granted no
    /// more.
    Blocked,
}

impl<B: Backend> Replay<'_, B> {
    /// Sends the due packets of one peer. Returns whether it has sent any.
    pub(super) fn release(&mut self, place: usize, step: usize) -> Result<bool, Stopped> {
        let at = self.peers[place].endpoint();
        let mut busy = false;
        while !self.peers[place].is_busy_with_rdma()
            && let Some(entry) = self.script.due(at, step)
        {
            match self.release_entry(place, &entry)? {
                SendProgress::Done => self.script.done(at),
                SendProgress::Partly => {}
                SendProgress::Blocked => break,
            }
            busy = true;
        }
        Ok(busy)
    }

    /// Sends HANDSHAKEs that answer packets of the endpoint under test, although they were recorded
    /// in a later step: some implementations refuse an operation until the HANDSHAKE has arrived,
    /// others defer it. Returns whether there were any.
    pub(super) fn send_handshakes_early(&mut self) -> Result<bool, Stopped> {
        let mut has_sent = false;
        for place in 0..self.peers.len() {
            let at = self.peers[place].endpoint();
            if let Some(entry) = self.script.early_handshake(at)
                && let SendProgress::Done = self.release_entry(place, &entry)?
            {
                self.script.done(at);
                has_sent = true;
            }
        }
        Ok(has_sent)
    }

    fn release_entry(
        &mut self,
        place: usize,
        entry: &ScriptedSend,
    ) -> Result<SendProgress, Stopped> {
        let captured = &self.trace.capture.frames[entry.place];
        let posted = match captured.header.kind {
            FrameKind::RdmaReadRequest(rdma) => Some(self.read(place, entry.place, rdma)?),
            FrameKind::RdmaWrite(rdma) => Some(self.write(place, entry.place, rdma)?),
            _ => None,
        };
        let at = self.peers[place].endpoint();
        if let Some(posted) = posted {
            if posted {
                self.note(at, self.dut, Some(entry.place), WireEvent::Rdma);
            }
            return Ok(if posted {
                SendProgress::Done
            } else {
                SendProgress::Blocked
            });
        }
        if captured.headerless {
            return Ok(match self.send_headerless(place, entry.place)? {
                true => SendProgress::Done,
                false => SendProgress::Blocked,
            });
        }
        let packet_type = captured.packet_type();
        if packet_type == Some(PacketType::Cts) && self.script.grant(entry.place).is_none() {
            // Its grant is covered by earlier ones.
            return Ok(SendProgress::Done);
        }
        let part = match self.part(entry) {
            Some(part) if part.is_empty() && packet_type == Some(PacketType::CtsData) => {
                return Ok(SendProgress::Blocked);
            }
            part => part,
        };
        self.offer_memory(place, &captured.payload)?;
        let mut bytes = self.translated(place, entry.place)?;
        if packet_type == Some(PacketType::Cts)
            && let Some(length) = self.script.grant(entry.place)
        {
            put(&mut bytes, "recv_length", length);
        }
        if let Some(address) = self.peers[place].headerless_address() {
            put(&mut bytes, "user_recv_qp.qpn", address.qpn.0.into());
            put(&mut bytes, "user_recv_qp.qkey", address.qkey.0.into());
        }
        let whole = data(&captured.payload).len();
        if let Some(part) = &part
            && (part.start > 0 || part.end < whole)
        {
            cut(&mut bytes, part);
        }
        let asks = |word: ExtraFeatures| word.contains(ExtraFeatures::CONNID_HEADER);
        if self.announced.is_some_and(|word| !asks(word))
            && packet_type.is_some_and(|t| t.is_req() || t == PacketType::CtsData)
        {
            drop_connid(&mut bytes);
        }
        match self.peers[place].send(&bytes) {
            Ok(true) => {}
            Ok(false) => return Ok(SendProgress::Blocked),
            Err(error) => {
                let number = captured.number;
                let text = format!("packet {number} of the trace cannot be sent: {error}");
                return Err(self.stop(text));
            }
        }
        self.note(
            at,
            self.dut,
            Some(entry.place),
            WireEvent::Packet(bytes.clone()),
        );
        self.script.sent(entry.place, &bytes);
        self.verdict.played += 1;
        if packet_type == Some(PacketType::Handshake) {
            let word = number(&bytes, "extra_info").unwrap_or(0);
            self.handshakes
                .insert(at, ExtraFeatures::from_bits_retain(word));
        }
        match part {
            Some(part) if part.end < whole => {
                self.script.sent_part(at, part.len());
                Ok(SendProgress::Partly)
            }
            _ => Ok(SendProgress::Done),
        }
    }

    /// The part of a CTSDATA's data that may be sent now, `None` for other packets.
    fn part(&self, entry: &ScriptedSend) -> Option<std::ops::Range<usize>> {
        let packet = &self.trace.capture.frames[entry.place].payload;
        if PacketType::peek(packet) != Some(PacketType::CtsData) {
            return None;
        }
        let start = number(packet, "seg_offset")?;
        let permitted = self.script.permitted(entry.place).saturating_sub(start) as usize;
        Some(entry.sent..permitted.min(data(packet).len()).max(entry.sent))
    }

    fn translated(&mut self, place: usize, frame: usize) -> Result<Vec<u8>, Stopped> {
        let captured = &self.trace.capture.frames[frame];
        let recorded = Recorded {
            number: captured.number,
            sender: self.peers[place].endpoint(),
            receiver: self.dut,
            operation: self.script.operations().operation(frame),
            bytes: &captured.payload,
        };
        self.bindings.translate(recorded).map_err(|unbound| {
            self.stop(format!(
                "packet {} ({}) of the trace names {} = {}, which the endpoint under test has not \
                 introduced",
                captured.number,
                captured.kind(),
                unbound.field,
                unbound.value
            ))
        })
    }
}

fn put(packet: &mut [u8], name: &str, value: u64) {
    if let Some(place) = field_of(packet, name).map(|field| field.range()) {
        let width = place.len();
        packet[place].copy_from_slice(&value.to_le_bytes()[..width]);
    }
}

/// Cuts a CTSDATA down to a part of its data.
fn cut(packet: &mut Vec<u8>, part: &std::ops::Range<usize>) {
    let Some(all) = field_of(packet, "data").map(|field| field.range()) else {
        return;
    };
    let start = number(packet, "seg_offset").unwrap_or(0);
    put(packet, "seg_offset", start + part.start as u64);
    put(packet, "seg_length", part.len() as u64);
    packet.truncate(all.start + part.end);
    packet.drain(all.start..all.start + part.start);
}

/// Removes the connection id from a REQ or CTSDATA: it is only for peers that request it, because
/// others would interpret it as data.
fn drop_connid(packet: &mut Vec<u8>) {
    const CONNID_HDR: u16 = 0x8000;
    let Some(connid) = field_of(packet, "connid").map(|field| field.range()) else {
        return;
    };
    let padding = match PacketType::peek(packet) {
        Some(PacketType::CtsData) => {
            field_of(packet, "padding").map_or(0, |field| field.bytes.len())
        }
        _ => 0,
    };
    let flags = number(packet, "flags").unwrap_or(0) as u16 & !CONNID_HDR;
    put(packet, "flags", flags.into());
    packet.drain(connid.start..connid.end + padding);
}

#[cfg(test)]
mod tests {
    use efa_core::wire::{Connid, CtsData, EagerRtm, MsgId, RecvId, Repr, ReqOptions};

    use super::*;

    fn ctsdata(connid: Option<u32>, seg_offset: u64, payload: &[u8]) -> Vec<u8> {
        let header = CtsData {
            recv_id: RecvId(7),
            seg_length: payload.len() as u64,
            seg_offset,
            connid: connid.map(Connid),
            ..CtsData::default()
        };
        header.to_packet(payload)
    }

    #[test]
    fn each_data_part_is_its_own_packet() {
        let mut packet = ctsdata(Some(9), 100, b"abcdefgh");
        cut(&mut packet, &(2..5));
        assert_eq!(packet, ctsdata(Some(9), 102, b"cde"));
    }

    #[test]
    fn a_removed_connection_id_leaves_no_trace() {
        let mut packet = ctsdata(Some(9), 100, b"abc");
        drop_connid(&mut packet);
        assert_eq!(packet, ctsdata(None, 100, b"abc"));
        let eager = |connid: Option<u32>| {
            let options = ReqOptions {
                connid: connid.map(Connid),
                ..ReqOptions::default()
            };
            let header = EagerRtm {
                tag: Some(1),
                ..EagerRtm::new(MsgId(3), options)
            };
            header.to_packet(b"payload")
        };
        let mut packet = eager(Some(9));
        drop_connid(&mut packet);
        assert_eq!(packet, eager(None));
    }
}
