//! Arrays inside packets, as values.

use core::fmt;
use core::ops::Deref;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::cursor::Cursor;
use super::declare::{Line, Part, Shape};
use super::output::Output;
use super::record::record;
use crate::descriptor::{
    Array, FieldDescriptor, FieldKind, Presence, Section, Source, Width, section, table,
};
use crate::error::{ParseError, Reason};
use crate::flags::ExtraFeatures;

record! {
    /// A piece of registered memory of a peer: `efa_rma_iov` of spec section 3.3.
    ///
    /// 24 bytes without alignment, so that an array of them can be read where it is in a packet.
    pub RmaIov;
    addr: U64, ["rma_iov.addr", "read_iov.addr"], FieldKind::Bits,
        "virtual address in the memory of the owner";
    len: U64, ["rma_iov.len", "read_iov.len"], FieldKind::Number, "length in bytes";
    key: U64, ["rma_iov.key", "read_iov.key"], FieldKind::Bits, "the owner's remote key";
}

/// `rma_iov` in the tables.
pub(crate) const RMA_IOV: Section = Section {
    array: Some(Array::RmaIov),
    fields: &RmaIov::fields(0, Presence::Always, section("3.3")),
};

/// `read_iov` in the tables.
pub(crate) const READ_IOV: Section = Section {
    array: Some(Array::ReadIov),
    fields: &RmaIov::fields(1, Presence::Always, section("4.1")),
};

/// `extra_info` in the tables.
pub(crate) const EXTRA_INFO: Section = Section {
    array: Some(Array::ExtraInfo),
    fields: &[FieldDescriptor {
        name: "extra_info",
        width: Width::Fixed(size_of::<U64>()),
        presence: Presence::Always,
        kind: FieldKind::Bits,
        source: table("2.1", "2.2"),
        description: "extra features and requests, 64 in each word",
    }],
};

impl RmaIov {
    /// Bytes on the wire.
    pub const LEN: usize = size_of::<RmaIov>();

    /// No memory: an unused entry of an array.
    pub const NONE: RmaIov = RmaIov::new(0, 0, 0);

    /// Names `len` bytes at `addr` by the owner's remote `key`.
    pub const fn new(addr: u64, len: u64, key: u64) -> RmaIov {
        RmaIov {
            addr: U64::new(addr),
            len: U64::new(len),
            key: U64::new(key),
        }
    }

    /// Virtual address in the memory of the owner.
    pub const fn addr(&self) -> u64 {
        self.addr.get()
    }

    /// Length in bytes.
    #[expect(
        clippy::len_without_is_empty,
        reason = "the name of the protocol's field, not of a container's size"
    )]
    pub const fn len(&self) -> u64 {
        self.len.get()
    }

    /// The owner's remote key. Devices use the lower 32 bits.
    pub const fn key(&self) -> u64 {
        self.key.get()
    }
}

impl fmt::Debug for RmaIov {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RmaIov({:#x}+{}, key {:#x})",
            self.addr(),
            self.len(),
            self.key()
        )
    }
}

/// At most four [`RmaIov`]s, as a value of its own.
///
/// Stock receivers copy the array into one of four entries without looking at the count, so a
/// longer one must not be sent, and none is accepted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RmaIovs {
    /// Entries from `count` on are [`RmaIov::NONE`].
    entries: [RmaIov; RmaIovs::MAX],
    count: usize,
}

impl RmaIovs {
    /// The most entries that a packet may hold.
    pub const MAX: usize = 4;

    /// No entries.
    pub const EMPTY: RmaIovs = RmaIovs {
        entries: [RmaIov::NONE; RmaIovs::MAX],
        count: 0,
    };

    /// `None` if there are more than [`MAX`](Self::MAX) entries.
    pub const fn new(entries: &[RmaIov]) -> Option<RmaIovs> {
        if entries.len() > Self::MAX {
            return None;
        }
        let mut iovs = RmaIovs::EMPTY;
        while iovs.count < entries.len() {
            iovs.entries[iovs.count] = entries[iovs.count];
            iovs.count += 1;
        }
        Some(iovs)
    }

    /// The first [`MAX`](Self::MAX) of `entries`.
    pub fn first_of(entries: impl IntoIterator<Item = RmaIov>) -> RmaIovs {
        let mut iovs = RmaIovs::EMPTY;
        for (place, entry) in iovs.entries.iter_mut().zip(entries) {
            *place = entry;
            iovs.count += 1;
        }
        iovs
    }

    /// The entries.
    pub fn as_slice(&self) -> &[RmaIov] {
        &self.entries[..self.count]
    }

    /// The number of entries in the type of the protocol's count fields.
    pub const fn count(&self) -> u32 {
        self.count as u32 // at most MAX
    }

    /// Bytes on the wire.
    pub const fn wire_len(&self) -> usize {
        self.count * RmaIov::LEN // at most 96
    }

    /// The sum of the lengths, `None` if it does not fit 64 bits.
    pub fn total_len(&self) -> Option<u64> {
        self.iter()
            .try_fold(0_u64, |sum, iov| sum.checked_add(iov.len()))
    }

    /// Takes all pieces as one range, and returns the rest of the piece that contains its byte
    /// `offset`. `None` if the range is shorter.
    pub fn part_at(&self, offset: u64) -> Option<RmaIov> {
        let mut skip = offset;
        for piece in self.as_slice() {
            if skip < piece.len() {
                return Some(RmaIov::new(
                    piece.addr().wrapping_add(skip),
                    piece.len() - skip,
                    piece.key(),
                ));
            }
            skip -= piece.len();
        }
        None
    }
}

impl Default for RmaIovs {
    fn default() -> Self {
        RmaIovs::EMPTY
    }
}

impl Deref for RmaIovs {
    type Target = [RmaIov];

    fn deref(&self) -> &[RmaIov] {
        self.as_slice()
    }
}

/// The capability words of HANDSHAKE (`extra_info`, spec table 2.2), any number of them.
///
/// Word `i / 64` bit `i % 64` is the extra feature or request `i`. Stock libfabric sends exactly
/// one word, and some of its receivers have room for four. As many are kept here: further words are
/// counted, and emitted as zeroes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ExtraInfo {
    /// Words from `count` on are zero.
    words: [U64; ExtraInfo::KEPT],
    count: u32,
}

impl ExtraInfo {
    /// The most words that are accepted: more than any packet can hold.
    pub const MAX: usize = 0xFFFF;

    /// The value of `nextra_p3` is the number of words plus this.
    pub(crate) const COUNT_BIAS: u32 = 3;

    /// Words that are kept.
    pub const KEPT: usize = 4;

    /// `None` if there are more than [`MAX`](Self::MAX) words.
    pub fn new(words: &[u64]) -> Option<ExtraInfo> {
        ExtraInfo::from_iter(words.len(), words.iter().map(|word| U64::new(*word)))
    }

    /// The words of a packet.
    pub(crate) fn from_wire(words: &[U64]) -> Option<ExtraInfo> {
        ExtraInfo::from_iter(words.len(), words.iter().copied())
    }

    fn from_iter(count: usize, words: impl Iterator<Item = U64>) -> Option<ExtraInfo> {
        let mut info = ExtraInfo {
            words: [U64::ZERO; ExtraInfo::KEPT],
            count: u32::try_from(count)
                .ok()
                .filter(|count| *count as usize <= Self::MAX)?,
        };
        for (kept, word) in info.words.iter_mut().zip(words) {
            *kept = word;
        }
        Some(info)
    }

    /// The words that are kept, in the form in which they are on the wire.
    pub(crate) fn kept(&self) -> &[U64] {
        &self.words[..Self::KEPT.min(self.count as usize)]
    }

    /// The number of words.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// The words that are kept.
    pub fn words(&self) -> impl Iterator<Item = u64> + use<> {
        let info = *self;
        (0..info.kept().len()).map(move |index| info.words[index].get())
    }

    /// The extra features and requests 0 to 63; none if the packet has no word.
    pub fn features(&self) -> ExtraFeatures {
        ExtraFeatures::from_bits_retain(self.words[0].get())
    }

    /// Returns whether the extra feature or request `id` is set. Words that are absent or not kept
    /// count as zero.
    pub fn contains(&self, id: u32) -> bool {
        self.words
            .get((id / 64) as usize)
            .is_some_and(|word| word.get() >> (id % 64) & 1 == 1)
    }

    /// The value of `nextra_p3`: the number of words plus 3 (spec section 2.1).
    pub const fn nextra_p3(&self) -> u32 {
        self.count + Self::COUNT_BIAS // at most MAX + 3
    }

    /// Bytes on the wire.
    pub const fn wire_len(&self) -> usize {
        self.count as usize * size_of::<U64>() // at most 8 * MAX
    }
}

/// One word, as stock libfabric sends it.
impl From<ExtraFeatures> for ExtraInfo {
    fn from(features: ExtraFeatures) -> Self {
        let mut info = ExtraInfo {
            count: 1,
            ..ExtraInfo::default()
        };
        info.words[0] = U64::new(features.bits());
        info
    }
}

impl fmt::Debug for ExtraInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} words: {:x?}", self.count, self.kept())
    }
}

/// The field that counts the entries of an array.
#[derive(Clone, Copy, Default)]
pub(crate) struct Count(u32);

impl From<&RmaIovs> for Count {
    #[inline(always)]
    fn from(iovs: &RmaIovs) -> Self {
        Count(iovs.count())
    }
}

impl From<&ExtraInfo> for Count {
    #[inline(always)]
    fn from(info: &ExtraInfo) -> Self {
        Count(info.nextra_p3())
    }
}

impl Part for Count {
    const SHAPE: Shape = Shape::Count;

    #[inline(always)]
    fn parse(line: &Line, cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        let offset = cursor.offset();
        let value = cursor.take::<U32>()?.get();
        let (bias, limit) = match line.array() {
            Array::RmaIov | Array::ReadIov => (0, RmaIovs::MAX),
            Array::ExtraInfo => (ExtraInfo::COUNT_BIAS, ExtraInfo::MAX),
        };
        let reason = match value.checked_sub(bias) {
            Some(count) if count as usize <= limit => {
                cursor.set_count(line.array(), count);
                return Ok(Count(value));
            }
            Some(count) => Reason::TooManyEntries { count, limit },
            None => Reason::NextraBelowThree { value },
        };
        Err(cursor.error(line.name, offset, reason))
    }

    #[inline(always)]
    fn write(&self, _line: &Line, output: &mut impl Output) {
        output.bytes(&self.0.to_le_bytes());
    }
}

impl Part for RmaIovs {
    const SHAPE: Shape = Shape::Entries;

    #[inline(always)]
    fn parse(line: &Line, cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        // The count was checked when it was read, so there are not too many.
        Ok(RmaIovs::new(cursor.take_entries(line.array())?).unwrap_or_default())
    }

    #[inline(always)]
    fn write(&self, _line: &Line, output: &mut impl Output) {
        output.bytes(self.as_slice().as_bytes());
    }
}

impl Part for ExtraInfo {
    const SHAPE: Shape = Shape::Entries;

    fn parse(line: &Line, cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        // The same as for iovs.
        Ok(ExtraInfo::from_wire(cursor.take_entries(line.array())?).unwrap_or_default())
    }

    fn write(&self, _line: &Line, output: &mut impl Output) {
        let kept = self.kept();
        output.bytes(kept.as_bytes());
        output.zeroes(self.wire_len() - size_of_val(kept));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feature_ids_count_through_the_words() {
        let first = ExtraFeatures::RDMA_READ | ExtraFeatures::READ_NACK;
        let info = ExtraInfo::new(&[first.bits(), 1 << 5]).unwrap();
        let set: Vec<u32> = (0..200).filter(|id| info.contains(*id)).collect();
        assert_eq!(set, [0, 6, 69]);
        assert!(!info.contains(u32::MAX));
        assert_eq!(info.nextra_p3(), 5);
        assert_eq!(info.features(), first);
        assert_eq!(ExtraInfo::default().features(), ExtraFeatures::empty());
        assert_eq!(ExtraInfo::from(first).words().collect::<Vec<_>>(), [0x41]);
    }

    #[test]
    fn capability_words_beyond_four_are_only_counted() {
        let info = ExtraInfo::new(&[1, 2, 3, 4, 5, 6]).unwrap();
        assert_eq!((info.count(), info.wire_len()), (6, 48));
        assert_eq!(info.words().collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert!(!info.contains(256));
        assert_eq!(ExtraInfo::new(&vec![0; ExtraInfo::MAX + 1]), None);
    }

    #[test]
    fn a_part_begins_within_one_piece() {
        let iovs = RmaIovs::new(&[RmaIov::new(100, 10, 1), RmaIov::new(200, 5, 2)]).unwrap();
        assert_eq!(iovs.part_at(4), Some(RmaIov::new(104, 6, 1)));
        assert_eq!(iovs.part_at(10), Some(RmaIov::new(200, 5, 2)));
        assert_eq!(iovs.part_at(15), None);
        assert_eq!(RmaIovs::first_of([RmaIov::new(7, 1, 0); 6]).count(), 4);
    }

    #[test]
    fn more_than_four_iovs_cannot_be_made() {
        let iovs = [RmaIov::new(1, u64::MAX, 3); 5];
        assert!(RmaIovs::new(&iovs).is_none());
        let four = RmaIovs::new(&iovs[..4]).unwrap();
        assert_eq!((four.count(), four.wire_len()), (4, 96));
        assert_eq!(four.total_len(), None);
        assert_eq!(
            RmaIovs::new(&iovs[..1]).unwrap().total_len(),
            Some(u64::MAX)
        );
    }
}
