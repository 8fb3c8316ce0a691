//! Formats and packet types by each other.

use super::*;
use crate::wire::codec::{BASE, Format, TRAILING};
use crate::wire::descriptor::Section;
use crate::wire::packet_type::{OfTypes, PacketType, TypeTraits, packet_types};

macro_rules! formats_of_types {
    (
        formats {$(
            $(#[$format_doc:meta])*
            $format:ident: $family:ident, needs $features:tt {$(
                $(#[$doc:meta])* $variant:ident = $code:literal, $name:literal, $traits:tt $(, $starts:literal)?;
            )*}
        )*}
        tables {$(
            $table:ident: $table_family:ident {$(
                $(#[$table_doc:meta])*
                $table_variant:ident = $table_code:literal, $table_name:literal,
                    $table_traits:tt $(, $table_starts:literal)?;
            )*}
        )*}
        none {$(
            $none_family:ident, $none_reason:ident {$(
                $(#[$none_doc:meta])* $none_variant:ident = $none_code:literal, $none_name:literal;
            )*}
        )*}
    ) => {
        impl PacketType {
            /// The tables of the type's format.
            pub(in crate::wire) const fn sections(self) -> &'static [&'static Section] {
                match self {
                    $($(PacketType::$variant)|* => <$format as Format>::SECTIONS,)*
                    $($(PacketType::$table_variant)|* => $table::SECTIONS,)*
                    $($(PacketType::$none_variant)|* => &[&BASE, &TRAILING],)*
                }
            }
        }

        $(
            impl OfTypes for $format {
                #[inline(always)]
                fn type_with(traits: TypeTraits) -> PacketType {
                    let types = [$(PacketType::$variant),*];
                    $(if traits == const { PacketType::$variant.traits() } {
                        return PacketType::$variant;
                    })*
                    debug_assert!(false, "{traits:?} are not those of any of {types:?}");
                    types[0]
                }
            }
        )*
    };
}

packet_types!(formats_of_types);
