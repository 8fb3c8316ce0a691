//! Messages between machines, as bytes.
//!
//! A message is a frame of a bridge: its length in bytes with this word, and its kind. Integers are
//! little-endian.
//!
//! | offset | size | request | data of a read | answer, outcome |
//! |---|---|---|---|---|
//! | 0 | 4 | length of the frame | | |
//! | 4 | 1 | kind: 16 | 17 | 18, 19 |
//! | 5 | 3 | 0 | | |
//! | 8 | 8 | name of the request at its sender, 0 if no answer is expected | the same, of the data | name of the answered request, at the receiver |
//! | 16 | | GID of the initiator, 16 bytes | name of the read at the receiver, 8 bytes | code of the answer or status, 1 byte; 7 zeros |
//! | 24 | | | offset of the data in the read, 4 bytes; 4 zeros | |
//! | 32 | | GID of the responder, 16 bytes | data | |
//! | 48 | | the record behind its commit word, 56 bytes (module `record`); its delivery time counts from now on | | |
//! | 104 | | data | | |

use efa_core::address::Gid;

use crate::transport::segment::MAX_RING;
use efa_lock_free::record::{Fields, LINE};

/// Bytes of the header that all kinds share: length and kind.
pub const FRAME_HEADER: usize = 8;

/// The first kind of a frame that is a message. Lower kinds belong to the program that transports
/// the messages.
pub const FIRST_MESSAGE: u8 = 16;

const REQUEST: u8 = FIRST_MESSAGE;
const READ_DATA: u8 = 17;
const ANSWER: u8 = 18;
const OUTCOME: u8 = 19;

const REQUEST_HEADER: usize = 104;
const READ_DATA_HEADER: usize = 32;
const ANSWER_LENGTH: usize = 24;

/// Maximum length of a message: a record as long as a ring, and the longest header.
pub const LONGEST_MESSAGE: usize = REQUEST_HEADER + MAX_RING - LINE;

/// The content of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message<'a> {
    /// A record of a process of the sending machine.
    Request {
        name: u64,
        from: Gid,
        to: Gid,
        fields: Fields,
        data: &'a [u8],
    },
    /// Data for a read by a process of the receiving machine.
    ReadData {
        name: u64,
        read: u64,
        offset: u32,
        data: &'a [u8],
    },
    /// The answer to a request or to data.
    Answer { name: u64, code: u8 },
    /// The outcome of a request that was answered as deferred.
    Outcome { name: u64, code: u8 },
}

/// A frame that no honest bridge sends.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a message of kind {kind} with {length} bytes has a bad {field}")]
pub struct BadMessage {
    pub(super) kind: u8,
    pub(super) length: usize,
    pub(super) field: &'static str,
}

/// Appends a request with `length` bytes of data, which `fill` writes.
pub(super) fn append_request(
    bytes: &mut Vec<u8>,
    name: u64,
    [from, to]: [Gid; 2],
    fields: &Fields,
    length: usize,
    fill: impl FnOnce(&mut [u8]),
) {
    begin(bytes, REQUEST, REQUEST_HEADER + length);
    bytes.extend(name.to_le_bytes());
    bytes.extend(from.0);
    bytes.extend(to.0);
    for word in fields {
        bytes.extend(word.to_ne_bytes());
    }
    append_data(bytes, length, fill);
}

/// Appends data for the read with the name `read`, at `offset` in that read.
pub(super) fn append_read_data(
    bytes: &mut Vec<u8>,
    [name, read]: [u64; 2],
    offset: u32,
    length: usize,
    fill: impl FnOnce(&mut [u8]),
) {
    begin(bytes, READ_DATA, READ_DATA_HEADER + length);
    bytes.extend(name.to_le_bytes());
    bytes.extend(read.to_le_bytes());
    bytes.extend(u64::from(offset).to_le_bytes());
    append_data(bytes, length, fill);
}

pub(super) fn append_answer(bytes: &mut Vec<u8>, name: u64, code: u8) {
    append_code(bytes, ANSWER, name, code);
}

/// Appends the outcome of a request that was deferred.
pub(super) fn append_outcome(bytes: &mut Vec<u8>, name: u64, code: u8) {
    append_code(bytes, OUTCOME, name, code);
}

fn append_code(bytes: &mut Vec<u8>, kind: u8, name: u64, code: u8) {
    begin(bytes, kind, ANSWER_LENGTH);
    bytes.extend(name.to_le_bytes());
    bytes.extend(u64::from(code).to_le_bytes());
}

fn append_data(bytes: &mut Vec<u8>, length: usize, fill: impl FnOnce(&mut [u8])) {
    let at = bytes.len();
    bytes.resize(at + length, 0);
    fill(&mut bytes[at..]);
}

fn begin(bytes: &mut Vec<u8>, kind: u8, length: usize) {
    bytes.extend((length as u32).to_le_bytes());
    bytes.extend([kind, 0, 0, 0]);
}

/// Reads successive little-endian words.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const LENGTH: usize>(&mut self) -> Option<[u8; LENGTH]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn word(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn gid(&mut self) -> Option<Gid> {
        self.take().map(Gid)
    }
}

impl<'a> Message<'a> {
    /// Parses a whole frame. The caller has checked its length.
    pub(super) fn parse(frame: &'a [u8]) -> Result<Self, BadMessage> {
        let kind = frame.get(4).copied().unwrap_or(0);
        let bad = |field| BadMessage {
            kind,
            length: frame.len(),
            field,
        };
        let mut reader = Reader(frame.get(FRAME_HEADER..).ok_or_else(|| bad("length"))?);
        Self::read(kind, &mut reader)
            .ok_or_else(|| bad("length"))?
            .map_err(bad)
    }

    /// `None` if bytes are missing.
    fn read(kind: u8, reader: &mut Reader<'a>) -> Option<Result<Self, &'static str>> {
        if !(REQUEST..=OUTCOME).contains(&kind) {
            return Some(Err("kind"));
        }
        let name = reader.word()?;
        let message = match kind {
            REQUEST => {
                let (from, to) = (reader.gid()?, reader.gid()?);
                let mut fields: Fields = [0; LINE / 8 - 1];
                for field in &mut fields {
                    *field = u64::from_ne_bytes(reader.take()?);
                }
                Message::Request {
                    name,
                    from,
                    to,
                    fields,
                    data: reader.0,
                }
            }
            READ_DATA => {
                let read = reader.word()?;
                let word = reader.word()?;
                let Ok(offset) = u32::try_from(word) else {
                    return Some(Err("offset"));
                };
                Message::ReadData {
                    name,
                    read,
                    offset,
                    data: reader.0,
                }
            }
            _ => {
                let Ok(code) = u8::try_from(reader.word()?) else {
                    return Some(Err("code"));
                };
                if !reader.0.is_empty() {
                    return Some(Err("length"));
                }
                match kind {
                    ANSWER => Message::Answer { name, code },
                    _ => Message::Outcome { name, code },
                }
            }
        };
        Some(Ok(message))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use efa_lock_free::record::record_length;

    fn whole(frame: &[u8]) -> Message<'_> {
        let length = u32::from_le_bytes(frame[..4].try_into().unwrap());
        assert_eq!(length as usize, frame.len());
        Message::parse(frame).unwrap()
    }

    /// No honest sender fills a ring with one record, but a receiver accepts such a record.
    #[test]
    fn every_ring_record_fits_a_message() {
        let data = vec![7; MAX_RING - LINE];
        assert_eq!(record_length(data.len()), MAX_RING);
        assert!(record_length(data.len() + 1) > MAX_RING);
        let fill = |into: &mut [u8]| into.copy_from_slice(&data);
        let (mut request, mut part) = (Vec::new(), Vec::new());
        append_request(
            &mut request,
            1,
            [Gid([1; 16]); 2],
            &Fields::default(),
            data.len(),
            fill,
        );
        append_read_data(&mut part, [1, 2], 0, data.len(), fill);
        assert!(
            matches!(whole(&request), Message::Request { data: there, .. } if there == &data[..])
        );
        assert!(
            matches!(whole(&part), Message::ReadData { data: there, .. } if there == &data[..])
        );
        assert_eq!(request.len().max(part.len()), LONGEST_MESSAGE);
    }

    proptest! {
        #[test]
        fn parcels_arrive_as_they_were_sent(
            name in any::<u64>(), read in any::<u64>(), offset in any::<u32>(), code in any::<u8>(),
            gids in any::<[[u8; 16]; 2]>(), fields in any::<Fields>(),
            data in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let [from, to] = gids.map(Gid);
            let fill = |into: &mut [u8]| into.copy_from_slice(&data);
            let (mut request, mut part, mut answer, mut outcome) = <(Vec<u8>, Vec<u8>, Vec<u8>, Vec<u8>)>::default();
            append_request(&mut request, name, [from, to], &fields, data.len(), fill);
            append_read_data(&mut part, [name, read], offset, data.len(), fill);
            append_answer(&mut answer, name, code);
            append_outcome(&mut outcome, name, code);
            let data = &data[..];
            prop_assert_eq!(whole(&request), Message::Request { name, from, to, fields, data });
            prop_assert_eq!(whole(&part), Message::ReadData { name, read, offset, data });
            prop_assert_eq!(whole(&answer), Message::Answer { name, code });
            prop_assert_eq!(whole(&outcome), Message::Outcome { name, code });
            // A message that ends before its data begins is rejected, and nothing beyond its end is
            // read.
            for (frame, least) in [(&request, REQUEST_HEADER), (&part, READ_DATA_HEADER), (&answer, ANSWER_LENGTH)] {
                for end in 0..least {
                    prop_assert!(Message::parse(&frame[..end]).is_err());
                }
            }
            answer.push(0);
            prop_assert!(Message::parse(&answer).is_err());
        }

        #[test]
        fn any_bytes_are_a_parcel_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 14u8..22) {
            let mut bytes = bytes;
            if let Some(at) = bytes.get_mut(4) {
                *at = kind;
            }
            let _ = Message::parse(&bytes);
        }
    }
}
