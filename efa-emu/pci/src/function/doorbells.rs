//! The region with doorbells: one page for each queue pair and each completion queue, so that a
//! program of the guest that maps its own page cannot ring the doorbells of others.

use crate::memory::PAGE;

/// Most queue pairs, and most completion queues.
const OBJECTS: u32 = 2048;

/// Offset of the receive queue's doorbell in the page of its queue pair.
const RECEIVE: u32 = 4;

/// A doorbell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doorbell {
    /// The send queue of the queue pair with this handle.
    Send(u32),
    /// The receive queue of the queue pair with this handle.
    Receive(u32),
    /// The completion queue with this number.
    Completion(u32),
}

impl Doorbell {
    /// The doorbell at an offset of the region.
    pub(super) fn at(offset: u64) -> Option<Doorbell> {
        let offset = u32::try_from(offset).ok()?;
        let (page, place) = (offset / PAGE as u32, offset % PAGE as u32);
        match (page.checked_sub(OBJECTS), place) {
            (None, 0) => Some(Doorbell::Send(page)),
            (None, RECEIVE) => Some(Doorbell::Receive(page)),
            (Some(cq), 0) if cq < OBJECTS => Some(Doorbell::Completion(cq)),
            _ => None,
        }
    }

    /// The offset of the doorbell; `None` if there is no page for the object.
    pub(super) fn offset(self) -> Option<u32> {
        let (number, first, place) = match self {
            Doorbell::Send(handle) => (handle, 0, 0),
            Doorbell::Receive(handle) => (handle, 0, RECEIVE),
            Doorbell::Completion(cq) => (cq, OBJECTS, 0),
        };
        (number < OBJECTS).then(|| (first + number) * PAGE as u32 + place)
    }
}

#[cfg(test)]
mod tests {
    use super::super::bars::Bars;
    use super::*;

    #[test]
    fn doorbells_have_separate_pages() {
        let mut pages = std::collections::HashSet::new();
        for number in 0..OBJECTS {
            let doorbells = [Doorbell::Send, Doorbell::Receive, Doorbell::Completion];
            let [send, receive, completion] = doorbells.map(|of| {
                let offset = of(number).offset().unwrap();
                assert!(u64::from(offset) < Bars::Doorbells.length());
                assert_eq!(Doorbell::at(offset.into()), Some(of(number)));
                offset
            });
            assert_eq!(send / 4096, receive / 4096);
            assert!(pages.insert(send / 4096) && pages.insert(completion / 4096));
        }
        assert_eq!(Doorbell::Send(OBJECTS).offset(), None);
    }

    #[test]
    fn other_offsets_ring_nothing() {
        for offset in [1, 2, 8, 4095, 4097, Bars::Doorbells.length(), u64::MAX] {
            assert_eq!(Doorbell::at(offset), None, "{offset:#x}");
        }
        assert_eq!(Doorbell::at(u64::from(OBJECTS) * PAGE + 4), None);
    }
}
