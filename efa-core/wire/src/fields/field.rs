//! A field of a packet.

use core::fmt;
use core::ops::Range;

use crate::descriptor::FieldDescriptor;
use crate::packet_type::PacketType;

use super::value::Value;

/// A field of a packet, with its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field<'a> {
    /// The packet's type.
    pub packet_type: PacketType,
    /// The field's description in the tables.
    pub descriptor: &'static FieldDescriptor,
    /// The entry of the array, from 0.
    pub index: Option<usize>,
    /// Its offset, in bytes from the start of the packet.
    pub offset: usize,
    /// Its bytes, as they are in the packet.
    pub bytes: &'a [u8],
    /// The value of the bytes.
    pub value: Value<'a>,
}

impl Field<'_> {
    /// The name with the index of the array entry, as in `rma_iov[1].addr`.
    pub fn name(&self) -> FieldName {
        FieldName {
            name: self.descriptor.name,
            index: self.index,
        }
    }

    /// The place of its bytes in the packet.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.bytes.len()
    }
}

/// `NAME = VALUE`, for people.
impl fmt::Display for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.descriptor.display(self.packet_type, self.value);
        write!(f, "{} = {value}", self.name())
    }
}

/// The name of a field in one packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FieldName {
    /// The name in the table.
    pub name: &'static str,
    /// The entry of the array, from 0.
    pub index: Option<usize>,
}

impl fmt::Display for FieldName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.index, self.name.split_once('.')) {
            (Some(index), Some((array, member))) => write!(f, "{array}[{index}].{member}"),
            (Some(index), None) => write!(f, "{}[{index}]", self.name),
            (None, _) => f.write_str(self.name),
        }
    }
}

/// A field that a packet should have but is not long enough for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MissingField {
    /// The field.
    pub descriptor: &'static FieldDescriptor,
    /// The entry of the array, from 0.
    pub index: Option<usize>,
    /// Its expected offset, in bytes from the start of the packet.
    pub offset: usize,
    /// Its length in bytes.
    pub needed: usize,
    /// Bytes that there are from `offset` on.
    pub available: usize,
}
