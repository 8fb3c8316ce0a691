//! The matching of tags, as `tag_matching.txt` says: the list that a shared receive queue holds for
//! the program, and the headers by which messages are matched with it.
//! [`infiniband`](efa_core::wire::infiniband) declares the headers.

use efa_core::wire::infiniband::{Rvh, Tmh};
use zerocopy::FromBytes;

use super::buffers::BufferList;
use crate::device::error::Error;
use crate::match_list::MatchList;

/// Bytes of a tag matching header.
pub const TMH: usize = Tmh::LENGTH;

/// Bytes of a rendezvous header.
pub const RVH: usize = Rvh::LENGTH;

/// The longest request of a rendezvous in bytes: its two headers, and what the sender adds for the
/// program of the receiver.
pub const MAX_RENDEZVOUS_HEADER: u32 = 64;

/// What a message with a tag matching header is, in the numbers of `ibv_tmh_op`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TagOperation {
    /// It has no tag.
    NoTag = 0,
    /// The request of a rendezvous.
    Rendezvous = 1,
    /// The data of a rendezvous was read.
    Finish = 2,
    /// The data follows.
    Eager = 3,
}

/// A tag matching header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TagHeader {
    /// What the message is.
    pub operation: TagOperation,
    /// The program's own data.
    pub data: u32,
    /// The tag.
    pub tag: u64,
}

impl TagHeader {
    /// Reads a header. `None` for an operation that is not known.
    pub fn parse(bytes: &[u8; TMH]) -> Option<TagHeader> {
        let header = Tmh::read_from_bytes(bytes).ok()?;
        Some(TagHeader {
            operation: match header.operation {
                0 => TagOperation::NoTag,
                1 => TagOperation::Rendezvous,
                2 => TagOperation::Finish,
                3 => TagOperation::Eager,
                _ => return None,
            },
            data: header.data.get(),
            tag: header.tag.get(),
        })
    }

    /// The header's bytes.
    pub fn to_bytes(self) -> [u8; TMH] {
        zerocopy::transmute!(Tmh {
            operation: self.operation as u8,
            reserved: [0; 3],
            data: self.data.into(),
            tag: self.tag.into(),
        })
    }
}

/// A rendezvous header: where the data of a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RendezvousHeader {
    /// First byte in the sender's memory.
    pub address: u64,
    /// The sender's key.
    pub key: u32,
    /// Bytes of data.
    pub length: u32,
}

impl RendezvousHeader {
    /// Reads a header.
    pub fn parse(bytes: &[u8; RVH]) -> RendezvousHeader {
        let header: Rvh = zerocopy::transmute!(*bytes);
        RendezvousHeader {
            address: header.address.get(),
            key: header.key.get(),
            length: header.length.get(),
        }
    }

    /// The header's bytes.
    pub fn to_bytes(self) -> [u8; RVH] {
        zerocopy::transmute!(Rvh {
            address: self.address.into(),
            key: self.key.into(),
            length: self.length.into(),
        })
    }
}

/// A tagged buffer.
#[derive(Clone, Debug)]
pub struct TaggedBuffer {
    /// The program's own name of it, for completions of messages.
    pub wr_id: u64,
    /// The memory.
    pub buffers: BufferList,
    /// The tag.
    pub tag: u64,
    /// The bits of a message's tag that are compared.
    pub mask: u64,
}

/// How the deletion of a tag went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Deletion {
    Done,
    /// A message has taken the tag before, or it was deleted before.
    Gone,
}

/// The program has reported more unexpected messages than there were.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CountFromTheFuture;

/// The tags of a shared receive queue, in the order in which they were added.
///
/// From an unexpected message on, new tags are kept but not matched, until the program has reported
/// as many unexpected messages as there were: before that, it may find the message that a new tag
/// is for among those.
pub(super) struct TagList {
    /// Their numbers are those of their handles.
    tags: MatchList<TaggedBuffer>,
    limit: u32,
    /// Handles that were given out.
    handles: u64,
    /// Tags with smaller numbers may be matched.
    matched_below: u64,
    /// Unexpected messages that have begun to arrive.
    arriving: u32,
    /// Unexpected messages that have arrived.
    unexpected: u32,
    /// How many of them the program has handled, as far as it has said.
    handled: u32,
}

impl TagList {
    pub(super) fn new(limit: u32) -> TagList {
        TagList {
            tags: MatchList::new(),
            limit,
            handles: 0,
            matched_below: u64::MAX,
            arriving: 0,
            unexpected: 0,
            handled: 0,
        }
    }

    /// Whether the program has to report unexpected messages before new tags are matched.
    pub(super) fn needs_sync(&self) -> bool {
        self.arriving > 0 || self.unexpected != self.handled
    }

    /// A message begins to arrive that no tag was there for.
    pub(super) fn begin_unexpected(&mut self) {
        if !self.needs_sync() {
            self.matched_below = self.handles;
        }
        self.arriving += 1;
    }

    /// Such a message is there, or its connection has ended. Then the program never sees it, and
    /// cannot report it.
    pub(super) fn end_unexpected(&mut self, is_there: bool) {
        self.arriving -= 1;
        if is_there {
            self.unexpected = self.unexpected.wrapping_add(1);
        }
        self.enable();
    }

    /// Has new tags matched, if the counts agree.
    fn enable(&mut self) {
        if !self.needs_sync() {
            self.matched_below = u64::MAX;
        }
    }

    /// The program has handled this number of unexpected messages.
    pub(super) fn sync(&mut self, handled: u32) -> Result<(), CountFromTheFuture> {
        let outstanding = self.unexpected.wrapping_sub(self.handled);
        if handled.wrapping_sub(self.handled) > outstanding {
            return Err(CountFromTheFuture);
        }
        self.handled = handled;
        self.enable();
        Ok(())
    }

    /// Checks that there is room for a tag.
    pub(super) fn check_room(&self) -> Result<(), Error> {
        if self.tags.len() >= self.limit as usize {
            return Err(Error::QueueFull("tag"));
        }
        Ok(())
    }

    /// Checks that a tag had this handle.
    pub(super) fn check_handle(&self, handle: u32) -> Result<(), Error> {
        if u64::from(handle) >= self.handles {
            return Err(Error::invalid("handle of a tag", handle));
        }
        Ok(())
    }

    /// A handle that no tag had.
    pub(super) fn take_handle(&mut self) -> u32 {
        let handle = self.handles as u32;
        self.handles += 1;
        handle
    }

    /// Adds a tag, and returns its handle.
    pub(super) fn add(&mut self, buffer: TaggedBuffer) -> Result<u32, Error> {
        self.check_room()?;
        let number = self.handles;
        self.tags.insert(number, buffer.tag, buffer.mask, buffer);
        Ok(self.take_handle())
    }

    /// Deletes a tag.
    pub(super) fn delete(&mut self, handle: u32) -> Result<Deletion, Error> {
        self.check_handle(handle)?;
        // The last number with this handle: there are more numbers.
        let last = self.handles - 1;
        let number = last - u64::from((last as u32).wrapping_sub(handle));
        Ok(match self.tags.remove(number) {
            Some(_) => Deletion::Done,
            None => Deletion::Gone,
        })
    }

    /// Takes the first tag that a message with this tag matches.
    pub(super) fn take_match(&mut self, tag: u64) -> Option<TaggedBuffer> {
        let number = self.tags.first(tag, self.matched_below)?;
        self.tags.remove(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(wr_id: u64, tag: u64, mask: u64) -> TaggedBuffer {
        TaggedBuffer {
            wr_id,
            buffers: BufferList::default(),
            tag,
            mask,
        }
    }

    fn matched(list: &mut TagList, tag: u64) -> Option<u64> {
        list.take_match(tag).map(|buffer| buffer.wr_id)
    }

    #[test]
    #[rustfmt::skip]
    fn headers_have_the_documents_bytes() {
        let header = TagHeader { operation: TagOperation::Eager, data: 0x0102_0304, tag: 0x1112_1314_1516_1718 };
        let bytes = [
            3, 0, 0, 0,                                     // operation, reserved
            1, 2, 3, 4,                                     // data
            0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, // tag
        ];
        assert_eq!(header.to_bytes(), bytes);
        assert_eq!(TagHeader::parse(&bytes), Some(header));
        for operation in 0..=u8::MAX {
            let known = TagHeader::parse(&[operation, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(known.map(|header| header.operation as u8), (operation < 4).then_some(operation));
        }
        let header = RendezvousHeader { address: 0x2122_2324_2526_2728, key: 0x3132_3334, length: 0x4142_4344 };
        let bytes = [
            0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, // address
            0x31, 0x32, 0x33, 0x34,                         // key
            0x41, 0x42, 0x43, 0x44,                         // length
        ];
        assert_eq!(header.to_bytes(), bytes);
        assert_eq!(RendezvousHeader::parse(&bytes), header);
    }

    #[test]
    fn the_first_tag_posted_that_matches_is_taken() {
        let mut list = TagList::new(4);
        list.add(buffer(1, 0x10, 0xf0)).unwrap();
        list.add(buffer(2, 0x12, 0xff)).unwrap();
        list.add(buffer(3, 0x00, 0x00)).unwrap();
        assert_eq!(matched(&mut list, 0x12), Some(1));
        assert_eq!(matched(&mut list, 0x12), Some(2));
        assert_eq!(matched(&mut list, 0x12), Some(3));
        assert_eq!(matched(&mut list, 0x12), None);
    }

    #[test]
    fn new_tags_wait_until_the_counts_agree() {
        let mut list = TagList::new(4);
        list.add(buffer(1, 1, u64::MAX)).unwrap();
        for _ in 0..2 {
            list.begin_unexpected();
            list.end_unexpected(true);
        }
        assert!(list.needs_sync());
        list.add(buffer(2, 2, u64::MAX)).unwrap();
        assert_eq!(matched(&mut list, 2), None);
        assert_eq!(matched(&mut list, 1), Some(1), "earlier tags are matched");
        assert_eq!(list.sync(1), Ok(()));
        assert_eq!(matched(&mut list, 2), None, "one message is not handled");
        assert_eq!(list.sync(3), Err(CountFromTheFuture));
        assert_eq!(list.sync(2), Ok(()));
        assert_eq!(matched(&mut list, 2), Some(2));
        assert_eq!(
            list.sync(1),
            Err(CountFromTheFuture),
            "counts do not go back"
        );
    }

    #[test]
    fn messages_that_break_off_do_not_count() {
        let mut list = TagList::new(4);
        list.begin_unexpected();
        assert!(list.needs_sync());
        list.add(buffer(1, 1, u64::MAX)).unwrap();
        assert_eq!(list.sync(1), Err(CountFromTheFuture), "it is not there");
        assert_eq!(list.sync(0), Ok(()));
        assert_eq!(matched(&mut list, 1), None);
        list.end_unexpected(false);
        assert!(!list.needs_sync());
        assert_eq!(matched(&mut list, 1), Some(1));
    }

    #[test]
    fn deleted_and_taken_tags_are_gone() {
        let mut list = TagList::new(2);
        let first = list.add(buffer(1, 1, u64::MAX)).unwrap();
        let second = list.add(buffer(2, 2, u64::MAX)).unwrap();
        assert_ne!(first, second);
        let full = list.add(buffer(3, 3, 0)).map_err(Error::errno);
        assert_eq!(full, Err(libc::ENOMEM));
        assert_eq!(matched(&mut list, 1), Some(1));
        assert_eq!(list.delete(first), Ok(Deletion::Gone));
        assert_eq!(list.delete(second), Ok(Deletion::Done));
        assert_eq!(list.delete(second), Ok(Deletion::Gone));
        let third = list.add(buffer(3, 3, 0)).unwrap();
        assert!(![first, second].contains(&third));
        let unknown = list.delete(7).map_err(Error::errno);
        assert_eq!(unknown, Err(libc::EINVAL));
    }
}
