//! The items that declarations use.

pub(crate) use super::cursor::Cursor;
pub(crate) use super::declare::{
    CONNID_HDR, DELIVERY_COMPLETE, FieldCondition, Fields, Format, HEX, Line, Lines, PADDING, Part,
    Shape, TAGGED, all_sections, check_tail, fields, lines, packet_format,
};
pub(crate) use super::iov::{Count, ExtraInfo, RmaIovs};
pub(crate) use super::output::Output;
pub(crate) use super::parts::{NOTHING, Reserved};
pub(crate) use super::req::ReqOptions;
pub(crate) use super::sections::{concat, count, section_of};
pub(crate) use crate::atomic::{AtomicDatatype, AtomicOp};
pub(crate) use crate::descriptor::{
    Array, FieldDescriptor, FieldKind, Presence, Section, Source, Width, development, section,
    stock, table,
};
pub(crate) use crate::error::ParseError;
pub(crate) use crate::flags::{CtsFlags, HandshakeFlags, ReqFlags, UniversalFlags};
pub(crate) use crate::ids::{Connid, MsgId, RecvId, SendId};
pub(crate) use crate::ope_type::OpeType;
pub(crate) use crate::packet_type::TypeTraits;
