//! Request ids, and the table from those of 16 bits to the application's work request ids.

use crate::device::queue::RequestIdSize;

/// The request ids of a queue.
///
/// One of 16 bits is a free place in a table plus, in the bits above it, a generation of the queue
/// pair. One of 64 bits is the application's work request id itself. The device returns it with the
/// completion, so no table is kept, and nothing shows of which generation, or how often, it comes
/// back.
pub struct RequestIds {
    /// The application's id, or the next free place. Only as long as it had to be so far. Empty
    /// with ids of 64 bits.
    places: Vec<IdPlace>,
    size: RequestIdSize,
    depth: u16,
    /// First free place; `places.len()` if there is none among them.
    free: u16,
    used: u16,
    /// The bits of a 16-bit id that are the place; all with ids of 64 bits.
    place_mask: u16,
    /// The generation, shifted to its place; 0 with ids of 64 bits.
    generation: u16,
}

#[derive(Clone, Copy)]
enum IdPlace {
    Free {
        next: u16,
    },
    Used {
        wr_id: u64,
        /// Whether the application is told of success.
        signaled: bool,
    },
}

/// Fate of a completion's request id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retired {
    /// It belongs to this work request, whose place is free now.
    WorkRequest(u64),
    /// It has 64 bits, and is the work request's own: [`CompletionEntry::long_request_id`].
    ///
    /// [`CompletionEntry::long_request_id`]: crate::device::queue::CompletionEntry::long_request_id
    Own,
    /// It is of a connected queue pair, whose completions have the work requests' own ids.
    Connected,
    /// It belongs to this work request, whose success the application does not want to be told of.
    Unsignaled(u64),
    /// It belongs to no outstanding work request: the completion is a late one of an earlier queue
    /// pair with the same number, or a duplicate.
    Stale,
}

impl RequestIds {
    /// Ids of `depth` outstanding work requests (up to 32768). The generation's lower bits go above
    /// the bits that the depth needs.
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

    /// Their size.
    pub fn size(&self) -> RequestIdSize {
        self.size
    }

    /// How many work requests may be outstanding.
    #[inline]
    pub fn depth(&self) -> usize {
        usize::from(self.depth)
    }

    /// Whether no more work requests fit.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.outstanding() == self.depth()
    }

    /// How many are outstanding.
    #[inline]
    pub fn outstanding(&self) -> usize {
        usize::from(self.used)
    }

    /// Takes a request id from the free places of the table for a work request; `None` if there is
    /// none, and [`RequestIds::take_without_place`] has to be asked. Of success of one that is not
    /// `signaled` the application is not told.
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

    /// Takes a request id for a work request where the table has no free place; `None` if the queue
    /// is full. One of 64 bits is of a signaled work request.
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

    /// Gives a request id back whose work request was not posted.
    pub(super) fn give_back(&mut self, request_id: u64) {
        match self.size {
            RequestIdSize::Bits16 => {
                self.retire(request_id as u16);
            }
            RequestIdSize::Bits64 => self.used -= 1,
        }
    }

    /// The completion of a request id arrived, or of one with these lower bits.
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

    /// Forgets all outstanding work requests, under a new generation.
    pub(super) fn restart(&mut self) {
        let generation = u32::from(self.generation) / (u32::from(self.place_mask) + 1);
        *self = RequestIds::new(self.depth.into(), self.size, generation + 1);
    }
}
