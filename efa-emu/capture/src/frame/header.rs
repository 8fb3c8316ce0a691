//! The transport header, which the emulated network puts between UDP and the device's payload.
//!
//! The wire format of SRD is not public, so this project defines a separate one. It is declared
//! here. The structs that read and write it, the tables of `docs/wire-format.md` and the
//! dissector's tables are generated from the declaration. Integers are little-endian, as in the RDM
//! packets that follow.

mod layout;

use core::fmt;
use core::mem::offset_of;

use efa_wire::Status;
use efa_wire::address::{Qkey, Qpn};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::Error;
use efa_device_model::link::{Operation, RemoteRange, RequestHeader};
use layout::{flags, header_part, opcodes};

pub use layout::{Field, Format, Presence, Sender};

/// The first two bytes of every transport header.
pub const MAGIC: [u8; 2] = *b"EF";
/// The version of the format that this module reads and writes.
pub const VERSION: u8 = 1;
/// The first sequence number of requests that a tap saw arrive.
pub const FIRST_TAPPED_SEQUENCE: u32 = 1 << 31;
/// Length in bytes of the header without the RDMA extension.
pub const HEADER_LEN: usize = size_of::<Common>();
/// Length in bytes of the header with the RDMA extension.
pub const RDMA_HEADER_LEN: usize = HEADER_LEN + size_of::<Extension>();

header_part! {
    /// The fields with which every transport header begins.
    Common, "", 0;
    magic: [u8; 2], Text, Always, "the bytes `45 46`, \"EF\"";
    version: u8, Decimal, Always, "version of the format, 1";
    opcode: u8, Opcode, Always, "what the frame is";
    flags: U16, Flags, Always, "the flags below";
    header_length: U16, Decimal, Always, "bytes of the header: 32, or 56 with the RDMA extension";
    source_qpn: U16, Decimal, Always, "queue pair of the sender of this frame";
    destination_qpn: U16, Decimal, Always, "queue pair of the receiver of this frame";
    qkey: U32, Hexadecimal, Always, "Q-key of the request; answers repeat it";
    sequence: U32, Decimal, Always,
        "counts the requests of the initiating queue pair from 0, wraps; answers and retries repeat it. In what a \
         tap saw arrive, a number of its own, from 0x80000000 on: a receiver's device does not tell the sender's";
    immediate: U32, Hexadecimal, IfFlag(Flags::IMMEDIATE), "data for the receiver's completion";
    status: u8, Status, InOpcode(Opcode::Response), "the EFA completion status of the request";
    reserved: u8, Reserved, Always, "0";
    path: U16, Decimal, Always, "number of the path through the network";
    payload_length: U32, Decimal, Always,
        "bytes of data of this frame, whether or not they were captured";
}

header_part! {
    /// The RDMA extension, which follows [`Common`] in frames of the RDMA opcodes.
    Extension, "rdma.", HEADER_LEN;
    remote_address: U64, Hexadecimal, Always,
        "first byte of the responder's memory, for the whole operation";
    remote_key: U32, Hexadecimal, Always, "key of that memory";
    total_length: U32, Decimal, Always, "bytes of the whole operation";
    offset: U32, Decimal, Always, "where in the operation this frame's data begins";
    reserved: U32, Reserved, Always, "0";
}

/// The fields that every transport header has, in the order of the header.
pub const FIELDS: &[Field] = Common::FIELDS;
/// The fields of the RDMA extension, in the order of the header.
pub const RDMA_FIELDS: &[Field] = Extension::FIELDS;

opcodes! {
    Send = 1, "SEND", Initiator, rdma: false,
        "an RDM packet: an SRD send, always one frame";
    RdmaReadRequest = 2, "RDMA_READ_REQUEST", Initiator, rdma: true,
        "no data: a request to read";
    RdmaReadResponse = 3, "RDMA_READ_RESPONSE", Responder, rdma: true,
        "a piece of what was read; at least one frame, also for 0 bytes";
    RdmaWrite = 4, "RDMA_WRITE", Initiator, rdma: true,
        "a piece of what is written; at least one frame, also for 0 bytes";
    Response = 5, "RESPONSE", Responder, rdma: false,
        "no data: how the request ended";
    Datagram = 6, "DATAGRAM", Initiator, rdma: false,
        "a UD send without its GRH";
}

impl Opcode {
    /// The opcode of a code, if there is one.
    pub fn from_code(code: u8) -> Option<Opcode> {
        Self::ALL.into_iter().find(|opcode| *opcode as u8 == code)
    }

    /// Length in bytes of this opcode's header.
    pub const fn header_len(self) -> usize {
        if self.has_rdma_extension() {
            RDMA_HEADER_LEN
        } else {
            HEADER_LEN
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

flags! {
    IMMEDIATE = 0, "the immediate field is meaningful. An RDMA write carries it in its last frame";
    RETRANSMISSION = 1,
        "sent again: after a loss, or after the receiver was not ready";
    NOT_CAPTURED = 2, "the data was left out of the capture; nothing follows the header";
}

/// The offsets of fields, for error messages.
pub(super) mod offset {
    use super::{Common, offset_of};

    pub(in crate::frame) const MAGIC: usize = offset_of!(Common, magic);
    pub(in crate::frame) const VERSION: usize = offset_of!(Common, version);
    pub(in crate::frame) const OPCODE: usize = offset_of!(Common, opcode);
    pub(in crate::frame) const HEADER_LENGTH: usize = offset_of!(Common, header_length);
    pub(in crate::frame) const STATUS: usize = offset_of!(Common, status);
    pub(in crate::frame) const PAYLOAD_LENGTH: usize = offset_of!(Common, payload_length);
}

/// The RDMA extension: the memory, and the part of the operation that this frame carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rdma {
    /// The responder's memory.
    pub remote: RemoteRange,
    /// Length in bytes of the whole operation.
    pub total_length: u32,
    /// The offset of this frame's data in the operation, in bytes.
    pub offset: u32,
}

/// The part of a header that depends on the type of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameKind {
    /// [`Opcode::Send`].
    Send,
    /// [`Opcode::RdmaReadRequest`].
    RdmaReadRequest(Rdma),
    /// [`Opcode::RdmaReadResponse`].
    RdmaReadResponse(Rdma),
    /// [`Opcode::RdmaWrite`].
    RdmaWrite(Rdma),
    /// [`Opcode::Response`].
    Response(Status),
    /// [`Opcode::Datagram`].
    Datagram,
}

impl FrameKind {
    /// The opcode.
    pub const fn opcode(&self) -> Opcode {
        match self {
            FrameKind::Send => Opcode::Send,
            FrameKind::RdmaReadRequest(_) => Opcode::RdmaReadRequest,
            FrameKind::RdmaReadResponse(_) => Opcode::RdmaReadResponse,
            FrameKind::RdmaWrite(_) => Opcode::RdmaWrite,
            FrameKind::Response(_) => Opcode::Response,
            FrameKind::Datagram => Opcode::Datagram,
        }
    }

    /// The RDMA extension, if the frame has one.
    pub const fn rdma(&self) -> Option<&Rdma> {
        match self {
            FrameKind::RdmaReadRequest(rdma)
            | FrameKind::RdmaReadResponse(rdma)
            | FrameKind::RdmaWrite(rdma) => Some(rdma),
            FrameKind::Send | FrameKind::Response(_) | FrameKind::Datagram => None,
        }
    }
}

/// A transport header, parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// The type of the frame.
    pub kind: FrameKind,
    /// The sender's queue pair.
    pub source_qpn: Qpn,
    /// The receiver's queue pair.
    pub destination_qpn: Qpn,
    /// The Q-key of the request; answers repeat it.
    pub qkey: Qkey,
    /// The request's number in its initiating queue pair; answers repeat it.
    pub sequence: u32,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// Not the first attempt: a retransmission, or a retry after receiver-not-ready.
    pub retransmission: bool,
    /// The path through the network.
    pub path: u16,
    /// Length in bytes of this frame's data, even if the capture left the data out.
    pub payload_length: u32,
    /// Whether the data is in the frame; `false` if the capture excluded it.
    pub payload_captured: bool,
}

impl Repr {
    /// Reads the header at the start of `bytes`, and returns it with the bytes after it.
    /// [`super::Frame::parse`] checks the length of those.
    ///
    /// # Errors
    /// If magic, version or opcode are not known, the header is shorter than its opcode needs or
    /// longer than `bytes`, or the status of a response is not known.
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let truncated = |need| Error::Truncated {
            what: "transport header",
            need,
            have: bytes.len(),
        };
        let (common, rest) = Common::ref_from_prefix(bytes).map_err(|_| truncated(HEADER_LEN))?;
        if common.magic != MAGIC {
            return Err(Error::Magic {
                found: common.magic,
            });
        }
        if common.version != VERSION {
            return Err(Error::Version {
                found: common.version,
            });
        }
        let found = common.opcode;
        let opcode = Opcode::from_code(found).ok_or(Error::Opcode { found })?;
        let header_length = usize::from(common.header_length.get());
        if header_length < opcode.header_len() {
            return Err(Error::HeaderLength {
                opcode,
                found: common.header_length.get(),
            });
        }
        let payload = bytes
            .get(header_length..)
            .ok_or_else(|| truncated(header_length))?;
        let rdma = || {
            let (extension, _) =
                Extension::ref_from_prefix(rest).map_err(|_| truncated(RDMA_HEADER_LEN))?;
            Ok(Rdma {
                remote: RemoteRange {
                    address: extension.remote_address.get(),
                    key: extension.remote_key.get(),
                },
                total_length: extension.total_length.get(),
                offset: extension.offset.get(),
            })
        };
        let kind = match opcode {
            Opcode::Send => FrameKind::Send,
            Opcode::RdmaReadRequest => FrameKind::RdmaReadRequest(rdma()?),
            Opcode::RdmaReadResponse => FrameKind::RdmaReadResponse(rdma()?),
            Opcode::RdmaWrite => FrameKind::RdmaWrite(rdma()?),
            Opcode::Response => {
                let found = common.status;
                FrameKind::Response(Status::from_code(found).ok_or(Error::Status { found })?)
            }
            Opcode::Datagram => FrameKind::Datagram,
        };
        let flags = Flags::from_bits_retain(common.flags.get());
        let header = Repr {
            kind,
            source_qpn: Qpn(common.source_qpn.get()),
            destination_qpn: Qpn(common.destination_qpn.get()),
            qkey: Qkey(common.qkey.get()),
            sequence: common.sequence.get(),
            immediate: flags
                .contains(Flags::IMMEDIATE)
                .then(|| common.immediate.get()),
            retransmission: flags.contains(Flags::RETRANSMISSION),
            path: common.path.get(),
            payload_length: common.payload_length.get(),
            payload_captured: !flags.contains(Flags::NOT_CAPTURED),
        };
        Ok((header, payload))
    }

    /// Length in bytes of the emitted header.
    pub const fn header_len(&self) -> usize {
        self.kind.opcode().header_len()
    }

    /// The bytes of payload in the frame after the header.
    pub const fn captured_len(&self) -> usize {
        if self.payload_captured {
            self.payload_length as usize
        } else {
            0
        }
    }

    /// The flag bits.
    pub fn flags(&self) -> Flags {
        let mut flags = Flags::empty();
        flags.set(Flags::IMMEDIATE, self.immediate.is_some());
        flags.set(Flags::RETRANSMISSION, self.retransmission);
        flags.set(Flags::NOT_CAPTURED, !self.payload_captured);
        flags
    }

    /// Writes the header to the start of `bytes`, and returns the rest for the payload.
    ///
    /// # Panics
    /// If `bytes` is shorter than [`Self::header_len`].
    pub fn emit<'b>(&self, bytes: &'b mut [u8]) -> &'b mut [u8] {
        let (header, payload) = bytes.split_at_mut(self.header_len());
        let (common, extension) = header.split_at_mut(HEADER_LEN);
        let fields = Common {
            magic: MAGIC,
            version: VERSION,
            opcode: self.kind.opcode() as u8,
            flags: U16::new(self.flags().bits()),
            header_length: U16::new(self.header_len() as u16),
            source_qpn: U16::new(self.source_qpn.0),
            destination_qpn: U16::new(self.destination_qpn.0),
            qkey: U32::new(self.qkey.0),
            sequence: U32::new(self.sequence),
            immediate: U32::new(self.immediate.unwrap_or(0)),
            status: match self.kind {
                FrameKind::Response(status) => status.code(),
                _ => 0,
            },
            reserved: 0,
            path: U16::new(self.path),
            payload_length: U32::new(self.payload_length),
        };
        common.copy_from_slice(fields.as_bytes());
        if let Some(rdma) = self.kind.rdma() {
            let fields = Extension {
                remote_address: U64::new(rdma.remote.address),
                remote_key: U32::new(rdma.remote.key),
                total_length: U32::new(rdma.total_length),
                offset: U32::new(rdma.offset),
                reserved: U32::ZERO,
            };
            extension.copy_from_slice(fields.as_bytes());
        }
        payload
    }

    /// The header of the frame that carries `length` bytes of a request's data from `offset` on.
    /// A send or datagram is one frame, an RDMA read request has no data.
    pub fn of_request(request: &RequestHeader, offset: u32, length: u32) -> Repr {
        let rdma = || Rdma {
            remote: request.remote.unwrap_or(RemoteRange { address: 0, key: 0 }),
            total_length: request.length,
            offset,
        };
        let kind = match request.operation {
            Operation::Send => FrameKind::Send,
            Operation::Datagram => FrameKind::Datagram,
            Operation::RdmaRead => FrameKind::RdmaReadRequest(rdma()),
            Operation::RdmaWrite => FrameKind::RdmaWrite(rdma()),
            // Such a packet has InfiniBand headers instead of this one: see `roce_frame`.
            Operation::Connected => FrameKind::Datagram,
        };
        Repr {
            kind,
            source_qpn: request.source_qpn,
            destination_qpn: request.destination_qpn,
            qkey: request.qkey,
            sequence: request.sequence,
            immediate: request.immediate,
            retransmission: false,
            path: 0,
            payload_length: length,
            payload_captured: true,
        }
    }

    /// The header of the frame that carries `length` bytes of an RDMA read's data from `offset` on,
    /// from the responder to the initiator.
    pub fn of_read_data(request: &RequestHeader, offset: u32, length: u32) -> Repr {
        let rdma = Rdma {
            remote: request.remote.unwrap_or(RemoteRange { address: 0, key: 0 }),
            total_length: request.length,
            offset,
        };
        Repr {
            payload_length: length,
            ..Self::answer(request, FrameKind::RdmaReadResponse(rdma))
        }
    }

    /// The header of the frame that reports to the initiator how its request ended.
    pub fn of_status(request: &RequestHeader, status: Status) -> Repr {
        Self::answer(request, FrameKind::Response(status))
    }

    fn answer(request: &RequestHeader, kind: FrameKind) -> Repr {
        Repr {
            kind,
            source_qpn: request.destination_qpn,
            destination_qpn: request.source_qpn,
            qkey: request.qkey,
            sequence: request.sequence,
            immediate: None,
            retransmission: false,
            path: 0,
            payload_length: 0,
            payload_captured: true,
        }
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} qp {} -> {} seq={} len={}",
            self.kind.opcode(),
            self.source_qpn,
            self.destination_qpn,
            self.sequence,
            self.payload_length
        )?;
        match self.kind {
            FrameKind::Response(status) => write!(f, " status={}", status.describe()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod documented;
#[cfg(test)]
pub(super) mod tests;
