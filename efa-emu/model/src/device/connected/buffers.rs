//! The local memory of a work request: a list of registered buffers.

use efa_core::nic::Access;

use crate::device::ids::PdId;
use crate::device::queue::Buffer;
use crate::device::regions::RegionTable;
use crate::link::HostSegment;

/// The most buffers of one work request.
pub const MAX_SGE: usize = 8;

/// Registered buffers, one behind the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BufferList {
    buffers: [Buffer; MAX_SGE],
    count: u8,
}

/// A piece of a [`BufferList`], resolved to addresses.
#[derive(Clone, Copy, Default)]
pub(super) struct Resolved {
    segments: [HostSegment; MAX_SGE],
    count: usize,
}

impl Resolved {
    pub(super) fn one(segment: HostSegment) -> Resolved {
        let mut resolved = Resolved::default();
        resolved.segments[0] = segment;
        resolved.count = 1;
        resolved
    }

    pub(super) fn segments(&self) -> &[HostSegment] {
        &self.segments[..self.count]
    }
}

impl BufferList {
    /// A list of these buffers. `None` if there are more than [`MAX_SGE`].
    pub fn new(buffers: &[Buffer]) -> Option<BufferList> {
        let mut list = BufferList::default();
        list.buffers
            .get_mut(..buffers.len())?
            .copy_from_slice(buffers);
        list.count = buffers.len() as u8;
        Some(list)
    }

    /// The buffers.
    pub fn as_slice(&self) -> &[Buffer] {
        &self.buffers[..usize::from(self.count)]
    }

    /// Bytes of all buffers.
    pub fn length(&self) -> u64 {
        let lengths = self
            .as_slice()
            .iter()
            .map(|buffer| u64::from(buffer.length));
        lengths.sum()
    }

    /// The first `length` bytes of the list.
    pub(super) fn cut(mut self, length: u32) -> BufferList {
        let mut rest = length;
        for buffer in &mut self.buffers[..usize::from(self.count)] {
            buffer.length = buffer.length.min(rest);
            rest -= buffer.length;
        }
        self
    }

    /// The places of `length` bytes from `offset` on. `None` if there are not as many, or if a
    /// buffer is not of a region of `pd` that allows `access`.
    pub(super) fn resolve(
        &self,
        regions: &RegionTable,
        pd: PdId,
        access: Access,
        offset: u64,
        length: u32,
    ) -> Option<Resolved> {
        let mut resolved = Resolved::default();
        let (mut skip, mut rest) = (offset, length);
        for buffer in self.as_slice() {
            if rest == 0 {
                break;
            }
            let there = u64::from(buffer.length);
            if skip >= there {
                skip -= there;
                continue;
            }
            let part = (there - skip).min(rest.into()) as u32;
            let address = buffer.address.checked_add(skip)?;
            let segment = regions.local(pd, buffer.lkey, address, part, access)?;
            resolved.segments[resolved.count] = segment;
            resolved.count += 1;
            skip = 0;
            rest -= part;
        }
        (rest == 0).then_some(resolved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemoryRegion;

    const PD: PdId = PdId(1);

    #[test]
    fn pieces_cross_buffers_and_check_each_key() {
        let mut regions = RegionTable::new(4);
        let region = MemoryRegion {
            address: 0x1000,
            length: 0x100,
            iova: 0x1000,
            access: Access::LOCAL_WRITE,
        };
        let lkey = regions.insert(PD, region).unwrap().lkey.0;
        let buffer = |address, length, lkey| Buffer {
            address,
            length,
            lkey,
        };
        let list = [buffer(0x1000, 10, lkey), buffer(0x1080, 20, lkey)];
        let list = BufferList::new(&list).unwrap();
        assert_eq!(list.length(), 30);
        let resolve = |list: &BufferList, offset, length| {
            let found = list.resolve(&regions, PD, Access::LOCAL_WRITE, offset, length);
            let parts = |found: Resolved| -> Vec<_> {
                let segments = found.segments().iter();
                segments.map(|part| (part.address, part.length)).collect()
            };
            found.map(parts)
        };
        assert_eq!(resolve(&list, 0, 0), Some(vec![]));
        assert_eq!(resolve(&list, 4, 10), Some(vec![(0x1004, 6), (0x1080, 4)]));
        assert_eq!(resolve(&list, 10, 20), Some(vec![(0x1080, 20)]));
        assert_eq!(resolve(&list, 10, 21), None);
        assert_eq!(resolve(&list, u64::MAX, 1), None);
        let stale = [buffer(0x1000, 10, lkey), buffer(0x1080, 20, lkey + 1)];
        let stale = BufferList::new(&stale).unwrap();
        assert_eq!(resolve(&stale, 0, 10), Some(vec![(0x1000, 10)]));
        assert_eq!(resolve(&stale, 0, 11), None);
        assert_eq!(BufferList::new(&[buffer(0, 1, 0); MAX_SGE + 1]), None);
    }
}
