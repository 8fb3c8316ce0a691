//! The fields of every packet type as data: names, widths, conditions, sources, descriptions.
//!
//! [`layout`] lists what a packet type may consist of, for documentation and for the dissector.
//! [`fields_of`] walks one packet along that list and yields each field with its offset and value;
//! it needs no valid packet and shows as much of a damaged one as there is. Neither allocates.
//!
//! ```
//! use efa_core::wire::fields::fields_of;
//!
//! let packet = [64, 4, 0x04, 0x80, 7, 0, 0, 0, 0x78, 0x56, 0x34, 0x12, b'h', b'i'];
//! let lines: Vec<String> = fields_of(&packet)
//!     .into_iter()
//!     .flatten()
//!     .map(|field| format!("{:2}: {field} ({})", field.offset, field.descriptor.source))
//!     .collect();
//! assert_eq!(
//!     lines,
//!     [
//!         " 0: type = 64 (EAGER_MSGRTM) (spec section 1.3, table 1.3)",
//!         " 1: version = 4 (spec section 1.3, table 1.3)",
//!         " 2: flags = 0x8004 (MSG | CONNID_HDR) (spec section 1.3, table 1.3)",
//!         " 4: msg_id = 7 (spec section 3.2, table 3.3)",
//!         " 8: connid = 0x12345678 (spec section 4.4)",
//!         "12: data = 2 bytes: 68 69 (spec section 3.1)",
//!     ]
//! );
//! ```
//!
//! The tables and the typed parser ([`Packet::parse`](super::Packet::parse)) come from the same
//! declarations. Tests hold them to it: they must agree on every value, every offset and every error.

mod of_type;
mod source;
mod value;

use core::fmt;
use core::iter::FusedIterator;

use zerocopy::FromBytes;

use super::codec::{ExtraInfo, RawBase};
use super::packet_type::PacketType;
use crate::address::RawAddress;

pub use super::descriptor::{Array, FieldDescriptor, Kind, Presence, Section, Source, Width};
pub use value::{DisplayValue, Value};

/// The sections of a packet type's format, from the base header to the end of the packet. Fields that
/// only other types of the format have are among them, see [`Presence::is_of`].
pub const fn sections(packet_type: PacketType) -> &'static [&'static Section] {
    packet_type.sections()
}

/// Forms of a type's packets that development states of libfabric had and no release, by their length
/// in bytes, which tells them from the released form. [`fields_of`] walks along them;
/// [`Packet::parse`](super::Packet::parse) refuses them.
pub const fn forms(packet_type: PacketType) -> &'static [(usize, &'static [&'static Section])] {
    packet_type.other_forms()
}

/// The sections of the form that a packet of this length has.
fn sections_by_length(packet_type: PacketType, length: usize) -> &'static [&'static Section] {
    let mut forms = forms(packet_type).iter();
    let form = forms.find(|(of_length, _)| *of_length == length);
    form.map_or(sections(packet_type), |(_, sections)| sections)
}

/// One line of a packet type's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayoutField {
    /// The field.
    pub descriptor: &'static FieldDescriptor,
    /// The array whose entries have this field.
    pub array: Option<Array>,
    /// Where it is in every packet that has it, in bytes from the start of the packet; `None` if
    /// that depends on what is in front of it. In an array, where the first entry has it.
    pub offset: Option<usize>,
}

/// All fields that a packet of this type may have, in the order of the packet.
pub fn layout(packet_type: PacketType) -> impl Iterator<Item = LayoutField> {
    layout_of(packet_type, sections(packet_type))
}

/// All fields that a packet of this type may have in a form with these sections.
pub fn layout_of(
    packet_type: PacketType,
    sections: &'static [&'static Section],
) -> impl Iterator<Item = LayoutField> {
    let mut next = Some(0_usize);
    sections.iter().flat_map(move |section| {
        let start = next;
        let mut within = start;
        let fields = section.fields.iter();
        let fields = fields.filter(move |field| field.presence.is_of(packet_type));
        for field in fields.clone() {
            within = offset_behind(field, within);
        }
        next = if section.array.is_some() {
            None
        } else {
            within
        };
        let mut offset = start;
        fields.map(move |descriptor| {
            let here = offset;
            offset = offset_behind(descriptor, here);
            LayoutField {
                descriptor,
                array: section.array,
                offset: here,
            }
        })
    })
}

/// Where the field behind `field` is, if that is the same in all packets.
fn offset_behind(field: &FieldDescriptor, offset: Option<usize>) -> Option<usize> {
    let Width::Fixed(width) = field.width else {
        return None;
    };
    match field.presence {
        Presence::Always
        | Presence::UnlessFlag(_)
        | Presence::IfType(_)
        | Presence::UnlessType(_) => offset.map(|offset| offset + width),
        Presence::IfFlagElseNext(_) => offset,
        Presence::IfFlag(_) | Presence::UnlessFlagIfRoom(_) => None,
    }
}

/// The descriptor of a field by its name.
pub fn find(packet_type: PacketType, name: &str) -> Option<&'static FieldDescriptor> {
    sections(packet_type)
        .iter()
        .flat_map(|section| section.fields)
        .find(|field| field.name == name && field.presence.is_of(packet_type))
}

/// A field of a packet, with its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field<'a> {
    /// The packet's type.
    pub packet_type: PacketType,
    /// What field it is.
    pub descriptor: &'static FieldDescriptor,
    /// The entry of the array, from 0.
    pub index: Option<usize>,
    /// Where it starts, in bytes from the start of the packet.
    pub offset: usize,
    /// Its bytes, as they are in the packet.
    pub bytes: &'a [u8],
    /// What they mean.
    pub value: Value<'a>,
}

impl Field<'_> {
    /// The name with the index of the array entry, as in `rma_iov[1].addr`.
    pub fn name(&self) -> FieldName {
        FieldName {
            name: self.descriptor.name,
            index: self.index,
        }
    }
}

/// `NAME = VALUE`, for people.
impl fmt::Display for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.descriptor.display(self.packet_type, self.value);
        write!(f, "{} = {value}", self.name())
    }
}

/// The name of a field in one packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FieldName {
    /// The name in the table.
    pub name: &'static str,
    /// The entry of the array, from 0.
    pub index: Option<usize>,
}

impl fmt::Display for FieldName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.index, self.name.split_once('.')) {
            (Some(index), Some((array, member))) => write!(f, "{array}[{index}].{member}"),
            (Some(index), None) => write!(f, "{}[{index}]", self.name),
            (None, _) => f.write_str(self.name),
        }
    }
}

/// A field that a packet should have but is not long enough for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MissingField {
    /// The field.
    pub descriptor: &'static FieldDescriptor,
    /// The entry of the array, from 0.
    pub index: Option<usize>,
    /// Where it would start, in bytes from the start of the packet.
    pub offset: usize,
    /// Its length in bytes.
    pub needed: usize,
    /// Bytes that there are from `offset` on.
    pub available: usize,
}

/// Walks the fields of a packet.
///
/// A packet that is too short ends the walk early ([`Fields::missing`]). `None` if the type id is
/// not assigned, so that there is no table to walk along. Counts and sizes in the packet are not
/// trusted: the walk never goes beyond the packet, whatever they say.
pub fn fields_of(packet: &[u8]) -> Option<Fields<'_>> {
    let packet_type = PacketType::peek(packet)?;
    let flags = RawBase::ref_from_prefix(packet).map_or(0, |(base, _)| base.flags.get());
    Some(Fields {
        packet_type,
        flags,
        sections: sections_by_length(packet_type, packet.len()),
        packet,
        offset: 0,
        section: 0,
        field: 0,
        entry: 0,
        counts: [0; 3],
        raw_address_size: 0,
        missing: None,
    })
}

/// The iterator of [`fields_of`].
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    packet_type: PacketType,
    flags: u16,
    sections: &'static [&'static Section],
    packet: &'a [u8],
    /// Where the next field starts.
    offset: usize,
    /// The next field: index into the type's sections, ...
    section: usize,
    /// ... into the section's fields, ...
    field: usize,
    /// ... and into the section's array.
    entry: usize,
    /// Entries of each array, by [`Array`].
    counts: [usize; 3],
    raw_address_size: usize,
    missing: Option<MissingField>,
}

impl<'a> Fields<'a> {
    /// The field at which the packet ends too early, once the walk has come to it.
    pub fn missing(&self) -> Option<MissingField> {
        self.missing
    }

    /// What the walk has not covered yet: at its end, the cut field or nothing.
    pub fn rest(&self) -> &'a [u8] {
        self.packet.get(self.offset..).unwrap_or_default()
    }

    /// Bytes of the headers that packets of this type and with these flags have in the released form.
    pub(super) fn released_len(&self) -> usize {
        self.packet_type.header_len(self.flags, 0)
    }

    /// The next field to look at, whether or not the packet has it.
    fn advance(&mut self) -> Option<(&'static FieldDescriptor, Option<usize>)> {
        loop {
            let section = self.sections.get(self.section)?;
            let entries = section.array.map_or(1, |array| self.counts[array as usize]);
            match section.fields.get(self.field) {
                Some(descriptor) if self.entry < entries => {
                    self.field += 1;
                    return Some((descriptor, section.array.map(|_| self.entry)));
                }
                None if self.entry + 1 < entries => {
                    self.field = 0;
                    self.entry += 1;
                }
                _ => {
                    self.section += 1;
                    self.field = 0;
                    self.entry = 0;
                }
            }
        }
    }

    fn is_present(&self, descriptor: &FieldDescriptor, width: usize) -> bool {
        let has_room = match descriptor.presence {
            Presence::UnlessFlagIfRoom(_) => self.rest().len() >= width,
            _ => true,
        };
        let is_variable = !matches!(descriptor.width, Width::Fixed(_));
        descriptor.presence.holds(self.packet_type, self.flags)
            && has_room
            && !(is_variable && width == 0)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        if self.missing.is_some() {
            return None;
        }
        loop {
            let (descriptor, index) = self.advance()?;
            let rest = self.rest();
            let width = match descriptor.width {
                Width::Fixed(width) => width,
                Width::RawAddressSurplus => self.raw_address_size.saturating_sub(RawAddress::LEN),
                Width::Rest => rest.len(),
            };
            if !self.is_present(descriptor, width) {
                continue;
            }
            let offset = self.offset;
            let Some(bytes) = rest.get(..width) else {
                self.missing = Some(MissingField {
                    descriptor,
                    index,
                    offset,
                    needed: width,
                    available: rest.len(),
                });
                return None;
            };
            self.offset += width;
            let value = Value::of(descriptor.kind, bytes);
            match descriptor.kind {
                Kind::Count(array) => {
                    let bias = match array {
                        Array::ExtraInfo => ExtraInfo::COUNT_BIAS as usize,
                        Array::RmaIov | Array::ReadIov => 0,
                    };
                    self.counts[array as usize] = value.as_usize().saturating_sub(bias);
                }
                Kind::RawAddressSize => self.raw_address_size = value.as_usize(),
                _ => {}
            }
            return Some(Field {
                packet_type: self.packet_type,
                descriptor,
                index,
                offset,
                bytes,
                value,
            });
        }
    }
}

impl FusedIterator for Fields<'_> {}
