//! What was emitted parses to the same header and payload.

use efa_core::wire::{BaseHeader, EmitError, Packet, PacketType, Repr};
use proptest::prelude::*;

use crate::invariants;
use crate::parts::{Parts, wire_types};
use crate::strategy::parts;

fn check(parts: &Parts) {
    let header = parts.header();
    assert_eq!(header.packet_type(), parts.packet_type);
    let packet = header.to_packet(&parts.payload);
    assert_eq!(packet.len(), header.header_len() + parts.payload.len());
    let parsed = Packet::parse(&packet).unwrap_or_else(|error| panic!("{error}: {packet:02x?}"));
    assert_eq!(parsed.header, header);
    assert_eq!(parsed.payload.of(&packet), parts.payload);
    assert_eq!(
        parsed.base,
        BaseHeader {
            packet_type: parts.packet_type,
            version: 4,
            flags: header.wire_flags(),
        }
    );
    assert_eq!(BaseHeader::parse(&packet), Ok(parsed.base));
    assert_eq!(PacketType::peek(&packet), Some(parts.packet_type));
    invariants::check(&packet);
}

#[test]
fn with_every_optional_part() {
    for packet_type in wire_types() {
        check(&Parts::full(packet_type));
    }
}

#[test]
fn with_no_optional_part() {
    for packet_type in wire_types() {
        check(&Parts {
            connid: None,
            cq_data: None,
            raw_address: None,
            host_id: None,
            device_version: None,
            user_recv_qp: None,
            hmem_p2p: None,
            rma_iov: Vec::new(),
            read_iov: Vec::new(),
            extra_info: Vec::new(),
            payload: Vec::new(),
            ..Parts::full(packet_type)
        });
    }
}

#[test]
fn a_short_buffer_is_refused_and_stays_as_it_was() {
    for packet_type in wire_types() {
        let parts = Parts::full(packet_type);
        let header = parts.header();
        let needed = header.header_len();
        for available in 0..needed {
            let mut buffer = vec![0xAA; available];
            let refused = Err(EmitError {
                packet_type,
                needed,
                available,
            });
            assert_eq!(header.emit(&mut buffer), refused);
            assert!(buffer.iter().all(|byte| *byte == 0xAA), "{packet_type}");
        }
        let mut buffer = vec![0xAA; needed + parts.payload.len() - 1];
        assert_eq!(
            header.emit_packet(&parts.payload, &mut buffer),
            Err(EmitError {
                packet_type,
                needed: buffer.len() + 1,
                available: buffer.len(),
            })
        );
        assert!(buffer.iter().all(|byte| *byte == 0xAA), "{packet_type}");
    }
}

#[test]
fn emitting_writes_nothing_behind_the_header() {
    for packet_type in wire_types() {
        let parts = Parts::full(packet_type);
        let mut buffer = [0xAA; 512];
        let written = parts.header().emit(&mut buffer).unwrap();
        assert!(
            buffer[written..].iter().all(|byte| *byte == 0xAA),
            "{packet_type}"
        );
    }
}

proptest! {
    #[test]
    fn of_any_header(parts in parts()) {
        check(&parts);
    }
}
