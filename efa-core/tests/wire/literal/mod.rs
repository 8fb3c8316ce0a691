//! Packets as literal bytes, one or more of each type.
//!
//! Each family of packets has a file with bytes worked out by hand from the structures of stock
//! libfabric; [`captured`] has what stock libfabric sent, for the types that the corpus holds.

mod captured;
mod control;
mod handshake;
mod rtm;
mod rtr_rta;
mod rtw;

use std::collections::BTreeSet;

use efa_core::address::{Gid, Qkey, Qpn, RawAddress};
use efa_core::wire::fields::{Kind, fields_of};
use efa_core::wire::{Header, Packet, PacketType, RawAddressHeader, Repr};

use crate::parts::wire_types;

/// A packet, and what it means.
pub(crate) struct Literal {
    pub bytes: Vec<u8>,
    pub header: Header,
    pub payload: &'static [u8],
}

/// A packet that was worked out by hand.
fn derived(
    bytes: impl Into<Vec<u8>>,
    header: impl Into<Header>,
    payload: &'static [u8],
) -> Literal {
    Literal {
        bytes: bytes.into(),
        header: header.into(),
        payload,
    }
}

/// The address in the literals with a raw address header.
const ADDRESS: RawAddress = RawAddress {
    gid: Gid([
        0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x04, 0x2a, 0xff, 0xfe, 0x11, 0x22, 0x33, 0x44,
    ]),
    qpn: Qpn(0x0107),
    qkey: Qkey(0x5aa5_0ff0),
};

/// Its header as libfabric 1.13.0 and later sends it.
const STOCK_ADDRESS: RawAddressHeader = RawAddressHeader::new(ADDRESS);

fn literals() -> impl Iterator<Item = Literal> {
    control::literals()
        .into_iter()
        .chain(handshake::literals())
        .chain(rtm::literals())
        .chain(rtw::literals())
        .chain(rtr_rta::literals())
}

fn check(packet_type: PacketType) {
    let mut checked = 0;
    for literal in literals().filter(|literal| literal.header.packet_type() == packet_type) {
        let parsed = Packet::parse(&literal.bytes)
            .unwrap_or_else(|error| panic!("{error}: {:02x?}", literal.bytes));
        assert_eq!(parsed.header, literal.header);
        assert_eq!(parsed.payload.of(&literal.bytes), literal.payload);
        let emitted = literal.header.to_packet(literal.payload);
        assert_eq!(emitted, literal.bytes, "emitted on the left");
        checked += 1;
    }
    assert_ne!(checked, 0, "there is no literal of {packet_type}");
}

/// Makes the padding of `to` that of `from`, a packet of the same structure.
fn copy_padding(from: &[u8], to: &mut [u8]) {
    for field in fields_of(from).expect("an assigned type") {
        if field.descriptor.kind == Kind::Padding {
            let range = field.offset..field.offset + field.bytes.len();
            to[range].copy_from_slice(field.bytes);
        }
    }
}

macro_rules! one_test_for_each_type {
    ($($test:ident $packet_type:ident,)*) => {
        $(
            #[test]
            fn $test() {
                check(PacketType::$packet_type);
            }
        )*

        #[test]
        fn no_type_is_forgotten() {
            let tested = BTreeSet::from([$(PacketType::$packet_type),*]);
            assert_eq!(tested, wire_types().collect());
        }
    };
}

one_test_for_each_type! {
    cts Cts,
    ctsdata CtsData,
    readrsp ReadRsp,
    eor Eor,
    atomrsp AtomRsp,
    handshake_packet Handshake,
    receipt Receipt,
    read_nack ReadNack,
    peer_error PeerError,
    eager_msgrtm EagerMsgRtm,
    eager_tagrtm EagerTagRtm,
    medium_msgrtm MediumMsgRtm,
    medium_tagrtm MediumTagRtm,
    longcts_msgrtm LongctsMsgRtm,
    longcts_tagrtm LongctsTagRtm,
    eager_rtw EagerRtw,
    longcts_rtw LongctsRtw,
    short_rtr ShortRtr,
    longcts_rtr LongctsRtr,
    write_rta WriteRta,
    fetch_rta FetchRta,
    compare_rta CompareRta,
    longread_msgrtm LongreadMsgRtm,
    longread_tagrtm LongreadTagRtm,
    longread_rtw LongreadRtw,
    read_rtr ReadRtr,
    dc_eager_msgrtm DcEagerMsgRtm,
    dc_eager_tagrtm DcEagerTagRtm,
    dc_medium_msgrtm DcMediumMsgRtm,
    dc_medium_tagrtm DcMediumTagRtm,
    dc_longcts_msgrtm DcLongctsMsgRtm,
    dc_longcts_tagrtm DcLongctsTagRtm,
    dc_eager_rtw DcEagerRtw,
    dc_longcts_rtw DcLongctsRtw,
    dc_write_rta DcWriteRta,
    runtcts_msgrtm RuntctsMsgRtm,
    runtcts_tagrtm RuntctsTagRtm,
    runtcts_rtw RuntctsRtw,
    runtread_msgrtm RuntreadMsgRtm,
    runtread_tagrtm RuntreadTagRtm,
    runtread_rtw RuntreadRtw,
}
