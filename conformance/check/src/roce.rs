//! Packets of reliable connections (RoCE v2), which the profile `tm` has, as `show` prints them.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use efa_capture::Direction;
use efa_wire::address::Gid;
use efa_wire::infiniband::{HEADERS, HeaderField, RcOpcode, Reth, Rvh, Tmh, headers_of};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

/// A packet of a reliable connection, as captured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectedPacket {
    /// The frame's number in the capture.
    pub number: u64,
    /// Index of the interface that recorded it.
    pub interface: usize,
    /// Since the Unix epoch, or since the start of the simulation.
    pub time: Duration,
    /// Whether the interface's host sent or received it.
    pub direction: Option<Direction>,
    /// Comments of the capture's author.
    pub comments: Vec<String>,
    /// The sender.
    pub source: Gid,
    /// The receiver.
    pub destination: Gid,
    /// The packet from its BTH on; what of it the capture has.
    pub packet: Vec<u8>,
}

impl ConnectedPacket {
    /// What it is.
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

    /// Its fields with their values, by names such as `tmh.tag`.
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

/// What a packet is to a rendezvous.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RendezvousStep {
    /// It reads the data of the one that this packet has asked for.
    Read(u64),
    /// It says that the data was read.
    Finish(u64),
}

/// The rendezvous of a capture that were asked for, by sender and key of the data.
#[derive(Default)]
pub(crate) struct Rendezvous(HashMap<(Gid, u32), Vec<Asked>>);

struct Asked {
    number: u64,
    address: u64,
    length: u32,
}

/// Rendezvous with one key that are remembered; a capture may have any number.
const MOST_ASKED: usize = 1024;

impl Rendezvous {
    /// Takes the next packet, and returns what it is to an earlier one.
    pub(crate) fn follow(&mut self, packet: &ConnectedPacket) -> Option<RendezvousStep> {
        let headers = headers_of(&packet.packet);
        let found = |name: &str| {
            let mut headers = headers.iter();
            let found = headers.find(|(format, _)| format.name == name);
            found.map(|(_, bytes)| *bytes)
        };
        if let Some(rvh) = found("RVH").and_then(Rvh::read) {
            let tmh = found("TMH").and_then(Tmh::read)?;
            const REQUEST: u8 = 1;
            let key = rvh.key.get();
            if tmh.operation == REQUEST {
                let asked = self.0.entry((packet.source, key)).or_default();
                if asked.len() == MOST_ASKED {
                    asked.remove(0);
                }
                asked.push(Asked {
                    number: packet.number,
                    address: rvh.address.get(),
                    length: rvh.length.get(),
                });
                return None;
            }
            let asked = self.last(packet.destination, key, rvh.address.get())?;
            return Some(RendezvousStep::Finish(asked.number));
        }
        let is_read = packet
            .packet
            .first()
            .and_then(|code| RcOpcode::from_code(*code))
            == Some(RcOpcode::READ_REQUEST);
        let reth = found("RETH").and_then(Reth::read);
        let reth = reth.filter(|_| is_read)?;
        let asked = self.last(packet.destination, reth.key.get(), reth.address.get())?;
        Some(RendezvousStep::Read(asked.number))
    }

    /// The last one whose data has this address.
    fn last(&self, of: Gid, key: u32, address: u64) -> Option<&Asked> {
        let mut asked = self.0.get(&(of, key))?.iter().rev();
        asked.find(|asked| {
            let offset = address.wrapping_sub(asked.address);
            offset < u64::from(asked.length.max(1))
        })
    }
}

pub(crate) fn show_text(
    head: &str,
    packet: &ConnectedPacket,
    step: Option<RendezvousStep>,
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
        Some(RendezvousStep::Read(number)) => {
            writeln!(
                output,
                "    reads the data of the rendezvous of packet {number}"
            )
        }
        Some(RendezvousStep::Finish(number)) => {
            writeln!(output, "    ends the rendezvous of packet {number}")
        }
        None => Ok(()),
    }
}

/// A packet as `--json` shows it; docs/conformance.md describes it.
#[derive(Serialize)]
pub(crate) struct Shown<'a> {
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
    /// The packet that has asked for the rendezvous to which it belongs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rendezvous: Option<u64>,
    pub(crate) comments: &'a [String],
}

/// An end of a connection; only the receiver's queue pair is in packets.
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
            packet: bytes,
        }
    }

    fn tagged(operation: u8, address: u8) -> Vec<u8> {
        let mut bytes = vec![operation, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 5];
        bytes.extend([0, 0, 0, 0, 0, 0, 0, address, 0, 0, 0, 0x77, 0, 0, 0, 64]);
        bytes
    }

    fn reth(address: u8, key: u8) -> Vec<u8> {
        vec![0, 0, 0, 0, 0, 0, 0, address, 0, 0, 0, key, 0, 0, 0, 8]
    }

    #[test]
    fn reads_and_ends_name_the_request_of_a_rendezvous() {
        use RendezvousStep::{Finish, Read};
        let mut rendezvous = Rendezvous::default();
        let mut follow = |packet: ConnectedPacket| rendezvous.follow(&packet);
        assert_eq!(follow(packet(1, 1, 4, &tagged(1, 0x10))), None);
        assert_eq!(follow(packet(2, 1, 4, &tagged(1, 0x80))), None);
        assert_eq!(follow(packet(3, 2, 12, &reth(0x10, 0x77))), Some(Read(1)));
        assert_eq!(follow(packet(4, 2, 12, &reth(0x4f, 0x77))), Some(Read(1)));
        assert_eq!(
            follow(packet(5, 2, 12, &reth(0x50, 0x77))),
            None,
            "behind its end"
        );
        assert_eq!(
            follow(packet(6, 2, 12, &reth(0x10, 0x78))),
            None,
            "another key"
        );
        assert_eq!(
            follow(packet(7, 1, 12, &reth(0x10, 0x77))),
            None,
            "another host"
        );
        assert_eq!(follow(packet(8, 2, 6, &reth(0x10, 0x77))), None, "a write");
        assert_eq!(follow(packet(9, 2, 4, &tagged(2, 0x80))), Some(Finish(2)));
    }

    #[test]
    fn text_has_every_header_and_the_link() {
        let packet = packet(9, 2, 4, &tagged(2, 0x80));
        let mut text = Vec::new();
        let step = Some(RendezvousStep::Finish(2));
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
