//! Requests To Atomic (spec sections 3.3 and 4.2).

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::atomic::{AtomicDatatype, AtomicOp};
use super::codec::{Cursor, Repr, Writer, sealed};
use super::error::ParseError;
use super::flags::ReqFlags;
use super::ids::{MsgId, RecvId, SendId};
use super::iov::RmaIovs;
use super::packet_type::PacketType;
use super::req::ReqOptions;

/// The type of an RTA, with the meaning of the word at byte 20.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RtaKind {
    /// WRITE_RTA: the word is padding.
    Write,
    /// FETCH_RTA: the operation that ATOMRSP has to name.
    Fetch(RecvId),
    /// COMPARE_RTA: the operation that ATOMRSP has to name. The payload is the source operand and
    /// then the comparand, equally long.
    Compare(RecvId),
    /// DC_WRITE_RTA: the operation that RECEIPT has to name.
    DcWrite(SendId),
}

/// WRITE_RTA (spec table 3.13), FETCH_RTA, COMPARE_RTA (spec table 3.14) and DC_WRITE_RTA: an
/// atomic operation in one packet.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | msg_id |
/// | 8 | 4 | rma_iov_count |
/// | 12 | 4 | atomic_datatype |
/// | 16 | 4 | atomic_op |
/// | 20 | 4 | padding, recv_id or send_id |
/// | 24 | 24 each | rma_iov |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rta {
    /// Which of the four types.
    pub kind: RtaKind,
    /// The operation's place in the sequence, which it shares with messages.
    pub msg_id: MsgId,
    /// What the operands are.
    pub atomic_datatype: AtomicDatatype,
    /// What is done with them.
    pub atomic_op: AtomicOp,
    /// The target's memory; lengths are in bytes.
    pub rma_iov: RmaIovs,
    /// The optional headers.
    pub options: ReqOptions,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRta {
    msg_id: U32,
    rma_iov_count: U32,
    atomic_datatype: U32,
    atomic_op: U32,
    id: U32,
}

/// Where rma_iov_count is.
const RMA_IOV_COUNT_OFFSET: usize = 8;

impl Rta {
    /// `kind` makes the type of the word at byte 20.
    pub(super) fn parse(
        kind: fn(u32) -> RtaKind,
        cursor: &mut Cursor<'_>,
    ) -> Result<Rta, ParseError> {
        let raw: &RawRta = cursor.take()?;
        Ok(Rta {
            kind: kind(raw.id.get()),
            msg_id: MsgId(raw.msg_id.get()),
            atomic_datatype: AtomicDatatype(raw.atomic_datatype.get()),
            atomic_op: AtomicOp(raw.atomic_op.get()),
            rma_iov: cursor.take_iovs(
                "rma_iov_count",
                RMA_IOV_COUNT_OFFSET,
                raw.rma_iov_count.get(),
            )?,
            options: ReqOptions::parse(cursor, ReqFlags::IMPLIED_BY_RTA)?,
        })
    }
}

impl Repr for Rta {
    fn packet_type(&self) -> PacketType {
        match self.kind {
            RtaKind::Write => PacketType::WriteRta,
            RtaKind::Fetch(_) => PacketType::FetchRta,
            RtaKind::Compare(_) => PacketType::CompareRta,
            RtaKind::DcWrite(_) => PacketType::DcWriteRta,
        }
    }

    fn wire_flags(&self) -> u16 {
        self.options.wire_flags(ReqFlags::IMPLIED_BY_RTA)
    }

    fn header_len(&self) -> usize {
        (24 + self.rma_iov.wire_len()).saturating_add(self.options.wire_len())
    }
}

impl sealed::Fields for Rta {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        let id = match self.kind {
            RtaKind::Write => 0,
            RtaKind::Fetch(recv_id) | RtaKind::Compare(recv_id) => recv_id.0,
            RtaKind::DcWrite(send_id) => send_id.0,
        };
        writer.put(&RawRta {
            msg_id: U32::new(self.msg_id.0),
            rma_iov_count: U32::new(self.rma_iov.count()),
            atomic_datatype: U32::new(self.atomic_datatype.0),
            atomic_op: U32::new(self.atomic_op.0),
            id: U32::new(id),
        });
        writer.put(self.rma_iov.as_slice());
        self.options.write(writer);
    }
}
