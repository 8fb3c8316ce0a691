//! The tables of fields: consistent in themselves, and with the offsets of stock libfabric.

use std::collections::BTreeSet;

use efa_core::wire::fields::{self, Array, FieldDescriptor, Kind, Presence, Width, fields_of};
use efa_core::wire::{PacketType, Repr};

use crate::parts::{Parts, wire_types};

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
                assert_eq!(next.descriptor.kind, Kind::Padding);
            }
        }
        let carries_data = layout
            .last()
            .is_some_and(|f| f.descriptor.kind == Kind::Data);
        assert_eq!(carries_data, packet_type.carries_data(), "{packet_type}");
    }
}

#[test]
fn fixed_offsets_are_where_the_walk_finds_the_fields() {
    for packet_type in wire_types() {
        for connid in [None, Some(7)] {
            let parts = Parts {
                connid,
                ..Parts::full(packet_type)
            };
            let packet = parts.header().to_packet(&parts.payload);
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
