//! Packet type ids (spec table 1.2, and those that stock libfabric defines beyond it).

use core::fmt;

use super::flags::{ExtraFeatures, ReqFlags};

bitflags::bitflags! {
    /// Traits that distinguish the packet types of one format.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct TypeTraits: u8 {
        /// The mandatory header ends with a tag.
        const TAGGED = 1 << 0;
        /// The receiver answers with RECEIPT (spec section 4.2).
        const DELIVERY_COMPLETE = 1 << 1;
        /// The data of a read comes in windows that CTS grants.
        const WINDOWED = 1 << 2;
        /// The receiver answers an atomic with the old values.
        const FETCHING = 1 << 3;
        /// An atomic has a comparand.
        const COMPARING = 1 << 4;
    }
}

/// Implemented by formats that have packet types.
pub(super) trait TypedFormat {
    /// The type of this format with these traits.
    fn type_with(traits: TypeTraits) -> PacketType;
}

/// The packet types, grouped by their format: ids, names, and everything that is known of a type
/// without looking at a packet. `packet_types!(declare)` hands the rows to the macro `declare`.
///
/// Formats under `tables` have no struct, as no release of libfabric has sent such packets; the
/// types under `none` have no format.
macro_rules! packet_types {
    ($declare:ident $($then:ident)?) => {
        $declare! {
            $($then)?
            formats {
                /// CTS.
                Cts: Control, needs [] {
                    /// Clear To Send: opens a window of a long-CTS transfer (spec table 3.6).
                    Cts = 3, "CTS", [];
                }
                /// CTSDATA.
                CtsData: Control, needs [] {
                    /// A segment of a long-CTS transfer (spec table 3.7).
                    CtsData = 4, "CTSDATA", [];
                }
                /// READRSP.
                ReadRsp: Control, needs [] {
                    /// Data of an emulated read (spec table 3.11).
                    ReadRsp = 5, "READRSP", [];
                }
                /// EOR.
                Eor: Control, needs [] {
                    /// End Of Read: the peer has read everything by RDMA (spec table 4.2).
                    Eor = 7, "EOR", [];
                }
                /// ATOMRSP.
                AtomRsp: Control, needs [] {
                    /// The result of a fetching atomic (spec table 3.15).
                    AtomRsp = 8, "ATOMRSP", [];
                }
                /// HANDSHAKE.
                Handshake: Control, needs [] {
                    /// Capabilities of an endpoint (spec table 2.2).
                    Handshake = 9, "HANDSHAKE", [];
                }
                /// RECEIPT.
                Receipt: Control, needs [] {
                    /// Delivery complete (spec section 4.2).
                    Receipt = 10, "RECEIPT", [];
                }
                /// READ_NACK.
                ReadNack: Control, needs [READ_NACK] {
                    /// The peer cannot read by RDMA (spec section 4.7).
                    ReadNack = 11, "READ_NACK", [];
                }
                /// PEER_ERROR.
                PeerError: Control, needs [PEER_ERROR] {
                    /// A peer aborts its side of a message. Stock libfabric since 2.7.0; not in the
                    /// spec.
                    PeerError = 12, "PEER_ERROR", [];
                }
                /// (DC_)EAGER_MSGRTM, (DC_)EAGER_TAGRTM.
                EagerRtm: Rtm, needs [] {
                    /// Eager untagged message (spec table 3.3).
                    EagerMsgRtm = 64, "EAGER_MSGRTM", [], "Eager message";
                    /// Eager tagged message (spec table 3.3).
                    EagerTagRtm = 65, "EAGER_TAGRTM", [TAGGED], "Eager message";
                    /// Eager untagged message with delivery complete.
                    DcEagerMsgRtm = 133, "DC_EAGER_MSGRTM", [DELIVERY_COMPLETE], "DC Eager message";
                    /// Eager tagged message with delivery complete.
                    DcEagerTagRtm = 134, "DC_EAGER_TAGRTM", [TAGGED | DELIVERY_COMPLETE], "DC Eager message";
                }
                /// (DC_)MEDIUM_MSGRTM, (DC_)MEDIUM_TAGRTM.
                MediumRtm: Rtm, needs [] {
                    /// Segment of a medium untagged message (spec table 3.4).
                    MediumMsgRtm = 66, "MEDIUM_MSGRTM", [], "Medium message";
                    /// Segment of a medium tagged message (spec table 3.4).
                    MediumTagRtm = 67, "MEDIUM_TAGRTM", [TAGGED], "Medium message";
                    /// Segment of a medium untagged message with delivery complete.
                    DcMediumMsgRtm = 135, "DC_MEDIUM_MSGRTM", [DELIVERY_COMPLETE], "DC Medium message";
                    /// Segment of a medium tagged message with delivery complete.
                    DcMediumTagRtm = 136, "DC_MEDIUM_TAGRTM", [TAGGED | DELIVERY_COMPLETE], "DC Medium message";
                }
                /// (DC_)LONGCTS_MSGRTM, (DC_)LONGCTS_TAGRTM.
                LongctsRtm: Rtm, needs [] {
                    /// Start of a long-CTS untagged message (spec table 3.5).
                    LongctsMsgRtm = 68, "LONGCTS_MSGRTM", [], "Long-CTS message";
                    /// Start of a long-CTS tagged message (spec table 3.5).
                    LongctsTagRtm = 69, "LONGCTS_TAGRTM", [TAGGED], "Long-CTS message";
                    /// Start of a long-CTS untagged message with delivery complete.
                    DcLongctsMsgRtm = 137, "DC_LONGCTS_MSGRTM", [DELIVERY_COMPLETE], "DC Long-CTS message";
                    /// Start of a long-CTS tagged message with delivery complete.
                    DcLongctsTagRtm = 138, "DC_LONGCTS_TAGRTM", [TAGGED | DELIVERY_COMPLETE], "DC Long-CTS message";
                }
                /// LONGREAD_MSGRTM, LONGREAD_TAGRTM.
                LongreadRtm: Rtm, needs [RDMA_READ] {
                    /// Untagged message to be read by RDMA (spec table 4.1).
                    LongreadMsgRtm = 128, "LONGREAD_MSGRTM", [], "Long READ message";
                    /// Tagged message to be read by RDMA (spec table 4.1).
                    LongreadTagRtm = 129, "LONGREAD_TAGRTM", [TAGGED], "Long READ message";
                }
                /// RUNTREAD_MSGRTM, RUNTREAD_TAGRTM.
                // A peer that reads by RDMA gets runts as well from libfabric up to 2.5.
                RuntreadRtm: Rtm, needs [RUNTING_READ | RDMA_READ] {
                    /// Segment of an untagged message whose rest is read by RDMA (spec section
                    /// 4.5).
                    RuntreadMsgRtm = 145, "RUNTREAD_MSGRTM", [], "Runting read message";
                    /// Segment of a tagged message whose rest is read by RDMA (spec section 4.5).
                    RuntreadTagRtm = 146, "RUNTREAD_TAGRTM", [TAGGED], "Runting read message";
                }
                /// (DC_)EAGER_RTW.
                EagerRtw: Rtw, needs [] {
                    /// Emulated eager write (spec table 3.8).
                    EagerRtw = 70, "EAGER_RTW", [], "Emulated eager write";
                    /// Emulated eager write with delivery complete.
                    DcEagerRtw = 139, "DC_EAGER_RTW", [DELIVERY_COMPLETE], "Emulated DC eager write";
                }
                /// (DC_)LONGCTS_RTW.
                LongctsRtw: Rtw, needs [] {
                    /// Start of an emulated long-CTS write (spec table 3.9).
                    LongctsRtw = 71, "LONGCTS_RTW", [], "Emulated long-CTS write";
                    /// Start of an emulated long-CTS write with delivery complete.
                    DcLongctsRtw = 140, "DC_LONGCTS_RTW", [DELIVERY_COMPLETE], "Emulated DC long-CTS write";
                }
                /// LONGREAD_RTW.
                LongreadRtw: Rtw, needs [RDMA_READ] {
                    /// Emulated write by an RDMA read of the responder (spec table 4.3).
                    LongreadRtw = 130, "LONGREAD_RTW", [], "Emulated long-read write";
                }
                /// SHORT_RTR, LONGCTS_RTR.
                Rtr: Rtr, needs [] {
                    /// Emulated short read (spec table 3.10).
                    ShortRtr = 72, "SHORT_RTR", [], "Emulated short read";
                    /// Start of an emulated long-CTS read (spec table 3.12).
                    LongctsRtr = 73, "LONGCTS_RTR", [WINDOWED], "Emulated long-CTS read";
                }
                /// WRITE_RTA, FETCH_RTA, COMPARE_RTA, DC_WRITE_RTA.
                Rta: Rta, needs [] {
                    /// Atomic without a result (spec table 3.13).
                    WriteRta = 74, "WRITE_RTA", [], "Emulated atomic";
                    /// Atomic that returns the old value (spec table 3.14).
                    FetchRta = 75, "FETCH_RTA", [FETCHING], "Emulated fetch atomic";
                    /// Atomic with a comparand that returns the old value (spec table 3.14).
                    CompareRta = 76, "COMPARE_RTA", [FETCHING | COMPARING], "Emulated compare atomic";
                    /// Atomic without a result, with delivery complete.
                    DcWriteRta = 141, "DC_WRITE_RTA", [DELIVERY_COMPLETE], "Emulated DC atomic";
                }
            }
            tables {
                RuntctsRtm: Rtm {
                    /// Defined by stock libfabric since 1.16.0; nothing sends it.
                    RuntctsMsgRtm = 142, "RUNTCTS_MSGRTM", [], "Runting CTS message";
                    /// Defined by stock libfabric since 1.16.0; nothing sends it.
                    RuntctsTagRtm = 143, "RUNTCTS_TAGRTM", [TAGGED], "Runting CTS message";
                }
                RuntctsRtw: Rtw {
                    /// Defined by stock libfabric since 1.16.0; nothing sends it.
                    RuntctsRtw = 144, "RUNTCTS_RTW", [], "Runting CTS write";
                }
                RuntreadRtw: Rtw {
                    /// Defined by stock libfabric since 1.16.0; nothing sends it.
                    RuntreadRtw = 147, "RUNTREAD_RTW", [], "Runting read write";
                }
                ReadRtr: Rtr {
                    /// Defined by stock libfabric with a header of 4 bytes; nothing sends or
                    /// receives it.
                    ReadRtr = 131, "READ_RTR", [];
                }
            }
            none {
                Retired, RetiredType {
                    /// Request To Send. Retired: a leftover of protocol v3.
                    Rts = 1, "RTS";
                    /// Connection acknowledgement. Retired: a leftover of protocol v3.
                    Connack = 2, "CONNACK";
                }
                Local, LocalType {
                    /// The local context of a device RDMA operation in stock libfabric; never on
                    /// the wire.
                    RmaContext = 6, "RMA_CONTEXT";
                }
            }
        }
    };
}

/// `packet_types!(by_format declare)` hands only the names of formats and types to the macro
/// `declare`.
macro_rules! by_format {
    (
        $declare:ident
        formats {$(
            $(#[$format_doc:meta])*
            $format:ident: $family:ident, needs $features:tt {$(
                $(#[$doc:meta])* $variant:ident = $code:literal, $name:literal, $traits:tt $(, $starts:literal)?;
            )*}
        )*}
        tables {$(
            $table:ident: $table_family:ident {$(
                $(#[$table_doc:meta])*
                $table_variant:ident = $table_code:literal, $table_name:literal,
                    $table_traits:tt $(, $table_starts:literal)?;
            )*}
        )*}
        none {$(
            $none_family:ident, $none_reason:ident {$(
                $(#[$none_doc:meta])* $none_variant:ident = $none_code:literal, $none_name:literal;
            )*}
        )*}
    ) => {
        $declare! {
            formats {$( $(#[$format_doc])* $format: $($variant)*; )*}
            tables {$( $table: $($table_variant)*; )*}
            none {$( $none_reason: $($none_variant)*; )*}
        }
    };
}

pub(super) use {by_format, packet_types};

/// Declares [`PacketType`] and the properties of each type from its row.
macro_rules! declare_types {
    (
        formats {$(
            $(#[$format_doc:meta])*
            $format:ident: $family:ident, needs [$($feature:ident)|*] {$(
                $(#[$doc:meta])* $variant:ident = $code:literal, $name:literal, [$($trait:ident)|*] $(, $starts:literal)?;
            )*}
        )*}
        tables {$(
            $table:ident: $table_family:ident {$(
                $(#[$table_doc:meta])*
                $table_variant:ident = $table_code:literal, $table_name:literal,
                    [$($table_trait:ident)|*] $(, $table_starts:literal)?;
            )*}
        )*}
        none {$(
            $none_family:ident, $none_reason:ident {$(
                $(#[$none_doc:meta])* $none_variant:ident = $none_code:literal, $none_name:literal;
            )*}
        )*}
    ) => {
        /// A packet type id: the first byte of every packet (spec table 1.3).
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub enum PacketType {
            $($($(#[$doc])* $variant = $code,)*)*
            $($($(#[$table_doc])* $table_variant = $table_code,)*)*
            $($($(#[$none_doc])* $none_variant = $none_code,)*)*
        }

        /// The types by their codes. A table, because this is on the path of every packet: the
        /// jumps into which a match over the codes is compiled are predicted badly when types
        /// alternate.
        const BY_CODE: [Option<PacketType>; 256] = {
            let mut by_code = [None; 256];
            $($(by_code[$code] = Some(PacketType::$variant);)*)*
            $($(by_code[$table_code] = Some(PacketType::$table_variant);)*)*
            $($(by_code[$none_code] = Some(PacketType::$none_variant);)*)*
            by_code
        };

        impl PacketType {
            /// The nickname in the spelling of spec table 1.2.
            ///
            /// The table misspells 138 as `DC_LONTCTS_TAGRTM`; here it is `DC_LONGCTS_TAGRTM`.
            pub const fn name(self) -> &'static str {
                match self {
                    $($(PacketType::$variant => $name,)*)*
                    $($(PacketType::$table_variant => $table_name,)*)*
                    $($(PacketType::$none_variant => $none_name,)*)*
                }
            }

            /// A name for the operation that a request of this type starts: `Eager message`.
            pub const fn starts(self) -> Option<&'static str> {
                match self {
                    $($($(PacketType::$variant => Some($starts),)?)*)*
                    $($($(PacketType::$table_variant => Some($table_starts),)?)*)*
                    _ => None,
                }
            }

            /// The group of the type.
            pub const fn family(self) -> Family {
                match self {
                    $($(PacketType::$variant)|* => Family::$family,)*
                    $($(PacketType::$table_variant)|* => Family::$table_family,)*
                    $($(PacketType::$none_variant)|* => Family::$none_family,)*
                }
            }

            /// Traits that distinguish the type from others of its format.
            #[inline(always)]
            pub const fn traits(self) -> TypeTraits {
                // A table, for the same reason as the table of codes.
                const TRAITS: [TypeTraits; 256] = {
                    let mut traits = [TypeTraits::empty(); 256];
                    $($(traits[$code] = TypeTraits::empty()$(.union(TypeTraits::$trait))*;)*)*
                    $($(traits[$table_code] = TypeTraits::empty()$(.union(TypeTraits::$table_trait))*;)*)*
                    traits
                };
                TRAITS[self as usize]
            }

            /// The receiver must have announced at least one of these extra features; empty if
            /// every receiver accepts such packets.
            pub const fn needs_any_of(self) -> ExtraFeatures {
                if self.is_delivery_complete() {
                    return ExtraFeatures::DELIVERY_COMPLETE;
                }
                match self {
                    $($(PacketType::$variant)|* => {
                        ExtraFeatures::empty()$(.union(ExtraFeatures::$feature))*
                    })*
                    $($(PacketType::$table_variant)|* => ExtraFeatures::empty(),)*
                    $($(PacketType::$none_variant)|* => ExtraFeatures::empty(),)*
                }
            }

            /// Returns whether [`Header`](super::Header) has a variant for it. Parsing refuses
            /// packets of the other types.
            pub const fn has_header(self) -> bool {
                matches!(self, $($(PacketType::$variant)|*)|*)
            }
        }
    };
}

packet_types!(declare_types);

/// The groups of spec section 3.1, the packets other than requests, and the codes that must not
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

/// The meanings that the flags of the base header have, by packet type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FlagSet {
    /// [`UniversalFlags`](super::UniversalFlags).
    Universal,
    /// [`ReqFlags`].
    Req,
    /// [`CtsFlags`](super::CtsFlags).
    Cts,
    /// [`HandshakeFlags`](super::HandshakeFlags).
    Handshake,
}

impl Family {
    /// Flags that stock libfabric sets on every packet of the family, and 1.11.0 relies on.
    const fn implied_flags(self) -> ReqFlags {
        match self {
            Family::Rtm => ReqFlags::MSG,
            Family::Rta => ReqFlags::ATOMIC,
            _ => ReqFlags::empty(),
        }
    }
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
    /// Every assigned type, in the order of the codes.
    pub const ALL: &'static [PacketType] = {
        const COUNT: usize = {
            let (mut count, mut code) = (0, 0);
            while code < BY_CODE.len() {
                count += BY_CODE[code].is_some() as usize;
                code += 1;
            }
            count
        };
        const SORTED: [PacketType; COUNT] = {
            let mut sorted = [PacketType::Rts; COUNT];
            let (mut count, mut code) = (0, 0);
            while code < BY_CODE.len() {
                if let Some(packet_type) = BY_CODE[code] {
                    sorted[count] = packet_type;
                    count += 1;
                }
                code += 1;
            }
            sorted
        };
        &SORTED
    };

    /// The type with this code, `None` if the code is not assigned.
    #[inline]
    pub const fn from_code(code: u8) -> Option<PacketType> {
        BY_CODE[code as usize]
    }

    /// The code, as it is on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The type of a packet, from its first byte alone. `None` if the packet is empty or the code
    /// is not assigned. The rest of the packet is not read.
    #[inline]
    pub const fn peek(packet: &[u8]) -> Option<PacketType> {
        match packet {
            [code, ..] => PacketType::from_code(*code),
            [] => None,
        }
    }

    /// Returns whether the type has one of these traits.
    #[inline]
    pub const fn is(self, traits: TypeTraits) -> bool {
        self.traits().intersects(traits)
    }

    /// The set of flags that the base header of this type may have.
    pub const fn flag_set(self) -> FlagSet {
        match self {
            PacketType::Handshake => FlagSet::Handshake,
            PacketType::Cts => FlagSet::Cts,
            _ if self.is_req() => FlagSet::Req,
            _ => FlagSet::Universal,
        }
    }

    /// The flags that every packet of this type has: those of its family, and the tag's.
    #[inline(always)]
    pub const fn implied_flags(self) -> ReqFlags {
        // A table, for the same reason as the table of codes.
        const IMPLIED: [ReqFlags; 256] = {
            let mut implied = [ReqFlags::empty(); 256];
            let mut index = 0;
            while index < PacketType::ALL.len() {
                let packet_type = PacketType::ALL[index];
                let tagged = match packet_type.is_tagged() {
                    true => ReqFlags::TAGGED,
                    false => ReqFlags::empty(),
                };
                implied[packet_type as usize] = packet_type.family().implied_flags().union(tagged);
                index += 1;
            }
            implied
        };
        IMPLIED[self as usize]
    }

    /// Flags that contradict the type: flags of other kinds of communication (two-sided, tagged,
    /// one-sided, atomic), and the flag of an answer to a READ_NACK.
    pub const fn excluded_flags(self) -> ReqFlags {
        const PURPOSES: ReqFlags = ReqFlags::MSG
            .union(ReqFlags::TAGGED)
            .union(ReqFlags::RMA)
            .union(ReqFlags::ATOMIC)
            .union(ReqFlags::READ_NACK);
        let possible = match self.family() {
            Family::Rtm if self.may_answer_read_nack() => ReqFlags::READ_NACK,
            Family::Rtw | Family::Rtr => ReqFlags::RMA,
            Family::Control => return ReqFlags::empty(),
            _ => ReqFlags::empty(),
        };
        PURPOSES.difference(possible.union(self.implied_flags()))
    }

    /// Returns whether messages whose read was refused continue with packets of this type.
    const fn may_answer_read_nack(self) -> bool {
        matches!(
            self,
            PacketType::LongctsMsgRtm
                | PacketType::LongctsTagRtm
                | PacketType::DcLongctsMsgRtm
                | PacketType::DcLongctsTagRtm
        )
    }

    /// Returns whether packets of this type have a format; the others must not be on the wire.
    pub const fn has_format(self) -> bool {
        !matches!(self.family(), Family::Retired | Family::Local)
    }

    /// The category of spec table 1.2.
    pub const fn category(self) -> Category {
        match self.family() {
            Family::Rtm | Family::Rtw | Family::Rtr | Family::Rta => Category::Req,
            Family::Control | Family::Retired | Family::Local => Category::NonReq,
        }
    }

    /// Returns whether the packet starts a subprotocol.
    pub const fn is_req(self) -> bool {
        matches!(self.category(), Category::Req)
    }

    /// Returns whether its receiver can recognise a duplicate: by the `msg_id`, by message bytes
    /// that have already arrived, or by the progress of its own operation. A request to read or
    /// write carries only an operation id of its sender, which the sender may reuse at once, and
    /// all windows (CTS) look alike.
    pub const fn shows_second_copies(self) -> bool {
        !matches!(self.family(), Family::Rtw | Family::Rtr) && !matches!(self, PacketType::Cts)
    }

    /// Returns whether the mandatory header ends with a tag.
    #[inline]
    pub const fn is_tagged(self) -> bool {
        self.traits().contains(TypeTraits::TAGGED)
    }

    /// Returns whether the receiver answers with RECEIPT (spec section 4.2).
    #[inline]
    pub const fn is_delivery_complete(self) -> bool {
        self.traits().contains(TypeTraits::DELIVERY_COMPLETE)
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
