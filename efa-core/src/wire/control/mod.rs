//! The packets that belong to an operation in progress: neither requests nor HANDSHAKE.
//!
//! Most have a word that holds the sender's connid if the flag CONNID_HDR is set, and is padding
//! otherwise (`multiuse` in the spec's tables). Here it is `connid: Option<Connid>`, and the flag
//! follows from it.

mod cts;
mod notice;
mod response;

pub use cts::{Cts, CtsData};
pub use notice::{Eor, PeerError, PeerErrorRefKind, ReadNack, Receipt};
pub use response::{AtomRsp, ReadRsp};

use zerocopy::little_endian::U32;

use super::codec::Cursor;
use super::error::{ParseError, Reason};
use super::flags::UniversalFlags;
use super::ids::Connid;

fn universal(cursor: &Cursor<'_>) -> UniversalFlags {
    UniversalFlags::from_bits_retain(cursor.flags())
}

fn further_flags(cursor: &Cursor<'_>) -> UniversalFlags {
    universal(cursor).difference(UniversalFlags::CONNID_HDR)
}

fn wire_flags(further: UniversalFlags, connid: Option<Connid>) -> u16 {
    let mut flags = further;
    flags.set(UniversalFlags::CONNID_HDR, connid.is_some());
    flags.bits()
}

fn parse_connid(cursor: &Cursor<'_>, multiuse: U32) -> Option<Connid> {
    universal(cursor)
        .contains(UniversalFlags::CONNID_HDR)
        .then(|| Connid(multiuse.get()))
}

fn multiuse(connid: Option<Connid>) -> U32 {
    U32::new(connid.map_or(0, |connid| connid.0))
}

/// Checks that what follows the header is `seg_length` bytes long.
fn check_data_length(
    cursor: &Cursor<'_>,
    seg_length_offset: usize,
    seg_length: u64,
) -> Result<(), ParseError> {
    let present = cursor.rest().len();
    if seg_length == present as u64 {
        Ok(())
    } else {
        let reason = Reason::DataLength {
            stated: seg_length,
            present,
        };
        Err(cursor.error("seg_length", seg_length_offset, reason))
    }
}
