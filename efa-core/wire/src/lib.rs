//! Every packet type of the EFA RDM protocol v4.
//!
//! [`Packet::parse`] turns a borrowed byte slice into a [`Header`], which is an enum of plain
//! `Copy` structs, and the position of the payload after it. Only the header fields are copied, and
//! nothing is allocated. [`Repr::emit`] writes the same structs into a caller's buffer;
//! [`Repr::header_len`] returns the exact length beforehand. The payload is not part of a header,
//! because devices gather it from user memory.
//!
//! ```
//! use efa_wire::{EagerRtm, Header, MsgId, Packet, Repr};
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
//! Parsing checks only the form of a packet: every field is inside the packet, arrays are not
//! longer than receivers can take, and a stated length of data is correct. Unknown flags are kept,
//! and so are bytes after the last known field of HANDSHAKE. Where the spec and stock libfabric
//! disagree about bytes, this module follows stock libfabric, and the documentation of the struct
//! mentions it. All integers are little-endian.
//!
//! [`address`] has the addresses of endpoints and queue pairs, [`fields`] the tables that describe
//! every format, and [`rules`] the rules that traffic is checked against.

#![forbid(unsafe_code)]

pub mod address;
mod atomic;
mod codec;
mod descriptor;
mod enumerated;
mod error;
pub mod fields;
mod flags;
mod formats;
mod ids;
pub mod infiniband;
#[cfg(test)]
mod literal;
mod message;
mod ope_type;
mod packet;
mod packet_type;
pub mod rules;
mod status;

pub use atomic::{AtomicDatatype, AtomicOp};
pub use codec::{BaseHeader, ExtraInfo, RawAddressHeader, Repr, ReqOptions, RmaIov, RmaIovs};
pub use error::{EmitError, ParseError, Reason};
pub use flags::{CtsFlags, ExtraFeatures, HandshakeFlags, ReqFlags, UniversalFlags};
pub use formats::{
    AtomRsp, Cts, CtsData, EagerRtm, EagerRtw, Eor, Handshake, LongctsRtm, LongctsRtw, LongreadRtm,
    LongreadRtw, MediumRtm, PeerError, ReadNack, ReadRsp, Receipt, Rta, RtaKind, Rtr, RtrKind,
    RuntreadRtm, UserRecvQp,
};
pub use ids::{Connid, MsgId, RecvId, SendId};
pub use message::{Message, Transfer};
pub use ope_type::OpeType;
pub use packet::{Header, Packet, Payload};
pub use packet_type::{Category, Family, FlagSet, PacketType, TypeTraits};
pub use status::Status;

/// The version in the base header of every packet.
pub const PROTOCOL_VERSION: u8 = 4;
