//! A buffer of the application that may consist of several pieces.

use crate::nic::{BufferId, Domain, LocalKey, Nic, NicError, UserSlice};

use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::operation::{IOV_LIMIT, IoVec};
use crate::endpoint::memory::packet::ReceivedPacket;

/// The pieces of a buffer, stored while the operation runs. A single piece, which is the usual
/// case, needs no allocation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Iov {
    One(IoVec),
    Many(Box<[IoVec]>),
}

impl Iov {
    /// A buffer of no bytes.
    pub(crate) const NONE: Iov = Iov::One(IoVec::new(UserSlice::new(0, 0)));

    /// Copies at most [`IOV_LIMIT`] pieces.
    ///
    /// # Errors
    /// There are more.
    #[inline]
    pub(crate) fn new(pieces: &[IoVec]) -> Result<Self, EndpointError> {
        match pieces {
            [piece] => Ok(Iov::One(*piece)),
            [] => Ok(Iov::NONE),
            many if many.len() <= IOV_LIMIT => Ok(Iov::Many(many.into())),
            many => Err(EndpointError::OutOfRange {
                what: "number of buffer pieces",
                value: many.len() as u64,
                limit: IOV_LIMIT as u64,
            }),
        }
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[IoVec] {
        match self {
            Iov::One(piece) => core::slice::from_ref(piece),
            Iov::Many(pieces) => pieces,
        }
    }

    /// The length of all pieces in bytes.
    #[inline(always)]
    pub(crate) fn length(&self) -> u64 {
        match self {
            Iov::One(piece) => piece.memory.length as u64,
            Iov::Many(pieces) => total_length(pieces),
        }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [IoVec] {
        match self {
            Iov::One(piece) => core::slice::from_mut(piece),
            Iov::Many(pieces) => pieces,
        }
    }
}

/// The length of all pieces in bytes.
#[inline]
pub(crate) fn total_length(pieces: &[IoVec]) -> u64 {
    let add = |sum: u64, piece: &IoVec| sum.saturating_add(piece.memory.length as u64);
    match pieces {
        [piece] => piece.memory.length as u64,
        _ => pieces.iter().fold(0, add),
    }
}

/// The parts of the pieces that make up the bytes `offset..offset + length` of the buffer. They are
/// shorter if the buffer ends before.
pub(crate) fn parts(pieces: &[IoVec], offset: u64, length: u64) -> impl Iterator<Item = IoVec> {
    let mut skip = offset;
    let mut left = length;
    pieces.iter().filter_map(move |piece| {
        let available = piece.memory.length as u64;
        if left == 0 || skip >= available {
            skip = skip.saturating_sub(available);
            return None;
        }
        let take = left.min(available - skip);
        let part = IoVec {
            memory: UserSlice::new(piece.memory.address.wrapping_add(skip), take as usize),
            region: piece.region,
        };
        skip = 0;
        left -= take;
        Some(part)
    })
}

/// The first `length` bytes of a buffer, if it is one piece and `offset` is 0. This is the case for
/// most small messages.
#[inline]
fn only_piece(pieces: &[IoVec], offset: u64, length: usize) -> Option<IoVec> {
    match pieces {
        [piece] if offset == 0 && length > 0 && length <= piece.memory.length => Some(IoVec {
            memory: UserSlice {
                length,
                ..piece.memory
            },
            ..*piece
        }),
        _ => None,
    }
}

/// Shorter payloads are cheaper to copy than to gather, which needs a second entry in the work
/// request and a second read by the device. In bytes.
const MIN_GATHER: usize = 1024;

/// The payload of a packet: the bytes in the packet buffer, and the memory that the device gathers.
pub(crate) struct AttachedPayload {
    pub(crate) in_buffer: usize,
    pub(crate) gathered: Option<(UserSlice, LocalKey)>,
}

/// Makes `length` bytes of the pieces from `offset` on the payload of a packet, whose header
/// occupies the first `header` bytes of `buffer`. The device gathers them if `may_gather` and they
/// are in one registered piece; otherwise they are copied.
#[inline(always)]
pub(crate) fn attach<N: Nic>(
    nic: &mut N,
    buffer: BufferId,
    header: usize,
    pieces: &[IoVec],
    offset: u64,
    length: usize,
    may_gather: bool,
) -> Result<AttachedPayload, NicError> {
    let Some(piece) = only_piece(pieces, offset, length)
        .filter(|piece| length < MIN_GATHER || piece.region.is_none() || !may_gather)
    else {
        return attach_parts(nic, buffer, header, pieces, offset, length, may_gather);
    };
    nic.copy_from_user(buffer, header, piece.memory)?;
    Ok(AttachedPayload {
        in_buffer: header + length,
        gathered: None,
    })
}

#[inline(never)]
fn attach_parts<N: Nic>(
    nic: &mut N,
    buffer: BufferId,
    header: usize,
    pieces: &[IoVec],
    offset: u64,
    length: usize,
    may_gather: bool,
) -> Result<AttachedPayload, NicError> {
    let mut at = header;
    for part in parts(pieces, offset, length as u64) {
        if let Some(region) = part.region
            && may_gather
            && part.memory.length == length
            && length >= MIN_GATHER
        {
            return Ok(AttachedPayload {
                in_buffer: header,
                gathered: Some((part.memory, region.local_key)),
            });
        }
        nic.copy_from_user(buffer, at, part.memory)?;
        at += part.memory.length;
    }
    Ok(AttachedPayload {
        in_buffer: at,
        gathered: None,
    })
}

/// Copies `length` bytes of a packet from byte `from` on into the pieces, at byte `offset` of the
/// buffer. Bytes beyond the end of the buffer are dropped.
#[inline(always)]
pub(crate) fn copy_out<N: Nic>(
    nic: &mut N,
    packet: &ReceivedPacket,
    from: usize,
    length: usize,
    pieces: &[IoVec],
    offset: u64,
) -> Result<(), NicError> {
    if let Some(piece) = only_piece(pieces, offset, length)
        && let Some(buffer) = packet.buffer()
    {
        return nic.copy_to_user(buffer, from, length, piece.memory.address);
    }
    copy_parts(nic, packet, from, length, pieces, offset)
}

#[inline(never)]
fn copy_parts<N: Nic>(
    nic: &mut N,
    packet: &ReceivedPacket,
    from: usize,
    length: usize,
    pieces: &[IoVec],
    offset: u64,
) -> Result<(), NicError> {
    let mut from = from;
    for part in parts(pieces, offset, length as u64) {
        let UserSlice { address, length } = part.memory;
        match packet.buffer() {
            Some(buffer) => nic.copy_to_user(buffer, from, length, address)?,
            None => nic.write_user(address, &packet.copied_bytes()[from..from + length])?,
        }
        from += length;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(lengths: &[usize]) -> Vec<IoVec> {
        lengths
            .iter()
            .enumerate()
            .map(|(index, length)| IoVec::new(UserSlice::new(1000 * (index as u64 + 1), *length)))
            .collect()
    }

    fn ranges(pieces: &[IoVec], offset: u64, length: u64) -> Vec<(u64, usize)> {
        parts(pieces, offset, length)
            .map(|part| (part.memory.address, part.memory.length))
            .collect()
    }

    #[test]
    fn parts_cross_pieces_and_end_with_the_buffer() {
        let pieces = pieces(&[10, 0, 5, 20]);
        assert_eq!(ranges(&pieces, 0, 10), [(1000, 10)]);
        assert_eq!(ranges(&pieces, 8, 10), [(1008, 2), (3000, 5), (4000, 3)]);
        assert_eq!(ranges(&pieces, 10, 5), [(3000, 5)]);
        assert_eq!(ranges(&pieces, 34, 10), [(4019, 1)]);
        assert_eq!(ranges(&pieces, 35, 10), []);
        assert_eq!(ranges(&pieces, u64::MAX, 10), []);
        assert_eq!(ranges(&pieces, 3, 0), []);
    }

    #[test]
    fn more_pieces_than_the_limit_are_refused() {
        assert!(Iov::new(&pieces(&[1; 4])).is_ok());
        let error = Iov::new(&pieces(&[1; 5])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "number of buffer pieces is 5, the limit is 4"
        );
        assert_eq!(total_length(Iov::new(&[]).unwrap().as_slice()), 0);
    }
}
