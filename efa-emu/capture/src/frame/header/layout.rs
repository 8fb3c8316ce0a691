//! Macros that make a struct and a table from each declaration of a part of the transport header.

use super::{Flags, Opcode};

/// One field of the transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// The name; the dissector's field has it after `efa.`.
    pub name: &'static str,
    /// The offset of the field from the start of the header, in bytes.
    pub offset: usize,
    /// Length in bytes.
    pub size: usize,
    /// How the value is displayed.
    pub format: Format,
    /// The frames in which the field has a meaning. In other frames its bytes are 0.
    pub presence: Presence,
    /// Its meaning.
    pub meaning: &'static str,
}

/// How the value of a field is displayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Characters.
    Text,
    /// A number in decimal.
    Decimal,
    /// A number in hexadecimal.
    Hexadecimal,
    /// The code of an [`Opcode`].
    Opcode,
    /// [`Flags`].
    Flags,
    /// The code of a [`Status`](efa_wire::Status).
    Status,
    /// Bytes without a meaning.
    Reserved,
}

/// The frames in which a field has a meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// Every frame whose header includes the field.
    Always,
    /// Frames with this flag.
    IfFlag(Flags),
    /// Frames of this opcode.
    InOpcode(Opcode),
}

/// The end of a request that sends a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sender {
    /// The end that posted the request.
    Initiator,
    /// The end that executes the request.
    Responder,
}

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
        struct $name {
            $(#[doc = $meaning] $field: $type,)*
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
