//! Domains: one device, opened, with the endpoints on it and what they share.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use efa_core::endpoint::{ClaimId, CompletionEntry, EndpointId, Errno, PeerId};
use efa_core::nic::{
    CompletionQueueId, Device as _, Domain as _, DomainConfig, NicError, UserSlice,
};
use efa_hw::{CacheLimits, HwDevice, HwDomain, OpenError};
use slab::Slab;

use crate::address_vector::{self, AddressVector, Addresses};
use crate::atomics;
use crate::border::{self, ENODATA, Object, Result, Users};
use crate::completion_queue::{self, CompletionQueue, Entries};
use crate::counter::{self, Sleeper};
use crate::endpoint::{self, Endpoint};
use crate::fabric::Fabric;
use crate::ffi::*;
use crate::fork;
use crate::host::{Part, explain, warn};
use crate::info::device_of;
use crate::lock::{Lock, Taken};
use crate::memory_region;
use crate::progress::Progress;
use crate::table::Table;
use crate::unsupported;
use crate::wait::Watch;

/// A domain (`fid_domain`).
#[repr(C)]
pub(crate) struct Domain {
    c: fid_domain,
    fabric: *const Fabric,
    /// The device's name.
    pub(crate) device: String,
    pub(crate) users: Users,
    /// The application registers all memory that operations use (`FI_MR_LOCAL`).
    pub(crate) registers_all: bool,
    /// That of endpoints that have none (`FI_TC_...`).
    pub(crate) traffic_class: u32,
    state: Arc<Lock<State>>,
    /// The thread of automatic progress, if the application asked for that.
    progress: Option<Progress>,
}

/// What the objects of a domain share. One lock is held during each of their calls.
pub(crate) struct State {
    pub(crate) core: efa_core::endpoint::Domain<HwDomain>,
    opened: Instant,
    pub(crate) endpoints: Vec<(EndpointId, *const Endpoint)>,
    pub(crate) tables: Tables,
    /// In how many address vectors each peer is.
    pub(crate) peers: HashMap<PeerId, usize>,
    /// Messages that were claimed, by the context that claimed them, with what was told of each.
    pub(crate) claims: HashMap<(EndpointId, u64), (ClaimId, CompletionEntry)>,
    /// What sleepers wait for, from the first object on that can sleep.
    watch: Option<Watch>,
    /// Those who sleep until a counter changes.
    pub(crate) sleepers: Vec<Sleeper>,
    /// Somebody may sleep: what ends within a call has to be delivered at its end.
    may_sleep: bool,
}

/// The state during a call that starts an operation. Those who sleep see what ends within the call
/// only if it is delivered at its end.
pub(crate) struct Operation<'a>(Taken<'a, State>);

impl Deref for Operation<'_> {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        &self.0
    }
}

impl DerefMut for Operation<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        &mut self.0
    }
}

impl Drop for Operation<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.0.may_sleep {
            self.0.deliver();
        }
    }
}

// SAFETY: the objects to which it points are used by one thread at a time, which has the lock.
unsafe impl Send for State {}

/// What completions become: addresses of their peers, and entries of completion queues.
#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) vectors: Vec<Option<Addresses>>,
    pub(crate) queues: Slab<Entries>,
}

impl Tables {
    /// The entries of a completion queue.
    ///
    /// # Errors
    /// `FI_EINVAL` if there is no such queue.
    #[inline]
    pub(crate) fn entries(&mut self, queue: usize) -> Result<&mut Entries> {
        self.queues.get_mut(queue).ok_or(Errno::EINVAL)
    }
}

// SAFETY: `#[repr(C)]`, and the first member begins with a `fid`; no other type has these
// operations.
unsafe impl Object for Domain {
    const CLASS: u32 = FI_CLASS_DOMAIN;

    fn operations() -> &'static Table<fi_ops> {
        &FID
    }
}

static FID: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close),
    bind: Some(bind),
    ops_open: Some(ops_open),
    ..unsupported::FID
});

static OPS: Table<fi_ops_domain> = Table::new(fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: Some(address_vector::open),
    cq_open: Some(completion_queue::open),
    endpoint: Some(endpoint::open),
    scalable_ep: Some(unsupported::scalable_ep),
    cntr_open: Some(counter::open),
    poll_open: Some(unsupported::poll_open),
    stx_ctx: Some(unsupported::stx_ctx),
    srx_ctx: Some(unsupported::srx_ctx),
    query_atomic: Some(atomics::query),
    query_collective: Some(unsupported::query_collective),
    endpoint2: Some(endpoint::open2),
});

impl Domain {
    /// Opens the device that the info names.
    ///
    /// # Errors
    /// `FI_EINVAL` without a domain's name, `FI_ENODATA` if the device cannot be opened, which is in
    /// the log.
    ///
    /// # Safety
    /// The info and what it leads to are valid.
    pub(crate) unsafe fn open(
        fabric: &Fabric,
        info: *const fi_info,
        context: *mut c_void,
    ) -> Result<Domain> {
        // SAFETY: by the caller's contract.
        let attributes = unsafe { info.as_ref().and_then(|info| info.domain_attr.as_ref()) };
        let name = attributes
            .map(|attributes| attributes.name)
            .filter(|name| !name.is_null());
        let Some(name) = name else {
            return Err(Errno::EINVAL);
        };
        // SAFETY: a name that is not null is a string.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        fork::prepare()?;
        fork::guard()?;
        let state = State::open(device_of(&name)).map_err(|error| {
            warn(Part::Domain, &error);
            ENODATA
        })?;
        let wanted = |models: fn(&fi_domain_attr) -> [u32; 2], value| {
            attributes.is_some_and(|attributes| models(attributes).contains(&value))
        };
        let is_automatic = wanted(|a| [a.control_progress, a.data_progress], FI_PROGRESS_AUTO);
        let promised = wanted(|a| [a.threading; 2], FI_THREAD_DOMAIN);
        let state = match promised && !is_automatic {
            // SAFETY: this is what the threading model means, and no thread makes progress by
            // itself.
            true => unsafe { Lock::promised(state) },
            false => Lock::new(state),
        };
        let state = Arc::new(state);
        let progress = match is_automatic {
            true => Some(Progress::start(&state)?),
            false => None,
        };
        fabric.users.add();
        Ok(Domain {
            c: fid_domain {
                fid: fid {
                    context,
                    ..fid::default()
                },
                ops: OPS.as_c(),
                mr: memory_region::OPS.as_c(),
            },
            fabric,
            device: device_of(&name).to_owned(),
            users: Users::default(),
            registers_all: attributes
                .is_some_and(|attributes| attributes.mr_mode as u64 & FI_MR_LOCAL != 0),
            traffic_class: attributes.map_or(FI_TC_UNSPEC, |attributes| attributes.tclass),
            state,
            progress,
        })
    }

    /// The state, locked.
    ///
    /// # Errors
    /// `FI_EOTHER` after a panic of another thread in the engine.
    #[inline]
    pub(crate) fn state(&self) -> Result<Taken<'_, State>> {
        self.state.take()
    }

    /// The state, locked, for a call that starts an operation.
    ///
    /// # Errors
    /// As for [`Domain::state`].
    #[inline]
    pub(crate) fn operation(&self) -> Result<Operation<'_>> {
        self.state().map(Operation)
    }

    /// Returns whether the domain makes progress by itself.
    pub(crate) fn is_automatic(&self) -> bool {
        self.progress.is_some()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: a fabric is not closed before its domains.
        unsafe { (*self.fabric).users.remove() };
    }
}

impl State {
    fn open(device: &str) -> std::result::Result<State, String> {
        let device = HwDevice::shared(device).map_err(|error| error.to_string())?;
        // Each endpoint adds its own.
        let config = DomainConfig { packet_buffers: 0 };
        let mut domain = device
            .open_domain(&config)
            .map_err(|error| error.to_string())?;
        // SAFETY: libfabric's interface says of all memory in calls what `allow_user` asks for.
        unsafe { domain.allow_user(EVERYTHING) }.map_err(|error| error.to_string())?;
        if fork::is_kept_from_children() {
            explain(
                Part::Domain,
                "registrations are not kept, so that children have the memory between operations",
            );
        } else if let Err(error) = domain.cache_registrations(CacheLimits::default()) {
            // Operations go on registering memory that the application did not register.
            explain(
                Part::Domain,
                &format!("registrations are not kept: {error}"),
            );
        }
        Ok(State {
            core: efa_core::endpoint::Domain::new(domain, rand::random()),
            opened: Instant::now(),
            endpoints: Vec::new(),
            tables: Tables::default(),
            peers: HashMap::new(),
            claims: HashMap::new(),
            watch: None,
            sleepers: Vec::new(),
            may_sleep: false,
        })
    }

    /// The time, as the engine counts it.
    #[inline]
    pub(crate) fn now(&self) -> efa_core::endpoint::Instant {
        efa_core::endpoint::Instant::START + self.opened.elapsed()
    }

    /// Makes progress on all endpoints, and hands what completed to their completion queues.
    /// Returns how many completions the device had.
    pub(crate) fn progress(&mut self) -> usize {
        let now = self.now();
        let taken = self.core.progress(now);
        if taken > 0 {
            self.report_events();
        }
        self.deliver();
        taken
    }

    /// Tells of what belongs to no operation of the application.
    fn report_events(&mut self) {
        for (id, object) in &self.endpoints {
            let Some(engine) = self.core.endpoint(*id) else {
                continue;
            };
            // SAFETY: an endpoint leaves this list before it ends.
            let object = unsafe { &**object };
            while let Some(event) = engine.poll_event() {
                object.happened(&event);
            }
        }
    }

    /// Hands what completed to the completion queues, and wakes those who sleep until a counter
    /// changes.
    pub(crate) fn deliver(&mut self) {
        for (id, object) in &self.endpoints {
            let Some(engine) = self.core.endpoint(*id) else {
                continue;
            };
            // SAFETY: an endpoint leaves this list before it ends.
            let object = unsafe { &**object };
            while let Some(result) = engine.poll_completion() {
                object.report(&mut self.tables, result);
            }
        }
        if !self.sleepers.is_empty() {
            self.wake_sleepers();
        }
    }

    /// Notes that a peer has left an address vector. With the last one it leaves the domain.
    ///
    /// # Errors
    /// The device does not give back its address handle.
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

    /// What sleepers wait for.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub(crate) fn watch(&mut self) -> Result<&mut Watch> {
        match &mut self.watch {
            Some(watch) => Ok(watch),
            empty => Ok(empty.insert(Watch::new()?)),
        }
    }

    /// Makes a completion queue of the device. Its events wake sleepers if `notifies`, as far as
    /// the device has them.
    ///
    /// # Errors
    /// `FI_ENOMEM` if the device has no room for it, which is in the log.
    pub(crate) fn create_queue(
        &mut self,
        entries: usize,
        notifies: bool,
    ) -> Result<CompletionQueueId> {
        let refused = |error: OpenError| {
            warn(Part::Endpoint, &format!("completion queue: {error}"));
            Errno::ENOMEM
        };
        self.watch()?;
        let (nic, Some(watch)) = (self.core.nic_mut(), &mut self.watch) else {
            return Err(Errno::EOTHER);
        };
        if notifies {
            match nic.create_completion_queue_with_channel(entries) {
                Ok(queue) => {
                    let channel = nic.channel(queue).map_err(unable)?;
                    watch.add(queue, channel)?;
                    // Who sleeps already is woken by this queue, too.
                    nic.arm(queue).map_err(unable)?;
                    return Ok(queue);
                }
                Err(error) => explain(
                    Part::Endpoint,
                    &format!(
                        "sleeping on a completion queue means looking each millisecond: {error}"
                    ),
                ),
            }
        }
        let queue = nic.create_completion_queue(entries).map_err(refused)?;
        if notifies {
            watch.silent.push(queue);
        }
        Ok(queue)
    }

    /// Ends a completion queue of the device whose queue pair is gone.
    pub(crate) fn end_queue(&mut self, queue: CompletionQueueId) {
        let nic = self.core.nic_mut();
        if let Some(watch) = &mut self.watch {
            watch.remove(queue, nic.channel(queue).ok());
        }
        if let Err(error) = nic.destroy_completion_queue(queue) {
            warn(Part::Endpoint, &format!("completion queue: {error}"));
        }
    }

    /// Wakes those whose counter has changed.
    #[cold]
    fn wake_sleepers(&mut self) {
        let mut sleepers = std::mem::take(&mut self.sleepers);
        sleepers.retain(|sleeper| !sleeper.wake(self));
        self.sleepers = sleepers;
    }

    /// Asks the devices for an event at the next completion, and does all that there is to do.
    /// Returns whether that is all, so that the caller may sleep after it has looked for what it
    /// waits for, with the lock: a completion that comes from now on makes the descriptor of
    /// [`State::watch`] readable.
    ///
    /// # Errors
    /// The device does not notify of completions any more.
    pub(crate) fn arm(&mut self) -> Result<bool> {
        /// Polls of the devices: more would keep others from the lock.
        const ROUNDS: usize = 16;
        self.may_sleep = true;
        let nic = self.core.nic_mut();
        for queue in self.watch.iter().flat_map(|watch| &watch.queues) {
            nic.arm(*queue).map_err(unable)?;
        }
        let is_quiet =
            (0..ROUNDS).any(|_| self.progress() == 0) && !self.core.nic_mut().has_failed();
        let now = self.now();
        let next = self.core.next_timeout();
        let next = next.map(|next| next.0.saturating_sub(now.0));
        let watch = self.watch()?;
        let look = (!watch.silent.is_empty()).then_some(Duration::from_millis(1));
        watch.wake_after(next.into_iter().chain(look).min())?;
        Ok(is_quiet)
    }
}

/// What the device says when it cannot notify.
fn unable(error: NicError) -> Errno {
    warn(Part::Domain, &format!("sleeping: {error}"));
    Errno::EOTHER
}

/// All memory that a program can have: what libfabric's calls name is the application's
/// responsibility.
const EVERYTHING: UserSlice = UserSlice {
    address: 4096,
    length: (1 << 47) - 2 * 4096,
};

/// # Safety
/// As libfabric documents `fi_close`.
unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let domain: &Domain = unsafe { border::object(fid.cast()) }?;
        domain.users.none()?;
        // SAFETY: nothing was opened from it any more, and C gives up its pointer.
        drop(unsafe { border::take(domain) });
        Ok(())
    })
}

/// Binds an event queue, for which there are no events. As libfabric documents `fi_domain_bind`.
unsafe extern "C" fn bind(_domain: *mut fid, _queue: *mut fid, flags: u64) -> c_int {
    match flags & FI_REG_MR {
        0 => 0,
        // Registration is not asynchronous.
        _ => -libc::EOPNOTSUPP,
    }
}

/// Opens a table of operations of libfabric's efa provider, which there is none of here: not to ask
/// which of the machine's networks a registration uses, and not to write the device's queues
/// without the provider.
///
/// # Errors
/// `FI_EOPNOTSUPP` for those that stock has for domains (2.7), `FI_EINVAL` for others, as from
/// stock.
///
/// # Safety
/// As libfabric documents `fi_open_ops`.
unsafe extern "C" fn ops_open(
    _domain: *mut fid,
    name: *const c_char,
    _flags: u64,
    _result: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: a string or null, by the caller's contract.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
    match name.map(CStr::to_bytes) {
        Some(b"efa domain ops" | b"efa gda ops") => -libc::EOPNOTSUPP,
        _ => -libc::EINVAL,
    }
}

/// A completion queue, checked, of an endpoint's binding.
pub(crate) type Queue = *const CompletionQueue;
/// An address vector, checked, of an endpoint's binding.
pub(crate) type Vector = *const AddressVector;
