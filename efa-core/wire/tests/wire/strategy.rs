//! The strategies of property tests.

use efa_wire::PacketType;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::recipe::{Recipe, typed};

/// Any packet that the typed parser takes.
pub(crate) fn recipe() -> impl Strategy<Value = Recipe> {
    (
        select(typed().collect::<Vec<_>>()),
        prop_oneof![Just(0), Just(0x8003), any::<u16>()],
        0..=4_usize,
        32..80_usize,
        any::<u8>(),
        vec(any::<u8>(), 0..64),
    )
        .prop_map(
            |(packet_type, flags, entries, raw_address_size, seed, data)| {
                Recipe {
                    packet_type,
                    flags,
                    entries,
                    raw_address_size,
                    seed,
                    data,
                }
                .of_right_length()
            },
        )
}

/// Bytes that get past the base header more often than not.
pub(crate) fn plausible_packet() -> impl Strategy<Value = Vec<u8>> {
    let types: Vec<u8> = PacketType::ALL.iter().map(|ty| ty.code()).collect();
    let small_words = vec(prop_oneof![0_u32..6, any::<u32>()], 0..40);
    (
        select(types),
        any::<u16>(),
        small_words,
        vec(any::<u8>(), 0..4),
    )
        .prop_map(|(code, flags, words, tail)| {
            let mut packet = vec![code, 4];
            packet.extend(flags.to_le_bytes());
            for word in words {
                packet.extend(word.to_le_bytes());
            }
            packet.extend(tail);
            packet
        })
}
