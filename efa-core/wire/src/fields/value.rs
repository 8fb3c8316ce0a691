//! Values of fields, and how they are displayed.

use core::fmt;

use crate::address::Gid;
use crate::atomic::{AtomicDatatype, AtomicOp};
use crate::descriptor::{FieldDescriptor, FieldKind};
use crate::flags::{CtsFlags, HandshakeFlags, ReqFlags, UniversalFlags};
use crate::ope_type::OpeType;
use crate::packet_type::{FlagSet, PacketType};

/// The value of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value<'a> {
    /// A field of 1, 2, 4 or 8 bytes, little-endian, whatever it means.
    Unsigned(u64),
    /// A GID.
    Gid(Gid),
    /// Padding, application data, unknown bytes.
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    pub(super) fn of(kind: FieldKind, bytes: &'a [u8]) -> Value<'a> {
        if matches!(
            kind,
            FieldKind::Padding | FieldKind::Data | FieldKind::Unknown
        ) {
            return Value::Bytes(bytes);
        }
        match *bytes {
            [a] => Value::Unsigned(a.into()),
            [a, b] => Value::Unsigned(u16::from_le_bytes([a, b]).into()),
            [a, b, c, d] => Value::Unsigned(u32::from_le_bytes([a, b, c, d]).into()),
            [a, b, c, d, e, f, g, h] => {
                Value::Unsigned(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
            }
            _ => match bytes.first_chunk() {
                Some(gid) if bytes.len() == gid.len() => Value::Gid(Gid(*gid)),
                _ => Value::Bytes(bytes),
            },
        }
    }

    /// The number, if it is one.
    pub const fn as_u64(self) -> Option<u64> {
        match self {
            Value::Unsigned(number) => Some(number),
            Value::Gid(_) | Value::Bytes(_) => None,
        }
    }

    /// A count or a size as a bound for a walk, clamped to `usize`.
    pub(super) fn as_usize(self) -> usize {
        usize::try_from(self.as_u64().unwrap_or(0)).unwrap_or(usize::MAX)
    }
}

impl FieldDescriptor {
    /// Displays a value of this field. The value need not come from a packet.
    pub const fn display(self, packet_type: PacketType, value: Value<'_>) -> DisplayValue<'_> {
        DisplayValue {
            packet_type,
            kind: self.kind,
            value,
        }
    }
}

/// Displays a value in the way that suits its field.
#[derive(Clone, Copy, Debug)]
pub struct DisplayValue<'a> {
    pub(super) packet_type: PacketType,
    pub(super) kind: FieldKind,
    pub(super) value: Value<'a>,
}

impl fmt::Display for DisplayValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.value, self.kind) {
            (Value::Unsigned(code), FieldKind::PacketType) => {
                match u8::try_from(code).ok().and_then(PacketType::from_code) {
                    Some(packet_type) => write!(f, "{code} ({packet_type})"),
                    None => write!(f, "{code} (not assigned)"),
                }
            }
            (Value::Unsigned(bits), FieldKind::Flags) => match u16::try_from(bits) {
                Ok(bits) => fmt_flags(self.packet_type, bits, f),
                Err(_) => write!(f, "{bits:#x}"),
            },
            (Value::Unsigned(code), FieldKind::AtomicDatatype) => match u32::try_from(code) {
                Ok(code) => write!(f, "{}", AtomicDatatype(code)),
                Err(_) => write!(f, "{code}"),
            },
            (Value::Unsigned(code), FieldKind::AtomicOp) => match u32::try_from(code) {
                Ok(code) => write!(f, "{}", AtomicOp(code)),
                Err(_) => write!(f, "{code}"),
            },
            (Value::Unsigned(code), FieldKind::OpeType) => match u32::try_from(code) {
                Ok(code) => write!(f, "{}", OpeType(code)),
                Err(_) => write!(f, "{code}"),
            },
            (Value::Unsigned(number), FieldKind::Bits) => write!(f, "{number:#x}"),
            (Value::Unsigned(number), _) => write!(f, "{number}"),
            (Value::Gid(gid), _) => write!(f, "{gid}"),
            (Value::Bytes(bytes), _) => fmt_bytes(bytes, f),
        }
    }
}

/// The number of bytes of padding or data that are shown.
const SHOWN_BYTES: usize = 16;

fn fmt_bytes(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let plural = if bytes.len() == 1 { "" } else { "s" };
    write!(f, "{} byte{plural}:", bytes.len())?;
    for byte in bytes.iter().take(SHOWN_BYTES) {
        write!(f, " {byte:02x}")?;
    }
    if bytes.len() > SHOWN_BYTES {
        f.write_str(" ...")?;
    }
    Ok(())
}

fn fmt_flags(packet_type: PacketType, bits: u16, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{bits:#06x}")?;
    match packet_type.flag_set() {
        FlagSet::Handshake => {
            fmt_flag_names(HandshakeFlags::from_bits_retain(bits).iter_names(), f)
        }
        FlagSet::Cts => fmt_flag_names(CtsFlags::from_bits_retain(bits).iter_names(), f),
        FlagSet::Req => fmt_flag_names(ReqFlags::from_bits_retain(bits).iter_names(), f),
        FlagSet::Universal => {
            fmt_flag_names(UniversalFlags::from_bits_retain(bits).iter_names(), f)
        }
    }
}

fn fmt_flag_names<F>(
    names: impl Iterator<Item = (&'static str, F)>,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let mut separator = " (";
    for (name, _) in names {
        write!(f, "{separator}{name}")?;
        separator = " | ";
    }
    if separator == " | " {
        f.write_str(")")?;
    }
    Ok(())
}
