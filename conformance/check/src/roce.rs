//! Packets of reliable connections (RoCE v2) of the profile `tm`, and how `show` prints them.

use std::io::{self, Write};
use std::time::Duration;

use efa_capture::Direction;
use efa_wire::address::Gid;
use efa_wire::infiniband::{
    Aeth, Bth, HEADERS, HeaderField, PADDING, RcHeader, RcOpcode, Reth, headers_of,
};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use crate::stream::LOW;

/// A packet of a reliable connection, as captured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectedPacket {
    /// The frame's number in the capture.
    pub number: u64,
    /// Index of the interface that recorded it.
    pub interface: usize,
    /// Since the Unix epoch, or since the start of the simulation.
    pub time: Duration,
    /// The direction at the interface's host.
    pub direction: Option<Direction>,
    /// Comments of the capture's author.
    pub comments: Vec<String>,
    /// The sender.
    pub source: Gid,
    /// The receiver.
    pub destination: Gid,
    /// The captured part of the packet, starting with its BTH.
    pub packet: Vec<u8>,
    /// Length of the packet in bytes, including bytes that a snap length cut off.
    pub length: usize,
}

/// The parsed headers of a packet.
pub struct Transport<'p> {
    /// The opcode.
    pub opcode: RcOpcode,
    /// The receiver's queue pair.
    pub destination: u32,
    /// The packet sequence number.
    pub psn: u32,
    /// The memory in its RETH, if there is one.
    pub reth: Option<Reth>,
    /// The acknowledgement, if there is one.
    pub aeth: Option<Aeth>,
    /// The captured part of the payload.
    pub payload: &'p [u8],
    /// Length of the payload in bytes.
    pub payload_length: usize,
}

/// The role of a packet in a rendezvous, with the number of the request's packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// A read of the data.
    Read(u64),
    /// Data, or the refusal of a read.
    Answer(u64),
    /// The confirmation that the data was read.
    Finish(u64),
}

impl Step {
    /// The number of the packet that has requested the rendezvous.
    pub(crate) fn request(self) -> u64 {
        match self {
            Step::Read(number) | Step::Answer(number) | Step::Finish(number) => number,
        }
    }
}

impl ConnectedPacket {
    /// The name of its type.
    pub fn kind(&self) -> String {
        let opcode = self
            .packet
            .first()
            .and_then(|code| RcOpcode::from_code(*code));
        format!(
            "RC {}",
            opcode.map_or("of an unknown opcode", RcOpcode::name)
        )
    }

    /// Parses its headers. `None` if they are truncated, or if it is not a packet of a reliable
    /// connection.
    pub fn transport(&self) -> Option<Transport<'_>> {
        let bth = Bth::read(&self.packet)?;
        let opcode = RcOpcode::from_code(bth.opcode)?;
        let mut at = Bth::LENGTH;
        let (mut reth, mut aeth) = (None, None);
        for header in opcode.headers() {
            let length = header.format().length();
            let bytes = self.packet.get(at..at + length)?;
            match header {
                RcHeader::Reth => reth = Reth::read(bytes),
                RcHeader::Aeth => aeth = Aeth::read(bytes),
                _ => {}
            }
            at += length;
        }
        let (mask, shift) = PADDING;
        let padding = usize::from(bth.flags >> shift & mask);
        let payload_length = self.length.checked_sub(at + padding)?;
        let payload = &self.packet[at..];
        Some(Transport {
            opcode,
            destination: bth.destination.get() & LOW,
            psn: bth.sequence.get() & LOW,
            reth,
            aeth,
            payload: &payload[..payload.len().min(payload_length)],
            payload_length,
        })
    }

    /// Its fields with their values. The names have the form `tmh.tag`.
    pub fn fields(&self) -> impl Iterator<Item = (String, HeaderField, u64)> {
        headers_of(&self.packet)
            .into_iter()
            .flat_map(|(format, bytes)| {
                format.fields.iter().filter_map(move |field| {
                    let value = field.value(bytes)?;
                    Some((field_name(format.name, field), *field, value))
                })
            })
    }
}

fn field_name(header: &str, field: &HeaderField) -> String {
    format!("{}.{}", header.to_lowercase(), field.name)
}

/// The names of all fields.
pub(crate) fn field_names() -> impl Iterator<Item = String> {
    HEADERS.iter().flat_map(|format| {
        let fields = format.fields.iter();
        fields.map(|field| field_name(format.name, field))
    })
}

pub(crate) fn show_text(
    head: &str,
    packet: &ConnectedPacket,
    step: Option<Step>,
    output: &mut impl Write,
) -> io::Result<()> {
    for comment in &packet.comments {
        writeln!(output, "# {comment}")?;
    }
    writeln!(output, "{head} {}", packet.kind())?;
    let (source, destination) = (packet.source, packet.destination);
    let length = packet.packet.len();
    writeln!(
        output,
        "    [{source}] -> [{destination}], {length} bytes from the BTH on"
    )?;
    for (name, field, value) in packet.fields() {
        match field.is_hexadecimal {
            true => writeln!(output, "    {name} = {value:#x}")?,
            false => writeln!(output, "    {name} = {value}")?,
        }
    }
    match step {
        Some(Step::Read(number)) => {
            writeln!(
                output,
                "    reads the data of the rendezvous of packet {number}"
            )
        }
        Some(Step::Answer(number)) => {
            writeln!(
                output,
                "    answers a read of the rendezvous of packet {number}"
            )
        }
        Some(Step::Finish(number)) => {
            writeln!(output, "    ends the rendezvous of packet {number}")
        }
        None => Ok(()),
    }
}

/// A packet in the output of `--json`, which docs/conformance.md describes.
#[derive(Serialize)]
pub(crate) struct PacketJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) capture: Option<&'a str>,
    pub(crate) number: u64,
    /// Nanoseconds since the first packet.
    pub(crate) time: u64,
    pub(crate) host: &'a str,
    pub(crate) direction: &'static str,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) source: Node,
    pub(crate) destination: Node,
    pub(crate) bytes: usize,
    pub(crate) fields: ShownFields<'a>,
    /// The packet that has requested its rendezvous.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rendezvous: Option<u64>,
    pub(crate) comments: &'a [String],
}

/// An end of a connection. Packets contain only the receiver's queue pair.
#[derive(Serialize)]
pub(crate) struct Node {
    pub(crate) gid: String,
}

pub(crate) struct ShownFields<'a>(pub(crate) &'a ConnectedPacket);

impl Serialize for ShownFields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, _, value) in self.0.fields() {
            map.serialize_entry(&name, &value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(number: u64, source: u8, opcode: u8, rest: &[u8]) -> ConnectedPacket {
        let mut bytes = vec![opcode, 0x40, 0xff, 0xff, 0, 0, 0, 7, 0, 0, 0, number as u8];
        bytes.extend_from_slice(rest);
        let gid = |last| Gid([last; 16]);
        ConnectedPacket {
            number,
            interface: 0,
            time: Duration::ZERO,
            direction: Some(Direction::Outbound),
            comments: Vec::new(),
            source: gid(source),
            destination: gid(3 - source),
            length: bytes.len(),
            packet: bytes,
        }
    }

    fn tagged(operation: u8, address: u8) -> Vec<u8> {
        let mut bytes = vec![operation, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 5];
        bytes.extend([0, 0, 0, 0, 0, 0, 0, address, 0, 0, 0, 0x77, 0, 0, 0, 64]);
        bytes
    }

    #[test]
    fn text_has_every_header_and_the_link() {
        let packet = packet(9, 2, 4, &tagged(2, 0x80));
        let mut text = Vec::new();
        let step = Some(Step::Finish(2));
        show_text("packet 9 at 0.000 us: b sends", &packet, step, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "packet 9 at 0.000 us: b sends RC SEND_ONLY");
        for line in [
            "    bth.destination = 7",
            "    tmh.tag = 0x5",
            "    rvh.length = 64",
        ] {
            assert!(lines.contains(&line), "{line} in {text}");
        }
        assert_eq!(lines.last(), Some(&"    ends the rendezvous of packet 2"));
    }
}
