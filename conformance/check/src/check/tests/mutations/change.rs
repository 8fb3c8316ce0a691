//! Changes of one field of a packet.

use std::fmt;
use std::ops::Range;

use efa_wire::PacketType;
use efa_wire::fields::{Array, Field, FieldKind, Presence, fields_of};

/// The changed aspect of a field.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Aspect {
    Value,
    Presence,
    Neighbour,
    ByteOrder,
}

impl Aspect {
    pub(super) const ALL: [Aspect; 4] = [
        Aspect::Value,
        Aspect::Presence,
        Aspect::Neighbour,
        Aspect::ByteOrder,
    ];

    pub(super) fn title(self) -> &'static str {
        match self {
            Aspect::Value => "another value",
            Aspect::Presence => "missing or surplus",
            Aspect::Neighbour => "exchanged with the next field",
            Aspect::ByteOrder => "other byte order",
        }
    }
}

/// A changed packet.
pub(super) struct Change {
    /// The field's name; for a flag, with the flag's name after a dot.
    pub(super) field: String,
    pub(super) kind: FieldKind,
    pub(super) aspect: Aspect,
    pub(super) what: String,
    pub(super) packet: Vec<u8>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.field, self.what)
    }
}

/// All changes of a packet, one field at a time.
pub(super) fn changes(packet: &[u8]) -> Vec<Change> {
    let fields: Vec<Field<'_>> = fields_of(packet).into_iter().flatten().collect();
    let mut changes = Changes {
        packet,
        found: Vec::new(),
    };
    for (at, field) in fields.iter().enumerate() {
        match field.descriptor.kind {
            FieldKind::Flags => changes.flags(field),
            FieldKind::Data | FieldKind::Gid => changes.invert(field),
            _ => changes.values(field),
        }
        changes.presence(&fields, at);
        let next = fields.get(at + 1);
        if let Some(next) = next.filter(|next| next.descriptor.kind != FieldKind::Data) {
            changes.exchange(field, next);
        }
        changes.reverse(field);
    }
    changes.found
}

struct Changes<'p> {
    packet: &'p [u8],
    found: Vec<Change>,
}

impl Changes<'_> {
    fn add(&mut self, field: &Field<'_>, aspect: Aspect, what: String, packet: Vec<u8>) {
        if packet != self.packet {
            self.found.push(Change {
                field: field.descriptor.name.into(),
                kind: field.descriptor.kind,
                aspect,
                what,
                packet,
            });
        }
    }

    /// The packet with other bytes in a range.
    fn with(&self, range: Range<usize>, bytes: &[u8]) -> Vec<u8> {
        let mut packet = self.packet.to_vec();
        packet.splice(range, bytes.iter().copied());
        packet
    }

    /// Other numbers: one more, one less, none, and all bits changed.
    fn values(&mut self, field: &Field<'_>) {
        let length = field.bytes.len();
        let mut bytes = [0; 8];
        let kept = length.min(8);
        bytes[..kept].copy_from_slice(&field.bytes[..kept]);
        let value = u64::from_le_bytes(bytes);
        let others = [value.wrapping_add(1), value.wrapping_sub(1), 0, !value];
        for other in others {
            let start = field.offset;
            let packet = self.with(start..start + kept, &other.to_le_bytes()[..kept]);
            let what = format!("{other:#x} instead of {value:#x}");
            self.add(field, Aspect::Value, what, packet);
        }
    }

    /// Other bytes.
    fn invert(&mut self, field: &Field<'_>) {
        let inverted: Vec<_> = field.bytes.iter().map(|byte| !byte).collect();
        let packet = self.with(field.range(), &inverted);
        self.add(field, Aspect::Value, "other bytes".into(), packet);
    }

    /// Each named flag, set or not.
    fn flags(&mut self, field: &Field<'_>) {
        let packet_type = field.packet_type;
        let flags = u16::from_le_bytes([field.bytes[0], field.bytes[1]]);
        for (name, bit) in names_of_flags(packet_type) {
            let packet = self.with(field.range(), &(flags ^ bit).to_le_bytes());
            let what = match flags & bit {
                0 => "set",
                _ => "not set",
            };
            self.add(field, Aspect::Value, what.into(), packet);
            if let Some(change) = self.found.last_mut() {
                change.field = format!("flags.{name}");
            }
        }
    }

    /// The field is missing, or present without its flag.
    fn presence(&mut self, fields: &[Field<'_>], at: usize) {
        let field = &fields[at];
        let without = self.with(field.range(), &[]);
        self.add(field, Aspect::Presence, "missing".into(), without);
        let twice = [field.bytes, field.bytes].concat();
        let packet = self.with(field.range(), &twice);
        self.add(field, Aspect::Presence, "there twice".into(), packet);
        if let Some(array) = array_of(field)
            && let Some(count) = fields
                .iter()
                .find(|other| other.descriptor.kind == FieldKind::Count(array))
        {
            self.entry(fields, field, count);
        }
        let (Presence::IfFlag(flag) | Presence::IfFlagElseNext(flag)) = field.descriptor.presence
        else {
            return;
        };
        // The whole header of the flag is removed together with the flag.
        let of_flag = |other: &&Field<'_>| other.descriptor.presence == field.descriptor.presence;
        let first = fields
            .iter()
            .find(of_flag)
            .map_or(field.offset, |first| first.offset);
        let end = fields
            .iter()
            .rfind(of_flag)
            .map_or(0, |last| last.range().end);
        let is_else_next = matches!(field.descriptor.presence, Presence::IfFlagElseNext(_));
        let mut packet = match is_else_next {
            true => self.packet.to_vec(),
            false => self.with(first..end, &[]),
        };
        for (byte, mask) in packet[2..4].iter_mut().zip(flag.to_le_bytes()) {
            *byte &= !mask;
        }
        let what = "missing with its flag".into();
        self.add(field, Aspect::Presence, what, packet);
    }

    /// Removes an entry of an array.
    fn entry(&mut self, fields: &[Field<'_>], field: &Field<'_>, count: &Field<'_>) {
        let of_entry =
            |other: &&Field<'_>| array_of(other) == array_of(field) && other.index == field.index;
        let first = fields.iter().find(of_entry).map_or(0, |first| first.offset);
        let end = fields
            .iter()
            .rfind(of_entry)
            .map_or(0, |last| last.range().end);
        let mut packet = self.with(first..end, &[]);
        let fewer = u32::from_le_bytes(count.bytes.try_into().unwrap()) - 1;
        packet[count.range()].copy_from_slice(&fewer.to_le_bytes());
        let what = "its entry is missing, and not counted".into();
        self.add(field, Aspect::Presence, what, packet);
    }

    fn exchange(&mut self, field: &Field<'_>, next: &Field<'_>) {
        let exchanged = [next.bytes, field.bytes].concat();
        let packet = self.with(field.offset..next.range().end, &exchanged);
        let what = format!("exchanged with `{}`", next.descriptor.name);
        self.add(field, Aspect::Neighbour, what, packet);
    }

    fn reverse(&mut self, field: &Field<'_>) {
        if field.descriptor.kind == FieldKind::Data || field.bytes.len() > 8 {
            return;
        }
        let mut reversed = field.bytes.to_vec();
        reversed.reverse();
        let packet = self.with(field.range(), &reversed);
        let what = "the other byte order".into();
        self.add(field, Aspect::ByteOrder, what, packet);
    }
}

/// The array whose entries contain a field.
fn array_of(field: &Field<'_>) -> Option<Array> {
    let array = match field.descriptor.name.split('.').next()? {
        "rma_iov" => Array::RmaIov,
        "read_iov" => Array::ReadIov,
        "extra_info" => Array::ExtraInfo,
        _ => return None,
    };
    field.index.map(|_| array)
}

/// The flags that the document, or stock libfabric, has for packets of a type.
fn names_of_flags(packet_type: PacketType) -> Vec<(&'static str, u16)> {
    use efa_wire::{CtsFlags, FlagSet, HandshakeFlags, ReqFlags, UniversalFlags};
    fn of<F: bitflags::Flags<Bits = u16>>() -> Vec<(&'static str, u16)> {
        let flags = F::FLAGS.iter().filter(|flag| flag.is_named());
        flags
            .map(|flag| (flag.name(), flag.value().bits()))
            .collect()
    }
    match packet_type.flag_set() {
        FlagSet::Universal => of::<UniversalFlags>(),
        FlagSet::Req => of::<ReqFlags>(),
        FlagSet::Cts => of::<CtsFlags>(),
        FlagSet::Handshake => of::<HandshakeFlags>(),
    }
}
