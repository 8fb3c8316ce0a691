//! Formats and packet types by each other.

use super::*;
use crate::codec::{BASE, Format, TRAILING};
use crate::descriptor::Section;
use crate::packet_type::{PacketType, TypeTraits, TypedFormat, by_format, packet_types};

macro_rules! formats_of_types {
    (
        formats {$( $(#[$format_doc:meta])* $format:ident: $($variant:ident)*; )*}
        tables {$( $table:ident: $($table_variant:ident)*; )*}
        none {$( $none_reason:ident: $($none_variant:ident)*; )*}
    ) => {
        impl PacketType {
            /// The tables of the type's format.
            pub(crate) const fn sections(self) -> &'static [&'static Section] {
                match self {
                    $($(PacketType::$variant)|* => <$format as Format>::SECTIONS,)*
                    $($(PacketType::$table_variant)|* => $table::SECTIONS,)*
                    $($(PacketType::$none_variant)|* => &[&BASE, &TRAILING],)*
                }
            }
        }

        impl PacketType {
            /// Forms of the type's packets that no release of libfabric sends, by their length in
            /// bytes.
            pub(crate) const fn other_forms(
                self,
            ) -> &'static [(usize, &'static [&'static Section])] {
                match self {
                    PacketType::PeerError => PEER_ERROR_FORMS,
                    _ => &[],
                }
            }
        }

        $(
            impl TypedFormat for $format {
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

packet_types!(by_format formats_of_types);
