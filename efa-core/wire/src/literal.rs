//! Packets as literal bytes, derived by hand from the structures of stock libfabric. They are
//! declared with the formats; this module checks them.

use std::collections::BTreeSet;

use super::fields::fields_of;
use super::{Header, Packet, PacketType, Reason, Repr};

/// The bytes of a packet and their expected meaning.
#[derive(Clone, Debug)]
pub(super) struct Literal {
    bytes: Vec<u8>,
    meaning: ExpectedContent,
    payload: &'static [u8],
}

#[derive(Clone, Debug)]
enum ExpectedContent {
    Header(Box<Header>),
    /// The values of the fields after the base header, where no struct has them.
    Fields(&'static [(&'static str, u64)]),
}

/// A packet of a format that has a struct.
pub(super) fn literal(
    bytes: impl Into<Vec<u8>>,
    header: impl Into<Header>,
    payload: &'static [u8],
) -> Literal {
    Literal {
        bytes: bytes.into(),
        meaning: ExpectedContent::Header(Box::new(header.into())),
        payload,
    }
}

/// A packet of a format that has tables only.
pub(super) fn table_literal(
    bytes: impl Into<Vec<u8>>,
    fields: &'static [(&'static str, u64)],
    payload: &'static [u8],
) -> Literal {
    Literal {
        bytes: bytes.into(),
        meaning: ExpectedContent::Fields(fields),
        payload,
    }
}

impl Literal {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn packet_type(&self) -> Option<PacketType> {
        PacketType::peek(&self.bytes)
    }

    fn check(&self) {
        let bytes = &self.bytes;
        match &self.meaning {
            ExpectedContent::Header(header) => {
                let parsed =
                    Packet::parse(bytes).unwrap_or_else(|error| panic!("{error}: {bytes:02x?}"));
                assert_eq!(parsed.header, **header);
                assert_eq!(parsed.payload.of(bytes), self.payload);
                let emitted = header.to_packet(self.payload);
                assert_eq!(&emitted, bytes, "emitted on the left");
            }
            ExpectedContent::Fields(expected) => {
                let mut walk = fields_of(bytes).expect("an assigned type");
                let fields: Vec<_> = walk.by_ref().skip(3).collect();
                assert_eq!(walk.missing(), None);
                let values: Vec<_> = fields
                    .iter()
                    .filter_map(|field| Some((field.descriptor.name, field.value.as_u64()?)))
                    .collect();
                assert_eq!(values, *expected);
                let data = fields.last().map_or(&[][..], |field| field.bytes);
                assert!(self.payload.is_empty() || data == self.payload);
                let reason = Packet::parse(bytes).expect_err("no struct").reason;
                match reason {
                    Reason::UnsentType { code } => assert_eq!(code, bytes[0]),
                    Reason::OtherForm { length, .. } => assert_eq!(length, bytes.len()),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

/// Checks the literals of one type.
pub(super) fn check(packet_type: PacketType, literals: &[Literal]) {
    for literal in literals {
        assert_eq!(literal.packet_type(), Some(packet_type));
        literal.check();
    }
}

/// Packets as literal bytes: for each type the name of a test, and [`literal`]s.
macro_rules! literals {
    ($($test:ident $packet_type:ident {$($literal:expr,)+})*) => {
        /// All literals of this file.
        pub(crate) fn literals() -> Vec<Literal> {
            vec![$($($literal,)+)*]
        }

        $(
            #[test]
            fn $test() {
                check(PacketType::$packet_type, &[$($literal,)+]);
            }
        )*
    };
}

/// Values that the literals of several formats share.
mod values {
    use super::prelude::*;

    pub(crate) const MSG_ID: MsgId = MsgId(0x0000_0102);
    pub(crate) const SEND_ID: SendId = SendId(0x0403_0201);
    pub(crate) const RECV_ID: RecvId = RecvId(0x0d0c_0b0a);
    pub(crate) const TAG: Option<u64> = Some(0x8877_6655_4433_2211);
    const READ_IOVS: &[RmaIov] = &[RmaIov::new(0x7f00_dead_0000, 0x10_0000, 0x1234_abcd)];
    pub(crate) const READ_IOV: RmaIovs = RmaIovs::new(READ_IOVS).unwrap();

    /// The address in the literals with a raw address header.
    pub(crate) const ADDRESS: RawAddress = RawAddress {
        gid: Gid([
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x04, 0x2a, 0xff, 0xfe, 0x11, 0x22, 0x33, 0x44,
        ]),
        qpn: Qpn(0x0107),
        qkey: Qkey(0x5aa5_0ff0),
    };

    /// Its header as libfabric 1.13.0 and later sends it.
    pub(crate) const STOCK_ADDRESS: RawAddressHeader = RawAddressHeader::new(ADDRESS);

    pub(crate) fn none() -> ReqOptions {
        ReqOptions::default()
    }

    pub(crate) fn connid() -> ReqOptions {
        ReqOptions {
            connid: Some(Connid(0x1234_5678)),
            ..none()
        }
    }
}

pub(super) mod prelude {
    pub(crate) use super::super::{
        AtomRsp, AtomicDatatype, AtomicOp, Connid, Cts, CtsData, CtsFlags, EagerRtm, EagerRtw, Eor,
        ExtraFeatures, ExtraInfo, Handshake, HandshakeFlags, LongctsRtm, LongctsRtw, LongreadRtm,
        LongreadRtw, MediumRtm, MsgId, OpeType, PacketType, PeerError, RawAddressHeader, ReadNack,
        ReadRsp, Receipt, RecvId, ReqFlags, ReqOptions, RmaIov, RmaIovs, Rta, RtaKind, Rtr,
        RtrKind, RuntreadRtm, SendId, UniversalFlags, UserRecvQp,
    };
    pub(crate) use super::values::*;
    pub(crate) use super::{Literal, check, literal, literals, table_literal};
    pub(crate) use crate::address::{Gid, Qkey, Qpn, RawAddress};
}

pub(super) use literals;

/// A new packet type is a declaration in [`formats`](super::formats), a row in
/// [`packet_type`](super::packet_type) and literal bytes; the compiler requires its handler in
/// `efa_core::endpoint`.
#[test]
fn every_type_has_literal_bytes_beside_its_format() {
    let have: BTreeSet<_> = super::formats::literals()
        .iter()
        .filter_map(Literal::packet_type)
        .collect();
    let missing: Vec<_> = PacketType::ALL
        .iter()
        .filter(|packet_type| packet_type.has_format() && !have.contains(packet_type))
        .map(|packet_type| packet_type.name())
        .collect();
    assert!(
        missing.is_empty(),
        "no literal bytes of {missing:?}: add them to `literals!` beside their format in \
         efa-core/wire/src/formats, and that file to `formats::literals`"
    );
}
