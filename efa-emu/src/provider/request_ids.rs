//! The table from request ids to the application's work request ids.

/// Work request ids by request id. A request id is a free place in the table plus, in the bits above
/// it, a generation of the queue pair.
pub struct RequestIds {
    /// The application's id, or the next free place. Only as long as it had to be so far.
    places: Vec<Place>,
    depth: u16,
    /// First free place; `places.len()` if there is none among them.
    free: u16,
    used: u16,
    place_mask: u16,
    /// The generation, shifted to its place.
    generation: u16,
}

#[derive(Clone, Copy)]
enum Place {
    Free { next: u16 },
    Used { wr_id: u64 },
}

/// What became of a completion's request id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retired {
    /// It belongs to this work request, whose place is free now.
    WorkRequest(u64),
    /// It belongs to no outstanding work request: the completion is a late one of an earlier queue
    /// pair with the same number, or a duplicate.
    Stale,
}

impl RequestIds {
    /// A table for `depth` outstanding work requests (up to 32768). The generation's lower bits go
    /// above the bits that the depth needs.
    pub fn new(depth: u32, generation: u32) -> Self {
        let depth = depth.min(1 << 15);
        let place_mask = (depth.next_power_of_two() - 1) as u16;
        RequestIds {
            places: Vec::new(),
            depth: depth as u16,
            free: 0,
            used: 0,
            place_mask,
            generation: generation.wrapping_mul(u32::from(place_mask) + 1) as u16,
        }
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

    /// The request id that the next [`RequestIds::take`] gives, unless the queue is full.
    #[inline(always)]
    pub(super) fn next(&self) -> u16 {
        self.free | self.generation
    }

    /// Takes a request id for a work request; `None` if the queue is full.
    #[inline(always)]
    pub(super) fn take(&mut self, wr_id: u64) -> Option<u16> {
        let place = self.free;
        let Some(entry) = self.places.get_mut(usize::from(place)) else {
            return self.grow(wr_id);
        };
        let Place::Free { next } = *entry else {
            unreachable!("the free list holds free places only");
        };
        *entry = Place::Used { wr_id };
        self.free = next;
        self.used += 1;
        Some(place | self.generation)
    }

    /// As [`RequestIds::take`], when there is no free place among those there are.
    #[cold]
    fn grow(&mut self, wr_id: u64) -> Option<u16> {
        let place = self.free;
        if place == self.depth {
            return None;
        }
        self.places.push(Place::Used { wr_id });
        self.free = place + 1;
        self.used += 1;
        Some(place | self.generation)
    }

    /// The completion of a request id arrived.
    #[inline]
    pub fn retire(&mut self, request_id: u16) -> Retired {
        let place = request_id & self.place_mask;
        if request_id & !self.place_mask != self.generation {
            return Retired::Stale;
        }
        match self.places.get_mut(usize::from(place)) {
            Some(entry @ Place::Used { .. }) => {
                let Place::Used { wr_id } = *entry else {
                    return Retired::Stale;
                };
                *entry = Place::Free { next: self.free };
                self.free = place;
                self.used -= 1;
                Retired::WorkRequest(wr_id)
            }
            _ => Retired::Stale,
        }
    }

    /// Forgets all outstanding work requests, under a new generation.
    pub(super) fn restart(&mut self) {
        let generation = u32::from(self.generation) / (u32::from(self.place_mask) + 1);
        *self = RequestIds::new(self.depth.into(), generation + 1);
    }
}
