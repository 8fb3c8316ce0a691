//! Macros that make a struct and a table from each declaration of a part of the transport header.

/// Declares consecutive fields: `NAME, PREFIX OF THE FIELDS' NAMES, OFFSET;` and then a line for
/// each field, `name: type, format, presence, meaning;`. Makes a struct that bytes can be read as,
/// and its table `FIELDS`.
macro_rules! header_part {
    (
        $(#[$doc:meta])*
        $name:ident, $prefix:literal, $start:expr;
        $($field:ident: $type:ty, $format:ident, $presence:ident $(($of:expr))?, $meaning:literal;)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
        #[repr(C)]
        pub(super) struct $name {
            $(#[doc = $meaning] pub(super) $field: $type,)*
        }

        impl $name {
            const FIELDS: &'static [Field] = &[$(
                Field {
                    name: concat!($prefix, stringify!($field)),
                    offset: $start + offset_of!($name, $field),
                    size: size_of::<$type>(),
                    format: Format::$format,
                    presence: Presence::$presence $(($of))?,
                    meaning: $meaning,
                },
            )*];
        }
    };
}

/// Declares the opcodes: `variant = code, name, sender, rdma: whether they have the RDMA extension,
/// what the frame carries;`.
macro_rules! opcodes {
    ($($variant:ident = $code:literal, $name:literal, $sender:ident, rdma: $rdma:literal, $carries:literal;)*) => {
        /// The type of a frame.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Opcode {
            $(#[doc = $name] #[doc = ": "] #[doc = $carries] #[doc = "."] $variant = $code,)*
        }

        impl Opcode {
            /// All opcodes, in the order of their codes.
            pub const ALL: [Opcode; [$($code),*].len()] = [$(Opcode::$variant),*];

            /// The name in captures and documents.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Opcode::$variant => $name,)*
                }
            }

            /// The end of the request that sends such frames.
            pub const fn sender(self) -> Sender {
                match self {
                    $(Opcode::$variant => Sender::$sender,)*
                }
            }

            /// Whether frames of this opcode have the RDMA extension.
            pub const fn has_rdma_extension(self) -> bool {
                match self {
                    $(Opcode::$variant => $rdma,)*
                }
            }

            /// The description of the data after the header.
            pub const fn carries(self) -> &'static str {
                match self {
                    $(Opcode::$variant => $carries,)*
                }
            }
        }
    };
}

/// Declares the flags: `NAME = bit, meaning;`.
macro_rules! flags {
    ($($name:ident = $bit:literal, $meaning:literal;)*) => {
        bitflags::bitflags! {
            /// The header's flag bits. Senders leave the other bits 0, readers ignore them.
            #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
            pub struct Flags: u16 {
                $(#[doc = $meaning] #[doc = "."] const $name = 1 << $bit;)*
            }
        }

        impl Flags {
            /// The flags with their meanings, in the order of the bits.
            pub const MEANINGS: &'static [(Flags, &'static str)] = &[$((Flags::$name, $meaning)),*];
        }
    };
}

pub(super) use {flags, header_part, opcodes};
