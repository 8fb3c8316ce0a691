//! Every packet type of the EFA RDM protocol v4.
//!
//! [`Packet::parse`] turns a borrowed byte slice into a [`Header`], which is an enum of plain
//! `Copy` structs, and the place of the payload behind it. Nothing is copied but the fields of the
//! header, and nothing is allocated. The same structs are what [`Repr::emit`] writes into a caller's buffer; the exact
//! length is known before ([`Repr::header_len`]). Payload is not part of a header, because devices
//! gather it from user memory.
//!
//! ```
//! use efa_core::wire::{EagerRtm, Header, MsgId, Packet, Repr};
//!
//! let eager = EagerRtm { msg_id: MsgId(7), tag: Some(0xCAFE), ..EagerRtm::default() };
//! let mut buffer = [0; 64];
//! let length = eager.emit_packet(b"hello", &mut buffer)?;
//! assert_eq!(length, eager.header_len() + 5);
//!
//! let packet = Packet::parse(&buffer[..length])?;
//! assert_eq!(packet.header, Header::EagerRtm(eager));
//! assert_eq!(packet.payload.of(&buffer[..length]), b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is accepted
//!
//! Parsing checks the form of a packet and nothing else: that every field is inside the packet,
//! that arrays are not longer than receivers can take, and that a stated length of data is the
//! true one. Unknown flags are kept, so are bytes behind the last known field of HANDSHAKE. Where
//! the spec and stock libfabric disagree about bytes, this module does as stock libfabric does, and
//! the struct says so. All integers are little-endian.

mod atomic;
mod codec;
mod control;
mod error;
pub mod fields;
mod flags;
mod handshake;
mod ids;
mod iov;
mod packet_type;
mod req;
mod rta;
mod rtm;
mod rtr;
mod rtw;

pub use atomic::{AtomicDatatype, AtomicOp};
pub use codec::Repr;
pub use control::{
    AtomRsp, Cts, CtsData, Eor, PeerError, PeerErrorRefKind, ReadNack, ReadRsp, Receipt,
};
pub use error::{EmitError, ParseError, Reason};
pub use flags::{CtsFlags, ExtraFeatures, HandshakeFlags, ReqFlags, UniversalFlags};
pub use handshake::{Handshake, UserRecvQp};
pub use ids::{Connid, MsgId, RecvId, SendId};
pub use iov::{ExtraInfo, RmaIov, RmaIovs};
pub use packet_type::{Category, Family, PacketType};
pub use req::{RawAddressHeader, ReqOptions};
pub use rta::{Rta, RtaKind};
pub use rtm::{EagerRtm, LongctsRtm, LongreadRtm, MediumRtm, RuntctsRtm, RuntreadRtm};
pub use rtr::{ReadRtr, Rtr, RtrKind};
pub use rtw::{EagerRtw, LongctsRtw, LongreadRtw, RuntctsRtw, RuntreadRtw};

use zerocopy::FromBytes;

use crate::address::RawAddress;
use codec::{Cursor, RawBase, Writer, sealed};

/// The version in the base header of every packet.
pub const PROTOCOL_VERSION: u8 = 4;

/// The first four bytes of every packet (spec table 1.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BaseHeader {
    /// The packet type.
    pub packet_type: PacketType,
    /// The protocol version.
    pub version: u8,
    /// All flags as they are on the wire; their meaning depends on the packet type.
    pub flags: u16,
}

impl BaseHeader {
    /// Bytes on the wire.
    pub const LEN: usize = size_of::<RawBase>();

    /// Reads the base header of any packet of an assigned type, whatever its version.
    ///
    /// # Errors
    /// If the packet is shorter than four bytes or the type id is not assigned.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<BaseHeader, ParseError> {
        split_base(packet).map(|(base, _)| base)
    }
}

/// A parsed packet, as a value that does not depend on the packet's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// The base header as it was received, with all flags.
    pub base: BaseHeader,
    /// The fields of the header.
    pub header: Header,
    /// What follows the header: application data where [`PacketType::carries_data`], otherwise bytes
    /// that this version of the protocol does not know, normally none.
    pub payload: Payload,
}

/// Where the payload of a packet is: it is what the packet ends with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Payload {
    /// Bytes in front of it, which are those of the header.
    pub offset: usize,
    /// Its length in bytes.
    pub length: usize,
}

impl Payload {
    /// The payload's bytes, given those of the packet that was parsed.
    pub fn of<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        packet.get(self.offset..).unwrap_or_default()
    }
}

/// Declares [`Header`] and what it forwards to its variants.
macro_rules! headers {
    ($($(#[$doc:meta])* $variant:ident($repr:ty),)*) => {
        /// The header of a packet, by layout. Types that differ in tag or delivery complete only
        /// share a variant.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Header {
            $($(#[$doc])* $variant($repr),)*
        }

        $(
            impl From<$repr> for Header {
                fn from(repr: $repr) -> Self {
                    Header::$variant(repr)
                }
            }
        )*

        impl Repr for Header {
            fn packet_type(&self) -> PacketType {
                match self {
                    $(Header::$variant(repr) => repr.packet_type(),)*
                }
            }

            fn wire_flags(&self) -> u16 {
                match self {
                    $(Header::$variant(repr) => repr.wire_flags(),)*
                }
            }

            fn header_len(&self) -> usize {
                match self {
                    $(Header::$variant(repr) => repr.header_len(),)*
                }
            }

            fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
                match self {
                    $(Header::$variant(repr) => repr.emit(buffer),)*
                }
            }
        }

        impl sealed::Fields for Header {
            fn write_fields(&self, writer: &mut Writer<'_>) {
                match self {
                    $(Header::$variant(repr) => repr.write_fields(writer),)*
                }
            }
        }
    };
}

headers! {
    /// CTS.
    Cts(Cts),
    /// CTSDATA.
    CtsData(CtsData),
    /// READRSP.
    ReadRsp(ReadRsp),
    /// EOR.
    Eor(Eor),
    /// ATOMRSP.
    AtomRsp(AtomRsp),
    /// HANDSHAKE.
    Handshake(Handshake),
    /// RECEIPT.
    Receipt(Receipt),
    /// READ_NACK.
    ReadNack(ReadNack),
    /// PEER_ERROR.
    PeerError(PeerError),
    /// (DC_)EAGER_MSGRTM, (DC_)EAGER_TAGRTM.
    EagerRtm(EagerRtm),
    /// (DC_)MEDIUM_MSGRTM, (DC_)MEDIUM_TAGRTM.
    MediumRtm(MediumRtm),
    /// (DC_)LONGCTS_MSGRTM, (DC_)LONGCTS_TAGRTM.
    LongctsRtm(LongctsRtm),
    /// LONGREAD_MSGRTM, LONGREAD_TAGRTM.
    LongreadRtm(LongreadRtm),
    /// RUNTREAD_MSGRTM, RUNTREAD_TAGRTM.
    RuntreadRtm(RuntreadRtm),
    /// RUNTCTS_MSGRTM, RUNTCTS_TAGRTM.
    RuntctsRtm(RuntctsRtm),
    /// (DC_)EAGER_RTW.
    EagerRtw(EagerRtw),
    /// (DC_)LONGCTS_RTW.
    LongctsRtw(LongctsRtw),
    /// LONGREAD_RTW.
    LongreadRtw(LongreadRtw),
    /// RUNTCTS_RTW.
    RuntctsRtw(RuntctsRtw),
    /// RUNTREAD_RTW.
    RuntreadRtw(RuntreadRtw),
    /// SHORT_RTR, LONGCTS_RTR.
    Rtr(Rtr),
    /// READ_RTR.
    ReadRtr(ReadRtr),
    /// WRITE_RTA, FETCH_RTA, COMPARE_RTA, DC_WRITE_RTA.
    Rta(Rta),
}

impl Packet {
    /// Parses an eager message, which most packets are. `None` for every other packet, and for those
    /// that [`Packet::parse`] rejects.
    #[inline(always)]
    pub(crate) fn parse_eager(packet: &[u8]) -> Option<(EagerRtm, Packet)> {
        let (base, rest) = split_base(packet).ok()?;
        let (PacketType::EagerMsgRtm | PacketType::EagerTagRtm) = base.packet_type else {
            return None;
        };
        if base.version != PROTOCOL_VERSION {
            return None;
        }
        let mut cursor = Cursor::new(base, packet, rest);
        let eager = EagerRtm::parse(&mut cursor).ok()?;
        Some((eager, cursor.packet_with(eager.into())))
    }

    /// The address that the sender states, if it does.
    #[inline(always)]
    pub fn raw_address(&self) -> Option<RawAddress> {
        let header = self.header.req_options()?.raw_address?;
        Some(header.address())
    }

    /// The sender's connection id, from wherever the packet has it: a request without one may carry
    /// it in the raw address.
    #[inline(always)]
    pub fn connid(&self) -> Option<Connid> {
        self.header
            .connid()
            .or_else(|| Some(self.raw_address()?.qkey.into()))
    }

    /// Parses a whole packet. Its length is that of the slice.
    ///
    /// # Errors
    /// If the type is not one that may be on the wire, the version is not
    /// [`PROTOCOL_VERSION`], the packet ends inside its header, an array has too many entries, or a
    /// stated length is not the true one.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<Packet, ParseError> {
        let (base, rest) = split_base(packet)?;
        if base.version != PROTOCOL_VERSION {
            return Err(unsupported_version(base));
        }
        let mut cursor = Cursor::new(base, packet, rest);
        // The two types of which there are the most are parsed here, with a cursor that lives in
        // registers; the others by a function of their own.
        let header = match base.packet_type {
            PacketType::EagerMsgRtm | PacketType::EagerTagRtm => {
                Header::EagerRtm(EagerRtm::parse(&mut cursor)?)
            }
            PacketType::CtsData => Header::CtsData(CtsData::parse(&mut cursor)?),
            _ => return Header::parse(cursor),
        };
        Ok(cursor.packet_with(header))
    }
}

impl Header {
    #[inline(never)]
    fn parse(mut cursor: Cursor<'_>) -> Result<Packet, ParseError> {
        let header = Header::parse_fields(&mut cursor)?;
        Ok(cursor.packet_with(header))
    }

    #[inline(always)]
    fn parse_fields(cursor: &mut Cursor<'_>) -> Result<Header, ParseError> {
        use PacketType as T;
        Ok(match cursor.packet_type() {
            T::EagerMsgRtm | T::EagerTagRtm | T::DcEagerMsgRtm | T::DcEagerTagRtm => {
                Header::EagerRtm(EagerRtm::parse(cursor)?)
            }
            T::MediumMsgRtm | T::MediumTagRtm | T::DcMediumMsgRtm | T::DcMediumTagRtm => {
                Header::MediumRtm(MediumRtm::parse(cursor)?)
            }
            T::LongctsMsgRtm | T::LongctsTagRtm | T::DcLongctsMsgRtm | T::DcLongctsTagRtm => {
                Header::LongctsRtm(LongctsRtm::parse(cursor)?)
            }
            T::LongreadMsgRtm | T::LongreadTagRtm => {
                Header::LongreadRtm(LongreadRtm::parse(cursor)?)
            }
            T::RuntreadMsgRtm | T::RuntreadTagRtm => {
                Header::RuntreadRtm(RuntreadRtm::parse(cursor)?)
            }
            T::RuntctsMsgRtm | T::RuntctsTagRtm => Header::RuntctsRtm(RuntctsRtm::parse(cursor)?),
            T::EagerRtw | T::DcEagerRtw => Header::EagerRtw(EagerRtw::parse(cursor)?),
            T::LongctsRtw | T::DcLongctsRtw => Header::LongctsRtw(LongctsRtw::parse(cursor)?),
            T::LongreadRtw => Header::LongreadRtw(LongreadRtw::parse(cursor)?),
            T::RuntctsRtw => Header::RuntctsRtw(RuntctsRtw::parse(cursor)?),
            T::RuntreadRtw => Header::RuntreadRtw(RuntreadRtw::parse(cursor)?),
            T::ShortRtr => Header::Rtr(Rtr::parse(RtrKind::Short, cursor)?),
            T::LongctsRtr => Header::Rtr(Rtr::parse(RtrKind::Longcts, cursor)?),
            T::ReadRtr => Header::ReadRtr(ReadRtr::parse(cursor)?),
            T::WriteRta => Header::Rta(Rta::parse(|_| RtaKind::Write, cursor)?),
            T::FetchRta => Header::Rta(Rta::parse(|id| RtaKind::Fetch(RecvId(id)), cursor)?),
            T::CompareRta => Header::Rta(Rta::parse(|id| RtaKind::Compare(RecvId(id)), cursor)?),
            T::DcWriteRta => Header::Rta(Rta::parse(|id| RtaKind::DcWrite(SendId(id)), cursor)?),
            T::Cts => Header::Cts(Cts::parse(cursor)?),
            T::CtsData => Header::CtsData(CtsData::parse(cursor)?),
            T::ReadRsp => Header::ReadRsp(ReadRsp::parse(cursor)?),
            T::Eor => Header::Eor(Eor::parse(cursor)?),
            T::AtomRsp => Header::AtomRsp(AtomRsp::parse(cursor)?),
            T::Handshake => Header::Handshake(Handshake::parse(cursor)?),
            T::Receipt => Header::Receipt(Receipt::parse(cursor)?),
            T::ReadNack => Header::ReadNack(ReadNack::parse(cursor)?),
            T::PeerError => Header::PeerError(PeerError::parse(cursor)?),
            retired @ (T::Rts | T::Connack) => {
                let code = retired.code();
                return Err(cursor.error("type", 0, Reason::RetiredType { code }));
            }
            local @ T::RmaContext => {
                let code = local.code();
                return Err(cursor.error("type", 0, Reason::LocalType { code }));
            }
        })
    }

    /// The optional headers, if it is a request.
    pub fn req_options(&self) -> Option<&ReqOptions> {
        match self {
            Header::EagerRtm(repr) => Some(&repr.options),
            Header::MediumRtm(repr) => Some(&repr.options),
            Header::LongctsRtm(repr) => Some(&repr.options),
            Header::LongreadRtm(repr) => Some(&repr.options),
            Header::RuntreadRtm(repr) => Some(&repr.options),
            Header::RuntctsRtm(repr) => Some(&repr.options),
            Header::EagerRtw(repr) => Some(&repr.options),
            Header::LongctsRtw(repr) => Some(&repr.options),
            Header::LongreadRtw(repr) => Some(&repr.options),
            Header::RuntctsRtw(repr) => Some(&repr.options),
            Header::RuntreadRtw(repr) => Some(&repr.options),
            Header::Rtr(repr) => Some(&repr.options),
            Header::ReadRtr(repr) => Some(&repr.options),
            Header::Rta(repr) => Some(&repr.options),
            Header::Cts(_)
            | Header::CtsData(_)
            | Header::ReadRsp(_)
            | Header::Eor(_)
            | Header::AtomRsp(_)
            | Header::Handshake(_)
            | Header::Receipt(_)
            | Header::ReadNack(_)
            | Header::PeerError(_) => None,
        }
    }

    /// The sender's connection id, wherever this type keeps it. A request without one may carry
    /// it in the raw address instead ([`ReqOptions::raw_address`]).
    pub fn connid(&self) -> Option<Connid> {
        match self {
            Header::Cts(repr) => repr.connid,
            Header::CtsData(repr) => repr.connid,
            Header::ReadRsp(repr) => repr.connid,
            Header::Eor(repr) => repr.connid,
            Header::AtomRsp(repr) => repr.connid,
            Header::Handshake(repr) => repr.connid,
            Header::Receipt(repr) => repr.connid,
            Header::ReadNack(repr) => repr.connid,
            Header::PeerError(repr) => repr.connid,
            request => request.req_options().and_then(|options| options.connid),
        }
    }
}

#[inline(always)]
fn split_base(packet: &[u8]) -> Result<(BaseHeader, &[u8]), ParseError> {
    let Ok((raw, rest)) = RawBase::ref_from_prefix(packet) else {
        return Err(truncated_base(packet));
    };
    let Some(packet_type) = PacketType::from_code(raw.packet_type) else {
        return Err(unassigned_type(raw.packet_type));
    };
    let base = BaseHeader {
        packet_type,
        version: raw.version,
        flags: raw.flags.get(),
    };
    Ok((base, rest))
}

/// The error for a packet of less than four bytes.
#[cold]
fn truncated_base(packet: &[u8]) -> ParseError {
    match (packet, codec::truncated(packet)) {
        (_, Some(error)) => error,
        ([code, ..], None) => unassigned_type(*code),
        ([], None) => ParseError {
            packet_type: None,
            field: "type",
            offset: 0,
            reason: Reason::Truncated {
                needed: 1,
                available: 0,
            },
        },
    }
}

#[cold]
fn unassigned_type(code: u8) -> ParseError {
    ParseError {
        packet_type: None,
        field: "type",
        offset: 0,
        reason: Reason::UnassignedType { code },
    }
}

#[cold]
fn unsupported_version(base: BaseHeader) -> ParseError {
    ParseError {
        packet_type: Some(base.packet_type),
        field: "version",
        offset: 1,
        reason: Reason::UnsupportedVersion {
            version: base.version,
        },
    }
}
