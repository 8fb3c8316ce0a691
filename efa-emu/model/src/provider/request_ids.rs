//! Request ids, and the table from 16-bit ids to the application's work request ids.

use crate::device::queue::RequestIdSize;

/// The request ids of a queue.
///
/// A 16-bit id is an index into a table and, in the bits above, a generation of the queue pair. A
/// 64-bit id is the application's work request id. The device returns it in the completion, so
/// there is no table, and neither late nor duplicate completions can be detected.
pub struct RequestIds {
    /// The application's id, or the next free index. Grows on demand. Empty with 64-bit ids.
    places: Vec<IdPlace>,
    size: RequestIdSize,
    depth: u16,
    /// The first free index; `places.len()` if there is none.
    free: u16,
    used: u16,
    /// The index bits of a 16-bit id; all bits with 64-bit ids.
    place_mask: u16,
    /// The generation, shifted to its position; 0 with 64-bit ids.
    generation: u16,
}

#[derive(Clone, Copy)]
enum IdPlace {
    Free {
        next: u16,
    },
    Used {
        wr_id: u64,
        /// Whether success is reported to the application.
        signaled: bool,
    },
}

/// The work request of a completion's request id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retired {
    /// This work request, whose index is free now.
    WorkRequest(u64),
    /// The 64-bit id in the completion is the work request id:
    /// [`CompletionEntry::long_request_id`].
    ///
    /// [`CompletionEntry::long_request_id`]: crate::device::queue::CompletionEntry::long_request_id
    Own,
    /// A connected queue pair's, whose completions contain the work request ids.
    Connected,
    /// This work request, whose success is not reported to the application.
    Unsignaled(u64),
    /// No outstanding request: the completion is a late one of an earlier queue pair with the same
    /// number, or a duplicate.
    Stale,
}

impl RequestIds {
    /// Ids for `depth` outstanding work requests (up to 32768). The lower bits of the generation
    /// are stored above the index bits.
    pub fn new(depth: u32, size: RequestIdSize, generation: u32) -> Self {
        let depth = depth.min(1 << 15);
        let (place_mask, generation) = match size {
            RequestIdSize::Bits16 => {
                let place_mask = (depth.next_power_of_two() - 1) as u16;
                let generation = generation.wrapping_mul(u32::from(place_mask) + 1);
                (place_mask, generation as u16)
            }
            RequestIdSize::Bits64 => (u16::MAX, 0),
        };
        RequestIds {
            places: Vec::new(),
            size,
            depth: depth as u16,
            free: 0,
            used: 0,
            place_mask,
            generation,
        }
    }

    /// The size of the ids.
    pub fn size(&self) -> RequestIdSize {
        self.size
    }

    /// The most outstanding work requests.
    #[inline]
    pub fn depth(&self) -> usize {
        usize::from(self.depth)
    }

    /// Whether the maximum number of work requests is outstanding.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.outstanding() == self.depth()
    }

    /// The number of outstanding work requests.
    #[inline]
    pub fn outstanding(&self) -> usize {
        usize::from(self.used)
    }

    /// Allocates a free index of the table for a work request. Returns `None` if there is none;
    /// then the caller uses [`RequestIds::take_without_place`]. `signaled` is whether success is
    /// reported to the application.
    #[inline(always)]
    pub(super) fn take_place(&mut self, wr_id: u64, signaled: bool) -> Option<u16> {
        let place = self.free;
        let entry = self.places.get_mut(usize::from(place))?;
        let IdPlace::Free { next } = *entry else {
            unreachable!("the free list holds free places only");
        };
        *entry = IdPlace::Used { wr_id, signaled };
        self.free = next;
        self.used += 1;
        Some(place | self.generation)
    }

    /// Allocates a request id if the table has no free index. Returns `None` if the queue is full.
    /// Work requests with 64-bit ids are always signaled.
    #[cold]
    pub(super) fn take_without_place(&mut self, wr_id: u64, signaled: bool) -> Option<u64> {
        if self.is_full() {
            return None;
        }
        self.used += 1;
        if self.size == RequestIdSize::Bits64 {
            return Some(wr_id);
        }
        let place = self.free;
        self.places.push(IdPlace::Used { wr_id, signaled });
        self.free = place + 1;
        Some(u64::from(place | self.generation))
    }

    /// Returns the request id of a work request that was not posted.
    pub(super) fn give_back(&mut self, request_id: u64) {
        match self.size {
            RequestIdSize::Bits16 => {
                self.retire(request_id as u16);
            }
            RequestIdSize::Bits64 => self.used -= 1,
        }
    }

    /// Retires the request of a completion with this id, or with these lower bits of the id.
    #[inline(always)]
    pub fn retire(&mut self, request_id: u16) -> Retired {
        let place = request_id & self.place_mask;
        if request_id & !self.place_mask != self.generation {
            return Retired::Stale;
        }
        match self.places.get_mut(usize::from(place)) {
            Some(entry @ IdPlace::Used { .. }) => {
                let IdPlace::Used { wr_id, signaled } = *entry else {
                    return Retired::Stale;
                };
                *entry = IdPlace::Free { next: self.free };
                self.free = place;
                self.used -= 1;
                match signaled {
                    true => Retired::WorkRequest(wr_id),
                    false => Retired::Unsignaled(wr_id),
                }
            }
            _ => self.retire_without_place(),
        }
    }

    #[cold]
    fn retire_without_place(&mut self) -> Retired {
        match self.size {
            RequestIdSize::Bits16 => Retired::Stale,
            RequestIdSize::Bits64 => {
                self.used = self.used.saturating_sub(1);
                Retired::Own
            }
        }
    }

    /// Drops all outstanding work requests, and starts a new generation.
    pub(super) fn restart(&mut self) {
        let generation = u32::from(self.generation) / (u32::from(self.place_mask) + 1);
        *self = RequestIds::new(self.depth.into(), self.size, generation + 1);
    }
}
