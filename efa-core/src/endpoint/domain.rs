//! A domain: the state that several endpoints of a device share.
//!
//! Registrations and addresses are added here, before or after the endpoints are opened, and apply
//! to all of them. Endpoints whose queue pairs use the same completion queue share it.
//!
//! The domain owns its endpoints. It moves the shared state (the device's domain, the address
//! vector, the registered memory) to the endpoint in use, which keeps it until another endpoint is
//! used. An endpoint thus finds all state in its fields, and a program that uses one endpoint for a
//! while moves nothing. [`crate::nic`] explains the choice.

use core::mem;

use hashbrown::HashMap;

use crate::address::{Qpn, RawAddress};
use crate::nic::{
    self, Access, Completion, CompletionQueueId, Destination, LentNic, MovableSlot, Nic, QueuePair,
    Region, Source, UserSlice,
};

use crate::endpoint::Endpoint;
use crate::endpoint::api::config::EndpointConfig;
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::time::Instant;
use crate::endpoint::base::hash::SeededHasher;
use crate::endpoint::base::ids::{Arena, EndpointId, PeerId};
use crate::endpoint::one_sided::ExposedRegions;
use crate::endpoint::open;
use crate::endpoint::peers::AddressVector;

/// A domain of a device, with the endpoints in it.
pub struct Domain<D: nic::Domain> {
    endpoints: Arena<Endpoint<LentNic<D>>, EndpointId>,
    /// The ids of all endpoints, oldest first.
    order: Vec<EndpointId>,
    by_queue_pair: HashMap<Qpn, EndpointId>,
    /// The endpoint that currently holds the shared state.
    holder: Option<EndpointId>,
    /// The shared state. While an endpoint holds it, this field contains the endpoint's parts.
    shared: DomainState<D>,
    /// The completion queues of the endpoints.
    queues: Vec<CompletionQueueId>,
    /// Completions of the device, of one poll.
    batch: Vec<Completion>,
}

struct DomainState<D> {
    nic: MovableSlot<D>,
    addresses: AddressVector,
    exposed: ExposedRegions,
}

impl<D: nic::Domain> DomainState<D> {
    /// Swaps the shared parts with an endpoint's parts: moves them to the endpoint, or back.
    fn exchange(&mut self, endpoint: &mut Endpoint<LentNic<D>>) {
        mem::swap(&mut self.nic, endpoint.nic_mut().slot_mut());
        mem::swap(&mut self.addresses, endpoint.channel.peers.addresses_mut());
        mem::swap(&mut self.exposed, &mut endpoint.one_sided.exposed);
    }
}

impl<D: nic::Domain> Domain<D> {
    /// Makes a domain without endpoints. `seed` randomises the hash table of addresses, so that an
    /// attacker cannot choose colliding addresses.
    pub fn new(nic: D, seed: u64) -> Self {
        Domain {
            endpoints: Arena::new(usize::from(u16::MAX)),
            order: Vec::new(),
            by_queue_pair: HashMap::new(),
            holder: None,
            shared: DomainState {
                nic: MovableSlot::new(nic),
                addresses: AddressVector::new(SeededHasher::new(seed)),
                exposed: ExposedRegions::default(),
            },
            queues: Vec::new(),
            batch: Vec::new(),
        }
    }

    /// The device's domain, for making completion queues and queue pairs. A caller that polls it
    /// loses packets of the endpoints.
    pub fn nic_mut(&mut self) -> &mut D {
        match self
            .holder
            .and_then(|holder| self.endpoints.get_mut(holder))
        {
            Some(endpoint) => endpoint.nic_mut(),
            None => &mut self.shared.nic,
        }
    }

    /// Opens an endpoint on a queue pair of this domain and posts its receive buffers.
    ///
    /// # Errors
    /// The settings contradict each other or the device. The queue pair is closed then.
    pub fn open_endpoint(
        &mut self,
        queue_pair: D::QueuePair,
        config: EndpointConfig,
    ) -> Result<EndpointId, EndpointError> {
        self.open(queue_pair, None, config)
    }

    /// Opens an endpoint that receives into the application's buffers, by a second queue pair of
    /// this domain and the same completion queue. See [`Endpoint::with_user_receives`].
    ///
    /// # Errors
    /// As for [`Domain::open_endpoint`]; both queue pairs are closed then.
    pub fn open_endpoint_with_user_receives(
        &mut self,
        queue_pair: D::QueuePair,
        user: D::QueuePair,
        config: EndpointConfig,
    ) -> Result<EndpointId, EndpointError> {
        self.open(queue_pair, Some(user), config)
    }

    fn open(
        &mut self,
        queue_pair: D::QueuePair,
        user: Option<D::QueuePair>,
        config: EndpointConfig,
    ) -> Result<EndpointId, EndpointError> {
        let shared = self.bring_home();
        if let Err(error) = open::check(queue_pair.attributes(), &config) {
            queue_pair.close(&mut shared.nic);
            if let Some(user) = user {
                user.close(&mut shared.nic);
            }
            return Err(error);
        }
        let user_qpn = user.as_ref().map(|user| user.address().qpn);
        let queue = queue_pair.completion_queue();
        let qpn = queue_pair.address().qpn;
        let nic = LentNic::new(queue_pair, mem::take(&mut shared.nic));
        let mut endpoint = Endpoint::build(nic, user, config);
        mem::swap(&mut shared.nic, endpoint.nic_mut().slot_mut());
        match self.endpoints.insert(endpoint) {
            Ok(id) => {
                self.order.push(id);
                self.by_queue_pair.insert(qpn, id);
                if let Some(qpn) = user_qpn {
                    self.by_queue_pair.insert(qpn, id);
                }
                if !self.queues.contains(&queue) {
                    self.queues.push(queue);
                }
                Ok(id)
            }
            Err(endpoint) => {
                self.end(endpoint);
                Err(EndpointError::TryAgain)
            }
        }
    }

    /// Closes an endpoint. Operations in flight end without a completion. Returns whether there was
    /// such an endpoint.
    pub fn close_endpoint(&mut self, id: EndpointId) -> bool {
        self.bring_home();
        let Some(endpoint) = self.endpoints.remove(id) else {
            return false;
        };
        self.order.retain(|other| *other != id);
        self.by_queue_pair.remove(&endpoint.address().qpn);
        if let Some(user) = &endpoint.user_receives {
            self.by_queue_pair.remove(&user.queue_pair().address().qpn);
        }
        let queue = endpoint.nic().queue_pair().completion_queue();
        let mut others = self.order.iter().filter_map(|id| self.endpoints.get(*id));
        if !others.any(|other| other.nic().queue_pair().completion_queue() == queue) {
            self.queues.retain(|used| *used != queue);
        }
        self.end(endpoint);
        true
    }

    /// Ends an endpoint that was removed from the table. The domain holds the shared state.
    fn end(&mut self, mut endpoint: Endpoint<LentNic<D>>) {
        self.shared.exchange(&mut endpoint);
        endpoint.leave_domain();
        self.shared.exchange(&mut endpoint);
        let (nic, user) = endpoint.into_nic();
        nic.into_queue_pair().close(&mut self.shared.nic);
        if let Some(user) = user {
            user.close(&mut self.shared.nic);
        }
    }

    /// Closes the domain with all its endpoints, and returns the device's domain.
    pub fn close(mut self) -> D {
        while let Some(id) = self.order.last().copied() {
            self.close_endpoint(id);
        }
        let DomainState { nic, addresses, .. } = &mut self.shared;
        for ahn in addresses.ids().filter_map(|peer| addresses.ahn(peer)) {
            // The domain is closing, so an error cannot be reported.
            let _ = nic.destroy_address_handle(ahn);
        }
        self.shared.nic.into_inner()
    }

    /// An endpoint of this domain. `None` if it was closed.
    #[inline(always)]
    pub fn endpoint(&mut self, id: EndpointId) -> Option<&mut Endpoint<LentNic<D>>> {
        if self.holder != Some(id) {
            self.lend_to(id)?;
        }
        self.endpoints.get_mut(id)
    }

    /// Moves the shared parts to an endpoint. `None` if it was closed.
    #[inline(never)]
    fn lend_to(&mut self, id: EndpointId) -> Option<()> {
        self.bring_home();
        self.shared.exchange(self.endpoints.get_mut(id)?);
        self.holder = Some(id);
        Some(())
    }

    /// Moves the shared parts back to the domain.
    fn bring_home(&mut self) -> &mut DomainState<D> {
        if let Some(holder) = self.holder.take()
            && let Some(endpoint) = self.endpoints.get_mut(holder)
        {
            self.shared.exchange(endpoint);
        }
        &mut self.shared
    }

    /// Registers memory for all endpoints. See [`Endpoint::register`].
    ///
    /// # Errors
    /// The device refuses.
    pub fn register(&mut self, memory: UserSlice, access: Access) -> Result<Region, EndpointError> {
        let DomainState { nic, exposed, .. } = self.bring_home();
        exposed.register(&mut **nic, memory, access)
    }

    /// Ends a registration of [`Domain::register`]. No operation of the application may be using
    /// it. Writes and reads of peers that use it fail, at every endpoint.
    ///
    /// # Errors
    /// The region is not registered.
    pub fn deregister(&mut self, region: Region) -> Result<(), EndpointError> {
        if let Some(gone) = self.bring_home().exposed.withdraw(region) {
            for index in 0..self.order.len() {
                if let Some(endpoint) = self.endpoint(self.order[index]) {
                    endpoint.end_accesses(&gone);
                }
            }
        }
        Ok(self.nic_mut().deregister(region)?)
    }

    /// Puts an address into the address vector, for all endpoints. An address that is already there
    /// keeps its id, even if only a packet introduced it.
    ///
    /// # Errors
    /// The device's address book is full.
    pub fn insert_address(&mut self, address: RawAddress) -> Result<PeerId, EndpointError> {
        let DomainState { nic, addresses, .. } = self.bring_home();
        addresses.insert_explicit(&mut **nic, address)
    }

    /// Removes an address from the address vector. At every endpoint, operations with the peer fail
    /// with `FI_ECANCELED` as soon as the device no longer uses their memory, and unmatched
    /// messages of the peer are dropped. The conversation does not end, as described for
    /// [`Endpoint::remove_address`].
    ///
    /// # Errors
    /// The peer is not in the address vector.
    pub fn remove_address(&mut self, peer: PeerId) -> Result<(), EndpointError> {
        if !self.bring_home().addresses.contains(peer) {
            return Err(EndpointError::UnknownPeer(peer));
        }
        let goes_on = (0..self.order.len()).any(|index| {
            let endpoint = self.endpoint(self.order[index]);
            endpoint.is_some_and(|endpoint| endpoint.can_retire(peer))
        });
        for index in 0..self.order.len() {
            if let Some(endpoint) = self.endpoint(self.order[index]) {
                endpoint.leave_peer(peer, goes_on);
            }
        }
        let DomainState { nic, addresses, .. } = self.bring_home();
        if !goes_on && let Some(ahn) = addresses.remove(peer) {
            nic.destroy_address_handle(ahn)?;
        } else if let Some(retired) = addresses.retire(peer) {
            for endpoint in self.endpoints.iter_mut() {
                endpoint.channel.peers.follow(peer, retired);
            }
        }
        for index in 0..self.order.len() {
            if let Some(endpoint) = self.endpoint(self.order[index]) {
                endpoint.do_pending_work();
            }
        }
        Ok(())
    }

    /// The address of a peer.
    pub fn lookup_address(&mut self, peer: PeerId) -> Option<RawAddress> {
        self.bring_home().addresses.address(peer)
    }

    /// The destination of packets to a peer, for queue pairs that the caller uses without an
    /// endpoint.
    pub fn destination(&mut self, peer: PeerId) -> Option<Destination> {
        self.bring_home().addresses.destination(peer)
    }

    /// The newest peer with a sender's address handle and queue pair, for queue pairs as those of
    /// [`Domain::destination`].
    pub fn identify(&mut self, source: &Source) -> Option<PeerId> {
        self.bring_home().addresses.identify(source, None)
    }

    /// Makes progress on all endpoints, as [`Endpoint::progress`] does on one: flushes deferred
    /// requests, polls each completion queue, passes the completions to the endpoints whose queue
    /// pairs they name, and posts pending packets. Returns the number of device completions.
    ///
    /// A completion queue is not polled while one of its endpoints has
    /// [`EndpointConfig::completion_queue`] completions that the application has not read.
    pub fn progress(&mut self, now: Instant) -> usize {
        for index in 0..self.order.len() {
            let id = self.order[index];
            let Some(Endpoint { channel, .. }) = self.endpoints.get_mut(id) else {
                continue;
            };
            channel.now = now;
            if channel.posting.is_deferring()
                && let Some(endpoint) = self.endpoint(id)
            {
                endpoint.channel.posting.flush();
            }
        }
        let mut taken = 0;
        let mut all_polled = true;
        let mut batch = mem::take(&mut self.batch);
        for index in 0..self.queues.len() {
            let queue = self.queues[index];
            match self.room(queue) {
                Some(limit) => taken += self.nic_mut().poll(queue, &mut batch, limit),
                None => all_polled = false,
            }
            // Most completions have the same queue pair as the previous one.
            for run in batch.chunk_by(|one, next| one.queue_pair == next.queue_pair) {
                let id = self.by_queue_pair.get(&run[0].queue_pair).copied();
                if let Some(endpoint) = id.and_then(|id| self.endpoint(id)) {
                    for completion in run {
                        endpoint.on_completion(completion);
                    }
                }
            }
            batch.clear();
        }
        self.batch = batch;
        for index in 0..self.order.len() {
            let id = self.order[index];
            if self
                .endpoints
                .get(id)
                .is_some_and(|endpoint| endpoint.channel.is_due())
                && let Some(endpoint) = self.endpoint(id)
            {
                if taken == 0 && all_polled {
                    endpoint.end_waits();
                }
                endpoint.finish_progress();
            }
        }
        taken
    }

    /// The maximum number of completions to read from a queue in one call; `None` if an endpoint
    /// has no room for more.
    fn room(&self, queue: CompletionQueueId) -> Option<usize> {
        let users = self.order.iter().filter_map(|id| self.endpoints.get(*id));
        let mut users = users.filter(|user| user.nic().queue_pair().completion_queue() == queue);
        users.try_fold(0, |limit: usize, user| {
            user.channel
                .reports
                .has_room()
                .then(|| limit.max(user.config().poll_batch))
        })
    }

    /// The time when `progress` must be called even if no completion arrives; `None` if no such
    /// call is needed.
    pub fn next_timeout(&self) -> Option<Instant> {
        let endpoints = self.order.iter().filter_map(|id| self.endpoints.get(*id));
        endpoints.filter_map(Endpoint::next_timeout).min()
    }
}
