//! The fields that each packet type may contain.

use crate::descriptor::{Array, FieldDescriptor, Presence, Section, Width};
use crate::packet_type::PacketType;

/// The sections of a packet type's format, from the base header to the end of the packet. Fields
/// that only other types of the format have are among them, see [`Presence::is_of`].
pub const fn sections(packet_type: PacketType) -> &'static [&'static Section] {
    packet_type.sections()
}

/// Packet forms of unreleased development versions of libfabric, identified by their length in
/// bytes. [`fields_of`](super::fields_of) walks along them; [`Packet::parse`](crate::Packet::parse)
/// refuses them.
pub const fn forms(packet_type: PacketType) -> &'static [(usize, &'static [&'static Section])] {
    packet_type.other_forms()
}

/// The sections of the form that a packet of this length has.
pub(super) fn sections_by_length(
    packet_type: PacketType,
    length: usize,
) -> &'static [&'static Section] {
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
    /// The offset in bytes from the start of the packet, the same in every packet that has the
    /// field. `None` if it depends on earlier fields. In an array, the offset in the first entry.
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

/// The offset after `field`, if it is the same in all packets.
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
