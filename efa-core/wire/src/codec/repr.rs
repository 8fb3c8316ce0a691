//! Headers as values that can be written.

use core::hint::cold_path;

use zerocopy::IntoBytes;

use super::base::{BaseHeader, RawBase};
use super::declare::Format;
use super::output::{BaseHeaderValues, Length, Output};
use crate::PROTOCOL_VERSION;
use crate::error::EmitError;
use crate::packet_type::{PacketType, TypeTraits};

/// Writes a header, and collects the values for the base header.
struct Writer<'b> {
    /// The part of the buffer that has not been written yet.
    rest: &'b mut [u8],
    /// The buffer is too short.
    overflow: bool,
    stated: BaseHeaderValues,
}

impl Writer<'_> {
    /// The next `length` bytes, or none if there are fewer.
    #[inline(always)]
    fn next(&mut self, length: usize) -> &mut [u8] {
        let rest = core::mem::take(&mut self.rest);
        match rest.split_at_mut_checked(length) {
            Some((next, rest)) => {
                self.rest = rest;
                next
            }
            None => {
                cold_path();
                self.overflow = true;
                &mut []
            }
        }
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

    #[inline(always)]
    fn flags(&mut self, flags: u16) {
        self.stated.flags |= flags;
    }

    #[inline(always)]
    fn traits(&mut self, traits: TypeTraits) {
        self.stated.traits = self.stated.traits.union(traits);
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
    /// If `buffer` is shorter than [`header_len`](Self::header_len). It may have been written to.
    fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError>;

    /// Writes the header and a copy of `payload` after it, and returns the length of both.
    ///
    /// # Errors
    /// If `buffer` is too short.
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

/// The values for the base header that follow from the presence of a header's fields.
#[inline(always)]
fn stated(header: &impl Format) -> BaseHeaderValues {
    let mut stated = BaseHeaderValues::default();
    header.write(&mut stated);
    stated
}

/// The base header of a packet whose fields state this.
#[inline(always)]
fn base<F: Format>(stated: BaseHeaderValues) -> BaseHeader {
    let packet_type = F::type_with(stated.traits);
    BaseHeader {
        packet_type,
        version: PROTOCOL_VERSION,
        flags: packet_type.implied_flags().bits() | stated.flags,
    }
}

/// The error for a buffer that is too short. It gets a copy of the header, because a reference
/// would keep every header in memory.
#[cold]
fn too_short(header: impl Format, available: usize) -> EmitError {
    EmitError {
        packet_type: header.packet_type(),
        needed: header.header_len(),
        available,
    }
}

impl<F: Format> Repr for F {
    #[inline]
    fn packet_type(&self) -> PacketType {
        base::<F>(stated(self)).packet_type
    }

    #[inline]
    fn wire_flags(&self) -> u16 {
        base::<F>(stated(self)).flags
    }

    #[inline]
    fn header_len(&self) -> usize {
        let mut length = Length(BaseHeader::LEN);
        self.write(&mut length);
        length.0
    }

    #[inline(always)]
    fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        let available = buffer.len();
        // So the fields that all packets of the format have need no further check.
        if available < F::MIN_LEN {
            return Err(too_short(*self, available));
        }
        let (start, rest) = buffer.split_at_mut(BaseHeader::LEN);
        let mut writer = Writer {
            rest,
            overflow: false,
            stated: BaseHeaderValues::default(),
        };
        self.write(&mut writer);
        let Writer {
            rest,
            overflow,
            stated,
        } = writer;
        if overflow {
            return Err(too_short(*self, available));
        }
        let length = available - rest.len();
        start.copy_from_slice(RawBase::from(base::<F>(stated)).as_bytes());
        Ok(length)
    }
}
