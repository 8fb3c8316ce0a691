//! Queue pairs by number.

use efa_core::address::Qpn;

use super::queue_pair::QueuePair;
use crate::prefetch;

const PAGE_BITS: u32 = 8;
const PAGE: usize = 1 << PAGE_BITS;

type Page<T> = [Option<Box<T>>; PAGE];

/// Queue pairs by number, in a table of two levels. An empty table occupies 2 KiB.
pub(super) struct QpTable<T = QueuePair> {
    pages: [Option<Box<Page<T>>>; PAGE],
    live: u32,
}

impl<T> QpTable<T> {
    pub(super) fn new() -> Self {
        QpTable {
            pages: [const { None }; PAGE],
            live: 0,
        }
    }

    /// The numbers of all queue pairs.
    pub(super) fn numbers(&self) -> impl Iterator<Item = Qpn> {
        let pages = (0u16..).zip(&self.pages);
        pages
            .filter_map(|(page, slots)| Some((page, slots.as_ref()?)))
            .flat_map(|(page, slots)| {
                let used = (0u16..)
                    .zip(slots.iter())
                    .filter(|(_, slot)| slot.is_some());
                used.map(move |(slot, _)| Qpn(page << PAGE_BITS | slot))
            })
    }

    pub(super) fn live(&self) -> u32 {
        self.live
    }

    /// Prefetches the pointer to the page of a number.
    #[inline(always)]
    pub(super) fn prefetch_page(&self, qpn: Qpn) {
        prefetch::value(&self.pages[usize::from(qpn.0 >> PAGE_BITS)]);
    }

    /// Prefetches the pointer to a queue pair.
    #[inline(always)]
    pub(super) fn prefetch_place(&self, qpn: Qpn) {
        if let Some(page) = &self.pages[usize::from(qpn.0 >> PAGE_BITS)] {
            prefetch::value(&page[usize::from(qpn.0) % PAGE]);
        }
    }

    #[inline(always)]
    pub(super) fn get(&self, qpn: Qpn) -> Option<&T> {
        let page = self.pages[usize::from(qpn.0 >> PAGE_BITS)].as_ref()?;
        page[usize::from(qpn.0) % PAGE].as_deref()
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, qpn: Qpn) -> Option<&mut T> {
        let page = self.pages[usize::from(qpn.0 >> PAGE_BITS)].as_mut()?;
        page[usize::from(qpn.0) % PAGE].as_deref_mut()
    }

    /// Adds a queue pair. Returns false if another has the number.
    pub(super) fn insert(&mut self, qpn: Qpn, qp: T) -> bool {
        let page = self.pages[usize::from(qpn.0 >> PAGE_BITS)]
            .get_or_insert_with(|| Box::new([const { None }; PAGE]));
        let slot = &mut page[usize::from(qpn.0) % PAGE];
        if slot.is_some() {
            return false;
        }
        *slot = Some(Box::new(qp));
        self.live += 1;
        true
    }

    pub(super) fn remove(&mut self, qpn: Qpn) -> Option<Box<T>> {
        let page = self.pages[usize::from(qpn.0 >> PAGE_BITS)].as_mut()?;
        let qp = page[usize::from(qpn.0) % PAGE].take()?;
        self.live -= 1;
        Some(qp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::queue_pair::tests::queue_pair;
    use crate::device::{QpState, Service};

    #[test]
    fn the_table_of_queue_pairs_holds_every_number() {
        let mut table = QpTable::<QueuePair>::new();
        for number in [1, 255, 256, 0x7fff, u16::MAX] {
            let qpn = Qpn(number);
            assert!(table.get(qpn).is_none());
            assert!(table.insert(qpn, queue_pair(Service::Srd, QpState::Init)));
            assert!(!table.insert(qpn, queue_pair(Service::Srd, QpState::Reset)));
            assert_eq!(table.get(qpn).map(|qp| qp.state), Some(QpState::Init));
        }
        assert_eq!(table.live(), 5);
        let numbers: Vec<_> = table.numbers().map(|Qpn(number)| number).collect();
        assert_eq!(numbers, [1, 255, 256, 0x7fff, u16::MAX]);
        assert!(table.remove(Qpn(256)).is_some() && table.remove(Qpn(256)).is_none());
        assert_eq!(table.live(), 4);
    }
}
