//! Notices about an operation, without data: EOR, READ_NACK, RECEIPT and PEER_ERROR.

use core::fmt;

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{further_flags, multiuse, parse_connid, universal, wire_flags};
use crate::wire::codec::{Cursor, Repr, Writer, sealed};
use crate::wire::error::ParseError;
use crate::wire::flags::UniversalFlags;
use crate::wire::ids::{Connid, MsgId, RecvId, SendId};
use crate::wire::packet_type::PacketType;

/// EOR (spec table 4.2): the receiver has read everything by RDMA.
///
/// libfabric 1.11.0 sends 12 bytes, without the last word. They are accepted if CONNID_HDR is not
/// set; emitting always writes 16.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | send_id |
/// | 8 | 4 | recv_id |
/// | 12 | 4 | connid or padding |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Eor {
    /// The operation of the request.
    pub send_id: SendId,
    /// The receiver's operation.
    pub recv_id: RecvId,
    /// The sender's connection id.
    pub connid: Option<Connid>,
    /// Flags beyond CONNID_HDR.
    pub flags: UniversalFlags,
}

/// EOR without its last word.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawPair {
    send_id: U32,
    recv_id: U32,
}

impl Eor {
    pub(in crate::wire) fn parse(cursor: &mut Cursor<'_>) -> Result<Eor, ParseError> {
        let raw: &RawPair = cursor.take()?;
        let has_connid = universal(cursor).contains(UniversalFlags::CONNID_HDR);
        let connid = if has_connid || cursor.rest().len() >= size_of::<U32>() {
            let multiuse: &U32 = cursor.take()?;
            parse_connid(cursor, *multiuse)
        } else {
            None
        };
        Ok(Eor {
            send_id: SendId(raw.send_id.get()),
            recv_id: RecvId(raw.recv_id.get()),
            connid,
            flags: further_flags(cursor),
        })
    }
}

impl Repr for Eor {
    fn packet_type(&self) -> PacketType {
        PacketType::Eor
    }

    fn wire_flags(&self) -> u16 {
        wire_flags(self.flags, self.connid)
    }

    fn header_len(&self) -> usize {
        16
    }
}

impl sealed::Fields for Eor {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&RawTriple {
            send_id: U32::new(self.send_id.0),
            second_id: U32::new(self.recv_id.0),
            multiuse: multiuse(self.connid),
        });
    }
}

/// READ_NACK (spec section 4.7): the receiver cannot read by RDMA. Laid out as [`Eor`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ReadNack {
    /// The operation of the request.
    pub send_id: SendId,
    /// The receiver's operation.
    pub recv_id: RecvId,
    /// The sender's connection id.
    pub connid: Option<Connid>,
    /// Flags beyond CONNID_HDR.
    pub flags: UniversalFlags,
}

/// READ_NACK and RECEIPT.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawTriple {
    send_id: U32,
    second_id: U32,
    multiuse: U32,
}

impl ReadNack {
    pub(in crate::wire) fn parse(cursor: &mut Cursor<'_>) -> Result<ReadNack, ParseError> {
        let raw: &RawTriple = cursor.take()?;
        Ok(ReadNack {
            send_id: SendId(raw.send_id.get()),
            recv_id: RecvId(raw.second_id.get()),
            connid: parse_connid(cursor, raw.multiuse),
            flags: further_flags(cursor),
        })
    }
}

impl Repr for ReadNack {
    fn packet_type(&self) -> PacketType {
        PacketType::ReadNack
    }

    fn wire_flags(&self) -> u16 {
        wire_flags(self.flags, self.connid)
    }

    fn header_len(&self) -> usize {
        16
    }
}

impl sealed::Fields for ReadNack {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&RawTriple {
            send_id: U32::new(self.send_id.0),
            second_id: U32::new(self.recv_id.0),
            multiuse: multiuse(self.connid),
        });
    }
}

/// RECEIPT (spec section 4.2): the data of a DC request is where the application wants it.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | send_id |
/// | 8 | 4 | msg_id |
/// | 12 | 4 | connid or padding |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Receipt {
    /// The operation of the request; stock libfabric calls it `tx_id` and looks at nothing else.
    pub send_id: SendId,
    /// The message; 0 for a write or an atomic.
    pub msg_id: MsgId,
    /// The sender's connection id.
    pub connid: Option<Connid>,
    /// Flags beyond CONNID_HDR.
    pub flags: UniversalFlags,
}

impl Receipt {
    pub(in crate::wire) fn parse(cursor: &mut Cursor<'_>) -> Result<Receipt, ParseError> {
        let raw: &RawTriple = cursor.take()?;
        Ok(Receipt {
            send_id: SendId(raw.send_id.get()),
            msg_id: MsgId(raw.second_id.get()),
            connid: parse_connid(cursor, raw.multiuse),
            flags: further_flags(cursor),
        })
    }
}

impl Repr for Receipt {
    fn packet_type(&self) -> PacketType {
        PacketType::Receipt
    }

    fn wire_flags(&self) -> u16 {
        wire_flags(self.flags, self.connid)
    }

    fn header_len(&self) -> usize {
        16
    }
}

impl sealed::Fields for Receipt {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&RawTriple {
            send_id: U32::new(self.send_id.0),
            second_id: U32::new(self.msg_id.0),
            multiuse: multiuse(self.connid),
        });
    }
}

/// PEER_ERROR: the sender abandons its half of an operation and asks the receiver to do the same.
///
/// The spec does not know it and no release of libfabric up to 2.6.0 sends it. This is the layout on
/// the development branch after 2.6.0, where it may still change:
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | op_id |
/// | 8 | 4 | ref_kind |
/// | 12 | 4 | prov_errno |
/// | 16 | 4 | connid or padding |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PeerError {
    /// What is abandoned, in the numbering that `ref_kind` says.
    pub op_id: u32,
    /// What `op_id` is.
    pub ref_kind: PeerErrorRefKind,
    /// Why: libfabric's provider error number, which for the EFA provider is the device's completion
    /// status or a code of its own. For messages to people only.
    pub prov_errno: u32,
    /// The sender's connection id.
    pub connid: Option<Connid>,
    /// Flags beyond CONNID_HDR.
    pub flags: UniversalFlags,
}

/// What [`PeerError::op_id`] refers to. Unknown values are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PeerErrorRefKind(pub u32);

impl PeerErrorRefKind {
    /// An operation of the packet's receiver, in that endpoint's numbering.
    pub const OPERATION: PeerErrorRefKind = PeerErrorRefKind(0);
    /// The message id of a message of which some data has arrived.
    pub const MSG_ID: PeerErrorRefKind = PeerErrorRefKind(1);
    /// The message id of a message that will never arrive: the sequence goes on behind it.
    pub const MSG_ID_SKIP: PeerErrorRefKind = PeerErrorRefKind(2);

    /// The name of the value. `None` if it is not known.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            PeerErrorRefKind::OPERATION => Some("OPERATION"),
            PeerErrorRefKind::MSG_ID => Some("MSG_ID"),
            PeerErrorRefKind::MSG_ID_SKIP => Some("MSG_ID_SKIP"),
            _ => None,
        }
    }
}

impl fmt::Display for PeerErrorRefKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.name().unwrap_or("unknown"))
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawPeerError {
    op_id: U32,
    ref_kind: U32,
    prov_errno: U32,
    multiuse: U32,
}

impl PeerError {
    pub(in crate::wire) fn parse(cursor: &mut Cursor<'_>) -> Result<PeerError, ParseError> {
        let raw: &RawPeerError = cursor.take()?;
        Ok(PeerError {
            op_id: raw.op_id.get(),
            ref_kind: PeerErrorRefKind(raw.ref_kind.get()),
            prov_errno: raw.prov_errno.get(),
            connid: parse_connid(cursor, raw.multiuse),
            flags: further_flags(cursor),
        })
    }
}

impl Repr for PeerError {
    fn packet_type(&self) -> PacketType {
        PacketType::PeerError
    }

    fn wire_flags(&self) -> u16 {
        wire_flags(self.flags, self.connid)
    }

    fn header_len(&self) -> usize {
        20
    }
}

impl sealed::Fields for PeerError {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&RawPeerError {
            op_id: U32::new(self.op_id),
            ref_kind: U32::new(self.ref_kind.0),
            prov_errno: U32::new(self.prov_errno),
            multiuse: multiuse(self.connid),
        });
    }
}
