//! Structures of a packet that always have the same fields.

/// Declares a structure that is read and written as it is in memory: `field: type, [names in the
/// tables], kind, meaning;`. Its function `fields` makes a table with the names of one column.
macro_rules! record {
    (
        $(#[$doc:meta])*
        $vis:vis $name:ident;
        $($field:ident: $type:ty, [$($column:literal),+], $kind:expr, $meaning:expr;)*
    ) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
        )]
        #[repr(C)]
        $vis struct $name {
            $(pub(crate) $field: $type,)*
        }

        impl $name {
            const fn fields(
                column: usize,
                presence: Presence,
                source: Source,
            ) -> [FieldDescriptor; [$($kind),*].len()] {
                [$(
                    FieldDescriptor {
                        name: [$($column),+][column],
                        width: Width::Fixed(size_of::<$type>()),
                        presence,
                        kind: $kind,
                        source,
                        description: $meaning,
                    },
                )*]
            }
        }
    };
}

pub(crate) use record;
