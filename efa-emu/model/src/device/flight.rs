//! Requests that the device has read from a send queue and that have not completed.

use efa_core::address::{Ahn, Gid, Qpn};

use super::queue::WorkRequest;
use crate::link::{HostSegment, LocalData, Operation, RemoteRange, RequestHeader, Token};
use crate::prefetch::{self, CACHE_LINE};

/// The state of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestPlace {
    /// In the queue for its destination, because the link was busy. `next` is the slot of the next
    /// request.
    Backlog { next: Option<u32> },
    /// With the link.
    Link,
    /// Waiting to be retried because the receiver was not ready.
    RnrTimer,
}

/// One request in flight: the entry as it was read from the ring, and the results of its lookups.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlightRequest {
    pub(super) wqe: WorkRequest,
    pub(super) qpn: Qpn,
    pub(super) operation: Operation,
    pub(super) sequence: u32,
    pub(super) length: u32,
    pub(super) to: Gid,
    /// The local buffers, resolved to addresses.
    pub(super) segments: [HostSegment; 2],
    pub(super) rnr_retries: u32,
    pub(super) place: RequestPlace,
}

impl InFlightRequest {
    const NONE: InFlightRequest = InFlightRequest {
        wqe: WorkRequest::EMPTY,
        qpn: Qpn(0),
        operation: Operation::Send,
        sequence: 0,
        length: 0,
        to: Gid([0; 16]),
        segments: [HostSegment::new(0, 0); 2],
        rnr_retries: 0,
        place: RequestPlace::Link,
    };

    /// The address handle number of the destination.
    #[inline(always)]
    pub(super) fn ahn(&self) -> Ahn {
        Ahn(self.wqe.ahn())
    }

    /// The header for the responder.
    #[inline(always)]
    pub(super) fn header(&self) -> RequestHeader {
        let wqe = &self.wqe;
        let is_rdma = matches!(self.operation, Operation::RdmaRead | Operation::RdmaWrite);
        RequestHeader {
            operation: self.operation,
            source_qpn: self.qpn,
            destination_qpn: wqe.destination_qpn(),
            qkey: wqe.qkey(),
            sequence: self.sequence,
            retries: self.rnr_retries,
            immediate: wqe.immediate(),
            remote: is_rdma.then(|| {
                let remote = wqe.remote();
                RemoteRange::new(remote.address, remote.rkey)
            }),
            length: self.length,
        }
    }

    /// The local side, resolved to addresses.
    #[inline(always)]
    pub(super) fn local(&self) -> LocalData<'_> {
        if self.wqe.has_one_buffer() {
            LocalData::Segments(std::slice::from_ref(&self.segments[0]))
        } else if self.wqe.is_inline() {
            LocalData::Inline(self.wqe.inline_bytes())
        } else {
            let count = self.wqe.buffer_count().min(self.segments.len());
            LocalData::Segments(&self.segments[..count])
        }
    }

    /// The number of bytes of data that are sent with the request.
    #[inline(always)]
    pub(super) fn outgoing_bytes(&self) -> u64 {
        match self.operation {
            Operation::RdmaRead => 0,
            Operation::Send | Operation::Datagram | Operation::RdmaWrite | Operation::Connected => {
                self.length.into()
            }
        }
    }
}

struct FlightSlot {
    generation: u32,
    /// Whether the request is in flight. If not, the slot is free.
    is_live: bool,
    request: InFlightRequest,
}

impl FlightSlot {
    #[inline(always)]
    fn token(&self, index: u32) -> Token {
        Token(u64::from(self.generation) << 32 | u64::from(index))
    }

    /// Returns whether the request is in flight with this token.
    #[inline(always)]
    fn has(&self, token: Token) -> bool {
        self.is_live && self.generation == (token.0 >> 32) as u32
    }
}

/// A request in flight, and its slot in the table.
pub(super) struct InFlight<'a> {
    index: u32,
    slot: &'a mut FlightSlot,
    free: &'a mut Vec<u32>,
}

impl InFlight<'_> {
    #[inline(always)]
    pub(super) fn request(&mut self) -> &mut InFlightRequest {
        &mut self.slot.request
    }

    /// Forgets the request; its token is stale.
    #[inline(always)]
    pub(super) fn release(self) {
        self.slot.is_live = false;
        self.slot.generation = self.slot.generation.wrapping_add(1);
        self.free.push(self.index);
    }

    /// Assigns the request a new token before it is offered again. The old token becomes stale.
    pub(super) fn renew(self) -> Token {
        self.slot.generation = self.slot.generation.wrapping_add(1);
        self.slot.token(self.index)
    }
}

/// Requests in flight, found by a token that is never valid for a later request in the same slot.
#[derive(Default)]
pub(super) struct FlightTable {
    slots: Vec<FlightSlot>,
    free: Vec<u32>,
}

impl FlightTable {
    /// Claims a free slot. Returns its number, the token of its next request, and the slot's
    /// earlier request, which the caller overwrites.
    #[inline(always)]
    pub(super) fn claim(&mut self) -> (u32, Token, &mut InFlightRequest) {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow(),
        };
        let slot = &mut self.slots[index as usize];
        slot.is_live = true;
        (index, slot.token(index), &mut slot.request)
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        self.slots.push(FlightSlot {
            generation: 0,
            is_live: false,
            request: InFlightRequest::NONE,
        });
        // Freeing a slot must never allocate.
        self.free.reserve(self.slots.len());
        (self.slots.len() - 1) as u32
    }

    pub(super) fn token(&self, index: u32) -> Token {
        self.slots[index as usize].token(index)
    }

    /// Prefetches the request of a token.
    pub(super) fn prefetch(&self, token: Token) {
        let first = self.slots.as_ptr().wrapping_add(token.0 as u32 as usize);
        let lines = size_of::<FlightSlot>().div_ceil(CACHE_LINE);
        for line in 0..lines {
            prefetch::for_write(first.cast::<u8>().wrapping_add(line * CACHE_LINE));
        }
    }

    /// The slot of a token, if its request is still in flight.
    pub(super) fn find(&self, token: Token) -> Option<u32> {
        let index = token.0 as u32;
        let slot = self.slots.get(index as usize)?;
        slot.has(token).then_some(index)
    }

    /// The request of a token, if it is still in flight.
    #[inline(always)]
    pub(super) fn find_mut(&mut self, token: Token) -> Option<InFlight<'_>> {
        let index = token.0 as u32;
        let slot = self.slots.get_mut(index as usize)?;
        slot.has(token).then_some(InFlight {
            index,
            slot,
            free: &mut self.free,
        })
    }

    #[inline(always)]
    pub(super) fn get(&self, index: u32) -> Option<&InFlightRequest> {
        let slot = self.slots.get(index as usize)?;
        slot.is_live.then_some(&slot.request)
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut InFlightRequest> {
        let slot = self.slots.get_mut(index as usize)?;
        slot.is_live.then_some(&mut slot.request)
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<InFlightRequest> {
        let request = *self.get(index)?;
        self.release(index);
        Some(request)
    }

    /// Forgets a request; its token is stale.
    #[inline(always)]
    pub(super) fn release(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize)
            && slot.is_live
        {
            let free = &mut self.free;
            InFlight { index, slot, free }.release();
        }
    }

    /// All requests in flight, with their slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &InFlightRequest)> {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.is_live)
            .map(|(index, slot)| (index as u32, &slot.request))
    }
}
