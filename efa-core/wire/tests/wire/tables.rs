//! The tables of fields: consistent in themselves, and with the offsets of stock libfabric.

use std::collections::BTreeSet;

use efa_testing::workspace::{expect_file, expect_part};
use efa_wire::PacketType;
use efa_wire::fields::{
    self, Array, FieldDescriptor, FieldKind, Presence, Section, Width, fields_of,
};

use crate::recipe::{Recipe, typed};

/// The arguments of `cargo test` that write the tables of the documentation.
const TESTS: &str = "-p efa-wire --test wire documented";

#[test]
fn the_tables_are_consistent() {
    for packet_type in PacketType::ALL {
        let layout: Vec<_> = fields::layout(*packet_type).collect();
        let names: BTreeSet<_> = layout.iter().map(|field| field.descriptor.name).collect();
        assert_eq!(names.len(), layout.len(), "{packet_type} has a name twice");
        let base: Vec<_> = layout[..3]
            .iter()
            .map(|f| (f.descriptor.name, f.offset))
            .collect();
        assert_eq!(
            base,
            [("type", Some(0)), ("version", Some(1)), ("flags", Some(2))]
        );
        for field in &layout {
            let FieldDescriptor {
                name,
                width,
                description,
                ..
            } = *field.descriptor;
            assert!(!description.is_empty(), "{packet_type}.{name}");
            assert_eq!(fields::find(*packet_type, name), Some(field.descriptor));
            let is_last = name == layout[layout.len() - 1].descriptor.name;
            assert_eq!(width == Width::Rest, is_last, "{packet_type}.{name}");
            if let Some(Array::RmaIov | Array::ReadIov) = field.array {
                assert_eq!(width, Width::Fixed(8));
            }
        }
        for (field, next) in layout.iter().zip(&layout[1..]) {
            if let Presence::IfFlagElseNext(_) = field.descriptor.presence {
                assert_eq!(field.descriptor.width, next.descriptor.width);
                assert_eq!(field.offset, next.offset);
                assert_eq!(next.descriptor.kind, FieldKind::Padding);
            }
        }
        let carries_data = layout
            .last()
            .is_some_and(|f| f.descriptor.kind == FieldKind::Data);
        assert_eq!(carries_data, packet_type.carries_data(), "{packet_type}");
    }
}

#[test]
fn fixed_offsets_match_the_parsed_fields() {
    for packet_type in typed() {
        let full = Recipe::full(packet_type);
        let without_connid = Recipe {
            flags: full.flags & 0x7fff,
            ..full.clone()
        };
        for recipe in [full, without_connid] {
            let packet = recipe.packet();
            for field in fields_of(&packet).expect("an assigned type") {
                let line = fields::layout(packet_type)
                    .find(|line| line.descriptor == field.descriptor)
                    .expect("every field is in the layout");
                let first = field.index.is_none_or(|index| index == 0);
                if let (true, Some(offset)) = (first, line.offset) {
                    assert_eq!(offset, field.offset, "{packet_type} {}", field.name());
                }
            }
        }
    }
}

/// Offsets of mandatory fields as stock libfabric 1.17.0 to 2.6.0 have them in their structures.
#[test]
fn mandatory_offsets_are_those_of_stock_libfabric() {
    use PacketType as T;
    let offset = |packet_type, name: &str| {
        fields::layout(packet_type)
            .find(|field| field.descriptor.name == name)
            .unwrap_or_else(|| panic!("{packet_type} has no {name}"))
            .offset
    };
    for (packet_type, name, expected) in [
        (T::Cts, "send_id", 8),
        (T::Cts, "recv_id", 12),
        (T::Cts, "recv_length", 16),
        (T::CtsData, "seg_offset", 16),
        (T::CtsData, "connid", 24),
        (T::ReadRsp, "recv_id", 8),
        (T::ReadRsp, "send_id", 12),
        (T::ReadRsp, "seg_length", 16),
        (T::Eor, "connid", 12),
        (T::AtomRsp, "recv_id", 12),
        (T::Receipt, "msg_id", 8),
        (T::EagerTagRtm, "tag", 8),
        (T::MediumTagRtm, "tag", 24),
        (T::LongctsTagRtm, "tag", 24),
        (T::LongreadTagRtm, "read_iov_count", 20),
        (T::LongreadTagRtm, "tag", 24),
        (T::DcEagerTagRtm, "tag", 16),
        (T::DcMediumTagRtm, "msg_length", 16),
        (T::DcMediumTagRtm, "tag", 32),
        (T::RuntreadTagRtm, "runt_length", 32),
        (T::RuntreadTagRtm, "tag", 40),
        (T::RuntctsTagRtm, "tag", 40),
        (T::EagerRtw, "rma_iov.addr", 8),
        (T::DcEagerRtw, "rma_iov.addr", 16),
        (T::LongctsRtw, "rma_iov.addr", 24),
        (T::LongreadRtw, "rma_iov.addr", 24),
        (T::ShortRtr, "recv_length", 20),
        (T::LongctsRtr, "rma_iov.addr", 24),
        (T::FetchRta, "recv_id", 20),
        (T::DcWriteRta, "send_id", 20),
        (T::WriteRta, "rma_iov.addr", 24),
        (T::RuntctsRtw, "rma_iov.addr", 40),
        (T::RuntreadRtw, "rma_iov.addr", 40),
    ] {
        assert_eq!(
            offset(packet_type, name),
            Some(expected),
            "{packet_type}.{name}"
        );
    }
}

/// The tables as a document, one for all types of a format.
fn document() -> String {
    let mut text = String::from(
        "# Packet formats

Every field of every packet type, in the order of the packet: offsets and sizes in bytes, integers
little-endian. This document is made of the declarations in `efa-core/wire/src/formats`; a test keeps it
current. Where the spec and stock libfabric disagree, it is as stock libfabric does
([deviations.md](deviations.md)).

An offset is missing where it depends on what is in front. Two offsets belong to types without and with
what is in front.
",
    );
    let mut written: BTreeSet<PacketType> = BTreeSet::new();
    for first in PacketType::ALL.iter().filter(|ty| ty.has_format()) {
        let of_format = |ty: &PacketType| {
            std::ptr::eq(fields::sections(*ty), fields::sections(*first)) && ty.has_format()
        };
        if !written.insert(*first) {
            continue;
        }
        let types: Vec<_> = PacketType::ALL.iter().copied().filter(of_format).collect();
        written.extend(&types);
        let names: Vec<_> = types
            .iter()
            .map(|ty| format!("{ty} ({})", ty.code()))
            .collect();
        text.push_str(&format!("\n## {}\n\n", names.join(", ")));
        if !first.has_header() {
            text.push_str("No release of libfabric sends or receives it.\n\n");
        }
        if *first == PacketType::PeerError {
            text.push_str(ORDER_OF_PEER_ERROR);
        }
        table(&mut text, &types, fields::sections(*first));
        for (length, sections) in fields::forms(*first) {
            text.push_str(&format!(
                "\nPackets of {length} bytes are of development states of libfabric. No release sends them, \
                 and they are refused:\n\n"
            ));
            table(&mut text, &types, sections);
        }
    }
    text
}

const ORDER_OF_PEER_ERROR: &str = "\
All packets have 24 bytes; those of another length are refused. Which fields there are, and how long they
are, is known from tests in the sources of libfabric. The **order of the fields is inferred**: it is that of
the form of 28 bytes below without `op_id_valid`. No capture of a release has been compared with it.

";

/// The table of the fields in these sections.
fn table(text: &mut String, types: &[PacketType], sections: &'static [&'static Section]) {
    text.push_str(
        "| offset | size | field | when | meaning | defined in |\n|---|---|---|---|---|---|\n",
    );
    for section in sections {
        for field in section.fields {
            let offsets: BTreeSet<_> = types
                .iter()
                .flat_map(|ty| fields::layout_of(*ty, sections))
                .filter(|line| line.descriptor == field)
                .filter_map(|line| line.offset)
                .collect();
            let offsets: Vec<_> = offsets.iter().map(ToString::to_string).collect();
            let size = match field.width {
                Width::Fixed(width) => width.to_string(),
                Width::RawAddressSurplus => "size - 32".into(),
                Width::Rest => "rest".into(),
            };
            let each = if section.array.is_some() { " each" } else { "" };
            text.push_str(&format!(
                "| {} | {size}{each} | {} | {} | {} | {} |\n",
                offsets.join(" or "),
                field.name,
                when(field.presence),
                field.description,
                field.source
            ));
        }
    }
}

fn when(presence: Presence) -> String {
    let types = |traits: efa_wire::TypeTraits| {
        let names = traits.iter_names().map(|(name, _)| name.to_lowercase());
        names.collect::<Vec<_>>().join(" or ")
    };
    match presence {
        Presence::Always => String::new(),
        Presence::IfFlag(flag) | Presence::IfFlagElseNext(flag) => format!("flag {flag:#06x}"),
        Presence::UnlessFlag(flag) => format!("not flag {flag:#06x}"),
        Presence::UnlessFlagIfRoom(flag) => format!("not flag {flag:#06x}, if there is room"),
        Presence::IfType(traits) => format!("types: {}", types(traits)),
        Presence::UnlessType(traits) => format!("types: not {}", types(traits)),
    }
}

/// The tables of the headers of reliable connections and tag matching.
fn infiniband() -> String {
    let mut text = String::new();
    for header in efa_wire::infiniband::HEADERS {
        text += &format!(
            "\n### {}\n\n{} bytes. {}.\n\n| offset | bytes | field | meaning |\n|---|---|---|---|\n",
            header.name,
            header.length(),
            header.place
        );
        for field in header.fields {
            let (offset, width) = (field.offset, field.width);
            text += &format!(
                "| {offset} | {width} | `{}` | {} |\n",
                field.name, field.meaning
            );
        }
    }
    text + "\n"
}

#[test]
fn headers_of_connections_are_documented() {
    let marks = ["<!-- headers -->\n", "<!-- end of headers -->"];
    expect_part("docs/tag-matching.md", marks, TESTS, &infiniband());
}

#[test]
fn every_format_is_documented() {
    expect_file("docs/packet-formats.md", TESTS, document());
}
