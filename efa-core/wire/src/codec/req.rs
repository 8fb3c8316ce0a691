//! The optional headers that all request packets share (spec section 3.1).

use crate::address::RawAddress;

use super::output::Length;
use super::prelude::*;
use super::raw_address::RawAddressHeader;

const CQ_DATA_HDR: u16 = ReqFlags::CQ_DATA_HDR.bits();

fields! {
    /// The optional headers of a request, in the order in which they follow the mandatory header.
    ///
    /// Stock libfabric asserts that raw address and connid are not both present; the spec allows
    /// it, and so does the parser. Send only one.
    ReqOptions, section("3.1");
    /// Senders add it until the peer's handshake has arrived (spec section 2.2).
    pub raw_address: Option<RawAddressHeader>, "raw address of the sender";
    /// The wire has always 64 bits for it.
    pub cq_data: Option<u64>, { when: FieldCondition::Flag(CQ_DATA_HDR), kind: HEX }
        "data for the completion at the target";
    pub connid: Option<Connid>, { when: FieldCondition::Flag(CONNID_HDR), source: section("4.4") }
        "connection id of the sender";
    pub flags: ReqFlags,
        "Flags beyond those that follow from the packet type and from the fields above.";
}

impl ReqOptions {
    /// Only the raw address of the sender.
    #[inline]
    pub const fn with_raw_address(address: RawAddress) -> Self {
        ReqOptions {
            raw_address: Some(RawAddressHeader::new(address)),
            cq_data: None,
            connid: None,
            flags: ReqFlags::empty(),
        }
    }

    /// Only the connection id of the sender.
    #[inline]
    pub const fn with_connid(connid: Connid) -> Self {
        ReqOptions {
            raw_address: None,
            cq_data: None,
            connid: Some(connid),
            flags: ReqFlags::empty(),
        }
    }

    /// Bytes on the wire.
    #[inline]
    pub fn wire_len(&self) -> usize {
        let mut length = Length(0);
        Fields::write(self, &mut length);
        length.0
    }

    /// The sender's connection id. A request without one may have it as the Q-key of its raw
    /// address.
    #[inline(always)]
    pub fn sender_connid(&self) -> Option<Connid> {
        match (self.connid, &self.raw_address) {
            (None, Some(header)) => Some(header.address().qkey.into()),
            (connid, _) => connid,
        }
    }
}

impl Part for ReqOptions {
    const SHAPE: Shape = Shape::Sections(Lines::<ReqOptions>::ALL);

    #[inline(always)]
    fn parse(_line: &Line, cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        Fields::parse(cursor)
    }

    #[inline(always)]
    fn write(&self, _line: &Line, output: &mut impl Output) {
        Fields::write(self, output);
    }

    #[inline(always)]
    fn req_options(&self) -> Option<&ReqOptions> {
        Some(self)
    }

    #[inline(always)]
    fn connid(&self) -> Option<Connid> {
        self.sender_connid()
    }
}
