//! Why a packet was not parsed, or not written.

use core::fmt;

use super::packet_type::PacketType;
use crate::address::RawAddress;

/// A packet that breaks the protocol's format: which field, where, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub struct ParseError {
    /// The packet's type, `None` if the type itself is invalid.
    pub packet_type: Option<PacketType>,
    /// The name of the field that failed to parse, as in [`fields`](super::fields).
    pub field: &'static str,
    /// The offset of the field, in bytes from the start of the packet.
    pub offset: usize,
    /// The error in this field.
    pub reason: Reason,
}

/// The error in the field that a [`ParseError`] names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The packet ends inside the field.
    Truncated {
        /// Length of the field in bytes.
        needed: usize,
        /// Bytes from the start of the field to the end of the packet.
        available: usize,
    },
    /// The type id is in no table of the protocol.
    UnassignedType {
        /// The type id.
        code: u8,
    },
    /// The type id belongs to protocol v3.
    RetiredType {
        /// The type id.
        code: u8,
    },
    /// The type id is one that stock libfabric uses for local records and never sends.
    LocalType {
        /// The type id.
        code: u8,
    },
    /// No release of libfabric has ever sent the type, and none receives it.
    UnsentType {
        /// The type id.
        code: u8,
    },
    /// The version is not [`PROTOCOL_VERSION`](super::PROTOCOL_VERSION).
    UnsupportedVersion {
        /// The version byte.
        version: u8,
    },
    /// An array is longer than any receiver can take.
    TooManyEntries {
        /// The count that the packet states.
        count: u32,
        /// The largest count allowed.
        limit: usize,
    },
    /// The raw address header is smaller than a raw address.
    RawAddressTooShort {
        /// The size that the packet states, in bytes.
        size: u32,
    },
    /// `nextra_p3` is the number of capability words plus 3, so it cannot be smaller than 3.
    NextraBelowThree {
        /// The value of the field.
        value: u32,
    },
    /// All packets of the type have the same length, and the packet has another.
    OtherForm {
        /// The length of the type's packets in bytes.
        form: usize,
        /// The length of the packet in bytes.
        length: usize,
    },
    /// The packet states a length of its data that it does not have.
    DataLength {
        /// The length that the packet states, in bytes.
        stated: u64,
        /// The number of bytes after the headers.
        present: usize,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Reason::Truncated { needed, available } => write!(
                f,
                "needs {needed} byte{}, but {available} {} left",
                if needed == 1 { "" } else { "s" },
                if available == 1 { "is" } else { "are" },
            ),
            Reason::UnassignedType { code } => write!(f, "type id {code} is not assigned"),
            Reason::RetiredType { code } => write!(
                f,
                "type id {code} is a leftover of protocol v3 and must not be sent any more"
            ),
            Reason::LocalType { code } => write!(
                f,
                "type id {code} is for local records of libfabric and must never be on the wire"
            ),
            Reason::UnsentType { code } => write!(
                f,
                "type id {code} is one that no release of libfabric sends or receives"
            ),
            Reason::UnsupportedVersion { version } => write!(
                f,
                "version {version} is not supported, only {}",
                super::PROTOCOL_VERSION
            ),
            Reason::TooManyEntries { count, limit } => {
                write!(f, "{count} entries, but at most {limit} are allowed")
            }
            Reason::RawAddressTooShort { size } => write!(
                f,
                "{size} bytes, but a raw address has at least {}",
                RawAddress::LEN
            ),
            Reason::NextraBelowThree { value } => write!(
                f,
                "{value}, but it counts the capability words plus 3 and so is at least 3"
            ),
            Reason::OtherForm { form, length } => {
                write!(f, "{length} bytes, but packets of the type have {form}")
            }
            Reason::DataLength { stated, present } => write!(
                f,
                "states {stated} bytes of data, but {present} follow the headers"
            ),
        }
    }
}

/// The buffer is too small for the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{packet_type}: needs a buffer of {needed} bytes, but it has {available}")]
pub struct EmitError {
    /// The packet's type.
    pub packet_type: PacketType,
    /// Bytes to be written.
    pub needed: usize,
    /// Length of the buffer in bytes.
    pub available: usize,
}
