//! Values that scenarios and the driver protocol write by the name in a table.

use efa_core::wire::{AtomicDatatype, AtomicOp};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

/// The names of the operations of `fi_atomic` and `fi_fetch_atomic`, in scenarios and in the driver
/// protocol.
pub const ATOMIC_OPS: [(&str, AtomicOp); 12] = [
    ("sum", AtomicOp::SUM),
    ("xor", AtomicOp::BXOR),
    ("write", AtomicOp::ATOMIC_WRITE),
    // `fi_fetch_atomic` only.
    ("read", AtomicOp::ATOMIC_READ),
    ("min", AtomicOp::MIN),
    ("max", AtomicOp::MAX),
    ("prod", AtomicOp::PROD),
    ("lor", AtomicOp::LOR),
    ("land", AtomicOp::LAND),
    ("lxor", AtomicOp::LXOR),
    ("bor", AtomicOp::BOR),
    ("band", AtomicOp::BAND),
];

/// The names of the operations of `fi_compare_atomic`.
pub const COMPARE_OPS: [(&str, AtomicOp); 7] = [
    ("cswap", AtomicOp::CSWAP),
    ("cswap-ne", AtomicOp::CSWAP_NE),
    ("cswap-le", AtomicOp::CSWAP_LE),
    ("cswap-lt", AtomicOp::CSWAP_LT),
    ("cswap-ge", AtomicOp::CSWAP_GE),
    ("cswap-gt", AtomicOp::CSWAP_GT),
    ("mswap", AtomicOp::MSWAP),
];

/// The names of the elements' types.
pub const DATATYPES: [(&str, AtomicDatatype); 20] = [
    ("int8", AtomicDatatype::INT8),
    ("uint8", AtomicDatatype::UINT8),
    ("int16", AtomicDatatype::INT16),
    ("uint16", AtomicDatatype::UINT16),
    ("int32", AtomicDatatype::INT32),
    ("uint32", AtomicDatatype::UINT32),
    ("int64", AtomicDatatype::INT64),
    ("uint64", AtomicDatatype::UINT64),
    ("float", AtomicDatatype::FLOAT),
    ("double", AtomicDatatype::DOUBLE),
    ("float-complex", AtomicDatatype::FLOAT_COMPLEX),
    ("double-complex", AtomicDatatype::DOUBLE_COMPLEX),
    ("long-double", AtomicDatatype::LONG_DOUBLE),
    ("long-double-complex", AtomicDatatype::LONG_DOUBLE_COMPLEX),
    ("int128", AtomicDatatype::INT128),
    ("uint128", AtomicDatatype::UINT128),
    ("float16", AtomicDatatype::FLOAT16),
    ("bfloat16", AtomicDatatype::BFLOAT16),
    ("float8-e4m3", AtomicDatatype::FLOAT8_E4M3),
    ("float8-e5m2", AtomicDatatype::FLOAT8_E5M2),
];

pub(crate) fn write<T: PartialEq, S: Serializer>(
    names: &[(&'static str, T)],
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match names.iter().find(|(_, named)| named == value) {
        Some((name, _)) => serializer.serialize_str(name),
        None => Err(serde::ser::Error::custom("a value without a name")),
    }
}

pub(crate) fn read<'de, T: Copy, D: Deserializer<'de>>(
    names: impl IntoIterator<Item = (&'static str, T)>,
    deserializer: D,
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    let mut known = Vec::new();
    for (name, value) in names {
        if name == text {
            return Ok(value);
        }
        known.push(format!("`{name}`"));
    }
    let known = known.join(", ");
    Err(D::Error::custom(format_args!(
        "unknown name `{text}`, expected one of {known}"
    )))
}

/// Declares the modules by which serde writes and reads values of a table.
macro_rules! named {
    ($($(#[$meaning:meta])* $module:ident: $type:ty = $names:expr;)*) => {
        $(
            $(#[$meaning])*
            pub(crate) mod $module {
                use super::*;

                pub(crate) fn serialize<S: Serializer>(
                    value: &$type,
                    serializer: S,
                ) -> Result<S::Ok, S::Error> {
                    write(&$names, value, serializer)
                }

                pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
                    deserializer: D,
                ) -> Result<$type, D::Error> {
                    read($names, deserializer)
                }
            }
        )*
    };
}

named! {
    /// The operations of `fi_fetch_atomic`.
    fetched_op: AtomicOp = ATOMIC_OPS;
    /// The operations of `fi_compare_atomic`.
    compared_op: AtomicOp = COMPARE_OPS;
    /// The type of an atomic's elements.
    datatype: AtomicDatatype = DATATYPES;
}

/// The operations of `fi_atomic`.
pub(crate) mod updated_op {
    pub(crate) use super::fetched_op::serialize;
    use super::*;

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<AtomicOp, D::Error> {
        let changes = |(_, op): &(&str, AtomicOp)| *op != AtomicOp::ATOMIC_READ;
        read(ATOMIC_OPS.into_iter().filter(changes), from)
    }
}

/// Has serde write and read a type by the names in their `NAMES`.
macro_rules! by_name {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(
                &self,
                serializer: S,
            ) -> std::result::Result<S::Ok, S::Error> {
                $crate::operation::names::write(&Self::NAMES, self, serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(
                from: D,
            ) -> std::result::Result<Self, D::Error> {
                $crate::operation::names::read(Self::NAMES, from)
            }
        }
    };
}

pub(crate) use by_name;
