//! Encoding of packets from field names and values.
//!
//! The formats are declared in [`efa_core::wire`]. This module walks their tables like
//! [`fields_of`](efa_core::wire::fields::fields_of), but writes instead of reading.

use std::ops::Range;

use efa_core::address::RawAddress;
use efa_core::wire::fields::{
    Array, FieldDescriptor, FieldKind, FieldName, Presence, Width, layout,
};
use efa_core::wire::fields::{LayoutField, sections};
use efa_core::wire::{
    CtsFlags, ExtraFeatures, FlagSet, Handshake, HandshakeFlags, PROTOCOL_VERSION, PacketType,
    Repr, ReqFlags, UniversalFlags,
};
use efa_device_model::profile::Profile;
use efa_play::operation::EndpointIndex;
use efa_play::scenario::{Scenario, ScenarioError, suggest};
use toml::Value;

use super::invented;
use super::named::{KeyValue, PacketKeys};
use super::operation::SyntheticOperation;
use crate::compare::policy::{AddressPart, MemoryPart, Rule, standard};
use crate::replay::operations::number;

/// The source of the values that a packet does not contain.
pub(super) struct PacketContext<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) sender: EndpointIndex,
    /// Whether the sender has the receiver's HANDSHAKE.
    pub(super) has_handshake: bool,
    pub(super) operation: Option<&'a SyntheticOperation>,
    pub(super) msg_id: u64,
}

/// A packet, and the range of its operation's data in it.
pub(super) struct EmittedPacket {
    pub(super) bytes: Vec<u8>,
    pub(super) data: Range<usize>,
}

/// A field of the packet with its byte range.
struct FieldRange {
    descriptor: &'static FieldDescriptor,
    index: Option<usize>,
    place: Range<usize>,
}

/// The features that a synthetic endpoint announces by default: all that do not change a packet's
/// format, and connection ids.
const ANNOUNCED: ExtraFeatures = ExtraFeatures::RDMA_READ
    .union(ExtraFeatures::DELIVERY_COMPLETE)
    .union(ExtraFeatures::CONNID_HEADER)
    .union(ExtraFeatures::RUNTING_READ)
    .union(ExtraFeatures::RDMA_WRITE)
    .union(ExtraFeatures::READ_NACK);

/// The default of `credit_request`: stock libfabric's value since 1.17.
const CREDITS: u64 = 32;

/// Length of a raw address, as its header counts it.
const RAW_ADDRESS: u64 = RawAddress::LEN as u64;

impl PacketContext<'_> {
    pub(super) fn emit(
        &self,
        packet_type: PacketType,
        named: &PacketKeys<'_>,
    ) -> Result<EmittedPacket, ScenarioError> {
        let flags = self.flags(packet_type, named)?;
        let (ranges, length) = self.ranges(packet_type, flags, named);
        let mtu = self.profile().mtu as usize;
        let data = self.data(packet_type, flags, named, mtu.saturating_sub(length))?;
        let content = match named.other("data") {
            Some(given) => literal(named, given)?,
            None => {
                let content = self
                    .operation
                    .map_or(&[][..], |operation| &operation.content);
                content[data.clone()].to_vec()
            }
        };
        if length + content.len() > mtu {
            return Err(named.whole(
                "length",
                format!("a packet of {} bytes", length + content.len()),
                format!("the device of the sender takes {mtu}: give less data"),
            ));
        }
        let mut bytes = vec![0; length];
        for field in &ranges {
            let name = FieldName {
                name: field.descriptor.name,
                index: field.index,
            };
            let place = &mut bytes[field.place.clone()];
            if matches!(field.descriptor.kind, FieldKind::Padding) {
                continue;
            }
            if matches!(field.descriptor.kind, FieldKind::Gid) {
                let owner = named
                    .get(name)
                    .map_or(Ok(self.sender), |given| self.endpoint(named, given))?;
                place.copy_from_slice(&invented::address(owner).gid.0);
                continue;
            }
            let number = match named.get(name).filter(|_| name.name != "flags") {
                Some(given) => self.number(packet_type, field.descriptor, named, given)?,
                None => self.default(packet_type, flags, field, named, &data),
            };
            place.copy_from_slice(&number.to_le_bytes()[..field.place.len()]);
        }
        bytes.extend(content);
        Ok(EmittedPacket { bytes, data })
    }

    pub(super) fn profile(&self) -> &'static Profile {
        let name = self.scenario.endpoints[self.sender].profile.as_deref();
        // Profile names are checked when a scenario is parsed.
        Profile::by_name(name.unwrap_or(Profile::DEFAULT)).unwrap_or(&Profile::all()[0])
    }

    /// The flags of the base header: as given, or those of the present fields.
    fn flags(&self, packet_type: PacketType, named: &PacketKeys<'_>) -> Result<u16, ScenarioError> {
        let name = FieldName {
            name: "flags",
            index: None,
        };
        let mut flags = packet_type.implied_flags().bits();
        match named.get(name) {
            Some(given) if given.value.is_integer() => {
                return Ok(unsigned(named, given, 2)? as u16);
            }
            Some(given) => {
                for text in names(named, given)? {
                    flags |= flag(packet_type, text).map_err(|known| {
                        let problem = format!("{packet_type} has no flag `{text}`");
                        named.error(given, problem, suggest(text, known.into_iter()))
                    })?;
                }
            }
            None => {}
        }
        for LayoutField { descriptor, .. } in layout(packet_type) {
            let (Presence::IfFlag(flag) | Presence::IfFlagElseNext(flag)) = descriptor.presence
            else {
                continue;
            };
            if named.has(descriptor.name) || self.has(packet_type, descriptor.name, named) {
                flags |= flag;
            }
        }
        Ok(flags)
    }

    /// Whether a packet contains an optional field that is not given.
    fn has(&self, packet_type: PacketType, name: &str, named: &PacketKeys<'_>) -> bool {
        let is_handshake = packet_type == PacketType::Handshake;
        match name {
            "connid" => is_handshake || (self.has_handshake && !named.has("raw_addr.size")),
            "host_id" | "device_version" => is_handshake,
            "cq_data" => self
                .operation
                .is_some_and(|operation| operation.data.is_some()),
            // Until the peer can identify the sender by its connection id.
            _ if name.starts_with("raw_addr") => {
                packet_type.is_req() && !self.has_handshake && !named.has("connid")
            }
            _ => false,
        }
    }

    /// The number of entries of an array whose count is not given.
    fn entries(&self, array: Array, named: &PacketKeys<'_>) -> usize {
        let (name, default) = match array {
            Array::ExtraInfo => ("extra_info", 1),
            Array::RmaIov => ("rma_iov", usize::from(self.operation.is_some())),
            Array::ReadIov => ("read_iov", usize::from(self.operation.is_some())),
        };
        named.entries(name).unwrap_or(default)
    }

    /// The fields in the order of the packet, and the length of all headers.
    fn ranges(
        &self,
        packet_type: PacketType,
        flags: u16,
        named: &PacketKeys<'_>,
    ) -> (Vec<FieldRange>, usize) {
        let mut ranges = Vec::new();
        let mut offset = 0;
        for section in sections(packet_type) {
            let entries = section.array.map_or(1, |array| self.entries(array, named));
            for entry in 0..entries {
                for descriptor in section.fields {
                    let Width::Fixed(width) = descriptor.width else {
                        continue;
                    };
                    if !descriptor.presence.holds(packet_type, flags) {
                        continue;
                    }
                    ranges.push(FieldRange {
                        descriptor,
                        index: section.array.map(|_| entry),
                        place: offset..offset + width,
                    });
                    offset += width;
                }
            }
        }
        (ranges, offset)
    }

    /// The range of its operation's data in a packet with `room` bytes for data.
    fn data(
        &self,
        packet_type: PacketType,
        flags: u16,
        named: &PacketKeys<'_>,
        room: usize,
    ) -> Result<Range<usize>, ScenarioError> {
        let length = named.other("length");
        let length = length.map(|given| Ok((given, unsigned(named, given, 8)? as usize)));
        let length = length.transpose()?;
        let (Some(operation), true) = (self.operation, packet_type.carries_data()) else {
            return match length {
                Some((given, _)) if named.other("data").is_none() => Err(named.error(
                    given,
                    "the packet carries no data of an operation",
                    "remove `length`, or name the operation with `of`",
                )),
                _ => Ok(0..0),
            };
        };
        let total = operation.content.len();
        let seg_offset = named.get(FieldName {
            name: "seg_offset",
            index: None,
        });
        let start = match seg_offset {
            Some(given) => unsigned(named, given, 8)? as usize,
            None => operation.sent,
        };
        let answers_nack = packet_type.is_req() && flags & ReqFlags::READ_NACK.bits() != 0;
        let (given, length) = match length {
            Some((given, length)) => (Some(given), length),
            None if answers_nack => (None, 0),
            None => {
                let end = match packet_type {
                    PacketType::CtsData => operation.granted.min(total),
                    _ => total,
                };
                (None, end.saturating_sub(start).min(room))
            }
        };
        if length == 0 {
            return Ok(operation.sent..operation.sent);
        }
        let end = start.saturating_add(length);
        if end > total {
            let key = given.or(seg_offset).map_or("length", |given| given.key);
            return Err(named.whole(
                key,
                format!("bytes {start} to {end} of an operation of {total}"),
                "correct `length` or `seg_offset`",
            ));
        }
        Ok(start..end)
    }

    /// The default value of a field.
    fn default(
        &self,
        packet_type: PacketType,
        flags: u16,
        field: &FieldRange,
        named: &PacketKeys<'_>,
        data: &Range<usize>,
    ) -> u64 {
        let own = invented::address(self.sender);
        match field.descriptor.kind {
            FieldKind::PacketType => return packet_type.code().into(),
            FieldKind::Flags => return flags.into(),
            FieldKind::RawAddressSize => return RAW_ADDRESS,
            FieldKind::Count(array) => {
                let bias = match array {
                    Array::ExtraInfo => handshake_bias(),
                    Array::RmaIov | Array::ReadIov => 0,
                };
                return self.entries(array, named) as u64 + bias;
            }
            _ => {}
        }
        match field.descriptor.name {
            "version" => return PROTOCOL_VERSION.into(),
            "extra_info" if field.index == Some(0) => return ANNOUNCED.bits(),
            "host_id" => {
                return own
                    .gid
                    .0
                    .iter()
                    .fold(0, |id, byte| id << 8 | u64::from(*byte));
            }
            "device_version" => return self.profile().part_id.into(),
            "credit_request" => return CREDITS,
            _ => {}
        }
        let Some(operation) = self.operation else {
            return match standard(packet_type, field.descriptor) {
                Rule::Address(part) => part_of(own, part),
                _ => 0,
            };
        };
        let total = operation.content.len() as u64;
        match (
            standard(packet_type, field.descriptor),
            field.descriptor.name,
        ) {
            (Rule::Address(part), _) => part_of(own, part),
            (Rule::Introduces(kind) | Rule::Refers(kind), _) => invented::id(operation.step, kind),
            (Rule::Memory(part), name) => {
                let array = name.split('.').next().unwrap_or(name);
                let piece = invented::piece(operation.step, field.index.unwrap_or(0));
                let target = operation.target;
                match part {
                    MemoryPart::SenderAddress => piece.address,
                    MemoryPart::SenderKey => piece.key,
                    MemoryPart::ReceiverAddress => {
                        target.address + in_front(named, array, field.index)
                    }
                    MemoryPart::ReceiverKey => target.key,
                }
            }
            (_, "rma_iov.len") => total - in_front(named, "rma_iov", field.index).min(total),
            (_, "read_iov.len") => total - in_front(named, "read_iov", field.index).min(total),
            (_, "msg_id") => self.msg_id,
            (_, "msg_length") => total,
            (_, "tag") => operation.tag.unwrap_or(0),
            (_, "cq_data") => operation.data.unwrap_or(0),
            (_, "recv_length") => total - operation.sent as u64,
            (_, "seg_offset") => data.start as u64,
            (_, "seg_length" | "runt_length") => data.len() as u64,
            (_, "atomic_op") => operation.atomic.map_or(0, |(op, _)| op.0.into()),
            (_, "atomic_datatype") => operation
                .atomic
                .map_or(0, |(_, datatype)| datatype.0.into()),
            _ => 0,
        }
    }

    /// The given number of a field, directly or by name.
    fn number(
        &self,
        packet_type: PacketType,
        descriptor: &'static FieldDescriptor,
        named: &PacketKeys<'_>,
        given: KeyValue<'_>,
    ) -> Result<u64, ScenarioError> {
        let Width::Fixed(width) = descriptor.width else {
            return Err(named.error(given, "its length is not fixed", "leave it out"));
        };
        match (standard(packet_type, descriptor), given.value) {
            (Rule::Address(part), Value::String(_)) => {
                let endpoint = self.endpoint(named, given)?;
                Ok(part_of(invented::address(endpoint), part))
            }
            (_, Value::String(_) | Value::Array(_)) if descriptor.name == "extra_info" => {
                let mut bits = ExtraFeatures::empty();
                for text in names(named, given)? {
                    bits |= ExtraFeatures::from_name(text).ok_or_else(|| {
                        let known = ExtraFeatures::all();
                        let known: Vec<_> = known.iter_names().map(|(name, _)| name).collect();
                        let remedy = suggest(text, known.into_iter());
                        named.error(given, format!("unknown feature `{text}`"), remedy)
                    })?;
                }
                Ok(bits.bits())
            }
            _ => unsigned(named, given, width),
        }
    }

    fn endpoint(
        &self,
        named: &PacketKeys<'_>,
        given: KeyValue<'_>,
    ) -> Result<EndpointIndex, ScenarioError> {
        let text = given.value.as_str().unwrap_or_default();
        self.scenario.endpoint(text).ok_or_else(|| {
            let known = self.scenario.endpoints.iter().map(|e| e.name.as_str());
            named.error(
                given,
                format!("{} is not an endpoint", given.value),
                suggest(text, known),
            )
        })
    }
}

/// The difference between the count in a HANDSHAKE and the number of words.
fn handshake_bias() -> u64 {
    let handshake = Handshake {
        extra_info: ExtraFeatures::empty().into(),
        ..Handshake::default()
    };
    // The packet has one word.
    let count = number(&handshake.to_packet(&[]), "nextra_p3");
    count.unwrap_or(0).saturating_sub(1)
}

/// Total length of the entries of an array before this one.
fn in_front(named: &PacketKeys<'_>, array: &str, index: Option<usize>) -> u64 {
    let lengths = (0..index.unwrap_or(0)).map(|index| {
        let name = match array {
            "rma_iov" => "rma_iov.len",
            _ => "read_iov.len",
        };
        let given = named.get(FieldName {
            name,
            index: Some(index),
        });
        given
            .and_then(|given| given.value.as_integer())
            .unwrap_or(0) as u64
    });
    lengths.sum()
}

fn part_of(address: RawAddress, part: AddressPart) -> u64 {
    match part {
        // The GID is written separately.
        AddressPart::Gid => 0,
        AddressPart::Qpn => address.qpn.0.into(),
        AddressPart::Connid => address.qkey.0.into(),
    }
}

/// A number that fits into this many bytes.
pub(super) fn unsigned(
    named: &PacketKeys<'_>,
    given: KeyValue<'_>,
    width: usize,
) -> Result<u64, ScenarioError> {
    let most = match width {
        8.. => u64::MAX,
        _ => (1 << (8 * width)) - 1,
    };
    let number = given.value.as_integer();
    number
        .and_then(|number| u64::try_from(number).ok())
        .filter(|number| *number <= most)
        .ok_or_else(|| {
            named.error(
                given,
                match number {
                    Some(number) => format!("`{number}` is out of range"),
                    None => format!("`{}` is not a number", given.value),
                },
                format!("the field has {width} bytes: give a number from 0 to {most:#x}"),
            )
        })
}

/// One name or several.
fn names<'s>(named: &PacketKeys<'_>, given: KeyValue<'s>) -> Result<Vec<&'s str>, ScenarioError> {
    let texts = match given.value {
        Value::String(text) => Some(vec![text.as_str()]),
        Value::Array(all) => all.iter().map(Value::as_str).collect(),
        _ => None,
    };
    texts.ok_or_else(|| {
        named.error(
            given,
            format!("`{}` is not a name", given.value),
            "give a number, a name in quotes, or a list of names",
        )
    })
}

/// The flag with this name, otherwise the known names.
fn flag(packet_type: PacketType, name: &str) -> Result<u16, Vec<&'static str>> {
    fn of<F: bitflags::Flags<Bits = u16>>(name: &str) -> Result<u16, Vec<&'static str>> {
        let known = F::from_name(name).map(|flag| flag.bits());
        known.ok_or_else(|| {
            let named = F::FLAGS.iter().map(bitflags::Flag::name);
            named.filter(|name| !name.is_empty()).collect()
        })
    }
    match packet_type.flag_set() {
        FlagSet::Handshake => of::<HandshakeFlags>(name),
        FlagSet::Cts => of::<CtsFlags>(name),
        FlagSet::Req => of::<ReqFlags>(name),
        FlagSet::Universal => of::<UniversalFlags>(name),
    }
}

/// The given bytes.
fn literal(named: &PacketKeys<'_>, given: KeyValue<'_>) -> Result<Vec<u8>, ScenarioError> {
    let bytes = given.value.as_array().and_then(|all| {
        let byte = |value: &Value| u8::try_from(value.as_integer()?).ok();
        all.iter().map(byte).collect::<Option<Vec<u8>>>()
    });
    bytes.ok_or_else(|| named.error(given, "not bytes", "write a list of numbers from 0 to 255"))
}
