//! The types of fields: words, optional words, flags.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::cursor::Cursor;
use super::declare::{FieldCondition, Line, Part, Shape};
use super::output::Output;
use crate::address::Qkey;
use crate::atomic::{AtomicDatatype, AtomicOp};
use crate::descriptor::FieldKind;
use crate::error::ParseError;
use crate::flags::{CtsFlags, HandshakeFlags, ReqFlags, UniversalFlags};
use crate::ids::{Connid, MsgId, RecvId, SendId};
use crate::ope_type::OpeType;

/// A type with one width and one meaning.
pub(crate) trait Word: Copy {
    const KIND: FieldKind;
    type Raw: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Copy + 'static;

    fn of(raw: Self::Raw) -> Self;
    fn raw(self) -> Self::Raw;

    #[inline(always)]
    fn connid(self) -> Option<Connid> {
        None
    }
}

macro_rules! words {
    ($($type:ty as $raw:ty: $kind:ident, $of:expr, $to:expr $(, connid $connid:expr)?;)*) => {$(
        impl Word for $type {
            const KIND: FieldKind = FieldKind::$kind;
            type Raw = $raw;

            #[inline(always)]
            fn of(raw: $raw) -> Self {
                $of(raw)
            }

            #[inline(always)]
            fn raw(self) -> $raw {
                $to(self)
            }

            $(
                #[inline(always)]
                fn connid(self) -> Option<Connid> {
                    $connid(self)
                }
            )?
        }
    )*};
}

/// Four bytes without a meaning.
#[derive(Clone, Copy)]
pub(crate) struct Reserved;

impl From<()> for Reserved {
    fn from((): ()) -> Self {
        Reserved
    }
}

words! {
    u8 as u8: Number, |raw| raw, |value| value;
    u32 as U32: Number, U32::get, U32::new;
    u64 as U64: Number, U64::get, U64::new;
    MsgId as U32: Number, |raw: U32| MsgId(raw.get()), |id: MsgId| U32::new(id.0);
    SendId as U32: Number, |raw: U32| SendId(raw.get()), |id: SendId| U32::new(id.0);
    RecvId as U32: Number, |raw: U32| RecvId(raw.get()), |id: RecvId| U32::new(id.0);
    Connid as U32: Bits, |raw: U32| Connid(raw.get()), |id: Connid| U32::new(id.0), connid Some;
    Qkey as U32: Bits, |raw: U32| Qkey(raw.get()), |qkey: Qkey| U32::new(qkey.0);
    AtomicDatatype as U32: AtomicDatatype,
        |raw: U32| AtomicDatatype(raw.get()), |code: AtomicDatatype| U32::new(code.0);
    AtomicOp as U32: AtomicOp, |raw: U32| AtomicOp(raw.get()), |code: AtomicOp| U32::new(code.0);
    OpeType as U32: OpeType, |raw: U32| OpeType(raw.get()), |code: OpeType| U32::new(code.0);
    Reserved as [u8; 4]: Padding, |_| Reserved, |_| [0; 4];
}

/// A field that all packets of the format have.
impl<T: Word> Part for T {
    const SHAPE: Shape = Shape::Word(size_of::<T::Raw>(), T::KIND);

    #[inline(always)]
    fn parse(_line: &Line, cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        Ok(T::of(*cursor.take()?))
    }

    #[inline(always)]
    fn write(&self, _line: &Line, output: &mut impl Output) {
        output.bytes(self.raw().as_bytes());
    }

    #[inline(always)]
    fn connid(&self) -> Option<Connid> {
        Word::connid(*self)
    }
}

/// A field that not all packets of the format have.
impl<T: Word> Part for Option<T> {
    const SHAPE: Shape = T::SHAPE;

    #[inline(always)]
    fn parse(line: &Line, cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        let is_there = match line.when {
            FieldCondition::Always => true,
            FieldCondition::Type(traits) => cursor.packet_type().is(traits),
            FieldCondition::Flag(flag)
            | FieldCondition::FlagOrPadding(flag)
            | FieldCondition::FlagOrRoom(flag) => cursor.flags() & flag != 0,
        };
        if is_there {
            let value = T::parse(line, cursor)?;
            cursor.skip(line.pad.1)?;
            return Ok(Some(value));
        }
        match line.when {
            FieldCondition::FlagOrPadding(_) => cursor.skip(size_of::<T::Raw>())?,
            FieldCondition::FlagOrRoom(_) if cursor.rest().len() >= size_of::<T::Raw>() => {
                cursor.skip(size_of::<T::Raw>())?;
            }
            _ => {}
        }
        Ok(None)
    }

    #[inline(always)]
    fn write(&self, line: &Line, output: &mut impl Output) {
        match (self, line.when) {
            (Some(value), when) => {
                match when {
                    FieldCondition::Always => {}
                    FieldCondition::Type(traits) => output.traits(traits),
                    FieldCondition::Flag(flag)
                    | FieldCondition::FlagOrPadding(flag)
                    | FieldCondition::FlagOrRoom(flag) => {
                        output.flags(flag);
                    }
                }
                value.write(line, output);
                output.zeroes(line.pad.1);
            }
            (None, FieldCondition::FlagOrPadding(_) | FieldCondition::FlagOrRoom(_)) => {
                output.zeroes(size_of::<T::Raw>());
            }
            (None, _) => {}
        }
    }

    #[inline(always)]
    fn connid(&self) -> Option<Connid> {
        self.and_then(Word::connid)
    }
}

/// No bytes on the wire.
pub(crate) const NOTHING: Shape = Shape::Sections(&[]);

/// A fact that only the packet type states.
impl Part for bool {
    const SHAPE: Shape = NOTHING;

    #[inline(always)]
    fn parse(line: &Line, cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        Ok(matches!(line.when, FieldCondition::Type(traits) if cursor.packet_type().is(traits)))
    }

    #[inline(always)]
    fn write(&self, line: &Line, output: &mut impl Output) {
        if let (true, FieldCondition::Type(traits)) = (*self, line.when) {
            output.traits(traits);
        }
    }
}

/// The flags of the base header that follow neither from the packet type nor from other fields.
macro_rules! flags_parts {
    ($($flags:ident without $derived:expr;)*) => {$(
        impl Part for $flags {
            const SHAPE: Shape = NOTHING;

            #[inline(always)]
            fn parse(_line: &Line, cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
                let implied = cursor.packet_type().implied_flags().bits();
                Ok($flags::from_bits_retain(cursor.flags() & !implied).difference($derived))
            }

            #[inline(always)]
            fn write(&self, _line: &Line, output: &mut impl Output) {
                output.flags(self.difference($derived).bits());
            }
        }
    )*};
}

flags_parts! {
    UniversalFlags without UniversalFlags::CONNID_HDR;
    CtsFlags without CtsFlags::CONNID_HDR;
    HandshakeFlags without HandshakeFlags::OPTIONAL_FIELDS;
    ReqFlags without ReqFlags::OPTIONAL_HEADERS;
}
