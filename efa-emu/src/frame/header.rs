//! The transport header: what our emulated network carries between UDP and the device's payload.
//!
//! SRD's own wire format is not public, so this one is ours; `docs/wire-format.md` is its
//! definition. Integers are little-endian, as in the RDM packets behind it.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 2 | magic, the bytes `EF` |
//! | 2 | 1 | version, 1 |
//! | 3 | 1 | [`Opcode`] |
//! | 4 | 2 | [`Flags`] |
//! | 6 | 2 | header length in bytes: at least 32, or 56 with the RDMA extension |
//! | 8 | 2 | source QPN |
//! | 10 | 2 | destination QPN |
//! | 12 | 4 | Q-key |
//! | 16 | 4 | sequence number |
//! | 20 | 4 | immediate |
//! | 24 | 1 | status |
//! | 25 | 1 | reserved |
//! | 26 | 2 | path number |
//! | 28 | 4 | payload length in bytes |
//! | 32 | 8 | RDMA: remote address |
//! | 40 | 4 | RDMA: remote key |
//! | 44 | 4 | RDMA: total length of the operation |
//! | 48 | 4 | RDMA: offset of this frame's data in the operation |
//! | 52 | 4 | RDMA: reserved |

use core::fmt;

use efa_core::address::{Qkey, Qpn};
use efa_core::nic::Status;

use super::Error;
use crate::link::{Operation, RemoteRange, RequestHeader};

/// The first two bytes of every transport header.
pub const MAGIC: [u8; 2] = *b"EF";
/// The version of the format that this module reads and writes.
pub const VERSION: u8 = 1;
/// Length in bytes of the header without the RDMA extension.
pub const HEADER_LEN: usize = field::PAYLOAD_LENGTH.end;
/// Length in bytes of the header with the RDMA extension.
pub const RDMA_HEADER_LEN: usize = field::RDMA_RESERVED.end;

mod field {
    use core::ops::Range;
    type Field = Range<usize>;

    pub(super) const MAGIC: Field = 0..2;
    pub(super) const VERSION: usize = 2;
    pub(super) const OPCODE: usize = 3;
    pub(super) const FLAGS: Field = 4..6;
    pub(super) const HEADER_LENGTH: Field = 6..8;
    pub(super) const SOURCE_QPN: Field = 8..10;
    pub(super) const DESTINATION_QPN: Field = 10..12;
    pub(super) const QKEY: Field = 12..16;
    pub(super) const SEQUENCE: Field = 16..20;
    pub(super) const IMMEDIATE: Field = 20..24;
    pub(super) const STATUS: usize = 24;
    pub(super) const RESERVED: usize = 25;
    pub(super) const PATH: Field = 26..28;
    pub(super) const PAYLOAD_LENGTH: Field = 28..32;
    pub(super) const REMOTE_ADDRESS: Field = 32..40;
    pub(super) const REMOTE_KEY: Field = 40..44;
    pub(super) const TOTAL_LENGTH: Field = 44..48;
    pub(super) const DATA_OFFSET: Field = 48..52;
    pub(super) const RDMA_RESERVED: Field = 52..56;
}

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Opcode {
    /// An SRD send: the payload is an RDM packet.
    Send = 1,
    /// Asks for an RDMA read; carries no data.
    RdmaReadRequest = 2,
    /// A piece of the data of an RDMA read, from the responder.
    RdmaReadResponse = 3,
    /// A piece of the data of an RDMA write.
    RdmaWrite = 4,
    /// How a request ended.
    Response = 5,
    /// A UD send.
    Datagram = 6,
}

impl Opcode {
    /// All opcodes, in the order of their codes.
    pub const ALL: [Opcode; 6] = [
        Opcode::Send,
        Opcode::RdmaReadRequest,
        Opcode::RdmaReadResponse,
        Opcode::RdmaWrite,
        Opcode::Response,
        Opcode::Datagram,
    ];

    /// The opcode of a code, if there is one.
    pub fn from_code(code: u8) -> Option<Opcode> {
        Self::ALL.into_iter().find(|opcode| *opcode as u8 == code)
    }

    /// Whether frames of this opcode have the RDMA extension.
    pub const fn has_rdma_extension(self) -> bool {
        matches!(
            self,
            Opcode::RdmaReadRequest | Opcode::RdmaReadResponse | Opcode::RdmaWrite
        )
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
        f.write_str(match self {
            Opcode::Send => "SEND",
            Opcode::RdmaReadRequest => "RDMA_READ_REQUEST",
            Opcode::RdmaReadResponse => "RDMA_READ_RESPONSE",
            Opcode::RdmaWrite => "RDMA_WRITE",
            Opcode::Response => "RESPONSE",
            Opcode::Datagram => "DATAGRAM",
        })
    }
}

bitflags::bitflags! {
    /// The header's flag bits. Senders leave the other bits 0, readers ignore them.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Flags: u16 {
        /// The immediate field is meaningful.
        const IMMEDIATE = 1 << 0;
        /// Not the first attempt: a retransmission, or a retry after receiver-not-ready.
        const RETRANSMISSION = 1 << 1;
        /// The payload was left out of the capture; the payload length says how long it was.
        const NOT_CAPTURED = 1 << 2;
    }
}

/// A view of a transport header and the payload behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<T: AsRef<[u8]>> {
    buffer: T,
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Wraps a buffer without looking at it. Accessors panic if it is too short.
    pub const fn new_unchecked(buffer: T) -> Self {
        Packet { buffer }
    }

    /// Wraps a buffer in which all fields of its opcode are present, so that no accessor panics.
    pub fn new_checked(buffer: T) -> Result<Self, Error> {
        let packet = Self::new_unchecked(buffer);
        packet.check_len()?;
        Ok(packet)
    }

    /// Checks magic, version and opcode, and that the header fits the buffer and its opcode.
    pub fn check_len(&self) -> Result<(), Error> {
        let have = self.buffer.as_ref().len();
        if have < HEADER_LEN {
            return Err(Error::Truncated {
                what: "transport header",
                need: HEADER_LEN,
                have,
            });
        }
        if self.magic() != MAGIC {
            return Err(Error::Magic {
                found: self.magic(),
            });
        }
        if self.version() != VERSION {
            return Err(Error::Version {
                found: self.version(),
            });
        }
        let code = self.opcode_code();
        let opcode = Opcode::from_code(code).ok_or(Error::Opcode { found: code })?;
        let header_len = self.header_len();
        if usize::from(header_len) < opcode.header_len() {
            return Err(Error::HeaderLength {
                opcode,
                found: header_len,
            });
        }
        if have < usize::from(header_len) {
            let need = usize::from(header_len);
            return Err(Error::Truncated {
                what: "transport header",
                need,
                have,
            });
        }
        Ok(())
    }

    fn u16(&self, at: core::ops::Range<usize>) -> u16 {
        let bytes = &self.buffer.as_ref()[at];
        u16::from_le_bytes([bytes[0], bytes[1]])
    }

    fn u32(&self, at: core::ops::Range<usize>) -> u32 {
        let bytes = &self.buffer.as_ref()[at];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// The magic bytes.
    pub fn magic(&self) -> [u8; 2] {
        let bytes = &self.buffer.as_ref()[field::MAGIC];
        [bytes[0], bytes[1]]
    }

    /// The format's version.
    pub fn version(&self) -> u8 {
        self.buffer.as_ref()[field::VERSION]
    }

    /// The opcode field's value; see [`Opcode::from_code`].
    pub fn opcode_code(&self) -> u8 {
        self.buffer.as_ref()[field::OPCODE]
    }

    /// The flags, unknown bits included.
    pub fn flags(&self) -> Flags {
        Flags::from_bits_retain(self.u16(field::FLAGS))
    }

    /// Length of the header in bytes.
    pub fn header_len(&self) -> u16 {
        self.u16(field::HEADER_LENGTH)
    }

    /// The sender's queue pair.
    pub fn source_qpn(&self) -> Qpn {
        Qpn(self.u16(field::SOURCE_QPN))
    }

    /// The receiver's queue pair.
    pub fn destination_qpn(&self) -> Qpn {
        Qpn(self.u16(field::DESTINATION_QPN))
    }

    /// The Q-key of the request.
    pub fn qkey(&self) -> Qkey {
        Qkey(self.u32(field::QKEY))
    }

    /// The request's number in its initiating queue pair.
    pub fn sequence(&self) -> u32 {
        self.u32(field::SEQUENCE)
    }

    /// The immediate field; meaningful with [`Flags::IMMEDIATE`].
    pub fn immediate(&self) -> u32 {
        self.u32(field::IMMEDIATE)
    }

    /// The status field; meaningful in responses.
    pub fn status_code(&self) -> u8 {
        self.buffer.as_ref()[field::STATUS]
    }

    /// The path that the frame took through the network.
    pub fn path(&self) -> u16 {
        self.u16(field::PATH)
    }

    /// Length in bytes of the frame's data, whether or not it was captured.
    pub fn payload_len(&self) -> u32 {
        self.u32(field::PAYLOAD_LENGTH)
    }

    /// The responder's memory. Only for opcodes with the RDMA extension.
    pub fn remote(&self) -> RemoteRange {
        let bytes = &self.buffer.as_ref()[field::REMOTE_ADDRESS];
        RemoteRange {
            address: u64::from_le_bytes(core::array::from_fn(|i| bytes[i])),
            key: self.u32(field::REMOTE_KEY),
        }
    }

    /// The whole operation's length in bytes. Only for opcodes with the RDMA extension.
    pub fn total_len(&self) -> u32 {
        self.u32(field::TOTAL_LENGTH)
    }

    /// Where this frame's data begins in the operation. Only for opcodes with the RDMA extension.
    pub fn data_offset(&self) -> u32 {
        self.u32(field::DATA_OFFSET)
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> Packet<&'a T> {
    /// What follows the header.
    pub fn payload(&self) -> &'a [u8] {
        &self.buffer.as_ref()[usize::from(self.header_len())..]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    fn put<const N: usize>(&mut self, at: core::ops::Range<usize>, bytes: [u8; N]) {
        self.buffer.as_mut()[at].copy_from_slice(&bytes);
    }

    fn put_u8(&mut self, at: usize, value: u8) {
        self.buffer.as_mut()[at] = value;
    }

    /// What follows the header, to fill in.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let at = usize::from(self.header_len());
        &mut self.buffer.as_mut()[at..]
    }
}

/// The RDMA extension: which memory, and which part of the operation this frame carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rdma {
    /// The responder's memory.
    pub remote: RemoteRange,
    /// Length in bytes of the whole operation.
    pub total_length: u32,
    /// Where this frame's data begins in the operation, in bytes.
    pub offset: u32,
}

/// The part of a header that depends on what the frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
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

impl Kind {
    /// The opcode.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Kind::Send => Opcode::Send,
            Kind::RdmaReadRequest(_) => Opcode::RdmaReadRequest,
            Kind::RdmaReadResponse(_) => Opcode::RdmaReadResponse,
            Kind::RdmaWrite(_) => Opcode::RdmaWrite,
            Kind::Response(_) => Opcode::Response,
            Kind::Datagram => Opcode::Datagram,
        }
    }

    /// The RDMA extension, if the frame has one.
    pub const fn rdma(&self) -> Option<&Rdma> {
        match self {
            Kind::RdmaReadRequest(rdma) | Kind::RdmaReadResponse(rdma) | Kind::RdmaWrite(rdma) => {
                Some(rdma)
            }
            Kind::Send | Kind::Response(_) | Kind::Datagram => None,
        }
    }
}

/// A transport header, parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// What the frame is.
    pub kind: Kind,
    /// The sender's queue pair.
    pub source_qpn: Qpn,
    /// The receiver's queue pair.
    pub destination_qpn: Qpn,
    /// The Q-key that the request carried; answers repeat it.
    pub qkey: Qkey,
    /// The request's number in its initiating queue pair; answers repeat it.
    pub sequence: u32,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// Not the first attempt: a retransmission, or a retry after receiver-not-ready.
    pub retransmission: bool,
    /// The path through the network.
    pub path: u16,
    /// Length in bytes of this frame's data, whether or not the frame still has it.
    pub payload_length: u32,
    /// Whether the data is in the frame; `false` if the capture left it out.
    pub payload_captured: bool,
}

impl Repr {
    /// Reads the header and checks it: see [`Packet::check_len`]; a response's status must be
    /// known. The payload's length is the business of [`super::Frame::parse`].
    pub fn parse<T: AsRef<[u8]> + ?Sized>(packet: &Packet<&T>) -> Result<Repr, Error> {
        packet.check_len()?;
        let rdma = || Rdma {
            remote: packet.remote(),
            total_length: packet.total_len(),
            offset: packet.data_offset(),
        };
        let code = packet.opcode_code();
        let kind = match Opcode::from_code(code).ok_or(Error::Opcode { found: code })? {
            Opcode::Send => Kind::Send,
            Opcode::RdmaReadRequest => Kind::RdmaReadRequest(rdma()),
            Opcode::RdmaReadResponse => Kind::RdmaReadResponse(rdma()),
            Opcode::RdmaWrite => Kind::RdmaWrite(rdma()),
            Opcode::Response => {
                let found = packet.status_code();
                Kind::Response(Status::from_code(found).ok_or(Error::Status { found })?)
            }
            Opcode::Datagram => Kind::Datagram,
        };
        let flags = packet.flags();
        Ok(Repr {
            kind,
            source_qpn: packet.source_qpn(),
            destination_qpn: packet.destination_qpn(),
            qkey: packet.qkey(),
            sequence: packet.sequence(),
            immediate: flags.contains(Flags::IMMEDIATE).then(|| packet.immediate()),
            retransmission: flags.contains(Flags::RETRANSMISSION),
            path: packet.path(),
            payload_length: packet.payload_len(),
            payload_captured: !flags.contains(Flags::NOT_CAPTURED),
        })
    }

    /// Length in bytes of the emitted header.
    pub const fn header_len(&self) -> usize {
        self.kind.opcode().header_len()
    }

    /// Bytes of payload that stand in the frame behind the header.
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

    /// Writes the header; the payload is the caller's.
    ///
    /// # Panics
    /// If the buffer is shorter than [`Self::header_len`].
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        let opcode = self.kind.opcode();
        let status = match self.kind {
            Kind::Response(status) => status.code(),
            _ => 0,
        };
        packet.put(field::MAGIC, MAGIC);
        packet.put_u8(field::VERSION, VERSION);
        packet.put_u8(field::OPCODE, opcode as u8);
        packet.put(field::FLAGS, self.flags().bits().to_le_bytes());
        packet.put(
            field::HEADER_LENGTH,
            (opcode.header_len() as u16).to_le_bytes(),
        );
        packet.put(field::SOURCE_QPN, self.source_qpn.0.to_le_bytes());
        packet.put(field::DESTINATION_QPN, self.destination_qpn.0.to_le_bytes());
        packet.put(field::QKEY, self.qkey.0.to_le_bytes());
        packet.put(field::SEQUENCE, self.sequence.to_le_bytes());
        packet.put(field::IMMEDIATE, self.immediate.unwrap_or(0).to_le_bytes());
        packet.put_u8(field::STATUS, status);
        packet.put_u8(field::RESERVED, 0);
        packet.put(field::PATH, self.path.to_le_bytes());
        packet.put(field::PAYLOAD_LENGTH, self.payload_length.to_le_bytes());
        if let Some(rdma) = self.kind.rdma() {
            packet.put(field::REMOTE_ADDRESS, rdma.remote.address.to_le_bytes());
            packet.put(field::REMOTE_KEY, rdma.remote.key.to_le_bytes());
            packet.put(field::TOTAL_LENGTH, rdma.total_length.to_le_bytes());
            packet.put(field::DATA_OFFSET, rdma.offset.to_le_bytes());
            packet.put(field::RDMA_RESERVED, [0; 4]);
        }
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
            Operation::Send => Kind::Send,
            Operation::Datagram => Kind::Datagram,
            Operation::RdmaRead => Kind::RdmaReadRequest(rdma()),
            Operation::RdmaWrite => Kind::RdmaWrite(rdma()),
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
            ..Self::answer(request, Kind::RdmaReadResponse(rdma))
        }
    }

    /// The header of the frame that tells the initiator how its request ended.
    pub fn of_status(request: &RequestHeader, status: Status) -> Repr {
        Self::answer(request, Kind::Response(status))
    }

    fn answer(request: &RequestHeader, kind: Kind) -> Repr {
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
            Kind::Response(status) => write!(f, " status={}", status.describe()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
