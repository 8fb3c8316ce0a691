//! Errors of frames.

use core::mem::offset_of;

use super::header::{Common, MAGIC, MAX_PAYLOAD, Opcode, VERSION};

/// The reason why bytes are not a frame of the emulated wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The bytes end inside a header or inside the payload that a header announces.
    #[error("{what} needs {need} bytes, but only {have} are there")]
    Truncated {
        /// The incomplete part.
        what: &'static str,
        /// Its length in bytes.
        need: usize,
        /// The number of available bytes.
        have: usize,
    },
    /// Not an Ethernet frame with IPv6 and UDP to [`UDP_PORT`](super::UDP_PORT) inside.
    #[error("not a frame of the emulated wire: {what} is {found:#x}, expected {expected:#x}")]
    Foreign {
        /// The field that differs.
        what: &'static str,
        /// Its value.
        found: u16,
        /// The value on the emulated wire.
        expected: u16,
    },
    /// The UDP checksum does not match.
    #[error("UDP checksum {found:#06x} is wrong")]
    Checksum {
        /// The checksum field.
        found: u16,
    },
    /// The transport header does not begin with its magic bytes.
    #[error(
        "transport header: magic at offset {} is {found:02x?}, expected {:02x?} (\"EF\")",
        offset_of!(Common, magic),
        MAGIC
    )]
    Magic {
        /// The bytes found.
        found: [u8; 2],
    },
    /// The version of the transport header is unknown.
    #[error(
        "transport header: version at offset {} is {found}, only version {} is known",
        offset_of!(Common, version),
        VERSION
    )]
    Version {
        /// The version found.
        found: u8,
    },
    /// An unknown opcode.
    #[error("transport header: opcode at offset {} is {found}, known are 1 to {}", offset_of!(Common, opcode), Opcode::ALL.len())]
    Opcode {
        /// The opcode found.
        found: u8,
    },
    /// The header length is too small for the opcode.
    #[error("transport header: length at offset {} is {found}, {opcode} needs {}", offset_of!(Common, header_length), .opcode.header_len())]
    HeaderLength {
        /// The opcode.
        opcode: Opcode,
        /// The length found.
        found: u16,
    },
    /// An unknown completion status in a response.
    #[error(
        "transport header: status at offset {} is {found}, which is not an EFA completion status",
        offset_of!(Common, status)
    )]
    Status {
        /// The status found.
        found: u8,
    },
    /// The payload length differs from the number of bytes.
    #[error(
        "transport header: payload length at offset {} is {announced} bytes, the frame has {have}",
        offset_of!(Common, payload_length)
    )]
    PayloadLength {
        /// The length according to the header.
        announced: usize,
        /// The number of available bytes.
        have: usize,
    },
    /// Too much data for one frame.
    #[error("{length} bytes do not fit into one frame, at most {MAX_PAYLOAD} do")]
    TooLong {
        /// The length in bytes.
        length: usize,
    },
}
