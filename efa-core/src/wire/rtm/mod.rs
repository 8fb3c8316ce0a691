//! Requests To Message: two-sided communication (spec sections 3.2, 4.1, 4.2 and 4.5).
//!
//! Lengths and offsets that describe the whole message (`msg_length`, `seg_offset`, `runt_length`)
//! are the sender's claims: parsing does not relate them to each other or to the payload.

mod eager;
mod long;
mod medium;
mod runt;

pub use eager::EagerRtm;
pub use long::{LongctsRtm, LongreadRtm};
pub use medium::MediumRtm;
pub use runt::{RuntctsRtm, RuntreadRtm};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::codec::{Cursor, Writer};
use super::error::ParseError;
use super::ids::SendId;
use super::iov::RmaIovs;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawReceipt {
    send_id: U32,
    padding: U32,
}

/// LONGCTS and LONGREAD; `count` is credit_request or read_iov_count.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawLong {
    msg_id: U32,
    msg_length: U64,
    send_id: U32,
    count: U32,
}

/// Where read_iov_count is, in LONGREAD and RUNTREAD alike.
const READ_IOV_COUNT_OFFSET: usize = 20;

#[inline]
fn parse_receipt(cursor: &mut Cursor<'_>) -> Result<Option<SendId>, ParseError> {
    if cursor.packet_type().is_delivery_complete() {
        let raw: &RawReceipt = cursor.take()?;
        Ok(Some(SendId(raw.send_id.get())))
    } else {
        Ok(None)
    }
}

#[inline]
const fn receipt_len(receipt: Option<SendId>) -> usize {
    if receipt.is_some() { 8 } else { 0 }
}

#[inline]
fn write_receipt(receipt: Option<SendId>, writer: &mut Writer<'_>) {
    if let Some(send_id) = receipt {
        writer.put(&RawReceipt {
            send_id: U32::new(send_id.0),
            padding: U32::ZERO,
        });
    }
}

#[inline]
fn parse_tag(cursor: &mut Cursor<'_>) -> Result<Option<u64>, ParseError> {
    if cursor.packet_type().is_tagged() {
        Ok(Some(cursor.take::<U64>()?.get()))
    } else {
        Ok(None)
    }
}

#[inline]
const fn tag_len(tag: Option<u64>) -> usize {
    if tag.is_some() { 8 } else { 0 }
}

#[inline]
fn write_tag(tag: Option<u64>, writer: &mut Writer<'_>) {
    if let Some(tag) = tag {
        writer.put(&U64::new(tag));
    }
}

fn parse_read_iov(cursor: &mut Cursor<'_>, count: u32) -> Result<RmaIovs, ParseError> {
    cursor.take_iovs("read_iov_count", READ_IOV_COUNT_OFFSET, count)
}
