//! The numbers of atomic datatypes and operations, as in libfabric's interface.

use core::fmt;

/// Declares a number with names for some of its values.
macro_rules! named_number {
    ($(#[$doc:meta])* $type:ident { $($variant:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        pub struct $type(pub u32);

        impl $type {
            $(
                #[allow(missing_docs)]
                pub const $variant: $type = $type($value);
            )*

            /// The name of the value in libfabric's header, without its prefix. `None` if it is not
            /// known.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($variant)),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} ({})", self.0, self.name().unwrap_or("unknown"))
            }
        }
    };
}

named_number! {
    /// `enum fi_datatype`. Stock receivers use it as an index without a check, so a value that the
    /// peer's version does not know must not be sent.
    AtomicDatatype {
        INT8 = 0,
        UINT8 = 1,
        INT16 = 2,
        UINT16 = 3,
        INT32 = 4,
        UINT32 = 5,
        INT64 = 6,
        UINT64 = 7,
        FLOAT = 8,
        DOUBLE = 9,
        FLOAT_COMPLEX = 10,
        DOUBLE_COMPLEX = 11,
        LONG_DOUBLE = 12,
        LONG_DOUBLE_COMPLEX = 13,
        INT128 = 14,
        UINT128 = 15,
        FLOAT16 = 16,
        BFLOAT16 = 17,
        FLOAT8_E4M3 = 18,
        FLOAT8_E5M2 = 19,
    }
}

named_number! {
    /// `enum fi_op`. Stock receivers use it as an index without a check, so a value that the peer's
    /// version does not know must not be sent.
    AtomicOp {
        MIN = 0,
        MAX = 1,
        SUM = 2,
        PROD = 3,
        LOR = 4,
        LAND = 5,
        BOR = 6,
        BAND = 7,
        LXOR = 8,
        BXOR = 9,
        ATOMIC_READ = 10,
        ATOMIC_WRITE = 11,
        CSWAP = 12,
        CSWAP_NE = 13,
        CSWAP_LE = 14,
        CSWAP_LT = 15,
        CSWAP_GE = 16,
        CSWAP_GT = 17,
        MSWAP = 18,
        DIFF = 19,
    }
}

impl AtomicDatatype {
    /// Bytes of an element, on the 64-bit Linux machines that have EFA devices. `None` if the
    /// datatype is not known.
    pub const fn size(self) -> Option<usize> {
        Some(match self {
            Self::INT8 | Self::UINT8 | Self::FLOAT8_E4M3 | Self::FLOAT8_E5M2 => 1,
            Self::INT16 | Self::UINT16 | Self::FLOAT16 | Self::BFLOAT16 => 2,
            Self::INT32 | Self::UINT32 | Self::FLOAT => 4,
            Self::INT64 | Self::UINT64 | Self::DOUBLE | Self::FLOAT_COMPLEX => 8,
            Self::INT128 | Self::UINT128 | Self::LONG_DOUBLE | Self::DOUBLE_COMPLEX => 16,
            Self::LONG_DOUBLE_COMPLEX => 32,
            _ => return None,
        })
    }
}

impl AtomicOp {
    /// Whether the operation compares the elements with those of a comparand.
    pub const fn has_comparand(self) -> bool {
        Self::CSWAP.0 <= self.0 && self.0 <= Self::MSWAP.0
    }
}
