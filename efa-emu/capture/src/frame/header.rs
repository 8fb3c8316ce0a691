//! The transport header, which the emulated network puts between UDP and the device's payload.
//!
//! The wire format of SRD is not public, so this project defines a separate one. It is declared
//! here. The structs behind [`Repr`](super::Repr), the tables of `docs/wire-format.md` and the
//! dissector's tables are generated from the declaration. Integers are little-endian, as in the RDM
//! packets that follow.

mod layout;

use core::fmt;
use core::mem::offset_of;

use smoltcp::wire::UDP_HEADER_LEN;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use layout::{flags, header_part, opcodes};

/// The first two bytes of every transport header.
pub const MAGIC: [u8; 2] = *b"EF";
/// The version of the format that this package reads and writes.
pub const VERSION: u8 = 1;
/// The first sequence number of requests that a tap saw arrive.
pub const FIRST_TAPPED_SEQUENCE: u32 = 1 << 31;
/// Length in bytes of the header without the RDMA extension.
pub const HEADER_LEN: usize = size_of::<Common>();
/// Length in bytes of the header with the RDMA extension.
pub const RDMA_HEADER_LEN: usize = HEADER_LEN + size_of::<Extension>();
/// The most data in one frame after the longest header: IPv6 counts in 16 bits.
pub const MAX_PAYLOAD: usize = u16::MAX as usize - UDP_HEADER_LEN - RDMA_HEADER_LEN;

/// One field of the transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// The name; the dissector's field has it after `efa.`.
    pub name: &'static str,
    /// The offset of the field from the start of the header, in bytes.
    pub offset: usize,
    /// Length in bytes.
    pub size: usize,
    /// How the value is displayed.
    pub format: Format,
    /// The frames in which the field has a meaning. In other frames its bytes are 0.
    pub presence: Presence,
    /// Its meaning.
    pub meaning: &'static str,
}

/// How the value of a field is displayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Characters.
    Text,
    /// A number in decimal.
    Decimal,
    /// A number in hexadecimal.
    Hexadecimal,
    /// The code of an [`Opcode`].
    Opcode,
    /// [`Flags`].
    Flags,
    /// The code of a [`Status`](efa_wire::Status).
    Status,
    /// Bytes without a meaning.
    Reserved,
}

/// The frames in which a field has a meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// Every frame whose header includes the field.
    Always,
    /// Frames with this flag.
    IfFlag(Flags),
    /// Frames of this opcode.
    InOpcode(Opcode),
}

/// The end of a request that sends a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sender {
    /// The end that posted the request.
    Initiator,
    /// The end that executes the request.
    Responder,
}

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

#[cfg(test)]
mod documented;
