//! A domain that several endpoints share. It is moved to the endpoint in use.

use core::ops::{Deref, DerefMut};

use super::hold::Nic;
use super::objects::Domain;

/// A place for a value that may be moved to another place. Moving it swaps two of these.
#[derive(Debug)]
pub(crate) struct MovableSlot<T>(Option<Box<T>>);

impl<T> Default for MovableSlot<T> {
    /// An empty place.
    fn default() -> Self {
        MovableSlot(None)
    }
}

#[cold]
fn not_here() -> ! {
    unreachable!("an endpoint of a shared domain is used through the domain, which lends it first")
}

impl<T> MovableSlot<T> {
    pub(crate) fn new(value: T) -> Self {
        MovableSlot(Some(Box::new(value)))
    }

    pub(crate) fn into_inner(self) -> T {
        *self.0.unwrap_or_else(|| not_here())
    }
}

impl<T> Deref for MovableSlot<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or_else(|| not_here())
    }
}

impl<T> DerefMut for MovableSlot<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_deref_mut().unwrap_or_else(|| not_here())
    }
}

/// A queue pair whose domain is shared. The domain is present while the endpoint is used.
#[derive(Debug)]
pub struct LentNic<D: Domain> {
    queue_pair: D::QueuePair,
    domain: MovableSlot<D>,
}

impl<D: Domain> LentNic<D> {
    pub(crate) fn new(queue_pair: D::QueuePair, domain: MovableSlot<D>) -> Self {
        LentNic { queue_pair, domain }
    }

    /// The domain's place.
    pub(crate) fn slot_mut(&mut self) -> &mut MovableSlot<D> {
        &mut self.domain
    }

    pub(crate) fn into_queue_pair(self) -> D::QueuePair {
        self.queue_pair
    }
}

impl<D: Domain> Deref for LentNic<D> {
    type Target = D;

    #[inline(always)]
    fn deref(&self) -> &D {
        &self.domain
    }
}

impl<D: Domain> DerefMut for LentNic<D> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut D {
        &mut self.domain
    }
}

impl<D: Domain> Nic for LentNic<D> {
    type Domain = D;

    #[inline(always)]
    fn queue_pair(&self) -> &D::QueuePair {
        &self.queue_pair
    }

    #[inline(always)]
    fn parts(&mut self) -> (&mut D, &mut D::QueuePair) {
        (&mut self.domain, &mut self.queue_pair)
    }
}
