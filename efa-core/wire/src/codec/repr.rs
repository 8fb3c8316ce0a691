//! Headers as values that can be written.

use zerocopy::IntoBytes;

use super::base::{BaseHeader, RawBase};
use super::declare::{Format, Output};
use super::parts::{Flags, Length, Traits};
use crate::error::EmitError;
use crate::packet_type::{PacketType, TypeTraits};

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

/// A packet's header as a plain value: the result of parsing and the input of emitting.
///
/// Implemented by the structs of this module only. The flags for the type and for the optional
/// parts are derived from a header's fields. A struct's own `flags` field holds only the other
/// flags, and emitting ignores the derived bits in it.
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

pub(crate) mod sealed {
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
        // The second condition is always met. It lets the compiler know that the fields common to
        // all packets of the format fit.
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
