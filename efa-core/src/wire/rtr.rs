//! Requests To Read: emulated reads (spec section 3.3).
//!
//! `msg_length` and `recv_length` are the sender's claims: parsing does not relate them to the iovs.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::codec::{Cursor, Repr, Writer, sealed};
use super::error::ParseError;
use super::flags::ReqFlags;
use super::ids::RecvId;
use super::iov::RmaIovs;
use super::packet_type::PacketType;
use super::req::ReqOptions;

/// How the responder sends the data of an emulated read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum RtrKind {
    /// SHORT_RTR: all of it in one READRSP.
    #[default]
    Short,
    /// LONGCTS_RTR: READRSP and then CTSDATA, in windows.
    Longcts,
}

/// SHORT_RTR (spec table 3.10) and LONGCTS_RTR (spec table 3.12): a read that the responder answers
/// with packets.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | rma_iov_count |
/// | 8 | 8 | msg_length |
/// | 16 | 4 | recv_id |
/// | 20 | 4 | recv_length |
/// | 24 | 24 each | rma_iov |
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rtr {
    /// Which of the two types.
    pub kind: RtrKind,
    /// The responder's memory.
    pub rma_iov: RmaIovs,
    /// Length of the whole read in bytes.
    pub msg_length: u64,
    /// The operation that READRSP and CTSDATA have to name.
    pub recv_id: RecvId,
    /// Bytes that the requester is ready to receive, READRSP included. The spec has padding here in
    /// SHORT_RTR, but every stock libfabric sends the whole length.
    pub recv_length: u32,
    /// The optional headers.
    pub options: ReqOptions,
}

/// READ_RTR: stock libfabric gives it the base header as its mandatory header, and neither sends nor
/// receives it. The spec reserves the code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ReadRtr {
    /// The optional headers.
    pub options: ReqOptions,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRtr {
    rma_iov_count: U32,
    msg_length: U64,
    recv_id: U32,
    recv_length: U32,
}

/// Where rma_iov_count is.
const RMA_IOV_COUNT_OFFSET: usize = 4;

impl Rtr {
    pub(super) fn parse(kind: RtrKind, cursor: &mut Cursor<'_>) -> Result<Rtr, ParseError> {
        let raw: &RawRtr = cursor.take()?;
        Ok(Rtr {
            kind,
            rma_iov: cursor.take_iovs(
                "rma_iov_count",
                RMA_IOV_COUNT_OFFSET,
                raw.rma_iov_count.get(),
            )?,
            msg_length: raw.msg_length.get(),
            recv_id: RecvId(raw.recv_id.get()),
            recv_length: raw.recv_length.get(),
            options: ReqOptions::parse(cursor, ReqFlags::IMPLIED_BY_RMA)?,
        })
    }
}

impl ReadRtr {
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<ReadRtr, ParseError> {
        Ok(ReadRtr {
            options: ReqOptions::parse(cursor, ReqFlags::IMPLIED_BY_RMA)?,
        })
    }
}

impl Repr for Rtr {
    fn packet_type(&self) -> PacketType {
        match self.kind {
            RtrKind::Short => PacketType::ShortRtr,
            RtrKind::Longcts => PacketType::LongctsRtr,
        }
    }

    fn wire_flags(&self) -> u16 {
        self.options.wire_flags(ReqFlags::IMPLIED_BY_RMA)
    }

    fn header_len(&self) -> usize {
        (24 + self.rma_iov.wire_len()).saturating_add(self.options.wire_len())
    }
}

impl sealed::Fields for Rtr {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&RawRtr {
            rma_iov_count: U32::new(self.rma_iov.count()),
            msg_length: U64::new(self.msg_length),
            recv_id: U32::new(self.recv_id.0),
            recv_length: U32::new(self.recv_length),
        });
        writer.put(self.rma_iov.as_slice());
        self.options.write(writer);
    }
}

impl Repr for ReadRtr {
    fn packet_type(&self) -> PacketType {
        PacketType::ReadRtr
    }

    fn wire_flags(&self) -> u16 {
        self.options.wire_flags(ReqFlags::IMPLIED_BY_RMA)
    }

    fn header_len(&self) -> usize {
        self.options.wire_len().saturating_add(4)
    }
}

impl sealed::Fields for ReadRtr {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        self.options.write(writer);
    }
}
