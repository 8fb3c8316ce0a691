//! The state of a domain: one opened device, its endpoints, and their shared state.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use efa_core::endpoint::{ClaimId, CompletionEntry, EndpointId, Errno, PeerId};
use efa_core::nic::{
    Completion, CompletionQueueId, Device as _, Domain as _, DomainConfig, NicError,
    QueuePair as _, UserSlice,
};
use efa_hw::{CacheLimits, HwDevice, HwDomain, OpenError};

use slab::Slab;

use crate::ffi::host::{log_info, log_warn};
use crate::ffi::result::{ENODATA, ENOSYS, EOPBADSTATE, Result};
use crate::ffi::{
    FI_WAIT_FD, FI_WAIT_NONE, FI_WAIT_SET, FI_WAIT_UNSPEC, FI_WAIT_YIELD, fi_wait_obj,
};
use crate::fork;
use crate::state::collective::Operation;
use crate::state::completions::Reader;
use crate::state::counts::CounterSleeper;
use crate::state::datagrams::Datagrams;
use crate::state::deferred::{self, DeferredOperation};
use crate::state::route::Route;
use crate::state::tables::Tables;
use crate::state::wait::{DeviceEvents, WaitFd, WaitObject};

/// The state that a domain's objects share. One lock is held during each of their calls.
pub(crate) struct DomainState {
    pub(crate) core: efa_core::endpoint::Domain<HwDomain>,
    opened: Instant,
    /// The enabled endpoints.
    pub(crate) endpoints: Vec<(EndpointId, Route)>,
    pub(crate) tables: Tables,
    /// The number of address vectors that contain each peer.
    pub(crate) peers: HashMap<PeerId, usize>,
    /// Messages that were claimed, by the context that claimed them, with the completion of each.
    pub(crate) claims: HashMap<(EndpointId, u64), (ClaimId, CompletionEntry)>,
    /// Reads and writes that wait for their peers, oldest first.
    pub(crate) deferred: Vec<DeferredOperation>,
    /// The enabled datagram endpoints.
    pub(crate) datagrams: Slab<Datagrams>,
    /// Completions of one poll of theirs.
    batch: Vec<Completion>,
    /// Collective operations in progress.
    pub(crate) collectives: Slab<Operation>,
    /// The events that sleepers wait for, once an object can sleep.
    device_events: Option<DeviceEvents>,
    /// Sleepers that wait until a counter changes.
    pub(crate) sleepers: Vec<CounterSleeper>,
    /// Threads may sleep, so completions within a call must be delivered at its end.
    pub(crate) may_sleep: bool,
}

// SAFETY: endpoints and memory of calls, to which it points, are used by one thread at a time,
// which has the lock.
unsafe impl Send for DomainState {}

impl DomainState {
    /// Opens a device.
    ///
    /// # Errors
    /// `FI_ENODATA` if it cannot be opened, which is in the log.
    pub(crate) fn open(device: &str) -> Result<DomainState> {
        fn refused(error: impl Display) -> Errno {
            log_warn!(Domain, "{error}");
            ENODATA
        }
        let device = HwDevice::shared(device).map_err(refused)?;
        // Each endpoint adds its packet buffers.
        let config = DomainConfig { packet_buffers: 0 };
        let mut domain = device.open_domain(&config).map_err(refused)?;
        // SAFETY: libfabric's interface has the same requirements for all memory in calls as
        // `allow_user`.
        unsafe { domain.allow_user(USER_MEMORY) }.map_err(refused)?;
        if fork::is_kept_from_children() {
            log_info!(
                Domain,
                "registrations are not kept, so that children have the memory between operations"
            );
        } else if let Err(error) = domain.cache_registrations(CacheLimits::default()) {
            // Then operations still register memory that the application did not register.
            log_info!(Domain, "registrations are not kept: {error}");
        }
        Ok(DomainState {
            core: efa_core::endpoint::Domain::new(domain, rand::random()),
            opened: Instant::now(),
            endpoints: Vec::new(),
            tables: Tables::default(),
            peers: HashMap::new(),
            claims: HashMap::new(),
            deferred: Vec::new(),
            datagrams: Slab::new(),
            batch: Vec::new(),
            collectives: Slab::new(),
            device_events: None,
            sleepers: Vec::new(),
            may_sleep: false,
        })
    }

    /// The time, as the engine counts it.
    #[inline]
    pub(crate) fn now(&self) -> efa_core::endpoint::Instant {
        efa_core::endpoint::Instant::START + self.opened.elapsed()
    }

    /// Makes progress on all endpoints, and moves their completions to the completion queues.
    /// Returns the number of completions from the device.
    pub(crate) fn progress(&mut self) -> usize {
        let now = self.now();
        let mut taken = self.core.progress(now);
        if !self.datagrams.is_empty() {
            taken += self.progress_datagrams();
        }
        if taken > 0 {
            self.report_events();
        }
        if !self.deferred.is_empty() {
            self.resume_deferred();
        }
        if !self.collectives.is_empty() {
            // Some may have waited for room.
            self.advance_collectives();
        }
        self.deliver();
        taken
    }

    /// As [`DomainState::progress`], for a call that reads a completion queue: completions without
    /// unread entries before them are written to the call's memory.
    ///
    /// # Errors
    /// `FI_EINVAL` for an unknown queue.
    pub(crate) fn progress_into(&mut self, queue: usize, reader: Reader) -> Result<Reader> {
        self.tables.completions(queue)?.reader = Some(reader);
        self.progress();
        let reader = self.tables.completions(queue)?.reader.take();
        reader.ok_or(Errno::EINVAL)
    }

    #[cold]
    fn progress_datagrams(&mut self) -> usize {
        let DomainState {
            core,
            tables,
            datagrams,
            batch,
            ..
        } = self;
        let all = datagrams.iter_mut();
        all.map(|(_, endpoint)| endpoint.progress(core, tables, batch))
            .sum()
    }

    /// Starts the operations for whose peers there was a HANDSHAKE.
    #[cold]
    fn resume_deferred(&mut self) {
        let core = &mut self.core;
        self.deferred.retain(|operation| {
            let engine = core.endpoint(operation.endpoint);
            engine.is_some_and(|engine| !operation.resume(engine))
        });
    }

    /// Stores an operation that its engine has refused with `FI_EAGAIN` until its peer's HANDSHAKE
    /// has arrived.
    ///
    /// # Errors
    /// `FI_EAGAIN` if it does not wait for the HANDSHAKE, or too many operations do.
    #[cold]
    pub(crate) fn defer(&mut self, operation: DeferredOperation) -> Result<()> {
        let id = operation.endpoint;
        let engine = self.core.endpoint(id).ok_or(EOPBADSTATE)?;
        let others = self.deferred.iter().filter(|other| other.endpoint == id);
        if !engine.awaits_handshake(operation.peer) || others.count() >= deferred::LIMIT {
            return Err(Errno::EAGAIN);
        }
        self.deferred.push(operation);
        Ok(())
    }

    /// Reports events that belong to no operation of the application.
    fn report_events(&mut self) {
        for (id, route) in &self.endpoints {
            let Some(engine) = self.core.endpoint(*id) else {
                continue;
            };
            while let Some(event) = engine.poll_event() {
                route.event(&event);
            }
        }
    }

    /// Moves completions to the completion queues, continues collective operations, and wakes
    /// sleepers whose counter has changed.
    pub(crate) fn deliver(&mut self) {
        loop {
            self.hand_over();
            // An operation that they start may end immediately, and then no event would wake a
            // sleeper for it.
            if self.tables.collective.is_empty() {
                break;
            }
            self.advance_collectives();
        }
        if !self.sleepers.is_empty() {
            self.wake_sleepers();
        }
    }

    /// Ends a call that starts an operation: delivers completions within it, if threads may sleep.
    #[inline(always)]
    pub(crate) fn end_operation(&mut self) {
        if self.may_sleep {
            self.deliver();
        }
    }

    /// Removes a peer from an address vector, and from the domain with its last vector.
    ///
    /// # Errors
    /// The device does not destroy its address handle.
    pub(crate) fn forget(&mut self, peer: PeerId) -> Result<()> {
        if let Entry::Occupied(mut vectors) = self.peers.entry(peer) {
            *vectors.get_mut() -= 1;
            if *vectors.get() > 0 {
                return Ok(());
            }
            vectors.remove();
        }
        let removed = self.core.remove_address(peer);
        removed.map_err(|error| error.errno())
    }

    /// The events that sleepers wait for.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub(crate) fn device_events(&mut self) -> Result<&mut DeviceEvents> {
        match &mut self.device_events {
            Some(events) => Ok(events),
            empty => Ok(empty.insert(DeviceEvents::new()?)),
        }
    }

    /// A wait object of an object of this domain.
    ///
    /// # Errors
    /// `FI_ENOSYS` for mutexes with condition variables. The process has too many descriptors.
    pub(crate) fn wait_object(&mut self, kind: fi_wait_obj) -> Result<WaitObject> {
        match kind {
            FI_WAIT_NONE => Ok(WaitObject::None),
            FI_WAIT_YIELD => Ok(WaitObject::Yield),
            FI_WAIT_UNSPEC | FI_WAIT_FD | FI_WAIT_SET => {
                let wait_fd = WaitFd::new(self.device_events()?)?;
                Ok(WaitObject::Fd(Arc::new(wait_fd)))
            }
            _ => Err(ENOSYS),
        }
    }

    /// Makes a completion queue of the device. Its events wake sleepers if `notifies` and the
    /// device supports events.
    ///
    /// # Errors
    /// `FI_ENOMEM` if the device has no room for it; the log has the reason.
    pub(crate) fn create_queue(
        &mut self,
        entries: usize,
        notifies: bool,
    ) -> Result<CompletionQueueId> {
        let refused = |error: OpenError| {
            log_warn!(Endpoint, "completion queue: {error}");
            Errno::ENOMEM
        };
        self.device_events()?;
        let (nic, Some(events)) = (self.core.nic_mut(), &mut self.device_events) else {
            return Err(Errno::EOTHER);
        };
        if notifies {
            match nic.create_completion_queue_with_channel(entries) {
                Ok(queue) => {
                    let channel = nic.channel(queue).map_err(unable)?;
                    events.add(queue, channel)?;
                    // Threads that sleep already are woken by this queue, too.
                    nic.arm(queue).map_err(unable)?;
                    return Ok(queue);
                }
                Err(error) => log_info!(
                    Endpoint,
                    "sleeping on a completion queue means looking each millisecond: {error}"
                ),
            }
        }
        let queue = nic.create_completion_queue(entries).map_err(refused)?;
        if notifies {
            events.polled.push(queue);
        }
        Ok(queue)
    }

    /// Destroys a completion queue of the device whose queue pair was destroyed.
    pub(crate) fn end_queue(&mut self, queue: CompletionQueueId) {
        let nic = self.core.nic_mut();
        if let Some(events) = &mut self.device_events {
            events.remove(queue, nic.channel(queue).ok());
        }
        if let Err(error) = nic.destroy_completion_queue(queue) {
            log_warn!(Endpoint, "completion queue: {error}");
        }
    }

    /// Ends a datagram endpoint.
    pub(crate) fn close_datagrams(&mut self, key: usize) {
        if let Some(closed) = self.datagrams.try_remove(key) {
            let queue = closed.queue_pair.completion_queue();
            closed.close(self.core.nic_mut());
            self.end_queue(queue);
        }
    }

    #[inline(always)]
    fn hand_over(&mut self) {
        for (id, route) in &self.endpoints {
            let Some(engine) = self.core.endpoint(*id) else {
                continue;
            };
            engine.drain_completions(|result| route.report(&mut self.tables, result));
        }
    }

    /// Wakes those whose counter has changed.
    #[cold]
    fn wake_sleepers(&mut self) {
        let mut sleepers = std::mem::take(&mut self.sleepers);
        sleepers.retain(|sleeper| !sleeper.wake(&mut self.core));
        self.sleepers = sleepers;
    }

    /// Requests an event from the devices at the next completion, and does all available work.
    /// Returns whether no work is left, so that the caller may sleep once it has checked, still
    /// under the lock, that the result it waits for is not there. Any later completion makes the
    /// descriptor of [`DomainState::device_events`] readable.
    ///
    /// # Errors
    /// The device can no longer notify of completions.
    pub(crate) fn arm(&mut self) -> Result<bool> {
        /// Maximum number of polls, so that other threads get the lock.
        const ROUNDS: usize = 16;
        self.may_sleep = true;
        let nic = self.core.nic_mut();
        for queue in self.device_events.iter().flat_map(|events| &events.queues) {
            nic.arm(*queue).map_err(unable)?;
        }
        let is_quiet =
            (0..ROUNDS).any(|_| self.progress() == 0) && !self.core.nic_mut().has_failed();
        let now = self.now();
        let next = self.core.next_timeout();
        let next = next.map(|next| next.0.saturating_sub(now.0));
        let next = next.into_iter().chain(self.until_question());
        let events = self.device_events()?;
        let look = (!events.polled.is_empty()).then_some(Duration::from_millis(1));
        events.wake_after(next.chain(look).min())?;
        Ok(is_quiet)
    }
}

/// The device's error when it cannot notify.
fn unable(error: NicError) -> Errno {
    log_warn!(Domain, "sleeping: {error}");
    Errno::EOTHER
}

/// All memory that a program can have: the memory that libfabric's calls name is the application's
/// responsibility.
const USER_MEMORY: UserSlice = UserSlice::new(4096, (1 << 47) - 2 * 4096);
