//! Arbitrary bytes: no panic, no access outside of the packet, and the typed parser and the tables
//! of fields agree.

use efa_wire::{Packet, PacketType, Repr};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::recipe::{Recipe, typed};
use crate::strategy::{plausible_packet, recipe};
use efa_testing::wire_invariants::check;

#[test]
fn every_truncation_of_every_type() {
    for packet_type in typed() {
        let packet = Recipe::full(packet_type).packet();
        let header = Packet::parse(&packet).unwrap().header;
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
    for packet_type in PacketType::ALL {
        let mut packet = Recipe::full(*packet_type).packet();
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
        recipe in recipe(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        length in any::<prop::sample::Index>(),
        tail in vec(any::<u8>(), 0..40),
    ) {
        let mut packet = recipe.packet();
        for (position, value) in damage {
            let position = position.index(packet.len());
            packet[position] = value;
        }
        packet.truncate(length.index(packet.len() + 1).max(4));
        packet.extend(tail);
        check(&packet);
    }
}
