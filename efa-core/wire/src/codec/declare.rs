//! The declaration of packet formats, and the macros that generate code from it.
//!
//! A declaration lists the fields in the order of the packet, one on each line. Declarations can be
//! read without knowledge of the code below. For example:
//!
//! ```text
//! packet_format! {
//!     /// A whole message in one packet.
//!     EagerRtm, table("3.2", "3.3") => data;
//!     pub msg_id: MsgId, "place of the message in the sequence from this sender";
//!     pub receipt: Option<SendId>, { name: "send_id", when: DELIVERY_COMPLETE } "operation ...";
//!     wire read_iov_count: Count = read_iov, { array: Some(Array::ReadIov) } "number of entries";
//! }
//! ```
//!
//! * The first line has the name, the source, and the bytes after the headers: `data`, `data =
//!   FIELD` if that field is its length, `end`, or `exact` if none may follow. `table NAME` makes
//!   only the tables, without a struct.
//! * `pub` lines are fields of the struct. `wire` lines are only on the wire: an unused word, or
//!   the count of an array (`= FIELD` is the counted field).
//! * The type gives the width of a field and the meaning of its bytes (its [`Part`]
//!   implementation). The braces hold further properties; their keys are the fields of [`Line`].
//! * The text is the field's meaning, for the tables and for the struct's documentation. A comment
//!   before the line is only in the struct's documentation.
//!
//! From this, [`packet_format!`] generates the struct, its [`Fields`] (parsing and writing) and
//! [`Format::SECTIONS`]: the tables behind the dissector, `show` and the documentation. `record!`
//! declares structures that always have the same fields, such as the base header.

use core::marker::PhantomData;

use super::base::BaseHeader;
use super::cursor::Cursor;
use super::output::Output;
use super::req::ReqOptions;
use crate::descriptor::{Array, FieldKind, Section, Source, min_len};
use crate::error::ParseError;
use crate::flags::UniversalFlags;
use crate::ids::Connid;
use crate::packet_type::{TypeTraits, TypedFormat};

/// A value that formats consist of.
pub(crate) trait Part: Copy {
    const SHAPE: Shape;

    fn parse(line: &Line, cursor: &mut Cursor<'_>) -> Result<Self, ParseError>;

    /// Writes the bytes, and reports the flags and traits that follow from the value.
    fn write(&self, line: &Line, output: &mut impl Output);

    /// The optional headers, if the value is these.
    #[inline(always)]
    fn req_options(&self) -> Option<&ReqOptions> {
        None
    }

    /// The sender's connection id, if the value is or has it.
    #[inline(always)]
    fn connid(&self) -> Option<Connid> {
        None
    }
}

/// The representation of a part in the tables.
pub(crate) enum Shape {
    /// One field of this many bytes.
    Word(usize, FieldKind),
    /// The number of entries of the line's array.
    Count,
    /// The entries of the line's array.
    Entries,
    /// The same fields wherever the type is used; none if it is not on the wire.
    Sections(&'static [&'static Section]),
}

/// A struct that is declared: its parts in the order of the packet.
pub(crate) trait Fields: Copy {
    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError>;

    fn write(&self, output: &mut impl Output);

    fn req_options(&self) -> Option<&ReqOptions>;

    fn connid(&self) -> Option<Connid>;
}

/// The format of a packet that has a struct.
pub(crate) trait Format: Fields + TypedFormat {
    /// The sections that the packet may consist of, from the base header on.
    const SECTIONS: &'static [&'static Section];

    /// Bytes that every packet of the format has.
    const MIN_LEN: usize = min_len(Self::SECTIONS);

    /// Compares the length of the data with the length stated in the header.
    fn check_data(&self, cursor: &Cursor<'_>) -> Result<(), ParseError>;

    /// Reads the header after the base header.
    #[inline(always)]
    fn parse_header(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        cursor.require(Self::MIN_LEN - BaseHeader::LEN)?;
        let header = Self::parse(cursor)?;
        header.check_data(cursor)?;
        Ok(header)
    }
}

/// The attributes of a declared line, besides its type.
#[derive(Clone, Copy)]
pub(crate) struct Line {
    /// The field's name in the spec, if it differs from the struct's field.
    pub(crate) name: &'static str,
    /// The packets that have it.
    pub(crate) when: FieldCondition,
    /// The meaning of the bytes, if it differs from the type's.
    pub(crate) kind: Option<FieldKind>,
    /// The name and the bytes of the padding after it.
    pub(crate) pad: (&'static str, usize),
    /// The array that it counts or whose entries it has.
    pub(crate) array: Option<Array>,
    /// The source of its definition, if it differs from the format's.
    pub(crate) source: Source,
    /// The field's description.
    pub(crate) meaning: &'static str,
}

/// The packets of a format that have a field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldCondition {
    Always,
    /// Packets of the types with this trait.
    Type(TypeTraits),
    /// Packets with this flag.
    Flag(u16),
    /// All, but without the flag it is padding (`multiuse` in the spec).
    FlagOrPadding(u16),
    /// As before, but without the flag a packet may also end before it.
    FlagOrRoom(u16),
}

/// Types that have a tag.
pub(crate) const TAGGED: FieldCondition = FieldCondition::Type(TypeTraits::TAGGED);
/// Types that request a RECEIPT.
pub(crate) const DELIVERY_COMPLETE: FieldCondition =
    FieldCondition::Type(TypeTraits::DELIVERY_COMPLETE);
/// The flag that the sender's connection id is there.
pub(crate) const CONNID_HDR: u16 = UniversalFlags::CONNID_HDR.bits();
/// For numbers that are shown in hexadecimal.
pub(crate) const HEX: Option<FieldKind> = Some(FieldKind::Bits);

pub(crate) const PADDING: &str = "without meaning; senders may leave anything in it";

/// Has a constant [`Line`] for each line of the declaration of `T`.
pub(crate) struct Lines<T>(PhantomData<T>);

impl Line {
    pub(crate) const fn new(name: &'static str, source: Source, meaning: &'static str) -> Line {
        Line {
            name,
            when: FieldCondition::Always,
            kind: None,
            pad: ("", 0),
            array: None,
            source,
            meaning,
        }
    }

    /// The array, which lines about one have to name.
    #[inline(always)]
    pub(crate) const fn array(&self) -> Array {
        self.array.expect("counts and entries name their array")
    }
}

/// Declares a format: see the [module](self).
macro_rules! packet_format {
    (table $name:ident, $source:expr => $tail:ident; $($lines:tt)*) => {
        /// The tables of a format without a struct.
        pub(crate) struct $name;

        impl $name {
            pub(crate) const SECTIONS: &'static [&'static Section] =
                all_sections!($name, $tail);
        }

        lines! { $name, $source; $($lines)* }
    };
    (
        $(#[$doc:meta])*
        $name:ident, $source:expr => $tail:ident $(= $measured:ident)?; $($lines:tt)*
    ) => {
        fields! {
            $(#[$doc])*
            ///
            /// The fields, in the order of the packet. Their offsets are in
            /// `docs/packet-formats.md`.
            $name, $source; $($lines)*
        }

        impl Format for $name {
            const SECTIONS: &'static [&'static Section] = all_sections!($name, $tail);

            #[inline(always)]
            fn check_data(&self, _cursor: &Cursor<'_>) -> Result<(), ParseError> {
                $(_cursor.check_data_length(stringify!($measured), self.$measured)?;)?
                check_tail!(_cursor, $tail)
            }
        }
    };
}

/// Checks the bytes after the headers.
macro_rules! check_tail {
    ($cursor:ident, exact) => {
        $cursor.check_end()
    };
    ($cursor:ident, $tail:ident) => {
        Ok(())
    };
}

/// The base header, the declared fields, and the section after them.
macro_rules! all_sections {
    ($name:ident, data) => {
        all_sections!($name, [&crate::codec::DATA])
    };
    ($name:ident, end) => {
        all_sections!($name, [&crate::codec::TRAILING])
    };
    ($name:ident, exact) => {
        all_sections!($name, end)
    };
    ($name:ident, $tail:expr) => {{
        const LISTS: &[&[&Section]] = &[&[&crate::codec::BASE], Lines::<$name>::ALL, &$tail];
        &concat::<{ count(LISTS) }>(LISTS)
    }};
}

/// Declares a struct that is part of a packet: like a format, but without base header and tail.
macro_rules! fields {
    (
        $(#[$doc:meta])*
        $name:ident, $source:expr;
        $(
            $( $(#[$more:meta])* pub $field:ident : $fty:ty, )?
            $( wire $wire:ident : $wty:ty $( = $of:ident )?, )?
            $( { $($key:ident : $value:expr),+ $(,)? } )?
            $meaning:literal ;
        )*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        pub struct $name {
            $($( #[doc = $meaning] #[doc = ""] $(#[$more])* pub $field: $fty, )?)*
        }

        lines! {
            $name, $source;
            $( $(pub $field: $fty,)? $(wire $wire: $wty,)? $({ $($key: $value),+ })? $meaning; )*
        }

        impl Fields for $name {
            #[inline(always)]
            fn parse(cursor: &mut Cursor<'_>) -> Result<$name, ParseError> {
                $(
                    $( let $field = <$fty as Part>::parse(&Lines::<$name>::$field, cursor)?; )?
                    $( <$wty as Part>::parse(&Lines::<$name>::$wire, cursor)?; )?
                )*
                Ok($name { $($($field,)?)* })
            }

            #[inline(always)]
            fn write(&self, output: &mut impl Output) {
                $(
                    $( Part::write(&self.$field, &Lines::<$name>::$field, output); )?
                    $( <$wty>::from(($(&self.$of)?)).write(&Lines::<$name>::$wire, output); )?
                )*
            }

            #[inline(always)]
            fn req_options(&self) -> Option<&ReqOptions> {
                None $($( .or_else(|| Part::req_options(&self.$field)) )?)*
            }

            #[inline(always)]
            fn connid(&self) -> Option<Connid> {
                None $($( .or_else(|| Part::connid(&self.$field)) )?)*
            }
        }
    };
}

/// Makes a constant [`Line`] for each line, with its name, and the list of all their sections.
macro_rules! lines {
    (
        $name:ident, $source:expr;
        $(
            $( $(#[$more:meta])* pub $field:ident : $fty:ty, )?
            $( wire $wire:ident : $wty:ty $( = $of:ident )?, )?
            $( { $($key:ident : $value:expr),+ $(,)? } )?
            $meaning:literal ;
        )*
    ) => {
        #[allow(non_upper_case_globals, reason = "they have the names of the fields")]
        impl Lines<$name> {
            $(
                const $($field)? $($wire)?: Line = Line {
                    $($($key: $value,)+)?
                    ..Line::new(stringify!($($field)? $($wire)?), $source, $meaning)
                };
            )*

            const ALL: &'static [&'static Section] = {
                const LISTS: &[&[&Section]] = &[$({
                    const LINE: Line = Lines::<$name>::$($field)? $($wire)?;
                    const SHAPE: Shape = <$($fty)? $($wty)? as Part>::SHAPE;
                    const DESCRIBED: [FieldDescriptor; 2] = LINE.describe(&SHAPE);
                    const SECTION: Section = section_of(&DESCRIBED);
                    LINE.sections(&SHAPE, &[&SECTION])
                }),*];
                &concat::<{ count(LISTS) }>(LISTS)
            };
        }
    };
}

pub(crate) use {all_sections, check_tail, fields, lines, packet_format};
