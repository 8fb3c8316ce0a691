//! How an endpoint owns its queue pair and accesses its domain.

use core::ops::{Deref, DerefMut};

use crate::address::RawAddress;

use super::completion::Completion;
use super::error::NicError;
use super::memory::BufferId;
use super::objects::{Domain, QueuePair};
use super::request::{Doorbell, RdmaRequest, SendRequest};

/// A queue pair with access to its domain. It dereferences to the domain.
pub trait Nic: DerefMut<Target = <Self as Nic>::Domain> {
    /// The domain.
    type Domain: Domain;

    /// The queue pair.
    fn queue_pair(&self) -> &<Self::Domain as Domain>::QueuePair;

    /// The domain and the queue pair.
    fn parts(&mut self) -> (&mut Self::Domain, &mut <Self::Domain as Domain>::QueuePair);

    /// The queue pair's address.
    fn address(&self) -> RawAddress {
        self.queue_pair().address()
    }

    /// [`QueuePair::post_send`].
    #[inline(always)]
    fn post_send(&mut self, request: &SendRequest, doorbell: Doorbell) -> Result<(), NicError> {
        let (domain, queue_pair) = self.parts();
        queue_pair.post_send(domain, request, doorbell)
    }

    /// [`QueuePair::post_read`].
    #[inline]
    fn post_read(&mut self, request: &RdmaRequest, doorbell: Doorbell) -> Result<(), NicError> {
        let (domain, queue_pair) = self.parts();
        queue_pair.post_read(domain, request, doorbell)
    }

    /// [`QueuePair::post_write`].
    #[inline]
    fn post_write(&mut self, request: &RdmaRequest, doorbell: Doorbell) -> Result<(), NicError> {
        let (domain, queue_pair) = self.parts();
        queue_pair.post_write(domain, request, doorbell)
    }

    /// [`QueuePair::flush`].
    #[inline]
    fn flush(&mut self) {
        let (domain, queue_pair) = self.parts();
        queue_pair.flush(domain);
    }

    /// [`QueuePair::post_recv`].
    #[inline]
    fn post_recv(&mut self, buffer: BufferId) -> Result<(), NicError> {
        let (domain, queue_pair) = self.parts();
        queue_pair.post_recv(domain, buffer)
    }

    /// [`QueuePair::post_recvs`].
    #[inline]
    fn post_recvs(&mut self, buffers: &mut Vec<BufferId>) -> Result<(), NicError> {
        let (domain, queue_pair) = self.parts();
        queue_pair.post_recvs(domain, buffers)
    }
}

/// A [`Nic`] that has its domain and completion queue to itself.
pub trait PolledNic: Nic {
    /// Appends up to `limit` completions to `completions` and returns how many there were.
    fn poll(&mut self, completions: &mut Vec<Completion>, limit: usize) -> usize;
}

/// A queue pair with a private domain and completion queue: all that a program with one endpoint
/// needs of a device.
#[derive(Debug)]
pub struct OwnNic<D: Domain> {
    // The queue pair uses the domain, so it is the first field and is dropped first.
    queue_pair: D::QueuePair,
    domain: D,
}

impl<D: Domain> OwnNic<D> {
    /// A domain and the only queue pair in it.
    pub fn new(domain: D, queue_pair: D::QueuePair) -> Self {
        OwnNic { queue_pair, domain }
    }
}

impl<D: Domain> Deref for OwnNic<D> {
    type Target = D;

    #[inline(always)]
    fn deref(&self) -> &D {
        &self.domain
    }
}

impl<D: Domain> DerefMut for OwnNic<D> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut D {
        &mut self.domain
    }
}

impl<D: Domain> Nic for OwnNic<D> {
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

impl<D: Domain> PolledNic for OwnNic<D> {
    #[inline(always)]
    fn poll(&mut self, completions: &mut Vec<Completion>, limit: usize) -> usize {
        let queue = self.queue_pair.completion_queue();
        self.domain.poll(queue, completions, limit)
    }
}
