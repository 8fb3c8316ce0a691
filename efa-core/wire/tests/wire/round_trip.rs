//! A packet that is parsed and emitted again is unchanged.

use efa_wire::{BaseHeader, EmitError, Packet, PacketType, Repr};
use proptest::prelude::*;

use crate::recipe::{Recipe, typed};
use crate::strategy::recipe;
use efa_testing::wire_invariants;

fn check(recipe: &Recipe) {
    let bytes = recipe.packet();
    let parsed = Packet::parse(&bytes).unwrap_or_else(|error| panic!("{error}: {bytes:02x?}"));
    let header = parsed.header;
    assert_eq!(header.packet_type(), recipe.packet_type);
    assert_eq!(parsed.payload.of(&bytes), recipe.data);
    assert_eq!(header.header_len() + recipe.data.len(), bytes.len());
    assert_eq!(header.to_packet(&recipe.data), bytes, "emitted on the left");
    assert_eq!(
        parsed.base,
        BaseHeader {
            packet_type: recipe.packet_type,
            version: 4,
            flags: header.wire_flags(),
        }
    );
    assert_eq!(BaseHeader::parse(&bytes), Ok(parsed.base));
    assert_eq!(PacketType::peek(&bytes), Some(recipe.packet_type));
    wire_invariants::check(&bytes);
}

#[test]
fn with_every_optional_part() {
    for packet_type in typed() {
        check(&Recipe::full(packet_type));
    }
}

#[test]
fn with_no_optional_part() {
    for packet_type in typed() {
        check(&Recipe::bare(packet_type));
    }
}

#[test]
fn a_short_buffer_is_refused() {
    for packet_type in typed() {
        let recipe = Recipe::full(packet_type);
        let header = Packet::parse(&recipe.packet()).unwrap().header;
        let needed = header.header_len();
        for available in 0..needed {
            let mut buffer = vec![0xAA; available];
            let refused = Err(EmitError {
                packet_type,
                needed,
                available,
            });
            assert_eq!(header.emit(&mut buffer), refused);
        }
        let mut buffer = vec![0xAA; needed + recipe.data.len() - 1];
        assert_eq!(
            header.emit_packet(&recipe.data, &mut buffer),
            Err(EmitError {
                packet_type,
                needed: buffer.len() + 1,
                available: buffer.len(),
            })
        );
    }
}

#[test]
fn emitting_writes_nothing_behind_the_header() {
    for packet_type in typed() {
        let header = Packet::parse(&Recipe::full(packet_type).packet())
            .unwrap()
            .header;
        let mut buffer = [0xAA; 512];
        let written = header.emit(&mut buffer).unwrap();
        assert!(
            buffer[written..].iter().all(|byte| *byte == 0xAA),
            "{packet_type}"
        );
    }
}

proptest! {
    #[test]
    fn of_any_header(recipe in recipe()) {
        check(&recipe);
    }
}
