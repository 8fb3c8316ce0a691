//! Values that scenarios and the driver protocol write by the name in a table.

use efa_core::wire::{AtomicDatatype, AtomicOp};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{ATOMIC_OPS, COMPARE_OPS, DATATYPES, RegionAccess};
use crate::scenario::Capability;

fn write<T: PartialEq, S: Serializer>(
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
    /// What `fi_fetch_atomic` takes.
    fetched_op: AtomicOp = ATOMIC_OPS;
    /// What `fi_compare_atomic` takes.
    compared_op: AtomicOp = COMPARE_OPS;
    /// The type of an atomic's elements.
    datatype: AtomicDatatype = DATATYPES;
}

/// What `fi_atomic` takes.
pub(crate) mod updated_op {
    pub(crate) use super::fetched_op::serialize;
    use super::*;

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<AtomicOp, D::Error> {
        let changes = |(_, op): &(&str, AtomicOp)| *op != AtomicOp::ATOMIC_READ;
        read(ATOMIC_OPS.into_iter().filter(changes), from)
    }
}

macro_rules! by_name {
    ($($type:ty),*) => {
        $(
            impl Serialize for $type {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    write(&Self::NAMES, self, serializer)
                }
            }

            impl<'de> Deserialize<'de> for $type {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    read(Self::NAMES, deserializer)
                }
            }
        )*
    };
}

by_name!(Capability, RegionAccess);
