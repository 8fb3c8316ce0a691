//! How the format of a packet is declared, and what becomes of the declaration.
//!
//! A declaration is a list of lines in the order of the packet. It is read without knowing what is
//! below, in the way of this one:
//!
//! ```text
//! packet_format! {
//!     /// A whole message in one packet.
//!     EagerRtm, table("3.2", "3.3");
//!     pub msg_id: MsgId, "place of the message in the sequence from this sender";
//!     pub receipt: Option<SendId>, { name: "send_id", when: DELIVERY_COMPLETE } "operation ...";
//!     wire read_iov_count: Count = read_iov, { array: Some(Array::ReadIov) } "number of entries";
//!     => data
//! }
//! ```
//!
//! * `pub` lines are fields of the struct, `wire` lines are on the wire only: padding, and the count
//!   of an array (`= FIELD` names the field that is counted).
//! * The type says how wide a field is and what its bytes mean. In braces stands what the type does
//!   not say: the keys are the fields of [`Line`].
//! * The text is the field's meaning, for the tables and for the struct's documentation; a comment in
//!   front of the line goes into the latter only.
//! * The last word says what follows the headers: `data`, `data = FIELD` if that field has to be its
//!   length, or `end`.
//! * `table NAME` instead of `NAME` makes the tables alone, without a struct.
//!
//! [`packet_format!`] makes of it the struct, [`Format`] (parsing, length, emitting) and
//! [`Format::SECTIONS`] (the tables, from which come the dissector, `show` and the documentation).
//! What a type does is in its [`Part`].

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::codec::{Cursor, Writer};
use super::error::ParseError;
use super::fields::{Array, FieldDescriptor, Kind, Presence, Section, Source, Width};
use super::flags::{CtsFlags, HandshakeFlags, ReqFlags, UniversalFlags};
use super::ids::{Connid, MsgId, RecvId, SendId};
use super::iov::{EXTRA_INFO, READ_IOV, RMA_IOV};
use super::packet_type::TypeTraits;
use super::req::ReqOptions;
use super::{AtomicDatatype, AtomicOp, PeerErrorRefKind};

/// A format with a struct of its own.
pub(super) trait Format: Copy {
    /// What the packet may consist of, from the base header on.
    const SECTIONS: &'static [&'static Section];

    /// Reads what is behind the base header.
    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError>;

    /// The optional headers, if it is a request.
    fn req_options(&self) -> Option<&ReqOptions>;

    /// The connection id of the header itself.
    fn connid(&self) -> Option<Connid>;
}

/// What is to be said about a line besides its type.
#[derive(Clone, Copy)]
pub(super) struct Line {
    /// The field's name in the spec, if it is not that of the struct's field.
    pub(super) name: &'static str,
    /// Which packets have it.
    pub(super) when: When,
    /// What the bytes mean, if it is not what the type says.
    pub(super) kind: Option<Kind>,
    /// Name and bytes of the padding behind it.
    pub(super) pad: (&'static str, usize),
    /// The array that it counts or whose entries it has.
    pub(super) array: Option<Array>,
    /// Where it is defined, if not where the whole format is.
    pub(super) source: Source,
    /// What it says.
    pub(super) meaning: &'static str,
    /// Flags that stock libfabric sets on every packet of the format.
    pub(super) implies: ReqFlags,
}

/// Which packets of a format have a field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Always,
    /// Those of the types with this trait.
    Type(TypeTraits),
    /// Those with this flag.
    Flag(u16),
    /// All, but without the flag it is padding (`multiuse` in the spec).
    FlagOrPadding(u16),
    /// As before, but without the flag a packet may also end in front of it.
    FlagOrRoom(u16),
}

/// Which types have a tag.
pub(super) const TAGGED: When = When::Type(TypeTraits::TAGGED);
/// Which types ask for RECEIPT.
pub(super) const DELIVERY_COMPLETE: When = When::Type(TypeTraits::DELIVERY_COMPLETE);
/// The flag that the sender's connection id is there.
pub(super) const CONNID_HDR: u16 = UniversalFlags::CONNID_HDR.bits();
/// For numbers that are read in hexadecimal.
pub(super) const HEX: Option<Kind> = Some(Kind::Bits);

pub(super) const PADDING: &str = "without meaning; senders may leave anything in it";

/// A table of the spec.
pub(super) const fn table(section: &'static str, table: &'static str) -> Source {
    Source::Spec {
        section,
        table: Some(table),
    }
}

/// A section of the spec.
pub(super) const fn section(section: &'static str) -> Source {
    Source::Spec {
        section,
        table: None,
    }
}

/// Not in the spec.
pub(super) const fn stock(since: &'static str) -> Source {
    Source::Stock { since }
}

/// What a type looks like in the tables.
pub(super) enum Shape {
    /// One field.
    Word { width: usize, kind: Kind },
    /// The number of entries of the line's array.
    Count,
    /// The entries of the line's array.
    Entries,
    /// Fields that are the same wherever the type is used; none if it is not on the wire.
    Fields(&'static Section),
}

/// A type of which formats consist.
pub(super) trait Part: Copy {
    const SHAPE: Shape;

    fn parse(line: &Line, cursor: &mut Cursor<'_>) -> Result<Self, ParseError>;

    /// Bytes on the wire.
    fn len(&self, line: &Line) -> usize;

    fn write(&self, line: &Line, writer: &mut Writer<'_>);

    /// The flags of the base header that follow from the value.
    #[inline(always)]
    fn flags(&self, _line: &Line) -> u16 {
        0
    }

    /// The traits of the packet type that follow from the value.
    #[inline(always)]
    fn traits(&self, _line: &Line) -> TypeTraits {
        TypeTraits::empty()
    }

    #[inline(always)]
    fn as_options(&self) -> Option<&ReqOptions> {
        None
    }

    #[inline(always)]
    fn as_connid(&self) -> Option<Connid> {
        None
    }
}

impl Line {
    pub(super) const fn new(name: &'static str, source: Source, meaning: &'static str) -> Line {
        Line {
            name,
            when: When::Always,
            kind: None,
            pad: ("", 0),
            array: None,
            source,
            meaning,
            implies: ReqFlags::empty(),
        }
    }

    /// The array, which lines about one have to name.
    #[inline(always)]
    pub(super) const fn array(&self) -> Array {
        self.array.expect("counts and entries name their array")
    }

    /// The field and the padding that belongs to it, if there is any.
    pub(super) const fn describe(&self, shape: &Shape) -> [FieldDescriptor; 2] {
        let (width, kind) = match (shape, self.kind) {
            (Shape::Word { width, .. }, Some(kind)) => (*width, kind),
            (Shape::Word { width, kind }, None) => (*width, *kind),
            (Shape::Count, _) => (4, Kind::Count(self.array())),
            (Shape::Fields(_) | Shape::Entries, _) => (0, Kind::Padding),
        };
        let (presence, pad_presence) = match self.when {
            When::Always => (Presence::Always, Presence::Always),
            When::Type(traits) => (Presence::IfType(traits), Presence::IfType(traits)),
            When::Flag(flag) => (Presence::IfFlag(flag), Presence::IfFlag(flag)),
            When::FlagOrPadding(flag) => {
                (Presence::IfFlagElseNext(flag), Presence::UnlessFlag(flag))
            }
            When::FlagOrRoom(flag) => (
                Presence::IfFlagElseNext(flag),
                Presence::UnlessFlagIfRoom(flag),
            ),
        };
        let (pad_name, pad_width) = match self.when {
            When::FlagOrPadding(_) | When::FlagOrRoom(_) => ("padding", width),
            _ => self.pad,
        };
        [
            FieldDescriptor {
                name: self.name,
                width: Width::Fixed(width),
                presence,
                kind,
                source: self.source,
                description: self.meaning,
            },
            FieldDescriptor {
                name: pad_name,
                width: Width::Fixed(pad_width),
                presence: pad_presence,
                kind: Kind::Padding,
                source: self.source,
                description: PADDING,
            },
        ]
    }

    /// Bytes that every packet has of it.
    pub(super) const fn min_len(&self, shape: &Shape) -> usize {
        match (self.when, self.describe(shape)[0].width) {
            (When::Always | When::FlagOrPadding(_), Width::Fixed(width)) => width,
            _ => 0,
        }
    }

    /// The line in the tables, given what [`Line::describe`] says.
    pub(super) const fn section(
        &self,
        shape: &Shape,
        described: &'static [FieldDescriptor; 2],
    ) -> Section {
        match (shape, described) {
            (Shape::Fields(section), _) => **section,
            (Shape::Entries, _) => match self.array() {
                Array::RmaIov => RMA_IOV,
                Array::ReadIov => READ_IOV,
                Array::ExtraInfo => EXTRA_INFO,
            },
            (Shape::Word { .. } | Shape::Count, [_, padding]) => Section {
                array: None,
                fields: match padding.width {
                    Width::Fixed(0) => described.split_at(1).0,
                    _ => described,
                },
            },
        }
    }
}

/// A type with one width and one meaning.
pub(super) trait Word: Copy {
    const KIND: Kind;
    type Raw: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Copy + 'static;

    fn of(raw: Self::Raw) -> Self;
    fn raw(self) -> Self::Raw;

    #[inline(always)]
    fn as_connid(self) -> Option<Connid> {
        None
    }
}

macro_rules! words {
    ($($type:ty as $raw:ty: $kind:expr, $of:expr, $to:expr;)*) => {
        $(
            impl Word for $type {
                const KIND: Kind = $kind;
                type Raw = $raw;

                #[inline(always)]
                fn of(raw: $raw) -> Self {
                    $of(raw.get())
                }

                #[inline(always)]
                fn raw(self) -> $raw {
                    <$raw>::new($to(self))
                }
            }

            part_of_word!($type);
        )*
    };
}

macro_rules! part_of_word {
    ($type:ty) => {
        impl Part for $type {
            const SHAPE: Shape = Shape::Word {
                width: size_of::<<$type as Word>::Raw>(),
                kind: <$type as Word>::KIND,
            };

            #[inline(always)]
            fn parse(_line: &Line, cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
                Ok(Word::of(*cursor.take()?))
            }

            #[inline(always)]
            fn len(&self, _line: &Line) -> usize {
                size_of::<<$type as Word>::Raw>()
            }

            #[inline(always)]
            fn write(&self, _line: &Line, writer: &mut Writer<'_>) {
                writer.put(&self.raw());
            }
        }
    };
}

words! {
    u32 as U32: Kind::Number, |raw| raw, |value| value;
    u64 as U64: Kind::Number, |raw| raw, |value| value;
    MsgId as U32: Kind::Number, MsgId, |id: MsgId| id.0;
    SendId as U32: Kind::Number, SendId, |id: SendId| id.0;
    RecvId as U32: Kind::Number, RecvId, |id: RecvId| id.0;
    AtomicDatatype as U32: Kind::AtomicDatatype, AtomicDatatype, |code: AtomicDatatype| code.0;
    AtomicOp as U32: Kind::AtomicOp, AtomicOp, |code: AtomicOp| code.0;
    PeerErrorRefKind as U32: Kind::PeerErrorRefKind, PeerErrorRefKind, |code: PeerErrorRefKind| code.0;
}

impl Word for Connid {
    const KIND: Kind = Kind::Bits;
    type Raw = U32;

    #[inline(always)]
    fn of(raw: U32) -> Self {
        Connid(raw.get())
    }

    #[inline(always)]
    fn raw(self) -> U32 {
        U32::new(self.0)
    }

    #[inline(always)]
    fn as_connid(self) -> Option<Connid> {
        Some(self)
    }
}

/// A byte; anything but 0 is true.
impl Word for bool {
    const KIND: Kind = Kind::Number;
    type Raw = u8;

    #[inline(always)]
    fn of(raw: u8) -> Self {
        raw != 0
    }

    #[inline(always)]
    fn raw(self) -> u8 {
        self.into()
    }
}

/// A field that not all packets of the format have.
impl<T: Word> Part for Option<T> {
    const SHAPE: Shape = Shape::Word {
        width: size_of::<T::Raw>(),
        kind: T::KIND,
    };

    #[inline(always)]
    fn parse(line: &Line, cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        let is_there = match line.when {
            When::Always => true,
            When::Type(traits) => cursor.packet_type().is(traits),
            When::Flag(flag) | When::FlagOrPadding(flag) | When::FlagOrRoom(flag) => {
                cursor.flags() & flag != 0
            }
        };
        if is_there {
            let value = T::of(*cursor.take()?);
            cursor.skip(line.pad.1)?;
            return Ok(Some(value));
        }
        match line.when {
            When::FlagOrPadding(_) => cursor.skip(size_of::<T::Raw>())?,
            When::FlagOrRoom(_) if cursor.rest().len() >= size_of::<T::Raw>() => {
                cursor.skip(size_of::<T::Raw>())?;
            }
            _ => {}
        }
        Ok(None)
    }

    #[inline(always)]
    fn len(&self, line: &Line) -> usize {
        match (self, line.when) {
            (Some(_), _) => size_of::<T::Raw>() + line.pad.1,
            (None, When::FlagOrPadding(_) | When::FlagOrRoom(_)) => size_of::<T::Raw>(),
            (None, _) => 0,
        }
    }

    #[inline(always)]
    fn write(&self, line: &Line, writer: &mut Writer<'_>) {
        match (self, line.when) {
            (Some(value), _) => {
                writer.put(&value.raw());
                writer.put_zeroes(line.pad.1);
            }
            (None, When::FlagOrPadding(_) | When::FlagOrRoom(_)) => {
                writer.put_zeroes(size_of::<T::Raw>());
            }
            (None, _) => {}
        }
    }

    #[inline(always)]
    fn flags(&self, line: &Line) -> u16 {
        match (self, line.when) {
            (None, _) | (_, When::Always) => 0,
            // The types with a tag are told by a flag as well.
            (_, TAGGED) => ReqFlags::TAGGED.bits(),
            (_, When::Type(_)) => 0,
            (_, When::Flag(flag) | When::FlagOrPadding(flag) | When::FlagOrRoom(flag)) => flag,
        }
    }

    #[inline(always)]
    fn traits(&self, line: &Line) -> TypeTraits {
        match (self, line.when) {
            (Some(_), When::Type(traits)) => traits,
            _ => TypeTraits::empty(),
        }
    }

    #[inline(always)]
    fn as_connid(&self) -> Option<Connid> {
        self.and_then(Word::as_connid)
    }
}

/// Nothing on the wire.
pub(super) const NOTHING: Shape = Shape::Fields(&Section {
    array: None,
    fields: &[],
});

/// Something that only the packet type says.
impl Part for bool {
    const SHAPE: Shape = NOTHING;

    #[inline(always)]
    fn parse(line: &Line, cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        Ok(matches!(line.when, When::Type(traits) if cursor.packet_type().is(traits)))
    }

    #[inline(always)]
    fn len(&self, _line: &Line) -> usize {
        0
    }

    #[inline(always)]
    fn write(&self, _line: &Line, _writer: &mut Writer<'_>) {}

    #[inline(always)]
    fn traits(&self, line: &Line) -> TypeTraits {
        match line.when {
            When::Type(traits) if *self => traits,
            _ => TypeTraits::empty(),
        }
    }
}

/// Four bytes without a meaning.
#[derive(Clone, Copy, Default)]
pub(super) struct Reserved;

impl Part for Reserved {
    const SHAPE: Shape = Shape::Word {
        width: 4,
        kind: Kind::Padding,
    };

    #[inline(always)]
    fn parse(_line: &Line, cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        cursor.skip(4).map(|()| Reserved)
    }

    #[inline(always)]
    fn len(&self, _line: &Line) -> usize {
        4
    }

    #[inline(always)]
    fn write(&self, _line: &Line, writer: &mut Writer<'_>) {
        writer.put_zeroes(4);
    }
}

/// The flags of the base header that do not follow from other fields.
macro_rules! flags_part {
    ($($flags:ident without $derived:expr;)*) => {
        $(impl Part for $flags {
            const SHAPE: Shape = NOTHING;

            #[inline(always)]
            fn parse(_line: &Line, cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
                Ok($flags::from_bits_retain(cursor.flags()).difference($derived))
            }

            #[inline(always)]
            fn len(&self, _line: &Line) -> usize {
                0
            }

            #[inline(always)]
            fn write(&self, _line: &Line, _writer: &mut Writer<'_>) {}

            #[inline(always)]
            fn flags(&self, _line: &Line) -> u16 {
                self.difference($derived).bits()
            }
        })*
    };
}

flags_part! {
    UniversalFlags without UniversalFlags::CONNID_HDR;
    CtsFlags without CtsFlags::CONNID_HDR;
    HandshakeFlags without HandshakeFlags::OPTIONAL_FIELDS;
}

/// Declares a format: see the [module](self).
macro_rules! packet_format {
    (
        table $name:ident, $source:expr;
        $(
            $( $(#[$more:meta])* pub $field:ident : $fty:ty, )?
            $( wire $wire:ident : $wty:ty $( = $of:ident )?, )?
            $( { $($key:ident : $value:expr),+ $(,)? } )?
            $meaning:literal ;
        )*
        => $tail:ident $( = $measured:ident )?
    ) => {
        /// The tables of a format without a struct.
        pub(in crate::wire) struct $name;

        impl $name {
            pub(in crate::wire) const SECTIONS: &'static [&'static Section] = &[
                &crate::wire::codec::BASE,
                $( field_line!(
                    (section) [$($field: $fty)?] [$($wire: $wty)?]
                    $source, $meaning, [$($($key: $value),+)?]
                ), )*
                field_line!(tail $tail),
            ];
        }
    };
    (
        $(#[$doc:meta])*
        $name:ident, $source:expr;
        $(
            $( $(#[$more:meta])* pub $field:ident : $fty:ty, )?
            $( wire $wire:ident : $wty:ty $( = $of:ident )?, )?
            $( { $($key:ident : $value:expr),+ $(,)? } )?
            $meaning:literal ;
        )*
        => $tail:ident $( = $measured:ident )?
    ) => {
        $(#[$doc])*
        ///
        /// The fields, in the order of the packet. Their offsets are in `docs/packet-formats.md`.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        pub struct $name {
            $($(
                #[doc = $meaning]
                #[doc = ""]
                $(#[$more])*
                pub $field: $fty,
            )?)*
        }

        impl Format for $name {
            const SECTIONS: &'static [&'static Section] = &[
                &crate::wire::codec::BASE,
                $( field_line!(
                    (section) [$($field: $fty)?] [$($wire: $wty)?]
                    $source, $meaning, [$($($key: $value),+)?]
                ), )*
                field_line!(tail $tail),
            ];

            #[inline(always)]
            fn parse(cursor: &mut Cursor<'_>) -> Result<$name, ParseError> {
                cursor.require(<$name as sealed::Fields>::MIN_LEN - BaseHeader::LEN)?;
                $( field_line!(
                    (parse cursor) [$($field: $fty)?] [$($wire: $wty)?]
                    $source, $meaning, [$($($key: $value),+)?]
                ); )*
                $( cursor.check_data_length(stringify!($measured), $measured)?; )?
                Ok($name { $($($field,)?)* })
            }

            #[inline(always)]
            fn req_options(&self) -> Option<&ReqOptions> {
                None $($( .or_else(|| Part::as_options(&self.$field)) )?)*
            }

            #[inline(always)]
            fn connid(&self) -> Option<Connid> {
                None $($( .or_else(|| Part::as_connid(&self.$field)) )?)*
            }
        }

        impl Repr for $name {
            #[inline]
            fn packet_type(&self) -> PacketType {
                let traits = TypeTraits::empty() $( .union(field_line!(
                    (traits self) [$($field: $fty)?] [$($wire: $wty $(= $of)?)?]
                    $source, $meaning, [$($($key: $value),+)?]
                )) )*;
                $name::type_with(traits)
            }

            #[inline]
            fn wire_flags(&self) -> u16 {
                let mut flags = 0;
                $( flags |= field_line!(
                    (flags self) [$($field: $fty)?] [$($wire: $wty $(= $of)?)?]
                    $source, $meaning, [$($($key: $value),+)?]
                ); )*
                flags
            }

            #[inline]
            fn header_len(&self) -> usize {
                BaseHeader::LEN $( .saturating_add(field_line!(
                    (len self) [$($field: $fty)?] [$($wire: $wty $(= $of)?)?]
                    $source, $meaning, [$($($key: $value),+)?]
                )) )*
            }
        }

        impl sealed::Fields for $name {
            const MIN_LEN: usize = BaseHeader::LEN $( + field_line!(
                (min) [$($field: $fty)?] [$($wire: $wty)?]
                $source, $meaning, [$($($key: $value),+)?]
            ) )*;

            #[inline]
            fn write_fields(&self, writer: &mut Writer<'_>) {
                $( field_line!(
                    (write self writer) [$($field: $fty)?] [$($wire: $wty $(= $of)?)?]
                    $source, $meaning, [$($($key: $value),+)?]
                ); )*
            }
        }
    };
}

/// One line of a declaration: what it contributes to one of the items that [`packet_format!`] makes. The
/// first brackets hold the line if it is a field of the struct, the second if it is not.
macro_rules! field_line {
    // The constant that says what there is to say besides the type.
    (const $name:ident, $source:expr, $meaning:literal, [$($key:ident : $value:expr),*]) => {
        Line { $($key: $value,)* ..Line::new(stringify!($name), $source, $meaning) }
    };

    ((section) [$($name:ident : $type:ty)?] [$($wire:ident : $wty:ty)?] $($rest:tt)*) => {
        const {
            const LINE: Line = field_line!(const $($name)? $($wire)?, $($rest)*);
            const SHAPE: Shape = <$($type)? $($wty)? as Part>::SHAPE;
            const DESCRIBED: [FieldDescriptor; 2] = LINE.describe(&SHAPE);
            const SECTION: Section = LINE.section(&SHAPE, &DESCRIBED);
            &SECTION
        }
    };
    ((min) [$($name:ident : $type:ty)?] [$($wire:ident : $wty:ty)?] $($rest:tt)*) => {
        const {
            const LINE: Line = field_line!(const $($name)? $($wire)?, $($rest)*);
            LINE.min_len(&<$($type)? $($wty)? as Part>::SHAPE)
        }
    };
    (tail data) => { &crate::wire::codec::DATA };
    (tail end) => { &crate::wire::codec::TRAILING };

    ((parse $cursor:ident) [$field:ident : $type:ty] [] $($rest:tt)*) => {
        let $field = <$type as Part>::parse(&const { field_line!(const $field, $($rest)*) }, $cursor)?;
    };
    ((parse $cursor:ident) [] [$wire:ident : $type:ty] $($rest:tt)*) => {
        <$type as Part>::parse(&const { field_line!(const $wire, $($rest)*) }, $cursor)?;
    };

    // All others are methods of the value: of the field, of what it is made of, or of nothing.
    (($method:ident $this:ident $($more:ident)?) [$field:ident : $type:ty] [] $($rest:tt)*) => {
        Part::$method(&$this.$field, &const { field_line!(const $field, $($rest)*) } $(, $more)?)
    };
    (($method:ident $this:ident $($more:ident)?) [] [$wire:ident : $type:ty] $($rest:tt)*) => {
        Part::$method(&<$type>::default(), &const { field_line!(const $wire, $($rest)*) } $(, $more)?)
    };
    (($method:ident $this:ident $($more:ident)?) [] [$wire:ident : $type:ty = $of:ident] $($rest:tt)*) => {
        Part::$method(
            &<$type>::from(&$this.$of),
            &const { field_line!(const $wire, $($rest)*) }
            $(, $more)?
        )
    };
}

pub(super) use {field_line, packet_format};

/// What declarations are written with.
pub(super) mod prelude {
    pub(in crate::wire) use super::super::codec::{Cursor, Repr, Writer, sealed};
    pub(in crate::wire) use super::super::error::ParseError;
    pub(in crate::wire) use super::super::fields::{
        Array, FieldDescriptor, Kind, Presence, Section, Source, Width,
    };
    pub(in crate::wire) use super::super::flags::{
        CtsFlags, HandshakeFlags, ReqFlags, UniversalFlags,
    };
    pub(in crate::wire) use super::super::ids::{Connid, MsgId, RecvId, SendId};
    pub(in crate::wire) use super::super::iov::{Count, ExtraInfo, RmaIovs};
    pub(in crate::wire) use super::super::packet_type::{PacketType, TypeTraits};
    pub(in crate::wire) use super::super::req::ReqOptions;
    pub(in crate::wire) use super::super::{AtomicDatatype, AtomicOp, BaseHeader};
    pub(in crate::wire) use super::{
        CONNID_HDR, DELIVERY_COMPLETE, Format, HEX, Line, NOTHING, PADDING, Part, Reserved, Shape,
        TAGGED, When, field_line, packet_format, section, stock, table,
    };
}
