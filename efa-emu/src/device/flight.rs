//! Requests that the device has taken out of a send queue and that have not completed.

use efa_core::address::{Ahn, Gid, Qpn};

use super::queue::{InlineData, WqeOperation};
use crate::link::{HostSegment, LocalData, RequestHeader, Token};

/// The local side of a request, resolved to addresses.
#[derive(Clone, Copy, Debug)]
pub(super) enum RequestData {
    Inline(InlineData),
    Segments {
        count: u8,
        segments: [HostSegment; 2],
        /// The keys and I/O virtual addresses that the segments were checked with.
        named: [(u32, u64); 2],
    },
}

impl RequestData {
    pub(super) fn as_local(&self) -> LocalData<'_> {
        match self {
            RequestData::Inline(data) => LocalData::Inline(data.as_slice()),
            RequestData::Segments {
                count, segments, ..
            } => LocalData::Segments(&segments[..usize::from(*count)]),
        }
    }
}

/// Where a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// In the queue for its destination, because the link was busy; `next` is the slot behind it.
    Backlog { next: Option<u32> },
    /// With the link.
    Link,
    /// Waiting to be retried because the receiver was not ready.
    RnrTimer,
}

/// One request in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) qpn: Qpn,
    pub(super) request_id: u16,
    pub(super) request_id_upper: u64,
    pub(super) operation: WqeOperation,
    pub(super) signaled: bool,
    pub(super) to: Gid,
    pub(super) ahn: Ahn,
    pub(super) header: RequestHeader,
    pub(super) data: RequestData,
    pub(super) rnr_retries: u32,
    pub(super) place: Place,
}

struct Slot {
    generation: u32,
    request: Option<Request>,
}

/// Requests in flight, found by a token that is never valid for a later request in the same slot.
#[derive(Default)]
pub(super) struct FlightTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl FlightTable {
    pub(super) fn insert(&mut self, request: Request) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                request: None,
            });
            (self.slots.len() - 1) as u32
        });
        self.slots[index as usize].request = Some(request);
        index
    }

    pub(super) fn token(&self, index: u32) -> Token {
        let generation = self.slots[index as usize].generation;
        Token(u64::from(generation) << 32 | u64::from(index))
    }

    /// The slot of a token, if its request is still in flight.
    pub(super) fn find(&self, token: Token) -> Option<u32> {
        let index = token.0 as u32;
        let slot = self.slots.get(index as usize)?;
        (slot.generation == (token.0 >> 32) as u32 && slot.request.is_some()).then_some(index)
    }

    pub(super) fn get(&self, index: u32) -> Option<&Request> {
        self.slots.get(index as usize)?.request.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Request> {
        self.slots.get_mut(index as usize)?.request.as_mut()
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<Request> {
        let slot = self.slots.get_mut(index as usize)?;
        let request = slot.request.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        Some(request)
    }

    /// A new token for a request that is going to be offered again; the old one is stale.
    pub(super) fn renew(&mut self, index: u32) -> Token {
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        self.token(index)
    }

    /// Every request in flight with its slot.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Request)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(index, slot)| Some((index as u32, slot.request.as_ref()?)))
    }
}
