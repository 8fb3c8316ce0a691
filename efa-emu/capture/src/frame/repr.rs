//! The transport header, parsed: reading and writing it.

use core::fmt;

use efa_device_model::link::{Operation, RemoteRange, RequestHeader};
use efa_wire::Status;
use efa_wire::address::{Qkey, Qpn};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::error::Error;
use super::header::{
    Common, Extension, Flags, HEADER_LEN, MAGIC, Opcode, RDMA_HEADER_LEN, VERSION,
};

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
    /// The header of a frame with this many bytes of data, which is the first attempt of request 0
    /// and has no immediate data. The queue pairs and the Q-key are zero.
    pub fn new(kind: FrameKind, payload_length: usize) -> Repr {
        Repr {
            kind,
            source_qpn: Qpn(0),
            destination_qpn: Qpn(0),
            qkey: Qkey(0),
            sequence: 0,
            immediate: None,
            retransmission: false,
            path: 0,
            payload_length: payload_length as u32,
            payload_captured: true,
        }
    }

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
            source_qpn: request.source_qpn,
            destination_qpn: request.destination_qpn,
            qkey: request.qkey,
            sequence: request.sequence,
            immediate: request.immediate,
            ..Repr::new(kind, length as usize)
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
            source_qpn: request.destination_qpn,
            destination_qpn: request.source_qpn,
            qkey: request.qkey,
            sequence: request.sequence,
            ..Repr::new(kind, 0)
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
pub(super) mod tests;
