//! The local memory of a work request: a list of registered buffers.

use efa_core::nic::Access;

use crate::device::ids::PdId;
use crate::device::queue::Buffer;
use crate::device::regions::RegionTable;
use crate::limits::MAX_SGE;
use crate::link::HostSegment;

/// Registered buffers, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BufferList(Buffers);

/// Nearly every request has one buffer, which needs no allocation.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Buffers {
    One(Buffer),
    Other(Box<[Buffer]>),
}

impl Default for Buffers {
    fn default() -> Self {
        Buffers::Other(Box::default())
    }
}

/// A piece of a [`BufferList`], resolved to addresses.
pub(super) enum Resolved {
    One(HostSegment),
    Other(Box<[HostSegment]>),
}

impl Resolved {
    #[inline]
    pub(super) fn segments(&self) -> &[HostSegment] {
        match self {
            Resolved::One(only) => std::slice::from_ref(only),
            Resolved::Other(all) => all,
        }
    }
}

impl BufferList {
    /// A list of these buffers. `None` if there are more than [`MAX_SGE`].
    #[inline]
    pub fn new(buffers: &[Buffer]) -> Option<BufferList> {
        Some(BufferList(match buffers {
            [only] => Buffers::One(*only),
            _ if buffers.len() > MAX_SGE => return None,
            _ => Buffers::Other(buffers.into()),
        }))
    }

    /// The buffers.
    #[inline]
    pub fn as_slice(&self) -> &[Buffer] {
        match &self.0 {
            Buffers::One(only) => std::slice::from_ref(only),
            Buffers::Other(all) => all,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [Buffer] {
        match &mut self.0 {
            Buffers::One(only) => std::slice::from_mut(only),
            Buffers::Other(all) => all,
        }
    }

    /// Bytes of all buffers.
    #[inline]
    pub fn length(&self) -> u64 {
        match &self.0 {
            Buffers::One(only) => only.length.into(),
            Buffers::Other(all) => all.iter().map(|buffer| u64::from(buffer.length)).sum(),
        }
    }

    /// The first `length` bytes of the list.
    pub(super) fn cut(mut self, length: u32) -> BufferList {
        let mut rest = length;
        for buffer in self.as_mut_slice() {
            buffer.length = buffer.length.min(rest);
            rest -= buffer.length;
        }
        self
    }

    /// The places of `length` bytes from `offset` on. `None` if there are fewer bytes, or if a
    /// buffer is not in a region of `pd` that allows `access`.
    #[inline(always)]
    pub(super) fn resolve(
        &self,
        regions: &RegionTable,
        (pd, access): (PdId, Access),
        offset: u64,
        length: u32,
    ) -> Option<Resolved> {
        if let Buffers::One(only) = &self.0
            && length > 0
        {
            let end = offset.checked_add(length.into())?;
            let address = only.address.checked_add(offset)?;
            let is_there = end <= only.length.into();
            let found = regions.local(pd, only.lkey, address, length, access);
            return found.filter(|_| is_there).map(Resolved::One);
        }
        self.resolve_other(regions, (pd, access), offset, length)
    }

    #[inline(never)]
    fn resolve_other(
        &self,
        regions: &RegionTable,
        (pd, access): (PdId, Access),
        offset: u64,
        length: u32,
    ) -> Option<Resolved> {
        let mut found = Vec::new();
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
            found.push(regions.local(pd, buffer.lkey, address, part, access)?);
            skip = 0;
            rest -= part;
        }
        (rest == 0).then(|| Resolved::Other(found.into()))
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
        let region = MemoryRegion::new(0x1000, 0x100, Access::LOCAL_WRITE);
        let lkey = regions.insert(PD, region).unwrap().lkey.0;
        let buffer = Buffer::new;
        let list = [buffer(0x1000, 10, lkey), buffer(0x1080, 20, lkey)];
        let list = BufferList::new(&list).unwrap();
        assert_eq!(list.length(), 30);
        let resolve = |list: &BufferList, offset, length| {
            let access = (PD, Access::LOCAL_WRITE);
            let found = list.resolve(&regions, access, offset, length);
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
        let only = BufferList::new(&[buffer(0x1080, 20, lkey)]).unwrap();
        assert_eq!(resolve(&only, 0, 0), Some(vec![]));
        assert_eq!(resolve(&only, 4, 16), Some(vec![(0x1084, 16)]));
        assert_eq!(resolve(&only, 4, 17), None);
        assert_eq!(resolve(&only, u64::MAX, 1), None);
        let stale = [buffer(0x1000, 10, lkey), buffer(0x1080, 20, lkey + 1)];
        let stale = BufferList::new(&stale).unwrap();
        assert_eq!(resolve(&stale, 0, 10), Some(vec![(0x1000, 10)]));
        assert_eq!(resolve(&stale, 0, 11), None);
        assert_eq!(BufferList::new(&[buffer(0, 1, 0); MAX_SGE + 1]), None);
    }
}
