//! Effects of atomics on elements of memory: libfabric's operations on its data types.
//!
//! Elements are little-endian, like all values of the protocol.

use crate::wire::{AtomicDatatype, AtomicOp};

use crate::endpoint::one_sided::soft_float::{
    Bfloat16, Float8E4m3, Float8E5m2, Float16, LongDouble,
};

/// Checks that an operation is defined for a data type, in a request with or without a comparand.
/// Returns the size of an element in bytes.
///
/// # Errors
/// The name of an unsupported operation.
pub(crate) fn check(
    datatype: AtomicDatatype,
    operation: AtomicOp,
    with_comparand: bool,
) -> Result<usize, &'static str> {
    let size = datatype.size().ok_or("this atomic data type")?;
    let class = NumberClass::of(datatype);
    if operation.has_comparand() != with_comparand {
        return Err("this atomic operation for this kind of request");
    }
    let defined = match operation {
        AtomicOp::SUM
        | AtomicOp::PROD
        | AtomicOp::DIFF
        | AtomicOp::LOR
        | AtomicOp::LAND
        | AtomicOp::LXOR
        | AtomicOp::ATOMIC_READ
        | AtomicOp::ATOMIC_WRITE
        | AtomicOp::CSWAP
        | AtomicOp::CSWAP_NE => true,
        AtomicOp::MIN
        | AtomicOp::MAX
        | AtomicOp::CSWAP_LE
        | AtomicOp::CSWAP_LT
        | AtomicOp::CSWAP_GE
        | AtomicOp::CSWAP_GT => class != NumberClass::Complex,
        AtomicOp::BOR | AtomicOp::BAND | AtomicOp::BXOR | AtomicOp::MSWAP => {
            class == NumberClass::Integer
        }
        _ => false,
    };
    if defined {
        Ok(size)
    } else {
        Err("this atomic operation for this data type")
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum NumberClass {
    Integer,
    Real,
    Complex,
}

impl NumberClass {
    fn of(datatype: AtomicDatatype) -> NumberClass {
        match datatype {
            AtomicDatatype::FLOAT
            | AtomicDatatype::DOUBLE
            | AtomicDatatype::LONG_DOUBLE
            | AtomicDatatype::FLOAT16
            | AtomicDatatype::BFLOAT16
            | AtomicDatatype::FLOAT8_E4M3
            | AtomicDatatype::FLOAT8_E5M2 => NumberClass::Real,
            AtomicDatatype::FLOAT_COMPLEX
            | AtomicDatatype::DOUBLE_COMPLEX
            | AtomicDatatype::LONG_DOUBLE_COMPLEX => NumberClass::Complex,
            _ => NumberClass::Integer,
        }
    }
}

/// Combines the elements of two peers in place, as in a collective operation: each element of
/// `into` becomes the result of the operation on it and on that of `with`. Both have the same
/// length. Returns whether the operation is defined for the data type, and is not a comparison;
/// otherwise nothing changes.
pub fn reduce(datatype: AtomicDatatype, operation: AtomicOp, into: &mut [u8], with: &[u8]) -> bool {
    let is_defined = check(datatype, operation, false).is_ok();
    if is_defined {
        let old = into.to_vec();
        apply(datatype, operation, &old, with, &[], into);
    }
    is_defined
}

/// Computes the new elements from the old ones, the operands and the comparands. All slices are
/// equally long, except that `comparand` may be empty for operations that do not compare. The
/// operation must have passed [`check`].
pub(crate) fn apply(
    datatype: AtomicDatatype,
    operation: AtomicOp,
    old: &[u8],
    operand: &[u8],
    comparand: &[u8],
    new: &mut [u8],
) {
    let slices = Slices {
        operation,
        old,
        operand,
        comparand,
    };
    match datatype {
        AtomicDatatype::INT8 => slices.each::<i8, 1>(new),
        AtomicDatatype::UINT8 => slices.each::<u8, 1>(new),
        AtomicDatatype::INT16 => slices.each::<i16, 2>(new),
        AtomicDatatype::UINT16 => slices.each::<u16, 2>(new),
        AtomicDatatype::INT32 => slices.each::<i32, 4>(new),
        AtomicDatatype::UINT32 => slices.each::<u32, 4>(new),
        AtomicDatatype::INT64 => slices.each::<i64, 8>(new),
        AtomicDatatype::UINT64 => slices.each::<u64, 8>(new),
        AtomicDatatype::INT128 => slices.each::<i128, 16>(new),
        AtomicDatatype::UINT128 => slices.each::<u128, 16>(new),
        AtomicDatatype::FLOAT => slices.each::<f32, 4>(new),
        AtomicDatatype::DOUBLE => slices.each::<f64, 8>(new),
        AtomicDatatype::FLOAT_COMPLEX => slices.each::<Complex<f32>, 8>(new),
        AtomicDatatype::DOUBLE_COMPLEX => slices.each::<Complex<f64>, 16>(new),
        AtomicDatatype::LONG_DOUBLE => slices.each::<LongDouble, 16>(new),
        AtomicDatatype::LONG_DOUBLE_COMPLEX => slices.each::<Complex<LongDouble>, 32>(new),
        AtomicDatatype::FLOAT16 => slices.each::<Float16, 2>(new),
        AtomicDatatype::BFLOAT16 => slices.each::<Bfloat16, 2>(new),
        AtomicDatatype::FLOAT8_E4M3 => slices.each::<Float8E4m3, 1>(new),
        AtomicDatatype::FLOAT8_E5M2 => slices.each::<Float8E5m2, 1>(new),
        _ => new.copy_from_slice(old),
    }
}

struct Slices<'a> {
    operation: AtomicOp,
    old: &'a [u8],
    operand: &'a [u8],
    comparand: &'a [u8],
}

impl Slices<'_> {
    fn each<T: Element<SIZE>, const SIZE: usize>(&self, new: &mut [u8]) {
        let (old, _) = self.old.as_chunks::<SIZE>();
        let (operand, _) = self.operand.as_chunks::<SIZE>();
        let (comparand, _) = self.comparand.as_chunks::<SIZE>();
        let (new, _) = new.as_chunks_mut::<SIZE>();
        for (index, (new, old)) in new.iter_mut().zip(old).enumerate() {
            let old = T::from_bytes(*old);
            let operand = T::from_bytes(operand.get(index).copied().unwrap_or([0; SIZE]));
            let comparand = T::from_bytes(comparand.get(index).copied().unwrap_or([0; SIZE]));
            *new = old.change(self.operation, operand, comparand).to_bytes();
        }
    }
}

/// An element of `SIZE` bytes.
pub(crate) trait Element<const SIZE: usize>: Copy + PartialEq {
    fn from_bytes(bytes: [u8; SIZE]) -> Self;
    fn to_bytes(self) -> [u8; SIZE];
    fn from_truth(truth: bool) -> Self;
    fn sum(self, other: Self) -> Self;
    fn difference(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    /// Compares two elements, for types that have an order.
    fn order(self, other: Self) -> Option<core::cmp::Ordering>;
    /// Applies a bitwise operation, for types that have them. Other types return `self`.
    fn bits(self, other: Self, operation: fn(u128, u128) -> u128) -> Self;

    fn is_true(self) -> bool {
        self != Self::from_truth(false)
    }

    fn change(self, operation: AtomicOp, operand: Self, comparand: Self) -> Self {
        let swap_if = |condition: bool| if condition { operand } else { self };
        let order = comparand.order(self);
        match operation {
            AtomicOp::MIN => swap_if(operand.order(self).is_some_and(|order| order.is_lt())),
            AtomicOp::MAX => swap_if(operand.order(self).is_some_and(|order| order.is_gt())),
            AtomicOp::SUM => self.sum(operand),
            AtomicOp::DIFF => self.difference(operand),
            AtomicOp::PROD => self.product(operand),
            AtomicOp::LOR => Self::from_truth(self.is_true() || operand.is_true()),
            AtomicOp::LAND => Self::from_truth(self.is_true() && operand.is_true()),
            AtomicOp::LXOR => Self::from_truth(self.is_true() != operand.is_true()),
            AtomicOp::BOR => self.bits(operand, |a, b| a | b),
            AtomicOp::BAND => self.bits(operand, |a, b| a & b),
            AtomicOp::BXOR => self.bits(operand, |a, b| a ^ b),
            AtomicOp::ATOMIC_WRITE => operand,
            AtomicOp::CSWAP => swap_if(comparand == self),
            AtomicOp::CSWAP_NE => swap_if(comparand != self),
            AtomicOp::CSWAP_LE => swap_if(order.is_some_and(|order| order.is_le())),
            AtomicOp::CSWAP_LT => swap_if(order.is_some_and(|order| order.is_lt())),
            AtomicOp::CSWAP_GE => swap_if(order.is_some_and(|order| order.is_ge())),
            AtomicOp::CSWAP_GT => swap_if(order.is_some_and(|order| order.is_gt())),
            // The comparand is the mask of the bits to take from the operand.
            AtomicOp::MSWAP => {
                let taken = operand.bits(comparand, |value, mask| value & mask);
                let kept = self.bits(comparand, |value, mask| value & !mask);
                taken.bits(kept, |a, b| a | b)
            }
            _ => self,
        }
    }
}

macro_rules! integers {
    ($($type:ty: $size:literal),*) => {$(
        impl Element<$size> for $type {
            fn from_bytes(bytes: [u8; $size]) -> Self {
                Self::from_le_bytes(bytes)
            }

            fn to_bytes(self) -> [u8; $size] {
                self.to_le_bytes()
            }

            fn from_truth(truth: bool) -> Self {
                truth.into()
            }

            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            fn difference(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }

            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            fn order(self, other: Self) -> Option<core::cmp::Ordering> {
                Some(self.cmp(&other))
            }

            fn bits(self, other: Self, operation: fn(u128, u128) -> u128) -> Self {
                operation(self as u128, other as u128) as Self
            }
        }
    )*};
}
integers!(i8: 1, u8: 1, i16: 2, u16: 2, i32: 4, u32: 4, i64: 8, u64: 8, i128: 16, u128: 16);

macro_rules! reals {
    ($($type:ty: $size:literal),*) => {$(
        impl Element<$size> for $type {
            fn from_bytes(bytes: [u8; $size]) -> Self {
                Self::from_le_bytes(bytes)
            }

            fn to_bytes(self) -> [u8; $size] {
                self.to_le_bytes()
            }

            fn from_truth(truth: bool) -> Self {
                if truth { 1.0 } else { 0.0 }
            }

            fn sum(self, other: Self) -> Self {
                self + other
            }

            fn difference(self, other: Self) -> Self {
                self - other
            }

            fn product(self, other: Self) -> Self {
                self * other
            }

            fn order(self, other: Self) -> Option<core::cmp::Ordering> {
                self.partial_cmp(&other)
            }

            fn bits(self, _: Self, _: fn(u128, u128) -> u128) -> Self {
                self
            }
        }
    )*};
}
reals!(f32: 4, f64: 8);

/// A complex number: real part, then imaginary part.
#[derive(Clone, Copy, PartialEq)]
struct Complex<T> {
    re: T,
    im: T,
}

macro_rules! complexes {
    ($($type:ty: $size:literal of $half:literal),*) => {$(
        impl Element<$size> for Complex<$type> {
            fn from_bytes(bytes: [u8; $size]) -> Self {
                let (mut re, mut im) = ([0; $half], [0; $half]);
                re.copy_from_slice(&bytes[..$half]);
                im.copy_from_slice(&bytes[$half..]);
                Complex {
                    re: Element::<$half>::from_bytes(re),
                    im: Element::<$half>::from_bytes(im),
                }
            }

            fn to_bytes(self) -> [u8; $size] {
                let mut bytes = [0; $size];
                bytes[..$half].copy_from_slice(&Element::<$half>::to_bytes(self.re));
                bytes[$half..].copy_from_slice(&Element::<$half>::to_bytes(self.im));
                bytes
            }

            fn from_truth(truth: bool) -> Self {
                Complex {
                    re: Element::<$half>::from_truth(truth),
                    im: Element::<$half>::from_truth(false),
                }
            }

            fn sum(self, other: Self) -> Self {
                Complex {
                    re: Element::<$half>::sum(self.re, other.re),
                    im: Element::<$half>::sum(self.im, other.im),
                }
            }

            fn difference(self, other: Self) -> Self {
                Complex {
                    re: Element::<$half>::difference(self.re, other.re),
                    im: Element::<$half>::difference(self.im, other.im),
                }
            }

            fn product(self, other: Self) -> Self {
                let product = Element::<$half>::product;
                Complex {
                    re: Element::<$half>::difference(
                        product(self.re, other.re),
                        product(self.im, other.im),
                    ),
                    im: Element::<$half>::sum(
                        product(self.re, other.im),
                        product(self.im, other.re),
                    ),
                }
            }

            fn order(self, _: Self) -> Option<core::cmp::Ordering> {
                None
            }

            fn bits(self, _: Self, _: fn(u128, u128) -> u128) -> Self {
                self
            }
        }
    )*};
}
complexes!(f32: 8 of 4, f64: 16 of 8, LongDouble: 32 of 16);

#[cfg(test)]
mod tests {
    use super::*;

    fn one<const SIZE: usize>(
        datatype: AtomicDatatype,
        operation: AtomicOp,
        old: [u8; SIZE],
        operand: [u8; SIZE],
        comparand: [u8; SIZE],
    ) -> [u8; SIZE] {
        let compares = (12..=18).contains(&operation.0);
        assert_eq!(check(datatype, operation, compares), Ok(SIZE));
        let mut new = [0xAA; SIZE];
        apply(datatype, operation, &old, &operand, &comparand, &mut new);
        new
    }

    #[test]
    fn operations_on_integers() {
        for (operation, old, operand, comparand, expected) in [
            (AtomicOp::MIN, 3, -5, 0, -5),
            (AtomicOp::MAX, 3, -5, 0, 3),
            (AtomicOp::SUM, i32::MAX, 1, 0, i32::MIN),
            (AtomicOp::DIFF, 3, 5, 0, -2),
            (AtomicOp::PROD, 3, -5, 0, -15),
            (AtomicOp::LOR, 0, 7, 0, 1),
            (AtomicOp::LAND, 0, 7, 0, 0),
            (AtomicOp::LXOR, 5, 7, 0, 0),
            (AtomicOp::BOR, 0b1100, 0b1010, 0, 0b1110),
            (AtomicOp::BAND, 0b1100, 0b1010, 0, 0b1000),
            (AtomicOp::BXOR, 0b1100, 0b1010, 0, 0b0110),
            (AtomicOp::ATOMIC_READ, 3, 9, 0, 3),
            (AtomicOp::ATOMIC_WRITE, 3, 9, 0, 9),
            (AtomicOp::CSWAP, 3, 9, 3, 9),
            (AtomicOp::CSWAP, 3, 9, 4, 3),
            (AtomicOp::CSWAP_NE, 3, 9, 4, 9),
            (AtomicOp::CSWAP_LE, 3, 9, 3, 9),
            (AtomicOp::CSWAP_LT, 3, 9, 3, 3),
            (AtomicOp::CSWAP_LT, 3, 9, -1, 9),
            (AtomicOp::CSWAP_GE, 3, 9, 2, 3),
            (AtomicOp::CSWAP_GT, 3, 9, 4, 9),
            (AtomicOp::MSWAP, 0b1111, 0b0000, 0b0110, 0b1001),
        ] {
            let new = one(
                AtomicDatatype::INT32,
                operation,
                i32::to_le_bytes(old),
                i32::to_le_bytes(operand),
                i32::to_le_bytes(comparand),
            );
            assert_eq!(i32::from_le_bytes(new), expected, "{operation} of {old}");
        }
        let unsigned = one(AtomicDatatype::UINT8, AtomicOp::MAX, [200], [100], [0]);
        assert_eq!(unsigned, [200]);
        let signed = one(AtomicDatatype::INT8, AtomicOp::MAX, [200], [100], [0]);
        assert_eq!(signed, [100]);
        let wide = one(
            AtomicDatatype::UINT128,
            AtomicOp::SUM,
            u128::MAX.to_le_bytes(),
            2_u128.to_le_bytes(),
            [0; 16],
        );
        assert_eq!(u128::from_le_bytes(wide), 1);
    }

    #[test]
    fn operations_on_reals_and_complex_numbers() {
        let sum = one(
            AtomicDatatype::DOUBLE,
            AtomicOp::SUM,
            1.5_f64.to_le_bytes(),
            2.25_f64.to_le_bytes(),
            [0; 8],
        );
        assert_eq!(f64::from_le_bytes(sum), 3.75);
        let nan = one(
            AtomicDatatype::FLOAT,
            AtomicOp::MIN,
            f32::NAN.to_le_bytes(),
            1_f32.to_le_bytes(),
            [0; 4],
        );
        assert!(f32::from_le_bytes(nan).is_nan());
        let complex = |re: f32, im: f32| Complex { re, im }.to_bytes();
        let product = one(
            AtomicDatatype::FLOAT_COMPLEX,
            AtomicOp::PROD,
            complex(1.0, 2.0),
            complex(3.0, -1.0),
            [0; 8],
        );
        assert_eq!(product, complex(5.0, 5.0));
        let truth = one(
            AtomicDatatype::FLOAT_COMPLEX,
            AtomicOp::LAND,
            complex(0.0, 2.0),
            complex(3.0, 0.0),
            [0; 8],
        );
        assert_eq!(truth, complex(1.0, 0.0));
    }

    #[test]
    fn undefined_combinations_are_refused() {
        for (datatype, operation, with_comparand) in [
            (AtomicDatatype::FLOAT, AtomicOp::BOR, false),
            (AtomicDatatype::DOUBLE, AtomicOp::MSWAP, true),
            (AtomicDatatype::DOUBLE_COMPLEX, AtomicOp::MIN, false),
            (AtomicDatatype::FLOAT_COMPLEX, AtomicOp::CSWAP_GT, true),
            (AtomicDatatype::LONG_DOUBLE, AtomicOp::BAND, false),
            (AtomicDatatype::FLOAT16, AtomicOp::MSWAP, true),
            (AtomicDatatype(77), AtomicOp::SUM, false),
            (AtomicDatatype::INT8, AtomicOp(20), false),
            (AtomicDatatype::INT8, AtomicOp::SUM, true),
            (AtomicDatatype::INT8, AtomicOp::CSWAP, false),
        ] {
            assert!(
                check(datatype, operation, with_comparand).is_err(),
                "{operation} of {datatype}"
            );
        }
    }
}
