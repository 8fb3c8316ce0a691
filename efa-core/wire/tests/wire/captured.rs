//! Headers of packets that libfabric 1.17.0 sent: the first short packet of each type in the
//! corpus.
//!
//! The values of the fields were read at the offsets of the structures in stock libfabric's
//! headers, not by this crate. The applications' data is left out; zeroes stand for it.

use efa_wire::fields::{FieldKind, field_of, fields_of};
use efa_wire::{Packet, PacketType, Repr};

/// Copies the padding of `from` to `to`, a packet of the same structure.
fn copy_padding(from: &[u8], to: &mut [u8]) {
    for field in fields_of(from).expect("an assigned type") {
        if field.descriptor.kind == FieldKind::Padding {
            let range = field.range();
            to[range].copy_from_slice(field.bytes);
        }
    }
}

struct Captured {
    /// The recording in the corpus.
    trace: &'static str,
    packet_type: PacketType,
    header: Vec<u8>,
    /// Bytes of data after the header.
    data: usize,
    fields: Vec<(&'static str, u64)>,
}

/// Reads an entry of `captured.txt`.
fn captured(entry: &'static str) -> Captured {
    let hex = |digits| u64::from_str_radix(digits, 16).expect("hexadecimal digits");
    let mut lines = entry.lines();
    let heading: Vec<_> = lines.next().expect("a heading").split(' ').collect();
    let [name, trace, data] = heading[..] else {
        panic!("{heading:?} is not a type, a trace and a length");
    };
    let packet_type = PacketType::ALL
        .iter()
        .find(|known| format!("{known:?}") == name)
        .unwrap_or_else(|| panic!("no packet type {name}"));
    let fields = lines.next().expect("fields").split(' ').map(|field| {
        let (name, value) = field.split_once("=0x").expect("FIELD=0x...");
        (name, hex(value))
    });
    Captured {
        trace,
        packet_type: *packet_type,
        fields: fields.collect(),
        data: data.parse().expect("a length"),
        header: lines
            .flat_map(str::split_whitespace)
            .map(|byte| hex(byte) as u8)
            .collect(),
    }
}

#[test]
fn stock_headers_round_trip_byte_for_byte() {
    let entries = include_str!("captured.txt").split("\n## ").skip(2);
    let entries: Vec<_> = entries.map(captured).collect();
    assert_eq!(entries.len(), 22);
    for captured in entries {
        let name = format!("{} in {}", captured.packet_type, captured.trace);
        let mut bytes = captured.header;
        bytes.resize(bytes.len() + captured.data, 0);
        let packet = Packet::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(packet.header.packet_type(), captured.packet_type, "{name}");
        assert_eq!(packet.payload.length, captured.data, "{name}");

        let mut emitted = packet.header.to_packet(packet.payload.of(&bytes));
        copy_padding(&bytes, &mut emitted);
        assert_eq!(emitted, bytes, "{name}: emitted on the left");

        for (field, value) in captured.fields {
            let found = field_of(&bytes, field);
            let found = found.unwrap_or_else(|| panic!("{name}: no field {field}"));
            let mut word = [0; 8];
            word[..found.bytes.len()].copy_from_slice(found.bytes);
            assert_eq!(u64::from_le_bytes(word), value, "{name}: {field}");
        }
    }
}
