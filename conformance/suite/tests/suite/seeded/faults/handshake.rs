//! Handshake, features, and who is who.

use efa_core::rules;
use efa_core::wire::PacketType as T;

use super::super::fault::Act::*;
use super::super::fault::Caught::*;
use super::super::fault::Change::*;
use super::super::fault::{Fault, all, fault, nth};
use super::read_based::nack;

/// Handshake and features.
pub(super) const FEATURES: &[Fault] = &[
    fault(
        "handshake-never",
        "No HANDSHAKE is sent.",
        ("long-cts", 1),
        Sends(all(T::Handshake), Lost),
        ByCheck(&rules::HANDSHAKE_ANSWER),
    ),
    fault(
        "handshake-twice",
        "HANDSHAKE is sent twice.",
        ("eager-tagged", 1),
        Sends(all(T::Handshake), Twice),
        ByCheck(&rules::HANDSHAKE_ONCE),
    ),
    fault(
        "handshake-count",
        "`nextra_p3` counts words instead of words and three.",
        ("eager-tagged", 1),
        Sends(all(T::Handshake), Sub("nextra_p3", 3)),
        ByCheck(&rules::PACKET_FORM),
    ),
    fault(
        "handshake-overrun",
        "`nextra_p3` counts more words than the packet has.",
        ("eager-tagged", 1),
        Sends(all(T::Handshake), Set("nextra_p3", 900)),
        ByCheck(&rules::PACKET_FORM),
    ),
    fault(
        "handshake-user-recv-qp",
        "The feature \"user receive QP\" is announced without its field.",
        ("eager-tagged", 1),
        Sends(all(T::Handshake), Add("extra_info", 0x80)),
        ByCheck(&rules::HANDSHAKE_FORM),
    ),
    fault(
        "handshake-unheard",
        "The peer's HANDSHAKE is dropped.",
        ("long-read", 0),
        Hears(all(T::Handshake), Lost),
        ByRun(&rules::HANDSHAKE_ANSWER),
    ),
    fault(
        "feature-assumed-long-read",
        "A long read is used with a peer that has not announced RDMA read.",
        ("long-read", 0),
        Hears(all(T::Handshake), Set("extra_info", 0x1b)),
        ByCheck(&rules::FEATURE_ANNOUNCED),
    )
    .with_peers_that_announce(0xa),
    fault(
        "feature-assumed-runt",
        "A runting read is used with a peer that has announced neither that nor RDMA read.",
        ("runting-read", 0),
        Hears(all(T::Handshake), Set("extra_info", 0x1b)),
        ByCheck(&rules::FEATURE_ANNOUNCED),
    )
    .with_peers_that_announce(0xa),
    fault(
        "feature-assumed-dc",
        "Delivery complete is used with a peer that has not announced it.",
        ("delivery-complete", 0),
        Hears(all(T::Handshake), Set("extra_info", 0x1b)),
        ByCheck(&rules::FEATURE_ANNOUNCED),
    )
    .with_peers_that_announce(0x19),
    fault(
        "feature-assumed-read",
        "A direct read is used with a peer that has not announced RDMA read.",
        ("read-direct", 0),
        Hears(all(T::Handshake), Set("extra_info", 0x1b)),
        ByCheck(&rules::RDMA_ANNOUNCED),
    )
    .with_peers_that_announce(0x1a),
    fault(
        "feature-assumed-write",
        "A direct write is used with a peer that has not announced RDMA write.",
        ("releases/write-direct-2.5-2.5", 0),
        Hears(all(T::Handshake), Set("extra_info", 0x7b)),
        ByCheck(&rules::RDMA_ANNOUNCED),
    )
    .with_peers_that_announce(0x5b),
    fault(
        "constant-header-ignored",
        "A request lacks the raw address although the peer asks for headers of constant length.",
        ("ping-pong", 0),
        Hears(all(T::Handshake), Set("extra_info", 0x1b)),
        ByCheck(&rules::CONSTANT_HEADER),
    )
    .with_peers_that_announce(0x1f),
    fault(
        "nack-unannounced",
        "READ_NACK goes to a peer that has not announced it.",
        ("long-read", 1),
        Invents(all(T::LongreadMsgRtm), nack),
        ByCheck(&rules::FEATURE_ANNOUNCED),
    ),
];

/// Addresses and connection ids.
pub(super) const IDENTITY: &[Fault] = &[
    fault(
        "raw-address-never",
        "The first request has no raw address.",
        ("eager-tagged", 0),
        Sends(all(T::EagerTagRtm), Without("raw_addr", 1)),
        ByCheck(&rules::RAW_ADDRESS_FIRST),
    ),
    fault(
        "raw-address-once",
        "Only the first request has the raw address, the second segment has none.",
        ("medium-untagged", 0),
        Sends(nth(T::MediumMsgRtm, 1), Without("raw_addr", 1)),
        ByCheck(&rules::RAW_ADDRESS_FIRST),
    ),
    fault(
        "raw-address-other-qpn",
        "The queue pair number in the raw address is one too high.",
        ("eager-tagged", 0),
        Sends(all(T::EagerTagRtm), Add("raw_addr.qpn", 1)),
        ByCheck(&rules::RAW_ADDRESS_TRUE),
    ),
    fault(
        "raw-address-other-gid",
        "The GID in the raw address is another one.",
        ("eager-untagged", 0),
        Sends(all(T::EagerMsgRtm), Add("raw_addr.gid", 1)),
        ByCheck(&rules::RAW_ADDRESS_TRUE),
    ),
    fault(
        "raw-address-other-connid",
        "The connection id in the raw address is another one.",
        ("ping-pong", 0),
        Sends(nth(T::EagerTagRtm, 0), Add("raw_addr.connid", 1)),
        ByCheck(&rules::CONNID_TRUE),
    ),
    fault(
        "connid-other-in-request",
        "A request carries another connection id than the raw address before.",
        ("ping-pong", 0),
        Sends(nth(T::EagerTagRtm, 1), Add("connid", 1)),
        ByCheck(&rules::CONNID_TRUE),
    ),
    fault(
        "connid-other-in-cts",
        "CTS carries another connection id than the HANDSHAKE.",
        ("long-cts", 1),
        Sends(nth(T::Cts, 0), Add("connid", 1)),
        ByCheck(&rules::CONNID_TRUE),
    ),
    fault(
        "connid-other-in-handshake",
        "HANDSHAKE carries another connection id.",
        ("ping-pong", 0),
        Sends(all(T::Handshake), Add("connid", 1)),
        ByCheck(&rules::CONNID_TRUE),
    ),
    fault(
        "connid-of-the-peer",
        "CTSDATA carries another connection id than the request.",
        ("long-cts", 0),
        Sends(nth(T::CtsData, 0), Add("connid", 1)),
        ByCheck(&rules::CONNID_TRUE),
    ),
];
