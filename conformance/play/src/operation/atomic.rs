//! Atomic operations.

use efa_core::wire::{AtomicDatatype, AtomicOp};
use serde::{Deserialize, Serialize};

use super::names;

/// The change by an atomic operation, and whether it fetches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum AtomicAction {
    /// `fi_atomic`: changes the elements.
    Update(#[serde(with = "names::updated_op")] AtomicOp),
    /// `fi_fetch_atomic`: changes the elements, unless it only reads them, and fetches the old
    /// ones.
    Fetch(#[serde(with = "names::fetched_op")] AtomicOp),
    /// `fi_compare_atomic`: compares the elements with those of a message, changes some of them,
    /// and fetches the old ones.
    Compare {
        /// The function.
        #[serde(with = "names::compared_op")]
        op: AtomicOp,
        /// The message's seed. It is as long as the operand.
        comparand: u64,
    },
}

impl AtomicAction {
    /// The operation's number, the same on the wire and in libfabric.
    pub const fn code(self) -> AtomicOp {
        match self {
            AtomicAction::Update(op)
            | AtomicAction::Fetch(op)
            | AtomicAction::Compare { op, .. } => op,
        }
    }
}

/// The names of the operations that `fi_atomic` and `fi_fetch_atomic` take, in scenarios and in the
/// driver protocol.
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

/// The names of the operations that `fi_compare_atomic` takes.
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

/// Returns the size of an element in bytes, 1 if the type is not known.
pub fn element_size(datatype: AtomicDatatype) -> usize {
    datatype.size().unwrap_or(1)
}
