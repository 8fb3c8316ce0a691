//! Bytes that nobody promised anything about: no panic, and nothing outside the packet.

use efa_core::wire::fields::fields_of;
use efa_core::wire::{Header, Packet, Reason, Repr};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::parts::{Parts, wire_types};
use crate::strategy::{parts, plausible_packet};

/// Panics if `part` is not inside `whole`. Empty parts may be anywhere.
fn assert_inside<T>(part: &[T], whole: &[u8]) {
    let (part, whole_range) = (part.as_ptr_range(), whole.as_ptr_range());
    let inside = part.start.cast() >= whole_range.start && part.end.cast() <= whole_range.end;
    assert!(
        part.start == part.end || inside,
        "a slice leaves the packet"
    );
}

/// Parses and walks a packet, and checks what must hold for any bytes.
pub(crate) fn check(bytes: &[u8]) {
    let mut end = 0;
    if let Some(mut fields) = fields_of(bytes) {
        for field in fields.by_ref() {
            assert_eq!(field.offset, end, "fields leave no gap");
            assert_inside(field.bytes, bytes);
            end += field.bytes.len();
            let _ = field.to_string();
        }
        let cut = fields.missing().map_or(0, |missing| missing.available);
        assert_eq!(end + cut, bytes.len(), "nothing is left over");
        assert_eq!(fields.rest().len(), bytes.len() - end);
    }
    match Packet::parse(bytes) {
        Ok(packet) => {
            let missing = fields_of(bytes).and_then(|mut fields| {
                fields.by_ref().for_each(drop);
                fields.missing()
            });
            assert_eq!(missing, None, "the walk covers what the parser accepts");
            assert_inside(packet.payload, bytes);
            check_arrays(&packet.header, bytes);
            // Emitting what was understood gives a packet that is understood in the same way.
            let again = packet.header.to_packet(packet.payload);
            let again = Packet::parse(&again).expect("what was emitted parses");
            assert_eq!(again.header, packet.header);
            assert_eq!(again.payload, packet.payload);
        }
        Err(error) => {
            assert!(error.offset <= bytes.len());
            assert!(!error.to_string().is_empty());
            if let Reason::Truncated { needed, available } = error.reason {
                assert_eq!(error.offset + available, bytes.len());
                assert!(needed > available);
            }
        }
    }
}

fn check_arrays(header: &Header<'_>, bytes: &[u8]) {
    let iovs = match header {
        Header::LongreadRtm(repr) => [Some(repr.read_iov), None],
        Header::RuntreadRtm(repr) => [Some(repr.read_iov), None],
        Header::EagerRtw(repr) => [Some(repr.rma_iov), None],
        Header::LongctsRtw(repr) => [Some(repr.rma_iov), None],
        Header::LongreadRtw(repr) => [Some(repr.rma_iov), Some(repr.read_iov)],
        Header::RuntctsRtw(repr) => [Some(repr.rma_iov), None],
        Header::RuntreadRtw(repr) => [Some(repr.rma_iov), Some(repr.read_iov)],
        Header::Rtr(repr) => [Some(repr.rma_iov), None],
        Header::Rta(repr) => [Some(repr.rma_iov), None],
        Header::Handshake(repr) => {
            assert_inside(repr.extra_info.as_slice(), bytes);
            [None, None]
        }
        _ => [None, None],
    };
    for iov in iovs.into_iter().flatten() {
        assert_inside(iov.as_slice(), bytes);
    }
}

#[test]
fn every_truncation_of_every_type() {
    for packet_type in wire_types() {
        let parts = Parts::full(packet_type);
        let header = parts.header();
        let packet = header.to_packet(&parts.payload);
        for length in 0..packet.len() {
            let cut = &packet[..length];
            check(cut);
            if length < header.header_len() {
                assert!(
                    Packet::parse(cut).is_err(),
                    "{packet_type} of {length} bytes has not its whole header"
                );
            }
        }
    }
}

#[test]
fn every_byte_of_every_type_changed() {
    // Values at which counts, sizes and flags change sides.
    let values = [0, 1, 2, 3, 4, 5, 31, 32, 33, 64, 127, 128, 255];
    for packet_type in wire_types() {
        let parts = Parts::full(packet_type);
        let mut packet = parts.header().to_packet(&parts.payload);
        for position in 0..packet.len() {
            let original = packet[position];
            for value in values {
                packet[position] = value;
                check(&packet);
            }
            packet[position] = original;
        }
    }
}

proptest! {
    #[test]
    fn random_bytes(bytes in vec(any::<u8>(), 0..200)) {
        check(&bytes);
    }

    #[test]
    fn bytes_that_look_like_a_packet(bytes in plausible_packet()) {
        check(&bytes);
    }

    #[test]
    fn damaged_packets(
        parts in parts(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        length in any::<prop::sample::Index>(),
        tail in vec(any::<u8>(), 0..40),
    ) {
        let mut packet = parts.header().to_packet(&parts.payload);
        for (position, value) in damage {
            let position = position.index(packet.len());
            packet[position] = value;
        }
        packet.truncate(length.index(packet.len() + 1).max(4));
        packet.extend(tail);
        check(&packet);
    }
}
