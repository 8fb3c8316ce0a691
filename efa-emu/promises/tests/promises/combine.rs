//! Atomics on several elements in memory of their own, so that each outcome is known: operations
//! that work bit by bit, with any type of elements.

use efa_core::endpoint::CompletionFlags;
use efa_core::wire::{AtomicDatatype, AtomicOp};
use rand::Rng;
use rand::seq::IndexedRandom;

/// An atomic on `elements` elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Combine {
    pub(crate) datatype: AtomicDatatype,
    pub(crate) operation: AtomicOp,
    pub(crate) call: Call,
    pub(crate) elements: usize,
    /// The number of parts of the target.
    pub(crate) remote_pieces: usize,
}

/// The call that starts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    Write,
    Fetch,
    Compare,
}

const TYPES: [(AtomicDatatype, usize); 7] = [
    (AtomicDatatype::INT8, 1),
    (AtomicDatatype::UINT16, 2),
    (AtomicDatatype::INT32, 4),
    (AtomicDatatype::UINT32, 4),
    (AtomicDatatype::INT64, 8),
    (AtomicDatatype::UINT64, 8),
    (AtomicDatatype::UINT128, 16),
];

impl Combine {
    /// A random atomic with operands of at most `most` bytes; `most` is at least 16.
    pub(crate) fn random(rng: &mut impl Rng, most: usize) -> Self {
        let (datatype, size) = *TYPES.choose(rng).unwrap();
        let call = *[Call::Write, Call::Fetch, Call::Compare]
            .choose(rng)
            .unwrap();
        let changes = [
            AtomicOp::BOR,
            AtomicOp::BAND,
            AtomicOp::BXOR,
            AtomicOp::ATOMIC_WRITE,
        ];
        let operation = match call {
            Call::Compare => AtomicOp::MSWAP,
            Call::Fetch if rng.random_bool(0.3) => AtomicOp::ATOMIC_READ,
            Call::Write | Call::Fetch => *changes.choose(rng).unwrap(),
        };
        let elements = rng.random_range(1..=most / size);
        Combine {
            datatype,
            operation,
            call,
            elements,
            remote_pieces: match call {
                // More are refused: stock targets misread them (deviation 33).
                Call::Compare => 1,
                Call::Write | Call::Fetch => *[1, 1, 3].choose(rng).unwrap(),
            },
        }
    }

    pub(crate) fn element_size(self) -> usize {
        let known = TYPES.iter().find(|(other, _)| *other == self.datatype);
        known.map_or(1, |(_, size)| *size)
    }

    /// Bytes of each operand.
    pub(crate) fn length(self) -> usize {
        self.elements * self.element_size()
    }

    pub(crate) fn flags(self) -> CompletionFlags {
        CompletionFlags::ATOMIC
            | match self.call {
                Call::Write => CompletionFlags::WRITE,
                Call::Fetch | Call::Compare => CompletionFlags::READ,
            }
    }

    /// The target after the operation.
    pub(crate) fn outcome(self, old: &[u8], operand: &[u8], comparand: &[u8]) -> Vec<u8> {
        let bytes = old.iter().zip(operand).zip(comparand);
        bytes
            .map(|((old, operand), mask)| match self.operation {
                AtomicOp::BOR => old | operand,
                AtomicOp::BAND => old & operand,
                AtomicOp::BXOR => old ^ operand,
                AtomicOp::ATOMIC_WRITE => *operand,
                AtomicOp::MSWAP => (operand & mask) | (old & !mask),
                _ => *old,
            })
            .collect()
    }
}
