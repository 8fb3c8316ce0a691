//! The fields of one packet, one after the other.

use core::iter::FusedIterator;

use zerocopy::FromBytes;

use crate::address::RawAddress;
use crate::codec::{ExtraInfo, RawBase};
use crate::descriptor::{Array, FieldDescriptor, FieldKind, Presence, Section, Width};
use crate::packet_type::PacketType;

use super::field::{Field, MissingField};
use super::layout::sections_by_length;
use super::value::Value;

/// Walks the fields of a packet.
///
/// A packet that is too short ends the walk early ([`Fields::missing`]). Returns `None` for an
/// unassigned type id, which has no table. Counts and sizes in the packet are not trusted: the walk
/// never goes beyond the packet.
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

/// The first field of a packet that has this name in the tables.
pub fn field_of<'a>(packet: &'a [u8], name: &str) -> Option<Field<'a>> {
    fields_of(packet)?.find(|field| field.descriptor.name == name)
}

/// The iterator of [`fields_of`].
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    packet_type: PacketType,
    flags: u16,
    sections: &'static [&'static Section],
    packet: &'a [u8],
    /// The offset of the next field.
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

    /// The bytes that the walk has not covered yet: at its end, the cut field or nothing.
    pub fn rest(&self) -> &'a [u8] {
        self.packet.get(self.offset..).unwrap_or_default()
    }

    /// Bytes of the headers that packets of this type and with these flags have in the released
    /// form.
    pub(crate) fn released_len(&self) -> usize {
        self.packet_type.header_len(self.flags, 0)
    }

    /// The next field, whether or not the packet has it.
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
                FieldKind::Count(array) => {
                    let bias = match array {
                        Array::ExtraInfo => ExtraInfo::COUNT_BIAS as usize,
                        Array::RmaIov | Array::ReadIov => 0,
                    };
                    self.counts[array as usize] = value.as_usize().saturating_sub(bias);
                }
                FieldKind::RawAddressSize => self.raw_address_size = value.as_usize(),
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
