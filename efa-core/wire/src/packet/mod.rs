//! Whole packets: any type, parsed into one value.

mod header;

pub use header::Header;

use super::codec::{BaseHeader, Cursor, Format};
use super::error::{ParseError, Reason};
use super::fields::fields_of;
use super::formats::{CtsData, EagerRtm};
use super::packet_type::PacketType;
use crate::address::RawAddress;

/// A parsed packet, as a value that does not depend on the packet's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// The base header as it was received, with all flags.
    pub base: BaseHeader,
    /// The fields of the header.
    pub header: Header,
    /// The bytes after the header: application data if [`PacketType::carries_data`], otherwise
    /// bytes that are unknown to this version of the protocol, normally none.
    pub payload: Payload,
}

/// The position of a packet's payload. It ends with the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Payload {
    /// The number of bytes before it, which is the length of the header.
    pub offset: usize,
    /// Its length in bytes.
    pub length: usize,
}

impl Payload {
    /// The bytes that the cursor has not read.
    #[inline(always)]
    fn behind(cursor: &Cursor<'_>) -> Payload {
        Payload {
            offset: cursor.offset(),
            length: cursor.rest().len(),
        }
    }

    /// The payload's bytes in those of the parsed packet.
    pub fn of<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        packet.get(self.offset..).unwrap_or_default()
    }
}

impl Packet {
    /// The packet whose header was read up to the cursor.
    #[inline(always)]
    fn behind(cursor: &Cursor<'_>, header: Header) -> Packet {
        Packet {
            base: cursor.base(),
            header,
            payload: Payload::behind(cursor),
        }
    }

    /// Parses an eager message, the most frequent kind of packet. `None` for every other packet,
    /// and for those that [`Packet::parse`] rejects.
    #[inline(always)]
    pub fn parse_eager(packet: &[u8]) -> Option<(PacketType, EagerRtm, Payload)> {
        let mut cursor = Cursor::of(packet).ok()?;
        let packet_type = cursor.packet_type();
        let (PacketType::EagerMsgRtm | PacketType::EagerTagRtm) = packet_type else {
            return None;
        };
        let eager = EagerRtm::parse_header(&mut cursor).ok()?;
        Some((packet_type, eager, Payload::behind(&cursor)))
    }

    /// The address that the sender states, if it does.
    #[inline(always)]
    pub fn raw_address(&self) -> Option<RawAddress> {
        let header = self.header.req_options()?.raw_address?;
        Some(header.address())
    }

    /// Parses a whole packet, which has the length of the slice.
    ///
    /// # Errors
    /// If the type may not be on the wire, the version is not
    /// [`PROTOCOL_VERSION`](super::PROTOCOL_VERSION), the packet ends inside its header, an array
    /// has too many entries, or a stated length is not the true one.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<Packet, ParseError> {
        let mut cursor = Cursor::of(packet)?;
        // The most frequent type that has no function like `parse_eager` is parsed here, so that
        // the cursor stays in registers. The others are parsed by a function of their own.
        match cursor.packet_type() {
            PacketType::CtsData => match CtsData::parse_header(&mut cursor) {
                Ok(data) => Ok(Packet::behind(&cursor, Header::CtsData(data))),
                Err(error) => Err(locate(error, packet)),
            },
            _ => Header::parse(packet, cursor),
        }
    }
}

/// Completes an error from the tables: which field is cut off, or where the field is whose value is
/// wrong.
#[cold]
fn locate(error: ParseError, packet: &[u8]) -> ParseError {
    let Some(mut fields) = fields_of(packet) else {
        return error;
    };
    match error.reason {
        Reason::Truncated { .. } => {
            fields.by_ref().for_each(drop);
            let Some(missing) = fields.missing() else {
                // It is whole, in a form that no release sends.
                let (form, length) = (fields.released_len(), packet.len());
                let reason = Reason::OtherForm { form, length };
                let (field, offset) = ("type", 0);
                return ParseError {
                    field,
                    offset,
                    reason,
                    ..error
                };
            };
            ParseError {
                field: missing.descriptor.name,
                offset: missing.offset,
                reason: Reason::Truncated {
                    needed: missing.needed,
                    available: missing.available,
                },
                ..error
            }
        }
        Reason::DataLength { .. } => {
            let field = fields.find(|field| field.descriptor.name == error.field);
            let offset = field.map_or(0, |field| field.offset);
            ParseError { offset, ..error }
        }
        _ => error,
    }
}
