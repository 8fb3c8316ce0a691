//! Reading the pieces of a packet in order, each with one check of its length.
//!
//! A cursor knows its position, but not the field there. Errors that need the field
//! ([`Reason::Truncated`], [`Reason::DataLength`]) are completed from the tables by the caller that
//! parses the packet ([`packet`](crate::packet)).

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::base::{BaseHeader, split, unsupported_version};
use crate::PROTOCOL_VERSION;
use crate::descriptor::Array;
use crate::error::{ParseError, Reason};
use crate::packet_type::PacketType;

/// A packet that is being parsed. All bytes before `rest` have been read. Errors are made from a
/// copy, because a reference would keep every cursor in memory.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    base: BaseHeader,
    packet: &'a [u8],
    rest: &'a [u8],
    /// Entries of each array, by [`Array`].
    counts: [u32; 3],
}

impl<'a> Cursor<'a> {
    /// Starts to parse a packet: reads and checks its base header.
    #[inline(always)]
    pub(crate) fn of(packet: &'a [u8]) -> Result<Cursor<'a>, ParseError> {
        let (base, rest) = split(packet)?;
        if base.version != PROTOCOL_VERSION {
            return Err(unsupported_version(base));
        }
        Ok(Cursor {
            base,
            packet,
            rest,
            counts: [0; 3],
        })
    }

    pub(crate) fn packet_type(&self) -> PacketType {
        self.base.packet_type
    }

    pub(crate) fn flags(&self) -> u16 {
        self.base.flags
    }

    /// The base header.
    pub(crate) fn base(&self) -> BaseHeader {
        self.base
    }

    /// The bytes that have not been read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Bytes read so far.
    pub(crate) fn offset(&self) -> usize {
        self.packet.len() - self.rest.len()
    }

    /// Checks that at least `length` more bytes follow, so that reads within them need no further
    /// check.
    #[inline(always)]
    pub(crate) fn require(&self, length: usize) -> Result<(), ParseError> {
        if self.rest.len() < length {
            return Err(self.truncated(length));
        }
        Ok(())
    }

    /// Reads a structure.
    #[inline(always)]
    pub(crate) fn take<T>(&mut self) -> Result<&'a T, ParseError>
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
    pub(crate) fn take_slice<T>(&mut self, count: usize) -> Result<&'a [T], ParseError>
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
    pub(crate) fn skip(&mut self, length: usize) -> Result<(), ParseError> {
        match self.rest.get(length..) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => Err(self.truncated(length)),
        }
    }

    /// Stores the number of entries of an array.
    #[inline(always)]
    pub(crate) fn set_count(&mut self, array: Array, count: u32) {
        self.counts[array as usize] = count;
    }

    /// Reads the entries of an array whose count has been read.
    #[inline(always)]
    pub(crate) fn take_entries<T>(&mut self, array: Array) -> Result<&'a [T], ParseError>
    where
        T: FromBytes + Immutable + Unaligned,
    {
        self.take_slice(self.counts[array as usize] as usize)
    }

    /// Checks that the number of bytes after the headers is the one in the field `name`.
    #[inline(always)]
    pub(crate) fn check_data_length(
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

    /// Checks that nothing follows the headers.
    #[inline(always)]
    pub(crate) fn check_end(&self) -> Result<(), ParseError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        let (form, length) = (self.offset(), self.packet.len());
        Err(self.error("type", 0, Reason::OtherForm { form, length }))
    }

    #[cold]
    fn wrong_data_length(self, name: &'static str, reason: Reason) -> ParseError {
        self.error(name, 0, reason)
    }

    /// An error about the field at byte `offset`.
    #[cold]
    pub(crate) fn error(self, field: &'static str, offset: usize, reason: Reason) -> ParseError {
        ParseError {
            packet_type: Some(self.base.packet_type),
            field,
            offset,
            reason,
        }
    }

    /// The error for a packet that ends within the next `needed` bytes.
    #[cold]
    fn truncated(self, needed: usize) -> ParseError {
        let available = self.rest.len();
        self.error(
            "header",
            self.offset(),
            Reason::Truncated { needed, available },
        )
    }
}
