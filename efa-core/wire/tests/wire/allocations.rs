//! Parsing, emitting and walking fields allocate nothing, for every packet type: counted.

use std::hint::black_box;

use efa_testing::heap;
use efa_wire::fields::fields_of;
use efa_wire::{Packet, Repr};

use crate::recipe::{Recipe, typed};

#[test]
fn no_packet_type_allocates() {
    for recipe in typed().flat_map(|ty| [Recipe::full(ty), Recipe::bare(ty)]) {
        let packet_type = recipe.packet_type;
        let packet = recipe.packet();
        let header = Packet::parse(&packet).expect("valid").header;
        let mut buffer = [0; 512];
        let counted = heap::allocations_of(|| {
            black_box(header.emit(black_box(&mut buffer))).expect("large enough");
            black_box(Packet::parse(black_box(&packet))).expect("valid");
            for field in fields_of(black_box(&packet)).into_iter().flatten() {
                black_box(field);
            }
        });
        assert_eq!(counted, 0, "{packet_type}");

        // A refusal does not allocate either.
        let counted = heap::allocations_of(|| {
            for length in 0..packet.len() {
                let _ = black_box(Packet::parse(black_box(&packet[..length])));
            }
        });
        assert_eq!(counted, 0, "{packet_type}, truncated");
    }
}
