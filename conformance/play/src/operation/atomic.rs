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
    /// `fi_compare_atomic`: compares the elements with the elements of a message, changes some of
    /// them, and fetches the old ones.
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

/// Returns the size of an element in bytes, 1 if the type is not known.
pub fn element_size(datatype: AtomicDatatype) -> usize {
    datatype.size().unwrap_or(1)
}
