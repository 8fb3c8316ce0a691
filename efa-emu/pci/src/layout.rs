//! Declaration of structures in memory or in a stream, each field with its offset, and of enums
//! with numbers: a reader can compare the declaration with its source.

/// Declares a structure: `pub NAME, from BYTE to BYTE;` and then a line for each field, `offset
/// name: type, meaning;`. All bytes must be declared; offsets are checked at compile time. Integers
/// are little-endian.
macro_rules! layout {
    (
        $(#[$doc:meta])*
        $vis:vis $name:ident, from $start:literal to $end:literal;
        $($offset:literal $field:ident: $type:ty, $meaning:literal;)*
    ) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, Debug,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout,
            zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        $vis struct $name {
            $(#[doc = $meaning] #[doc = "."] $vis $field: $type,)*
        }

        const _: () = {
            assert!(size_of::<$name>() == $end - $start);
            $(assert!(core::mem::offset_of!($name, $field) == $offset - $start);)*
        };
    };
}

/// Declares an enum whose values have numbers, and `of`, which finds the value with a number:
/// `pub NAME, TYPE of the numbers;` and then a line for each value, `Value = number;`.
macro_rules! numbered {
    (
        $(#[$doc:meta])*
        $vis:vis $name:ident, $number_type:ident;
        $($(#[$about:meta])* $value:ident = $number:literal;)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr($number_type)]
        $vis enum $name {
            $($(#[$about])* $value = $number,)*
        }

        impl $name {
            pub(crate) const ALL: &'static [$name] = &[$($name::$value),*];

            /// The value with this number.
            $vis fn of(number: $number_type) -> Option<$name> {
                let mut all = Self::ALL.iter().copied();
                all.find(|each| *each as $number_type == number)
            }
        }
    };
}

pub(crate) use {layout, numbered};
