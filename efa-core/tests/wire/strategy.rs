//! What property tests draw.

use efa_core::address::{Gid, Qkey, Qpn, RawAddress};
use efa_core::wire::{PacketType, RmaIov};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use crate::parts::{Parts, wire_types};

/// Any header that may be on the wire, with any of its optional parts, and a payload.
pub(crate) fn parts() -> impl Strategy<Value = Parts> {
    let types: Vec<PacketType> = wire_types().collect();
    let optional = (
        option::of(any::<u32>()),
        option::of(any::<u64>()),
        option::of((raw_address(), 32_u32..80)),
        option::of(any::<u64>()),
        option::of(any::<u32>()),
        option::of(any::<(u32, u32)>()),
        option::of(any::<bool>()),
    );
    let arrays = (
        vec(rma_iov(), 0..=4),
        vec(rma_iov(), 0..=4),
        vec(any::<u64>(), 0..=4),
    );
    (
        select(types),
        any::<[u32; 4]>(),
        any::<[u64; 4]>(),
        optional,
        arrays,
        prop_oneof![Just(0), any::<u16>()],
        vec(any::<u8>(), 0..64),
    )
        .prop_map(
            |(packet_type, words, longs, optional, arrays, flags, payload)| Parts {
                packet_type,
                words,
                longs,
                connid: optional.0,
                cq_data: optional.1,
                raw_address: optional.2,
                host_id: optional.3,
                device_version: optional.4,
                user_recv_qp: optional.5,
                hmem_p2p: optional.6,
                rma_iov: arrays.0,
                read_iov: arrays.1,
                extra_info: arrays.2,
                flags,
                payload,
            },
        )
}

fn raw_address() -> impl Strategy<Value = RawAddress> {
    any::<([u8; 16], u16, u32)>().prop_map(|(gid, qpn, qkey)| RawAddress {
        gid: Gid(gid),
        qpn: Qpn(qpn),
        qkey: Qkey(qkey),
    })
}

fn rma_iov() -> impl Strategy<Value = RmaIov> {
    any::<(u64, u64, u64)>().prop_map(|(addr, len, key)| RmaIov::new(addr, len, key))
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
