//! Packet type ids (spec table 1.2, and those that stock libfabric defines beyond it).

use core::fmt;

/// Declares [`PacketType`] together with its tables, so that a type cannot be in one and not in
/// another.
macro_rules! packet_types {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $name:literal, $family:ident;)*) => {
        /// A packet type id: the first byte of every packet (spec table 1.3).
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub enum PacketType {
            $($(#[$doc])* $variant = $code,)*
        }

        impl PacketType {
            /// Every assigned type, in the order of the codes.
            pub const ALL: &'static [PacketType] = &[$(PacketType::$variant,)*];

            /// The type with this code, `None` if the code is not assigned.
            #[inline]
            pub const fn from_code(code: u8) -> Option<PacketType> {
                // A table, because this is on the path of every packet: the jumps into which a
                // match over the codes is compiled are predicted badly when types alternate.
                const BY_CODE: [Option<PacketType>; 256] = {
                    let mut by_code = [None; 256];
                    $(by_code[$code] = Some(PacketType::$variant);)*
                    by_code
                };
                BY_CODE[code as usize]
            }

            /// The nickname in the spelling of spec table 1.2.
            ///
            /// The table misspells 138 as `DC_LONTCTS_TAGRTM`; here it is `DC_LONGCTS_TAGRTM`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(PacketType::$variant => $name,)*
                }
            }

            /// What the packet is used for.
            pub const fn family(self) -> Family {
                match self {
                    $(PacketType::$variant => Family::$family,)*
                }
            }
        }
    };
}

packet_types! {
    /// Request To Send. Retired: a leftover of protocol v3.
    Rts = 1, "RTS", Retired;
    /// Connection acknowledgement. Retired: a leftover of protocol v3.
    Connack = 2, "CONNACK", Retired;
    /// Clear To Send: opens a window of a long-CTS transfer (spec table 3.6).
    Cts = 3, "CTS", Control;
    /// A segment of a long-CTS transfer (spec table 3.7).
    CtsData = 4, "CTSDATA", Control;
    /// Data of an emulated read (spec table 3.11).
    ReadRsp = 5, "READRSP", Control;
    /// The local context of a device RDMA operation in stock libfabric; never on the wire.
    RmaContext = 6, "RMA_CONTEXT", Local;
    /// End Of Read: the peer has read everything by RDMA (spec table 4.2).
    Eor = 7, "EOR", Control;
    /// The result of a fetching atomic (spec table 3.15).
    AtomRsp = 8, "ATOMRSP", Control;
    /// Capabilities of an endpoint (spec table 2.2).
    Handshake = 9, "HANDSHAKE", Control;
    /// Delivery complete (spec section 4.2).
    Receipt = 10, "RECEIPT", Control;
    /// The peer cannot read by RDMA (spec section 4.7).
    ReadNack = 11, "READ_NACK", Control;
    /// A peer abandons an operation. Only on the development branch after libfabric 2.6.0.
    PeerError = 12, "PEER_ERROR", Control;
    /// Eager untagged message (spec table 3.3).
    EagerMsgRtm = 64, "EAGER_MSGRTM", Rtm;
    /// Eager tagged message (spec table 3.3).
    EagerTagRtm = 65, "EAGER_TAGRTM", Rtm;
    /// Segment of a medium untagged message (spec table 3.4).
    MediumMsgRtm = 66, "MEDIUM_MSGRTM", Rtm;
    /// Segment of a medium tagged message (spec table 3.4).
    MediumTagRtm = 67, "MEDIUM_TAGRTM", Rtm;
    /// Start of a long-CTS untagged message (spec table 3.5).
    LongctsMsgRtm = 68, "LONGCTS_MSGRTM", Rtm;
    /// Start of a long-CTS tagged message (spec table 3.5).
    LongctsTagRtm = 69, "LONGCTS_TAGRTM", Rtm;
    /// Emulated eager write (spec table 3.8).
    EagerRtw = 70, "EAGER_RTW", Rtw;
    /// Start of an emulated long-CTS write (spec table 3.9).
    LongctsRtw = 71, "LONGCTS_RTW", Rtw;
    /// Emulated short read (spec table 3.10).
    ShortRtr = 72, "SHORT_RTR", Rtr;
    /// Start of an emulated long-CTS read (spec table 3.12).
    LongctsRtr = 73, "LONGCTS_RTR", Rtr;
    /// Atomic without a result (spec table 3.13).
    WriteRta = 74, "WRITE_RTA", Rta;
    /// Atomic that returns the old value (spec table 3.14).
    FetchRta = 75, "FETCH_RTA", Rta;
    /// Atomic with a comparand that returns the old value (spec table 3.14).
    CompareRta = 76, "COMPARE_RTA", Rta;
    /// Untagged message to be read by RDMA (spec table 4.1).
    LongreadMsgRtm = 128, "LONGREAD_MSGRTM", Rtm;
    /// Tagged message to be read by RDMA (spec table 4.1).
    LongreadTagRtm = 129, "LONGREAD_TAGRTM", Rtm;
    /// Emulated write by an RDMA read of the responder (spec table 4.3).
    LongreadRtw = 130, "LONGREAD_RTW", Rtw;
    /// Defined by stock libfabric with a header of 4 bytes; nothing sends or receives it.
    ReadRtr = 131, "READ_RTR", Rtr;
    /// Eager untagged message with delivery complete.
    DcEagerMsgRtm = 133, "DC_EAGER_MSGRTM", Rtm;
    /// Eager tagged message with delivery complete.
    DcEagerTagRtm = 134, "DC_EAGER_TAGRTM", Rtm;
    /// Segment of a medium untagged message with delivery complete.
    DcMediumMsgRtm = 135, "DC_MEDIUM_MSGRTM", Rtm;
    /// Segment of a medium tagged message with delivery complete.
    DcMediumTagRtm = 136, "DC_MEDIUM_TAGRTM", Rtm;
    /// Start of a long-CTS untagged message with delivery complete.
    DcLongctsMsgRtm = 137, "DC_LONGCTS_MSGRTM", Rtm;
    /// Start of a long-CTS tagged message with delivery complete.
    DcLongctsTagRtm = 138, "DC_LONGCTS_TAGRTM", Rtm;
    /// Emulated eager write with delivery complete.
    DcEagerRtw = 139, "DC_EAGER_RTW", Rtw;
    /// Start of an emulated long-CTS write with delivery complete.
    DcLongctsRtw = 140, "DC_LONGCTS_RTW", Rtw;
    /// Atomic without a result, with delivery complete.
    DcWriteRta = 141, "DC_WRITE_RTA", Rta;
    /// Defined by stock libfabric since 1.16.0; nothing sends it.
    RuntctsMsgRtm = 142, "RUNTCTS_MSGRTM", Rtm;
    /// Defined by stock libfabric since 1.16.0; nothing sends it.
    RuntctsTagRtm = 143, "RUNTCTS_TAGRTM", Rtm;
    /// Defined by stock libfabric since 1.16.0; nothing sends it.
    RuntctsRtw = 144, "RUNTCTS_RTW", Rtw;
    /// Segment of an untagged message whose rest is read by RDMA (spec section 4.5).
    RuntreadMsgRtm = 145, "RUNTREAD_MSGRTM", Rtm;
    /// Segment of a tagged message whose rest is read by RDMA (spec section 4.5).
    RuntreadTagRtm = 146, "RUNTREAD_TAGRTM", Rtm;
    /// Defined by stock libfabric since 1.16.0; nothing sends it.
    RuntreadRtw = 147, "RUNTREAD_RTW", Rtw;
}

/// The groups of spec section 3.1, the packets that are no requests, and the codes that must not
/// appear on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Family {
    /// Not a request: belongs to an operation that a request started, or to the handshake.
    Control,
    /// Request To Message.
    Rtm,
    /// Request To Write.
    Rtw,
    /// Request To Read.
    Rtr,
    /// Request To Atomic.
    Rta,
    /// A code of protocol v3 that v4 does not use any more.
    Retired,
    /// A code that stock libfabric uses in memory only.
    Local,
}

/// The two categories of spec table 1.2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Category {
    /// The first packet of a subprotocol. It may carry optional headers (spec section 3.1).
    Req,
    /// Every other packet.
    NonReq,
}

impl PacketType {
    /// The code, as it is on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The type of a packet, from its first byte alone. `None` if the packet is empty or the code
    /// is not assigned. Nothing else of the packet is looked at.
    #[inline]
    pub const fn peek(packet: &[u8]) -> Option<PacketType> {
        match packet {
            [code, ..] => PacketType::from_code(*code),
            [] => None,
        }
    }

    /// The category of spec table 1.2.
    pub const fn category(self) -> Category {
        match self.family() {
            Family::Rtm | Family::Rtw | Family::Rtr | Family::Rta => Category::Req,
            Family::Control | Family::Retired | Family::Local => Category::NonReq,
        }
    }

    /// Whether the packet starts a subprotocol.
    pub const fn is_req(self) -> bool {
        matches!(self.category(), Category::Req)
    }

    /// Whether the mandatory header ends with a tag.
    #[inline]
    pub const fn is_tagged(self) -> bool {
        use PacketType::*;
        matches!(
            self,
            EagerTagRtm
                | MediumTagRtm
                | LongctsTagRtm
                | LongreadTagRtm
                | DcEagerTagRtm
                | DcMediumTagRtm
                | DcLongctsTagRtm
                | RuntctsTagRtm
                | RuntreadTagRtm
        )
    }

    /// Whether the receiver answers with RECEIPT (spec section 4.2).
    #[inline]
    pub const fn is_delivery_complete(self) -> bool {
        use PacketType::*;
        matches!(
            self,
            DcEagerMsgRtm
                | DcEagerTagRtm
                | DcMediumMsgRtm
                | DcMediumTagRtm
                | DcLongctsMsgRtm
                | DcLongctsTagRtm
                | DcEagerRtw
                | DcLongctsRtw
                | DcWriteRta
        )
    }

    /// Whether application data may follow the headers.
    ///
    /// Packets of the other types end with their headers. Stock receivers do not check that, and
    /// neither does [`Packet::parse`](super::Packet::parse): what follows is kept as the payload.
    pub const fn carries_data(self) -> bool {
        use PacketType::*;
        match self.family() {
            Family::Rtm => !matches!(self, LongreadMsgRtm | LongreadTagRtm),
            Family::Rtw => !matches!(self, LongreadRtw),
            Family::Rta => true,
            Family::Rtr | Family::Retired | Family::Local => false,
            Family::Control => matches!(self, CtsData | ReadRsp | AtomRsp),
        }
    }
}

impl fmt::Display for PacketType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip_and_the_gaps_are_unassigned() {
        let assigned: Vec<u8> = (0..=255)
            .filter(|code| PacketType::from_code(*code).is_some())
            .collect();
        let expected: Vec<u8> = (1..=12)
            .chain(64..=76)
            .chain(128..=131)
            .chain(133..=147)
            .collect();
        assert_eq!(assigned, expected);
        for packet_type in PacketType::ALL {
            assert_eq!(
                PacketType::from_code(packet_type.code()),
                Some(*packet_type)
            );
            assert_eq!(
                packet_type.is_req(),
                packet_type.code() >= 64,
                "{packet_type}"
            );
            assert_eq!(
                packet_type.is_tagged(),
                packet_type.name().contains("TAG"),
                "{packet_type}"
            );
            assert_eq!(
                packet_type.is_delivery_complete(),
                packet_type.name().starts_with("DC_"),
                "{packet_type}"
            );
        }
    }
}
