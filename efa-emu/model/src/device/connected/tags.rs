//! Tag matching according to `Documentation/tag_matching.md` of rdma-core: the list that a shared
//! receive queue stores for the program, and the headers of messages.
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

/// The longest request of a rendezvous in bytes: its two headers, and the sender's data for the
/// receiving program.
pub const MAX_RENDEZVOUS_HEADER: u32 = 64;

/// The operation of a tag matching header, as `ibv_tmh_op`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TagOperation {
    /// A message without a tag.
    NoTag = 0,
    /// A request for a rendezvous.
    Rendezvous = 1,
    /// The data of a rendezvous was read.
    Finish = 2,
    /// A message whose data follows.
    Eager = 3,
}

/// A tag matching header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TagHeader {
    /// The operation.
    pub operation: TagOperation,
    /// The program's own data.
    pub data: u32,
    /// The tag.
    pub tag: u64,
}

impl TagHeader {
    /// Parses a header. `None` for an unknown operation.
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

/// A rendezvous header: the memory of a message's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RendezvousHeader {
    /// Address of the first byte in the sender's memory.
    pub address: u64,
    /// The sender's key.
    pub key: u32,
    /// Bytes of data.
    pub length: u32,
}

impl RendezvousHeader {
    /// Parses a header.
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
    /// The program's id of the buffer, for completions of messages.
    pub wr_id: u64,
    /// The memory.
    pub buffers: BufferList,
    /// The tag.
    pub tag: u64,
    /// The bits of a message's tag that are compared.
    pub mask: u64,
}

/// The result of a tag's deletion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Deletion {
    Done,
    /// A message has matched the tag, or it was deleted before.
    Gone,
}

/// The program has reported more unexpected messages than there were.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CountTooHigh;

/// The tags of a shared receive queue, in the order in which they were added.
///
/// After an unexpected message, new tags are stored but not matched until the program has handled
/// all unexpected messages: one of them may belong to a new tag.
pub(super) struct TagList {
    /// Their numbers, modulo 2^32, are their handles.
    tags: MatchList<TaggedBuffer>,
    limit: u32,
    /// Number of handles used so far.
    handles: u64,
    /// Tags with smaller numbers may be matched.
    matched_below: u64,
    /// Number of unexpected messages that are being received.
    arriving: u32,
    /// Number of received unexpected messages.
    unexpected: u32,
    /// Number of those that the program has reported as handled.
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

    /// Records that an unexpected message begins to arrive.
    pub(super) fn begin_unexpected(&mut self) {
        if !self.needs_sync() {
            self.matched_below = self.handles;
        }
        self.arriving += 1;
    }

    /// Records that such a message has arrived, or was aborted. An aborted message is never visible
    /// to the program, which cannot report it.
    pub(super) fn end_unexpected(&mut self, is_there: bool) {
        self.arriving -= 1;
        if is_there {
            self.unexpected = self.unexpected.wrapping_add(1);
        }
        self.enable();
    }

    /// Enables matching of new tags if all unexpected messages are handled.
    fn enable(&mut self) {
        if !self.needs_sync() {
            self.matched_below = u64::MAX;
        }
    }

    /// Notes the number of unexpected messages that the program has handled.
    pub(super) fn sync(&mut self, handled: u32) -> Result<(), CountTooHigh> {
        let outstanding = self.unexpected.wrapping_sub(self.handled);
        if handled.wrapping_sub(self.handled) > outstanding {
            return Err(CountTooHigh);
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

    /// Checks that the handle was used.
    pub(super) fn check_handle(&self, handle: u32) -> Result<(), Error> {
        if u64::from(handle) >= self.handles {
            return Err(Error::invalid("handle of a tag", handle));
        }
        Ok(())
    }

    /// Allocates an unused handle.
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
        // The last number with this handle, because numbers are longer than handles.
        let last = self.handles - 1;
        let number = last - u64::from((last as u32).wrapping_sub(handle));
        Ok(match self.tags.remove(number) {
            Some(_) => Deletion::Done,
            None => Deletion::Gone,
        })
    }

    /// Removes and returns the first tag that matches.
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
        assert_eq!(list.sync(3), Err(CountTooHigh));
        assert_eq!(list.sync(2), Ok(()));
        assert_eq!(matched(&mut list, 2), Some(2));
        assert_eq!(list.sync(1), Err(CountTooHigh), "counts do not go back");
    }

    #[test]
    fn messages_that_break_off_do_not_count() {
        let mut list = TagList::new(4);
        list.begin_unexpected();
        assert!(list.needs_sync());
        list.add(buffer(1, 1, u64::MAX)).unwrap();
        assert_eq!(list.sync(1), Err(CountTooHigh), "it is not there");
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
