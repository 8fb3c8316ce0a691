//! Arrays inside packets, borrowed in the form in which they are on the wire.

use core::fmt;
use core::ops::Deref;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::flags::ExtraFeatures;

/// A piece of registered memory of a peer: `efa_rma_iov` of spec section 3.3.
///
/// 24 bytes without alignment, so that an array of them can be read where it is in a packet.
///
/// | offset | size | field |
/// |---|---|---|
/// | 0 | 8 | addr: virtual address in the memory of the owner |
/// | 8 | 8 | len: bytes |
/// | 16 | 8 | key: the owner's remote key |
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RmaIov {
    addr: U64,
    len: U64,
    key: U64,
}

impl RmaIov {
    /// Bytes on the wire.
    pub const LEN: usize = size_of::<RmaIov>();

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

/// At most four [`RmaIov`]s, in a packet that was parsed or in memory of the sender.
///
/// Stock receivers copy the array into one of four entries without looking at the count, so a
/// longer one must not be sent, and none is accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RmaIovs<'a>(&'a [RmaIov]);

impl<'a> RmaIovs<'a> {
    /// The most entries that a packet may hold.
    pub const MAX: usize = 4;

    /// No entries.
    pub const EMPTY: RmaIovs<'static> = RmaIovs(&[]);

    /// `None` if there are more than [`MAX`](Self::MAX) entries.
    pub const fn new(entries: &'a [RmaIov]) -> Option<RmaIovs<'a>> {
        if entries.len() <= Self::MAX {
            Some(RmaIovs(entries))
        } else {
            None
        }
    }

    /// The entries.
    pub const fn as_slice(self) -> &'a [RmaIov] {
        self.0
    }

    /// The number of entries in the type of the protocol's count fields.
    pub const fn count(self) -> u32 {
        self.0.len() as u32 // at most MAX
    }

    /// Bytes on the wire.
    pub const fn wire_len(self) -> usize {
        self.0.len() * RmaIov::LEN // at most 96
    }

    /// The sum of the lengths, `None` if it does not fit 64 bits.
    pub fn total_len(self) -> Option<u64> {
        self.0
            .iter()
            .try_fold(0_u64, |sum, iov| sum.checked_add(iov.len()))
    }
}

impl Deref for RmaIovs<'_> {
    type Target = [RmaIov];

    fn deref(&self) -> &[RmaIov] {
        self.0
    }
}

/// The capability words of HANDSHAKE (`extra_info`, spec table 2.2), any number of them.
///
/// Word `i / 64` bit `i % 64` is the extra feature or request `i`. Stock libfabric sends exactly
/// one word and some of its receivers have room for four.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct ExtraInfo<'a>(&'a [ExtraInfoWord]);

/// One capability word in the form in which it is on the wire.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(transparent)]
pub struct ExtraInfoWord(U64);

impl ExtraInfoWord {
    /// Bytes on the wire.
    pub const LEN: usize = size_of::<ExtraInfoWord>();

    /// A word with these bits.
    pub const fn new(bits: u64) -> ExtraInfoWord {
        ExtraInfoWord(U64::new(bits))
    }

    /// The bits of the word.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl From<ExtraFeatures> for ExtraInfoWord {
    fn from(features: ExtraFeatures) -> Self {
        ExtraInfoWord::new(features.bits())
    }
}

impl fmt::Debug for ExtraInfoWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.get())
    }
}

impl<'a> ExtraInfo<'a> {
    /// The most words that are accepted: more than any packet can hold.
    pub const MAX: usize = 0xFFFF;

    /// `None` if there are more than [`MAX`](Self::MAX) words.
    pub const fn new(words: &'a [ExtraInfoWord]) -> Option<ExtraInfo<'a>> {
        if words.len() <= Self::MAX {
            Some(ExtraInfo(words))
        } else {
            None
        }
    }

    /// One word, as stock libfabric sends it.
    pub const fn one(word: &'a ExtraInfoWord) -> ExtraInfo<'a> {
        ExtraInfo(core::slice::from_ref(word))
    }

    /// The words.
    pub const fn as_slice(self) -> &'a [ExtraInfoWord] {
        self.0
    }

    /// The extra features and requests 0 to 63; none if the packet has no word.
    pub fn features(self) -> ExtraFeatures {
        ExtraFeatures::from_bits_retain(self.0.first().map_or(0, |word| word.get()))
    }

    /// Whether the extra feature or request `id` is set. Words that are absent count as zero.
    pub fn contains(self, id: u32) -> bool {
        self.0
            .get((id / 64) as usize)
            .is_some_and(|word| word.get() >> (id % 64) & 1 == 1)
    }

    /// The value of `nextra_p3`: the number of words plus 3 (spec section 2.1).
    pub const fn nextra_p3(self) -> u32 {
        self.0.len() as u32 + 3 // at most MAX + 3
    }

    /// Bytes on the wire.
    pub const fn wire_len(self) -> usize {
        self.0.len() * ExtraInfoWord::LEN // at most 8 * MAX
    }
}

impl fmt::Debug for ExtraInfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feature_ids_count_through_the_words() {
        let words = [
            ExtraInfoWord::from(ExtraFeatures::RDMA_READ | ExtraFeatures::READ_NACK),
            ExtraInfoWord::new(1 << 5),
        ];
        let info = ExtraInfo::new(&words).unwrap();
        let set: Vec<u32> = (0..200).filter(|id| info.contains(*id)).collect();
        assert_eq!(set, [0, 6, 69]);
        assert!(!info.contains(u32::MAX));
        assert_eq!(info.nextra_p3(), 5);
        assert_eq!(
            info.features(),
            ExtraFeatures::RDMA_READ | ExtraFeatures::READ_NACK
        );
        assert_eq!(ExtraInfo::default().features(), ExtraFeatures::empty());
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
