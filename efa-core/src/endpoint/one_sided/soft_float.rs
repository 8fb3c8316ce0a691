//! Floating-point elements of atomics for which Rust has no type: short ones, and C's `long
//! double`, whose format is that of the platform.

use core::cmp::Ordering;
use core::marker::PhantomData;

use rustc_apfloat::{Float, Round, ieee};

use crate::endpoint::one_sided::arithmetic::Element;

/// `long double`: 80 bits in 16 bytes on x86-64, IEEE quadruple precision elsewhere.
#[cfg(target_arch = "x86_64")]
pub(crate) type LongDouble = SoftFloat<ieee::X87DoubleExtended>;
/// `long double`: 80 bits in 16 bytes on x86-64, IEEE quadruple precision elsewhere.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) type LongDouble = SoftFloat<ieee::Quad>;

pub(crate) type Float16 = SoftFloat<ieee::Half>;
pub(crate) type Bfloat16 = SoftFloat<ieee::BFloat>;
/// Without infinities.
pub(crate) type Float8E4m3 = SoftFloat<ieee::Float8E4M3FN>;
pub(crate) type Float8E5m2 = SoftFloat<ieee::Float8E5M2>;

/// A number as its bits. They change only by a computation.
#[derive(Clone, Copy)]
pub(crate) struct SoftFloat<F> {
    bits: u128,
    format: PhantomData<F>,
}

impl<F: Float> SoftFloat<F> {
    fn value(self) -> F {
        F::from_bits(self.bits)
    }
}

impl<F: Float> From<F> for SoftFloat<F> {
    fn from(value: F) -> Self {
        SoftFloat {
            bits: value.to_bits(),
            format: PhantomData,
        }
    }
}

impl<F: Float> PartialEq for SoftFloat<F> {
    fn eq(&self, other: &Self) -> bool {
        self.value() == other.value()
    }
}

const ROUND: Round = Round::NearestTiesToEven;

impl<F: Float, const SIZE: usize> Element<SIZE> for SoftFloat<F> {
    fn from_bytes(bytes: [u8; SIZE]) -> Self {
        let mut wide = [0; 16];
        wide[..SIZE].copy_from_slice(&bytes);
        SoftFloat {
            bits: u128::from_le_bytes(wide),
            format: PhantomData,
        }
    }

    fn to_bytes(self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes.copy_from_slice(&self.bits.to_le_bytes()[..SIZE]);
        bytes
    }

    fn from_truth(truth: bool) -> Self {
        F::from_u128(truth.into()).value.into()
    }

    fn sum(self, other: Self) -> Self {
        self.value().add_r(other.value(), ROUND).value.into()
    }

    fn difference(self, other: Self) -> Self {
        self.value().sub_r(other.value(), ROUND).value.into()
    }

    fn product(self, other: Self) -> Self {
        self.value().mul_r(other.value(), ROUND).value.into()
    }

    fn order(self, other: Self) -> Option<Ordering> {
        self.value().partial_cmp(&other.value())
    }

    fn bits(self, _: Self, _: fn(u128, u128) -> u128) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::endpoint::one_sided::arithmetic::{apply, check};
    use crate::wire::{AtomicDatatype, AtomicOp};

    const REALS: [AtomicDatatype; 6] = [
        AtomicDatatype::LONG_DOUBLE,
        AtomicDatatype::LONG_DOUBLE_COMPLEX,
        AtomicDatatype::FLOAT16,
        AtomicDatatype::BFLOAT16,
        AtomicDatatype::FLOAT8_E4M3,
        AtomicDatatype::FLOAT8_E5M2,
    ];

    fn compute(
        datatype: AtomicDatatype,
        operation: AtomicOp,
        old: &[u8],
        operand: &[u8],
        comparand: &[u8],
    ) -> Vec<u8> {
        let mut new = vec![0xAA; old.len()];
        apply(datatype, operation, old, operand, comparand, &mut new);
        new
    }

    fn sum(datatype: AtomicDatatype, a: &[u8], b: &[u8]) -> Vec<u8> {
        compute(datatype, AtomicOp::SUM, a, b, &[])
    }

    fn bytes<F: Float>(number: &str) -> [u8; 16] {
        let number: SoftFloat<F> = F::from_str_r(number, ROUND).unwrap().value.into();
        number.to_bytes()
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn long_doubles_are_those_of_x86() {
        let number = |exponent: u16, significand: u64| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&significand.to_le_bytes());
            bytes[8..10].copy_from_slice(&exponent.to_le_bytes());
            bytes
        };
        // 1.5 + 2.25 = 3.75
        let (a, b) = (number(0x3fff, 3 << 62), number(0x4000, 9 << 60));
        let expected = number(0x4000, 15 << 60);
        assert_eq!(sum(AtomicDatatype::LONG_DOUBLE, &a, &b), expected);
        // More digits than a double has.
        let one = number(0x3fff, 1 << 63);
        let tiny = number(0x3fff - 63, 1 << 63);
        let expected = number(0x3fff, (1 << 63) + 1);
        assert_eq!(sum(AtomicDatatype::LONG_DOUBLE, &one, &tiny), expected);
    }

    #[test]
    fn short_numbers_have_their_formats() {
        for (datatype, a, b, expected) in [
            (AtomicDatatype::FLOAT16, 0x3E00_u16, 0x4080_u16, 0x4380_u16),
            (AtomicDatatype::BFLOAT16, 0x3FC0, 0x4010, 0x4070),
        ] {
            let found = sum(datatype, &a.to_le_bytes(), &b.to_le_bytes());
            assert_eq!(found, expected.to_le_bytes(), "{datatype}");
        }
        // 1.5 + 2 = 3.5
        assert_eq!(sum(AtomicDatatype::FLOAT8_E4M3, &[0x3C], &[0x40]), [0x46]);
        assert_eq!(sum(AtomicDatatype::FLOAT8_E5M2, &[0x3E], &[0x40]), [0x43]);
        // The largest number of either, twice.
        assert_eq!(sum(AtomicDatatype::FLOAT8_E4M3, &[0x7E], &[0x7E]), [0x7F]);
        assert_eq!(sum(AtomicDatatype::FLOAT8_E5M2, &[0x7B], &[0x7B]), [0x7C]);
    }

    #[test]
    fn complex_long_doubles_are_multiplied() {
        #[cfg(target_arch = "x86_64")]
        type Format = ieee::X87DoubleExtended;
        #[cfg(not(target_arch = "x86_64"))]
        type Format = ieee::Quad;
        let number = |re, im| [bytes::<Format>(re), bytes::<Format>(im)].concat();
        let product = compute(
            AtomicDatatype::LONG_DOUBLE_COMPLEX,
            AtomicOp::PROD,
            &number("1", "2"),
            &number("3", "-1"),
            &[],
        );
        assert_eq!(product, number("5", "5"));
    }

    proptest! {
        /// The same code with a format that Rust has a type for.
        #[test]
        fn doubles_are_computed_like_by_the_hardware(a: u64, b: u64) {
            let soft = |bits: u64| -> SoftFloat<ieee::Double> {
                <SoftFloat<ieee::Double> as Element<8>>::from_bytes(bits.to_le_bytes())
            };
            let hard = |bits| f64::from_bits(bits);
            let (x, y) = (soft(a), soft(b));
            for (found, expected) in [
                (Element::<8>::sum(x, y), hard(a) + hard(b)),
                (Element::<8>::difference(x, y), hard(a) - hard(b)),
                (Element::<8>::product(x, y), hard(a) * hard(b)),
            ] {
                let found = hard(found.bits as u64);
                prop_assert!(
                    found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan()
                );
            }
            prop_assert_eq!(Element::<8>::order(x, y), hard(a).partial_cmp(&hard(b)));
            prop_assert_eq!(x == y, hard(a) == hard(b));
        }

        /// Neither the bits from a peer nor the bits in memory are restricted.
        #[test]
        fn any_bits_are_computed_with(
            a in proptest::array::uniform32(any::<u8>()),
            b in proptest::array::uniform32(any::<u8>()),
            c in proptest::array::uniform32(any::<u8>()),
        ) {
            for datatype in REALS {
                for operation in (0..=19).map(AtomicOp) {
                    for with_comparand in [false, true] {
                        if let Ok(size) = check(datatype, operation, with_comparand) {
                            let new = compute(datatype, operation, &a[..size], &b[..size], &c[..size]);
                            if operation == AtomicOp::ATOMIC_WRITE {
                                prop_assert_eq!(&new, &b[..size]);
                            }
                        }
                    }
                }
            }
        }
    }
}
