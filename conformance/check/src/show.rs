//! Every field of every packet of a capture, as text or JSON.

use std::io::{self, Read, Write};
use std::ops::RangeInclusive;
use std::time::Duration;

use efa_capture::frame::FrameKind;
use efa_capture::{Direction, ReadError};
use efa_wire::fields::{FieldName, Value, fields_of};
use efa_wire::{Packet, PacketType, ParseError, fields};
use serde::{Serialize, Serializer};

use crate::capture::{CapturedItem, CapturedPacket, Frames, UserRecvQps};
use crate::rendezvous::Rendezvous;
use crate::roce::{self, ConnectedPacket, Step};

/// The reason why a capture was not shown to its end.
#[derive(Debug, thiserror::Error)]
pub enum ShowError {
    /// Reading the capture failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Writing the output failed.
    #[error(transparent)]
    Write(#[from] io::Error),
}

/// The packets that are shown. An empty condition selects all packets.
#[derive(Clone, Default, Debug)]
pub struct Filter {
    /// Texts, of which the packet's type contains one, ignoring case.
    pub types: Vec<String>,
    /// The capturing hosts.
    pub hosts: Vec<String>,
    /// Its number in the capture.
    pub packets: Option<RangeInclusive<u64>>,
    /// Fields with their values.
    pub fields: Vec<(String, u64)>,
}

impl Filter {
    fn takes_connected(&self, packet: &ConnectedPacket, host: &str) -> bool {
        let kind = packet.kind().to_uppercase();
        let of_type = |text: &String| kind.contains(&text.to_uppercase());
        let has = |(name, value): &(String, u64)| {
            let mut fields = packet.fields();
            fields.any(|(field, _, found)| field == *name && found == *value)
        };
        (self.types.is_empty() || self.types.iter().any(of_type))
            && self.is_of(host, packet.number)
            && self.fields.iter().all(has)
    }

    fn is_of(&self, host: &str, number: u64) -> bool {
        let packets = self.packets.as_ref();
        (self.hosts.is_empty() || self.hosts.iter().any(|name| name == host))
            && packets.is_none_or(|range| range.contains(&number))
    }

    fn takes(&self, frame: &CapturedPacket, host: &str) -> bool {
        let kind = frame.kind().to_uppercase();
        let of_type = |text: &String| kind.contains(&text.to_uppercase());
        let packet = frame.rdm().unwrap_or_default();
        let has = |(name, value): &(String, u64)| {
            let mut fields = fields_of(packet).into_iter().flatten();
            fields.any(|field| {
                field.value.as_u64() == Some(*value) && field.name().to_string() == *name
            })
        };
        (self.types.is_empty() || self.types.iter().any(of_type))
            && self.is_of(host, frame.number)
            && self.fields.iter().all(has)
    }
}

/// The names of all fields. Those of arrays have no index.
pub fn field_names() -> impl Iterator<Item = String> {
    PacketType::ALL
        .iter()
        .flat_map(|packet_type| fields::layout(*packet_type))
        .map(|field| field.descriptor.name.to_owned())
        .chain(roce::field_names())
}

/// The output format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A line for each field.
    Text,
    /// A JSON object for each packet, on a line of its own.
    Json,
}

/// Writes the packets of a capture that `filter` selects, and returns their number. With a `name`,
/// the capture is one of several, and the output contains the name.
///
/// # Errors
/// If reading the capture or writing to `output` fails.
pub fn show<R: Read>(
    frames: &mut Frames<R>,
    name: Option<&str>,
    filter: &Filter,
    form: Form,
    output: &mut impl Write,
) -> Result<u64, ShowError> {
    let mut start = None;
    let mut shown = 0;
    let mut user_recv = UserRecvQps::default();
    let mut hosts = Vec::new();
    if let Some(name) = name.filter(|_| form == Form::Text) {
        writeln!(output, "capture {name}")?;
    }
    let mut rendezvous = Rendezvous::default();
    while let Some(item) = frames.next_item()? {
        let (time, interface) = match &item {
            CapturedItem::Frame(frame) => (frame.time, frame.interface),
            CapturedItem::Connected(packet) => (packet.time, packet.interface),
        };
        let since = time.saturating_sub(*start.get_or_insert(time));
        if interface >= hosts.len() {
            hosts = frames.interfaces();
        }
        let host = hosts.get(interface).map_or("", String::as_str);
        match item {
            CapturedItem::Frame(mut frame) => {
                frame.headerless = user_recv.follow(&frame);
                if !filter.takes(&frame, host) {
                    continue;
                }
                match form {
                    Form::Text => show_text(host, &frame, since, output)?,
                    Form::Json => write_json(&PacketJson::of(name, host, &frame, since), output)?,
                }
            }
            CapturedItem::Connected(packet) => {
                let step = rendezvous.follow(&packet).step;
                if !filter.takes_connected(&packet, host) {
                    continue;
                }
                show_connected(name, host, &packet, since, step, form, output)?;
            }
        }
        shown += 1;
    }
    if form == Form::Text {
        for damage in frames.damage() {
            writeln!(output, "damaged: {damage}")?;
        }
        if frames.foreign() > 0 {
            writeln!(output, "{} frames are of other protocols", frames.foreign())?;
        }
    }
    Ok(shown)
}

fn write_json(shown: &impl Serialize, output: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *output, shown).map_err(io::Error::from)?;
    output.write_all(b"\n")
}

fn show_connected(
    capture: Option<&str>,
    host: &str,
    packet: &ConnectedPacket,
    since: Duration,
    step: Option<Step>,
    form: Form,
    output: &mut impl Write,
) -> io::Result<()> {
    if form == Form::Text {
        let head = head(packet.number, since, host, direction_of(packet.direction));
        return roce::show_text(&head, packet, step, output);
    }
    let shown = roce::PacketJson {
        capture,
        number: packet.number,
        time: since.as_nanos() as u64,
        host,
        direction: direction_of(packet.direction),
        kind: packet.kind(),
        source: roce::Node {
            gid: packet.source.to_string(),
        },
        destination: roce::Node {
            gid: packet.destination.to_string(),
        },
        bytes: packet.packet.len(),
        fields: roce::ShownFields(packet),
        rendezvous: step.map(Step::request),
        comments: &packet.comments,
    };
    write_json(&shown, output)
}

/// The start of a packet's first line.
fn head(number: u64, since: Duration, host: &str, direction: &str) -> String {
    let nanoseconds = since.as_nanos();
    let (whole, part) = (nanoseconds / 1000, nanoseconds % 1000);
    format!("packet {number} at {whole}.{part:03} us: {host} {direction}")
}

/// The parse error of an invalid RDM packet, if it was captured completely.
fn invalid(frame: &CapturedPacket) -> Option<ParseError> {
    let packet = frame.rdm().filter(|_| frame.cut_off == 0)?;
    Packet::parse(packet).err()
}

fn direction_of(direction: Option<Direction>) -> &'static str {
    match direction {
        Some(Direction::Outbound) => "sends",
        Some(Direction::Inbound) => "receives",
        None => "sees",
    }
}

fn show_text(
    host: &str,
    frame: &CapturedPacket,
    since: Duration,
    output: &mut impl Write,
) -> io::Result<()> {
    let header = &frame.header;
    for comment in &frame.comments {
        writeln!(output, "# {comment}")?;
    }
    let head = head(frame.number, since, host, direction_of(frame.direction));
    writeln!(output, "{head} {}", frame.kind())?;
    let retry = if header.retransmission { ", again" } else { "" };
    writeln!(
        output,
        "    [{}]:{} -> [{}]:{} Q-key {:#x}, {} number {}{retry}, path {}, {} bytes",
        frame.source,
        header.source_qpn,
        frame.destination,
        header.destination_qpn,
        header.qkey.0,
        header.kind.opcode(),
        header.sequence,
        header.path,
        header.payload_length,
    )?;
    if let Some(immediate) = header.immediate {
        writeln!(output, "    immediate = {immediate:#x}")?;
    }
    if let Some(rdma) = header.kind.rdma() {
        writeln!(
            output,
            "    address = {:#x}, key = {:#x}, bytes {} to {} of {}",
            rdma.remote.address,
            rdma.remote.key,
            rdma.offset,
            u64::from(rdma.offset) + u64::from(header.payload_length),
            rdma.total_length
        )?;
    }
    if let FrameKind::Response(status) = header.kind {
        writeln!(
            output,
            "    status = {} ({})",
            status.code(),
            status.describe()
        )?;
    }
    let Some(packet) = frame.rdm() else {
        return Ok(());
    };
    let packet = match frame.cut_off {
        0 => packet,
        cut_off => {
            let (there, all) = (frame.there().len(), packet.len());
            writeln!(
                output,
                "    the snap length left {there} of {all} bytes, {cut_off} are missing"
            )?;
            frame.there()
        }
    };
    let Some(mut fields) = fields_of(packet) else {
        let bytes: Vec<String> = packet.iter().take(16).map(|b| format!("{b:02x}")).collect();
        return writeln!(output, "    {} bytes: {}", packet.len(), bytes.join(" "));
    };
    for field in fields.by_ref() {
        writeln!(output, "    {field}")?;
    }
    if let Some(missing) = fields.missing() {
        writeln!(
            output,
            "    {} is cut off: {} bytes are needed at offset {}, {} are there",
            missing.descriptor.name, missing.needed, missing.offset, missing.available
        )?;
    }
    if let Some(error) = invalid(frame) {
        writeln!(output, "    not valid: {error}")?;
    }
    Ok(())
}

/// A packet in the output of `--json`, which docs/conformance.md describes.
#[derive(Serialize)]
struct PacketJson<'a> {
    /// The name of the capture, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    capture: Option<&'a str>,
    number: u64,
    /// Nanoseconds since the first packet.
    time: u64,
    host: &'a str,
    direction: &'static str,
    #[serde(rename = "type")]
    kind: String,
    source: Node,
    destination: Node,
    qkey: u32,
    sequence: u64,
    retransmission: bool,
    path: u64,
    bytes: u64,
    /// The number of captured bytes, if a snap length truncated the packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    captured: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    immediate: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rdma: Option<ShownRdma>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fields: Option<ShownFields<'a>>,
    /// The parse error of an invalid packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    invalid: Option<String>,
    comments: &'a [String],
}

#[derive(Serialize)]
struct Node {
    gid: String,
    qpn: u64,
}

#[derive(Serialize)]
struct ShownRdma {
    address: u64,
    key: u64,
    offset: u64,
    total_length: u64,
}

/// The fields of a packet by name, in order. Numbers are numbers, GIDs are text, and everything
/// else is bytes in hexadecimal digits.
struct ShownFields<'a>(&'a [u8]);

impl Serialize for ShownFields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = fields_of(self.0).into_iter().flatten();
        serializer.collect_map(fields.map(|field| {
            let name: FieldName = field.name();
            (name.to_string(), ShownValue(field.value))
        }))
    }
}

struct ShownValue<'a>(Value<'a>);

impl Serialize for ShownValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Unsigned(number) => serializer.serialize_u64(number),
            Value::Gid(gid) => serializer.collect_str(&gid),
            Value::Bytes(bytes) => {
                let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                serializer.serialize_str(&digits)
            }
        }
    }
}

impl<'a> PacketJson<'a> {
    fn of(
        capture: Option<&'a str>,
        host: &'a str,
        frame: &'a CapturedPacket,
        since: Duration,
    ) -> Self {
        let header = &frame.header;
        PacketJson {
            capture,
            number: frame.number,
            time: since.as_nanos() as u64,
            host,
            direction: direction_of(frame.direction),
            kind: frame.kind(),
            source: Node {
                gid: frame.source.to_string(),
                qpn: header.source_qpn.0.into(),
            },
            destination: Node {
                gid: frame.destination.to_string(),
                qpn: header.destination_qpn.0.into(),
            },
            qkey: header.qkey.0,
            sequence: header.sequence.into(),
            retransmission: header.retransmission,
            path: header.path.into(),
            bytes: header.payload_length.into(),
            captured: (frame.cut_off > 0).then_some(frame.there().len() as u64),
            immediate: header.immediate,
            rdma: header.kind.rdma().map(|rdma| ShownRdma {
                address: rdma.remote.address,
                key: rdma.remote.key.into(),
                offset: rdma.offset.into(),
                total_length: rdma.total_length.into(),
            }),
            status: match header.kind {
                FrameKind::Response(status) => Some(status.describe()),
                _ => None,
            },
            fields: frame.rdm().map(|_| ShownFields(frame.there())),
            invalid: invalid(frame).map(|error| error.to_string()),
            comments: &frame.comments,
        }
    }
}
