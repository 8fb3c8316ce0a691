//! Reading and writing the pieces of a packet in order, each with one check of its length.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::declare::{Format, Output, record, section, table};
use super::error::{EmitError, ParseError, Reason};
use super::fields::{Array, FieldDescriptor, Kind, Presence, Section, Source, Width, fields_of};
use super::packet_type::{PacketType, TypeTraits};
use super::parts::{Flags, Length, Traits};
use super::{BaseHeader, Header, PROTOCOL_VERSION, Packet, Payload};

record! {
    /// The base header on the wire.
    pub(super) RawBase;
    packet_type: u8, ["type"], Kind::PacketType, "packet type id";
    version: u8, ["version"], Kind::Number, "protocol version, always 4";
    flags: U16, ["flags"], Kind::Flags, "optional parts of the packet and what it is used for";
}

impl RawBase {
    fn new(packet_type: PacketType, flags: u16) -> RawBase {
        RawBase {
            packet_type: packet_type.code(),
            version: PROTOCOL_VERSION,
            flags: U16::new(flags),
        }
    }
}

/// The base header in the tables.
pub(super) const BASE: Section = Section {
    array: None,
    fields: &RawBase::fields(0, Presence::Always, table("1.3", "1.3")),
};

/// What follows the headers of packets that carry data.
pub(super) const DATA: Section = Section {
    array: None,
    fields: &[FieldDescriptor {
        name: "data",
        width: Width::Rest,
        presence: Presence::Always,
        kind: Kind::Data,
        source: section("3.1"),
        description: "application data",
    }],
};

/// What follows the headers of packets that do not: normally nothing.
pub(super) const TRAILING: Section = Section {
    array: None,
    fields: &[FieldDescriptor {
        name: "trailing",
        width: Width::Rest,
        presence: Presence::Always,
        kind: Kind::Unknown,
        source: section("1.3"),
        description: "bytes behind the end of the packet's format",
    }],
};

/// A packet that is being parsed. Everything in front of `rest` has been read.
pub(super) struct Cursor<'a> {
    base: BaseHeader,
    packet: &'a [u8],
    rest: &'a [u8],
    /// Entries of each array, by [`Array`].
    counts: [u32; 3],
}

impl<'a> Cursor<'a> {
    /// Starts behind the base header of `packet`.
    pub(super) fn new(base: BaseHeader, packet: &'a [u8], rest: &'a [u8]) -> Cursor<'a> {
        Cursor {
            base,
            packet,
            rest,
            counts: [0; 3],
        }
    }

    pub(super) fn packet_type(&self) -> PacketType {
        self.base.packet_type
    }

    pub(super) fn flags(&self) -> u16 {
        self.base.flags
    }

    /// The packet, if `header` is what was read.
    #[inline(always)]
    pub(super) fn packet_with(&self, header: Header) -> Packet {
        Packet {
            base: self.base,
            header,
            payload: self.payload(),
        }
    }

    /// What has not been read yet, as the payload of the packet.
    #[inline(always)]
    pub(super) fn payload(&self) -> Payload {
        Payload {
            offset: self.offset(),
            length: self.rest.len(),
        }
    }

    /// What has not been read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Bytes read so far.
    pub(super) fn offset(&self) -> usize {
        self.packet.len() - self.rest.len()
    }

    /// Checks that there are at least `length` more bytes, so that what is known to be within them is
    /// not checked again.
    #[inline(always)]
    pub(super) fn require(&self, length: usize) -> Result<(), ParseError> {
        if self.rest.len() < length {
            return Err(self.truncated(length));
        }
        Ok(())
    }

    /// Reads a structure.
    #[inline(always)]
    pub(super) fn take<T>(&mut self) -> Result<&'a T, ParseError>
    where
        T: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        match T::ref_from_prefix(self.rest) {
            Ok((value, rest)) => {
                self.rest = rest;
                Ok(value)
            }
            Err(_) => Err(self.truncated(size_of::<T>())),
        }
    }

    /// Reads an array of `count` structures.
    #[inline(always)]
    pub(super) fn take_slice<T>(&mut self, count: usize) -> Result<&'a [T], ParseError>
    where
        T: FromBytes + Immutable + Unaligned,
    {
        match <[T]>::ref_from_prefix_with_elems(self.rest, count) {
            Ok((values, rest)) => {
                self.rest = rest;
                Ok(values)
            }
            Err(_) => Err(self.truncated(count.saturating_mul(size_of::<T>()))),
        }
    }

    /// Passes over `length` bytes.
    #[inline(always)]
    pub(super) fn skip(&mut self, length: usize) -> Result<(), ParseError> {
        match self.rest.get(length..) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => Err(self.truncated(length)),
        }
    }

    /// Remembers how many entries an array has.
    #[inline(always)]
    pub(super) fn set_count(&mut self, array: Array, count: u32) {
        self.counts[array as usize] = count;
    }

    /// Reads the entries of an array whose count has been read.
    #[inline(always)]
    pub(super) fn take_entries<T>(&mut self, array: Array) -> Result<&'a [T], ParseError>
    where
        T: FromBytes + Immutable + Unaligned,
    {
        self.take_slice(self.counts[array as usize] as usize)
    }

    /// Checks that what follows the headers is as long as the field `name` says.
    #[inline(always)]
    pub(super) fn check_data_length(
        &self,
        name: &'static str,
        stated: u64,
    ) -> Result<(), ParseError> {
        let present = self.rest.len();
        if stated == present as u64 {
            return Ok(());
        }
        Err(self.wrong_data_length(name, Reason::DataLength { stated, present }))
    }

    #[cold]
    fn wrong_data_length(&self, name: &'static str, reason: Reason) -> ParseError {
        let mut fields = fields_of(self.packet).into_iter().flatten();
        let field = fields.find(|field| field.descriptor.name == name);
        self.error(name, field.map_or(0, |field| field.offset), reason)
    }

    /// An error about the field at byte `offset`.
    #[cold]
    pub(super) fn error(&self, field: &'static str, offset: usize, reason: Reason) -> ParseError {
        ParseError {
            packet_type: Some(self.base.packet_type),
            field,
            offset,
            reason,
        }
    }

    /// The error for a packet that ends within the next `needed` bytes. The tables tell which field
    /// is cut off.
    #[cold]
    fn truncated(&self, needed: usize) -> ParseError {
        truncated(self.packet).unwrap_or_else(|| {
            debug_assert!(false, "the tables do not find the missing field");
            let available = self.rest.len();
            self.error(
                "header",
                self.offset(),
                Reason::Truncated { needed, available },
            )
        })
    }
}

/// The error for the first field that the packet is too short for; `None` if it has them all.
#[cold]
pub(super) fn truncated(packet: &[u8]) -> Option<ParseError> {
    let mut fields = fields_of(packet)?;
    fields.by_ref().for_each(drop);
    let missing = fields.missing()?;
    Some(ParseError {
        packet_type: PacketType::peek(packet),
        field: missing.descriptor.name,
        offset: missing.offset,
        reason: Reason::Truncated {
            needed: missing.needed,
            available: missing.available,
        },
    })
}

/// The part of a header's buffer that has not been written yet.
struct Writer<'b> {
    rest: &'b mut [u8],
}

impl Writer<'_> {
    /// The next `length` bytes.
    #[inline(always)]
    fn next(&mut self, length: usize) -> &mut [u8] {
        let rest = core::mem::take(&mut self.rest);
        let (next, rest) = rest.split_at_mut_checked(length).unwrap_or_else(|| {
            debug_assert!(false, "header_len() is less than what is written");
            Default::default()
        });
        self.rest = rest;
        next
    }
}

impl Output for Writer<'_> {
    #[inline(always)]
    fn bytes(&mut self, bytes: &[u8]) {
        let next = self.next(bytes.len());
        if next.len() == bytes.len() {
            next.copy_from_slice(bytes);
        }
    }

    #[inline(always)]
    fn zeroes(&mut self, count: usize) {
        self.next(count).fill(0);
    }
}

/// A packet's header as a plain value: what parsing gives and what emitting takes.
///
/// Implemented by the structs of this module only. The flags that say which type or which optional
/// parts a header has follow from its fields; a struct's own `flags` field holds only the others,
/// and emitting ignores the derived bits in it.
pub trait Repr: sealed::Sealed {
    /// The packet type that follows from the fields.
    fn packet_type(&self) -> PacketType;

    /// The flags of the base header as they go onto the wire.
    fn wire_flags(&self) -> u16;

    /// The exact number of bytes that [`emit`](Self::emit) writes.
    fn header_len(&self) -> usize;

    /// Writes the header to the start of `buffer` and returns its length. Application data is not
    /// part of it: devices gather it from user memory.
    ///
    /// # Errors
    /// If `buffer` is shorter than [`header_len`](Self::header_len); it is then unchanged.
    fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError>;

    /// Writes the header and a copy of `payload` behind it, and returns the length of both.
    ///
    /// # Errors
    /// If `buffer` is too short; it is then unchanged.
    fn emit_packet(&self, payload: &[u8], buffer: &mut [u8]) -> Result<usize, EmitError> {
        let header_len = self.header_len();
        let needed = header_len.saturating_add(payload.len());
        let available = buffer.len();
        let Some(packet) = buffer.get_mut(..needed) else {
            return Err(EmitError {
                packet_type: self.packet_type(),
                needed,
                available,
            });
        };
        self.emit(packet)?;
        packet[header_len..].copy_from_slice(payload);
        Ok(needed)
    }

    /// The packet as a new vector: for tests and tools, as it allocates.
    fn to_packet(&self, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; self.header_len().saturating_add(payload.len())];
        let written = self.emit_packet(payload, &mut packet);
        debug_assert_eq!(written, Ok(packet.len()));
        packet
    }
}

pub(super) mod sealed {
    /// Only headers of this crate are [`Repr`](super::Repr)s.
    pub trait Sealed {}
}

impl<F: Format> sealed::Sealed for F {}

impl<F: Format> Repr for F {
    #[inline]
    fn packet_type(&self) -> PacketType {
        let mut traits = Traits(TypeTraits::empty());
        self.write(&mut traits);
        F::type_with(traits.0)
    }

    #[inline]
    fn wire_flags(&self) -> u16 {
        let mut flags = Flags(self.packet_type().implied_flags().bits());
        self.write(&mut flags);
        flags.0
    }

    #[inline]
    fn header_len(&self) -> usize {
        let mut length = Length(BaseHeader::LEN);
        self.write(&mut length);
        length.0
    }

    #[inline]
    fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        let needed = self.header_len();
        let available = buffer.len();
        // The second condition is always met. It lets the compiler know that what every packet of the
        // format has fits.
        let header = buffer.get_mut(..needed);
        let Some(header) = header.filter(|header| header.len() >= F::MIN_LEN) else {
            return Err(EmitError {
                packet_type: self.packet_type(),
                needed,
                available,
            });
        };
        let mut writer = Writer { rest: header };
        writer.bytes(RawBase::new(self.packet_type(), self.wire_flags()).as_bytes());
        self.write(&mut writer);
        debug_assert!(writer.rest.is_empty(), "header_len() is too large");
        Ok(needed)
    }
}
