//! Declaration of structures in memory or in a stream: each field with its offset, so that a reader
//! can compare the declaration with its source.

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

pub(crate) use layout;
