//! Ids of peers and operations, and the generational arenas behind them.
//!
//! An id is a slot number and the generation of the slot's content. When an object is removed, the
//! slot's generation changes, so an id that outlived its object finds nothing instead of the slot's
//! next object.

use core::fmt;
use core::marker::PhantomData;
use core::ops::{Index, IndexMut};

/// An entry of the address vector (libfabric's `fi_addr_t`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(u64);

impl PeerId {
    /// The 64 bits of the id, as an application's `fi_addr_t` would hold them.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The id with these bits, as [`PeerId::to_bits`] returned them. Other bits name no peer.
    pub const fn from_bits(bits: u64) -> Self {
        PeerId(bits)
    }

    /// The peer's place among the current peers. A place is reused after its peer was removed, so
    /// that tables by place stay small.
    pub const fn place(self) -> usize {
        self.0 as u32 as usize
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.index())?;
        match self.generation() {
            0 => Ok(()),
            generation => write!(f, "v{generation}"),
        }
    }
}

impl fmt::Debug for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerId({self})")
    }
}

impl Id for PeerId {
    const MAX_SLOTS: usize = u32::MAX as usize;
    const GENERATION_MASK: u32 = u32::MAX;

    fn new(index: u32, generation: u32) -> Self {
        PeerId(u64::from(generation) << 32 | u64::from(index))
    }

    fn index(self) -> usize {
        self.0 as u32 as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// An endpoint of a [`Domain`](crate::endpoint::Domain).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EndpointId(u64);

impl Id for EndpointId {
    const MAX_SLOTS: usize = u16::MAX as usize;
    const GENERATION_MASK: u32 = u32::MAX;

    fn new(index: u32, generation: u32) -> Self {
        EndpointId(u64::from(generation) << 32 | u64::from(index))
    }

    fn index(self) -> usize {
        self.0 as u32 as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// An id of an object in an [`Arena`].
pub(crate) trait Id: Copy + Eq {
    /// The number of slots that the id can name.
    const MAX_SLOTS: usize;
    /// Generations are counted modulo this mask + 1.
    const GENERATION_MASK: u32;

    fn new(index: u32, generation: u32) -> Self;
    fn index(self) -> usize;
    fn generation(self) -> u32;
}

/// Ids of 32 bits, the width of the protocol's `send_id` and `recv_id`: 20 bits of slot, 11 bits of
/// generation, and a top bit that is 1 for the kinds `with_top_bit`. An id from the wire is
/// accepted only if its generation is current *and* the operation belongs to the peer that sent the
/// packet.
macro_rules! operation_id {
    ($(#[doc = $doc:literal])* $vis:vis $name:ident) => {
        operation_id! { @top 0, $(#[doc = $doc])* $vis $name }
    };
    ($(#[doc = $doc:literal])* $vis:vis $name:ident with_top_bit) => {
        operation_id! { @top 1, $(#[doc = $doc])* $vis $name }
    };
    (@top $top:literal, $(#[doc = $doc:literal])* $vis:vis $name:ident) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        $vis struct $name(u32);

        impl $name {
            /// The id as it appears in packets.
            #[allow(dead_code, reason = "not every kind of id travels")]
            $vis const fn to_wire(self) -> u32 {
                self.0
            }

            /// The id that a packet names. The bits may be any number.
            #[allow(dead_code, reason = "not every kind of id comes back from the wire")]
            $vis const fn from_wire(bits: u32) -> Self {
                $name(bits)
            }

            /// The slot of the object, for links that are removed with it.
            #[allow(dead_code, reason = "not every kind of object is linked")]
            pub(crate) const fn slot(self) -> u32 {
                self.0 & ((1 << 20) - 1)
            }
        }

        impl Id for $name {
            const MAX_SLOTS: usize = 1 << 20;
            const GENERATION_MASK: u32 = (1 << 11) - 1;

            fn new(index: u32, generation: u32) -> Self {
                $name($top << 31 | generation << 20 | index)
            }

            fn index(self) -> usize {
                (self.0 & ((1 << 20) - 1)) as usize
            }

            // If the top bit is that of another kind, this is no generation of an object.
            fn generation(self) -> u32 {
                (self.0 ^ $top << 31) >> 20
            }
        }
    };
}

pub(crate) use operation_id;

operation_id! {
    /// An operation in which this endpoint is the source of the data: the protocol's `send_id`.
    pub(crate) OutboundId
}

operation_id! {
    /// An operation in which this endpoint is the destination of the data: the protocol's
    /// `recv_id`. Its top bit differs from that of an [`OutboundId`], so that the two cannot be
    /// confused.
    pub(crate) InboundId with_top_bit
}

operation_id! {
    /// A posted receive. The id cancels it.
    pub ReceiveId
}

operation_id! {
    /// A message that the application claimed.
    pub ClaimId
}

operation_id! {
    /// A packet or RDMA request that is in the device, or waits to be posted.
    pub(crate) PacketId
}

enum ArenaSlot<T> {
    Free { next: u32 },
    Used(T),
}

/// A vector of slots with a free list. All operations take constant time, and allocate only while
/// it grows.
pub(crate) struct Arena<T, I> {
    slots: Vec<(u32, ArenaSlot<T>)>,
    free: u32,
    used: usize,
    limit: usize,
    id: PhantomData<I>,
}

const END: u32 = u32::MAX;

impl<T, I: Id> Arena<T, I> {
    /// Makes an arena for at most `limit` objects, and never more than the id can name.
    pub(crate) fn new(limit: usize) -> Self {
        Arena {
            slots: Vec::new(),
            free: END,
            used: 0,
            limit: limit.min(I::MAX_SLOTS),
            id: PhantomData,
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.used >= self.limit
    }

    /// Makes room for one object beyond the limit, until [`Arena::narrow`].
    pub(crate) fn widen(&mut self) {
        self.limit += 1;
    }

    /// Removes the room of [`Arena::widen`], after its object was removed.
    pub(crate) fn narrow(&mut self) {
        self.limit -= 1;
    }

    /// The place of the next object, `None` if the arena is full.
    #[inline(always)]
    pub(crate) fn vacant(&mut self) -> Option<Vacant<'_, T, I>> {
        if self.is_full() {
            return None;
        }
        if self.free == END {
            self.grow();
        }
        let index = self.free;
        let (generation, slot) = self.slots.get_mut(index as usize)?;
        Some(Vacant {
            id: I::new(index, *generation),
            slot,
            free: &mut self.free,
            used: &mut self.used,
        })
    }

    /// Stores a value, or returns it if the arena is full.
    #[inline(always)]
    pub(crate) fn insert(&mut self, value: T) -> Result<I, T> {
        match self.vacant() {
            Some(vacant) => Ok(vacant.fill(value)),
            None => Err(value),
        }
    }

    /// Adds a slot, which is the only free one.
    #[inline(never)]
    fn grow(&mut self) {
        self.free = self.slots.len() as u32;
        self.slots.push((0, ArenaSlot::Free { next: END }));
    }

    /// Skips the next id: no object has it until the generations of its slot have wrapped around.
    /// `None` if the arena is full.
    pub(crate) fn skip_id(&mut self) -> Option<I> {
        let id = self.vacant()?.id;
        if let Some((generation, _)) = self.slots.get_mut(id.index()) {
            *generation = generation.wrapping_add(1) & I::GENERATION_MASK;
        }
        Some(id)
    }

    /// Removes an object and returns it.
    #[inline]
    pub(crate) fn remove(&mut self, id: I) -> Option<T> {
        let (generation, slot) = self.slots.get_mut(id.index())?;
        if *generation != id.generation() || matches!(slot, ArenaSlot::Free { .. }) {
            return None;
        }
        *generation = generation.wrapping_add(1) & I::GENERATION_MASK;
        let ArenaSlot::Used(value) = core::mem::replace(slot, ArenaSlot::Free { next: self.free })
        else {
            return None;
        };
        self.free = id.index() as u32;
        self.used -= 1;
        Some(value)
    }

    /// Gives an object another id, with the next generation of its slot.
    pub(crate) fn renew(&mut self, id: I) -> Option<I> {
        self.get(id)?;
        let (generation, _) = self.slots.get_mut(id.index())?;
        *generation = generation.wrapping_add(1) & I::GENERATION_MASK;
        Some(I::new(id.index() as u32, *generation))
    }

    /// Removes an object in place. `last` extracts the values that are still needed, so that the
    /// rest is not moved. The object stays if `last` returns `None`.
    #[inline(always)]
    pub(crate) fn end<R>(&mut self, id: I, last: impl FnOnce(&mut T) -> Option<R>) -> Option<R> {
        match self.slots.get(id.index()) {
            Some((generation, _)) if *generation == id.generation() => {
                self.end_at(id.index(), last)
            }
            _ => None,
        }
    }

    /// As [`Arena::end`], for the object in a slot.
    #[inline(always)]
    pub(crate) fn end_at<R>(
        &mut self,
        index: usize,
        last: impl FnOnce(&mut T) -> Option<R>,
    ) -> Option<R> {
        let (generation, slot) = self.slots.get_mut(index)?;
        let ArenaSlot::Used(value) = slot else {
            return None;
        };
        let result = last(value)?;
        *slot = ArenaSlot::Free { next: self.free };
        *generation = generation.wrapping_add(1) & I::GENERATION_MASK;
        self.free = index as u32;
        self.used -= 1;
        Some(result)
    }

    #[inline]
    pub(crate) fn get(&self, id: I) -> Option<&T> {
        match self.slots.get(id.index()) {
            Some((generation, ArenaSlot::Used(value))) if *generation == id.generation() => {
                Some(value)
            }
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: I) -> Option<&mut T> {
        match self.slots.get_mut(id.index()) {
            Some((generation, ArenaSlot::Used(value))) if *generation == id.generation() => {
                Some(value)
            }
            _ => None,
        }
    }

    /// The object in a slot, with its id.
    #[inline]
    pub(crate) fn at(&self, index: usize) -> Option<(I, &T)> {
        match self.slots.get(index) {
            Some((generation, ArenaSlot::Used(value))) => {
                Some((I::new(index as u32, *generation), value))
            }
            _ => None,
        }
    }

    /// The object in a slot.
    #[inline]
    pub(crate) fn at_mut(&mut self, index: usize) -> Option<&mut T> {
        match self.slots.get_mut(index) {
            Some((_, ArenaSlot::Used(value))) => Some(value),
            _ => None,
        }
    }

    /// All objects, in the order of their slots, to change them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|(_, slot)| match slot {
            ArenaSlot::Used(value) => Some(value),
            ArenaSlot::Free { .. } => None,
        })
    }

    /// All objects, in the order of their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        self.slots
            .iter()
            .enumerate()
            .inspect(|_| {
                #[cfg(any(test, debug_assertions))]
                super::steps::step();
            })
            .filter_map(|(index, (generation, slot))| match slot {
                ArenaSlot::Used(value) => Some((I::new(index as u32, *generation), value)),
                ArenaSlot::Free { .. } => None,
            })
    }
}

/// The object that a link names by its slot. A link to a free slot is a mistake of the caller.
impl<T, I> Index<u32> for Arena<T, I> {
    type Output = T;

    #[inline]
    fn index(&self, slot: u32) -> &T {
        match self.slots.get(slot as usize) {
            Some((_, ArenaSlot::Used(value))) => value,
            _ => no_object(slot),
        }
    }
}

impl<T, I> IndexMut<u32> for Arena<T, I> {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut T {
        match self.slots.get_mut(slot as usize) {
            Some((_, ArenaSlot::Used(value))) => value,
            _ => no_object(slot),
        }
    }
}

#[cold]
fn no_object(slot: u32) -> ! {
    unreachable!("there is a link to slot {slot}, which has no object")
}

/// A slot of an [`Arena`] for its next object.
pub(crate) struct Vacant<'a, T, I> {
    pub(crate) id: I,
    slot: &'a mut ArenaSlot<T>,
    free: &'a mut u32,
    used: &'a mut usize,
}

impl<T, I> Vacant<'_, T, I> {
    /// Stores the object.
    #[inline(always)]
    pub(crate) fn fill(self, value: T) -> I {
        // The slot is always free here, so no object is dropped.
        if let ArenaSlot::Free { next } = *self.slot {
            core::mem::forget(core::mem::replace(self.slot, ArenaSlot::Used(value)));
            *self.free = next;
            *self.used += 1;
        }
        self.id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_id_never_reaches_the_next_occupant() {
        let mut arena = Arena::<_, OutboundId>::new(4);
        let first = arena.insert("first").unwrap();
        assert_eq!(arena.remove(first), Some("first"));
        let second = arena.insert("second").unwrap();
        assert_eq!(second.index(), first.index());
        assert_ne!(second, first);
        assert_eq!(arena.get(first), None);
        assert_eq!(arena.remove(first), None);
        assert_eq!(arena.get(second), Some(&"second"));
        assert_eq!(arena.len(), 1);
    }

    #[test]
    fn a_renewed_object_has_only_its_new_id() {
        let mut arena = Arena::<_, OutboundId>::new(4);
        let old = arena.insert("value").unwrap();
        let new = arena.renew(old).unwrap();
        assert_eq!((arena.get(old), arena.get(new)), (None, Some(&"value")));
        assert_eq!((arena.renew(old), arena.len()), (None, 1));
        assert_eq!(arena.remove(new), Some("value"));
        assert_ne!(arena.insert("next"), Ok(new));
    }

    #[test]
    fn a_full_arena_returns_the_value_and_recovers() {
        let mut arena = Arena::<_, ReceiveId>::new(2);
        let ids = [arena.insert(0).unwrap(), arena.insert(1).unwrap()];
        assert_eq!(arena.insert(2), Err(2));
        assert_eq!(arena.remove(ids[0]), Some(0));
        assert!(arena.insert(2).is_ok());
        assert_eq!(
            arena.iter().map(|(_, value)| *value).collect::<Vec<_>>(),
            [2, 1]
        );
    }

    #[test]
    fn skipped_ids_are_not_reused_next() {
        let mut arena = Arena::<_, ReceiveId>::new(2);
        let skipped = [arena.skip_id().unwrap(), arena.skip_id().unwrap()];
        assert_eq!(arena.len(), 0);
        let ids = [arena.insert(0).unwrap(), arena.insert(1).unwrap()];
        assert!(skipped.iter().all(|id| !ids.contains(id)));
        assert_eq!(skipped.map(|id| arena.get(id).copied()), [None; 2]);
        assert_eq!(ids.map(|id| arena.get(id).copied()), [Some(0), Some(1)]);
        assert_eq!(arena.skip_id(), None);
        arena.remove(ids[0]).unwrap();
        assert_ne!(arena.skip_id(), Some(ids[0]));
    }

    #[test]
    fn any_id_lookup_is_panic_free() {
        let mut arena = Arena::<_, OutboundId>::new(usize::MAX);
        let id = arena.insert(()).unwrap();
        for bits in [id.to_wire() ^ 1 << 20, 1, 0xFFFF_FFFF, 0x000F_FFFF] {
            assert!(arena.get_mut(OutboundId::from_wire(bits)).is_none());
        }
        assert!(arena.get_mut(OutboundId::from_wire(id.to_wire())).is_some());
    }

    #[test]
    fn generations_wrap_inside_their_bits() {
        let mut arena = Arena::<_, OutboundId>::new(1);
        for _ in 0..5000 {
            let id = arena.insert(()).unwrap();
            assert_eq!(id.index(), 0);
            arena.remove(id).unwrap();
        }
    }
}
