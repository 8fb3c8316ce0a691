//! Endpoints: what they are bound to, when they are enabled, their options, and where their
//! completions go.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use efa_core::endpoint::{
    CompletionEntry, CompletionFlags, EndpointId, Errno, ErrorEntry, Event, Failure,
    OperationFlags, PacketError, ProviderError, Statistics,
};
use efa_core::nic::{Domain as _, Nic as _, QueuePair as _, QueuePairConfig};

use crate::address_vector::{AddressVector, Addresses};
use crate::border::{self, ENOAV, ENOCQ, EOPBADSTATE, EOPNOTSUPP, Object, Result};
use crate::completion_queue::CompletionQueue;
use crate::counter::Counter;
use crate::domain::{Domain, Queue, Tables, Vector};
use crate::event_queue::EventQueue;
use crate::ffi::*;
use crate::host::{Part, explain, warn};
use crate::info::{self, RX_OP_FLAGS, TX_OP_FLAGS};
use crate::options::{self, Limits, Options};
use crate::table::Table;
use crate::{atomics, messages, one_sided, settings, unsupported, wait, zero_copy};

/// How long an endpoint that closes goes on with what peers still wait for.
const FAREWELL: Duration = Duration::from_secs(1);

/// What an endpoint starts with as [`Endpoint::min_multi_recv`].
const MIN_MULTI_RECV: usize = 64;

/// How long it sleeps between looks.
const NAP: Duration = Duration::from_micros(100);

/// An endpoint (`fid_ep`).
#[repr(C)]
pub(crate) struct Endpoint {
    c: fid_ep,
    domain: *const Domain,
    settings: Mutex<Settings>,
    /// What must be left of a multi-receive buffer for another message, in bytes
    /// (`FI_OPT_MIN_MULTI_RECV`): of those that are posted after the option is set, which
    /// applications do before and after they enable the endpoint.
    pub(crate) min_multi_recv: AtomicUsize,
    enabled: OnceLock<Enabled>,
}

/// The context of operations that have no completion any more: those whose data was copied within
/// the call. It is no address of memory.
pub(crate) const INJECTED: u64 = u64::MAX;

/// What an endpoint is told before it is enabled, and options that may change later.
#[derive(Debug)]
struct Settings {
    vector: Option<Vector>,
    transmit: Option<(Queue, u64)>,
    receive: Option<(Queue, u64)>,
    events: Option<*const EventQueue>,
    /// With the operations that each counts.
    counters: Vec<(*const Counter, u64)>,
    tx_op_flags: u64,
    rx_op_flags: u64,
    directed: bool,
    caps: u64,
    /// How messages are ordered, in either direction.
    msg_order: u64,
    service_level: u8,
    options: Options,
    closed: bool,
}

/// What an enabled endpoint is made of.
#[derive(Debug)]
pub(crate) struct Enabled {
    pub(crate) id: EndpointId,
    /// The place of the address vector in the domain.
    place: usize,
    /// The places of the completion queues in the domain.
    transmit: Option<usize>,
    receive: Option<usize>,
    events: Option<*const EventQueue>,
    /// How operations are carried out whose calls have no flags.
    pub(crate) sends: Flags,
    pub(crate) receives: Flags,
    /// Receives name the sender whose messages they take (`FI_DIRECTED_RECV`).
    pub(crate) directed: bool,
    /// Completions name the sender (`FI_SOURCE`).
    names_source: bool,
    /// Receives are into the application's buffers ([`zero_copy`]).
    pub(crate) zero_copy: bool,
}

/// Flags of operations in one direction.
#[derive(Debug)]
pub(crate) struct Flags {
    /// The flags of calls without any.
    default: AtomicU64,
    /// Successes are reported on request only.
    selective: bool,
}

impl Flags {
    /// The flags of a call, if it has any.
    #[inline]
    pub(crate) fn or_default(&self, flags: Option<u64>) -> u64 {
        flags.unwrap_or_else(|| self.default.load(Ordering::Relaxed))
    }

    /// What the engine is told, for a call with these flags.
    #[inline]
    pub(crate) fn of(&self, flags: u64) -> OperationFlags {
        let known = FI_MORE | FI_INJECT | FI_DELIVERY_COMPLETE;
        let mut result = OperationFlags::from_bits_truncate(flags & known);
        result.set(
            OperationFlags::COMPLETION,
            !self.selective || flags & FI_COMPLETION != 0,
        );
        result
    }
}

// SAFETY: `#[repr(C)]`, and the first member begins with a `fid`; no other type has these
// operations.
unsafe impl Object for Endpoint {
    const CLASS: u32 = FI_CLASS_EP;

    fn operations() -> &'static Table<fi_ops> {
        &FID
    }
}

static FID: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close),
    bind: Some(bind),
    control: Some(control),
    ..unsupported::FID
});

static OPS: Table<fi_ops_ep> = Table::new(fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: Some(cancel),
    getopt: Some(getopt),
    setopt: Some(setopt),
    tx_ctx: Some(unsupported::tx_ctx),
    rx_ctx: Some(unsupported::rx_ctx),
    rx_size_left: Some(unsupported::size_left),
    tx_size_left: Some(unsupported::size_left),
});

static CM: Table<fi_ops_cm> = Table::new(fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname: Some(unsupported::setname),
    getname: Some(getname),
    getpeer: Some(unsupported::getpeer),
    connect: Some(unsupported::connect),
    listen: Some(unsupported::listen),
    accept: Some(unsupported::accept),
    reject: Some(unsupported::reject),
    shutdown: Some(unsupported::shutdown),
    join: Some(unsupported::join),
});

/// # Safety
/// As libfabric documents `fi_endpoint`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    result: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let domain: &Domain = unsafe { border::object(domain.cast()) }?;
        // SAFETY: likewise.
        let info = unsafe { info.as_ref() }.ok_or(Errno::EINVAL)?;
        // SAFETY: attributes of an info are valid or null.
        let (ep, tx, rx) = unsafe {
            (
                info.ep_attr.as_ref(),
                info.tx_attr.as_ref(),
                info.rx_attr.as_ref(),
            )
        };
        if ep.is_some_and(|attributes| !matches!(attributes.type_, FI_EP_UNSPEC | FI_EP_RDM)) {
            return Err(Errno::EINVAL);
        }
        domain.users.add();
        let endpoint = Endpoint {
            c: fid_ep {
                fid: fid {
                    context,
                    ..fid::default()
                },
                ops: OPS.as_c(),
                cm: CM.as_c(),
                msg: messages::UNTAGGED.as_c(),
                rma: one_sided::OPS.as_c(),
                tagged: messages::TAGGED.as_c(),
                atomic: atomics::OPS.as_c(),
                collective: unsupported::COLLECTIVE.as_c(),
            },
            domain,
            settings: Mutex::new(Settings {
                vector: None,
                transmit: None,
                receive: None,
                events: None,
                counters: Vec::new(),
                tx_op_flags: tx.map_or(0, |attributes| attributes.op_flags),
                rx_op_flags: rx.map_or(0, |attributes| attributes.op_flags),
                directed: info.caps & FI_DIRECTED_RECV != 0,
                caps: info.caps,
                msg_order: tx.map_or(0, |attributes| attributes.msg_order)
                    | rx.map_or(0, |attributes| attributes.msg_order),
                service_level: info::service_level(
                    domain.traffic_class,
                    tx.map_or(FI_TC_UNSPEC, |attributes| attributes.tclass),
                ),
                options: Options::new(
                    &settings::of_environment(),
                    match ep.map_or(0, |attributes| attributes.max_msg_size) {
                        0 => info::MAX_MESSAGE,
                        promised => promised,
                    },
                    [
                        tx.map_or(0, |attributes| attributes.size),
                        rx.map_or(0, |attributes| attributes.size),
                    ],
                ),
                closed: false,
            }),
            min_multi_recv: AtomicUsize::new(MIN_MULTI_RECV),
            enabled: OnceLock::new(),
        };
        // SAFETY: by the caller's contract.
        unsafe { endpoint.give_to(result) }
    })
}

/// # Safety
/// As libfabric documents `fi_endpoint2`.
pub(crate) unsafe extern "C" fn open2(
    domain: *mut fid_domain,
    info: *mut fi_info,
    result: *mut *mut fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    match flags {
        // SAFETY: the caller's contract is the same.
        0 => unsafe { open(domain, info, result, context) },
        _ => -libc::EINVAL,
    }
}

impl Endpoint {
    #[inline]
    pub(crate) fn domain(&self) -> &Domain {
        // SAFETY: a domain is not closed before its endpoints.
        unsafe { &*self.domain }
    }

    /// # Errors
    /// `FI_EOPBADSTATE` before it is enabled.
    #[inline]
    pub(crate) fn enabled(&self) -> Result<&Enabled> {
        self.enabled.get().ok_or(EOPBADSTATE)
    }

    /// Opens the queue pair.
    fn enable(&self) -> Result<()> {
        let settings = self.settings.lock().map_err(|_| Errno::EOTHER)?;
        if self.enabled.get().is_some() {
            return Ok(());
        }
        let vector = settings.vector.ok_or(ENOAV)?;
        if settings.transmit.is_none() && settings.receive.is_none() {
            return Err(ENOCQ);
        }
        let mut state = self.domain().state()?;
        let (send_queue_depth, recv_queue_depth) =
            info::queue_sizes(state.core.nic_mut().attributes());
        let mut engine = settings::of_environment();
        engine.recv_buffers = recv_queue_depth;
        let mut config = QueuePairConfig {
            send_queue_depth,
            recv_queue_depth,
            qkey: None,
            rnr_retry: 3,
            unsolicited_write_recv: true,
            service_level: settings.service_level,
        };
        settings.options.apply(&mut engine, &mut config);
        let refused = |what: &str, error: &dyn std::fmt::Display, errno: Errno| {
            warn(Part::Endpoint, &format!("{what}: {error}"));
            errno
        };
        // Each endpoint that is open has the packet buffers that its queues hold. A closed one
        // leaves its own to the next.
        let needed =
            (state.endpoints.len() + 1) * (config.send_queue_depth + config.recv_queue_depth);
        let nic = state.core.nic_mut();
        let missing = needed.saturating_sub(nic.packet_buffers());
        nic.add_packet_buffers(missing)
            .map_err(|error| refused("packet buffers", &error, Errno::ENOMEM))?;
        let user = zero_copy::queue_pair(
            &config,
            &zero_copy::Promises {
                caps: settings.caps,
                msg_order: settings.msg_order,
                max_message: settings.options.max_message(),
                permits_shared_memory: settings.options.permits_shared_memory(),
                registers_all: self.domain().registers_all,
            },
            state.core.nic_mut().attributes().mtu,
        );
        let completions = config.completions() + user.map_or(0, |user| user.completions());
        let queue = state.create_queue(completions, self.is_waited_for(&settings))?;
        let nic = state.core.nic_mut();
        let main = nic.create_queue_pair(queue, &config).or_else(|error| {
            if config.service_level == 0 {
                return Err(error);
            }
            // A traffic class is a wish, and not every device and libefa knows service levels.
            explain(
                Part::Endpoint,
                &format!("without the traffic class: {error}"),
            );
            config.service_level = 0;
            nic.create_queue_pair(queue, &config)
        });
        let queue_pairs = main.and_then(|main| match &user {
            Some(user) => Ok((main, Some(nic.create_queue_pair(queue, user)?))),
            None => Ok((main, None)),
        });
        let opened = match queue_pairs {
            Ok((main, None)) => state.core.open_endpoint(main, engine),
            Ok((main, Some(user))) => {
                let core = &mut state.core;
                core.open_endpoint_with_user_receives(main, user, engine)
            }
            Err(error) => {
                state.end_queue(queue);
                return Err(refused("queue pair", &error, Errno::ENOMEM));
            }
        };
        let opened = opened.map_err(|error| refused("endpoint", &error, error.errno()));
        let id = match opened {
            Ok(id) => id,
            Err(errno) => {
                state.end_queue(queue);
                return Err(errno);
            }
        };
        // SAFETY: an address vector is not closed while an endpoint uses it.
        let place = unsafe { &*vector }.place;
        // SAFETY: nor is a completion queue.
        let place_of = |queue: Queue| unsafe { &*queue }.place;
        let flags = |bound: Option<(Queue, u64)>, default| Flags {
            default: AtomicU64::new(default),
            selective: bound.is_none_or(|(_, flags)| flags & FI_SELECTIVE_COMPLETION != 0),
        };
        let enabled = Enabled {
            id,
            place,
            transmit: settings.transmit.map(|(queue, _)| place_of(queue)),
            receive: settings.receive.map(|(queue, _)| place_of(queue)),
            events: settings.events,
            sends: flags(settings.transmit, settings.tx_op_flags),
            receives: flags(settings.receive, settings.rx_op_flags),
            directed: settings.directed,
            names_source: settings.caps & FI_SOURCE != 0,
            zero_copy: user.is_some(),
        };
        for (counter, kinds) in &settings.counters {
            // SAFETY: a counter is not closed while an endpoint uses it.
            unsafe { &**counter }.attach(id, *kinds);
        }
        state.endpoints.push((id, std::ptr::from_ref(self)));
        let _ = self.enabled.set(enabled);
        Ok(())
    }

    /// Gets or sets the flags of calls without any. `flags` say for which direction.
    ///
    /// # Errors
    /// `FI_EINVAL` without exactly one direction, `FI_EBADFLAGS` for flags that there are not.
    fn operation_flags(&self, flags: &mut u64, sets: bool) -> Result<()> {
        let mut settings = self.settings.lock().map_err(|_| Errno::EOTHER)?;
        let settings = &mut *settings;
        let enabled = self.enabled.get();
        let (kept, used, known) = match *flags & (FI_TRANSMIT | FI_RECV) {
            FI_TRANSMIT => {
                let used = enabled.map(|enabled| &enabled.sends);
                (&mut settings.tx_op_flags, used, TX_OP_FLAGS)
            }
            FI_RECV => {
                let used = enabled.map(|enabled| &enabled.receives);
                (&mut settings.rx_op_flags, used, RX_OP_FLAGS)
            }
            _ => return Err(Errno::EINVAL),
        };
        if !sets {
            *flags = *kept;
            return Ok(());
        }
        let wanted = *flags & !(FI_TRANSMIT | FI_RECV);
        if wanted & !known != 0 {
            return Err(border::EBADFLAGS);
        }
        *kept = wanted;
        if let Some(used) = used {
            used.default.store(wanted, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What the device can do, and the queues of its endpoints.
    fn limits(&self) -> Result<Limits> {
        let mut state = self.domain().state()?;
        Ok(Limits::new(state.core.nic_mut().attributes()))
    }

    /// Returns whether somebody may sleep until something happens on this endpoint.
    fn is_waited_for(&self, settings: &Settings) -> bool {
        let queues = [settings.transmit, settings.receive].into_iter().flatten();
        let mut queues = queues.map(|(queue, _)| queue);
        let mut counters = settings.counters.iter();
        self.domain().is_automatic()
            // SAFETY: neither is closed while an endpoint uses it.
            || queues.any(|queue| unsafe { &*queue }.can_sleep())
            // SAFETY: as above.
            || counters.any(|(counter, _)| unsafe { &**counter }.can_sleep())
    }

    /// Hands the end of an operation to the completion queue of its direction.
    #[inline]
    pub(crate) fn report(
        &self,
        tables: &mut Tables,
        result: std::result::Result<CompletionEntry, ErrorEntry>,
    ) {
        const RECEIVED: CompletionFlags = CompletionFlags::RECV
            .union(CompletionFlags::REMOTE_READ)
            .union(CompletionFlags::REMOTE_WRITE);
        let Some(enabled) = self.enabled.get() else {
            return;
        };
        let (flags, source) = match &result {
            Ok(entry) => (entry.flags, entry.source),
            Err(entry) if entry.context == INJECTED => return self.fail(enabled, entry),
            Err(entry) => (entry.flags, entry.source),
        };
        let queue = match flags.intersects(RECEIVED) {
            true => enabled.receive,
            false => enabled.transmit,
        };
        let Some(queue) = queue else {
            return;
        };
        let addresses = tables.vectors.get(enabled.place).and_then(Option::as_ref);
        let source = source.filter(|_| enabled.names_source);
        let source = source.and_then(|peer| addresses.map(|addresses| addresses.address(peer)));
        if let Ok(entries) = tables.entries(queue) {
            entries.add(result, source.unwrap_or(FI_ADDR_UNSPEC));
        }
    }

    /// Reports the failure of an operation that has no completion: to the event queue, or to the
    /// log.
    #[cold]
    fn fail(&self, enabled: &Enabled, entry: &ErrorEntry) {
        match enabled.events {
            // SAFETY: an event queue is not closed while an endpoint uses it.
            Some(events) => unsafe { &*events }.fail(&self.c.fid, entry.failure),
            None => warn(
                Part::Endpoint,
                &format!(
                    "an operation without a completion failed: {}",
                    entry.failure
                ),
            ),
        }
    }

    /// Tells of something that belongs to no operation of the application.
    #[cold]
    pub(crate) fn happened(&self, event: &Event) {
        let Some(enabled) = self.enabled.get() else {
            return;
        };
        match (failure_of(event), enabled.events) {
            // SAFETY: an event queue is not closed while an endpoint uses it.
            (Some(failure), Some(events)) => unsafe { &*events }.fail(&self.c.fid, failure),
            _ => warn(Part::Endpoint, &event.to_string()),
        }
    }

    /// Reports the success of an operation whose data was copied, if the application wants it.
    #[inline]
    pub(crate) fn started(
        &self,
        tables: &mut Tables,
        start: &Start,
        flags: CompletionFlags,
        length: u64,
    ) {
        if let Some(context) = start.reports_now {
            let done = CompletionEntry {
                context,
                flags,
                length,
                data: 0,
                tag: 0,
                source: None,
                buffer: 0,
            };
            self.report(tables, Ok(done));
        }
    }

    /// Goes on with what peers still wait for, a while at most. Other threads use the domain
    /// meanwhile.
    fn say_farewell(&self, id: EndpointId) -> Result<()> {
        let start = Instant::now();
        loop {
            let mut state = self.domain().state()?;
            let taken = state.progress();
            let engine = state.core.endpoint(id);
            if engine.is_none_or(|engine| !engine.has_packets_in_flight()) {
                return Ok(());
            }
            drop(state);
            match start.elapsed() {
                passed if passed > FAREWELL => return Ok(()),
                // Packets that a peer does not take keep nobody from the processor.
                passed if taken == 0 && passed > wait::SPIN => std::thread::sleep(NAP),
                _ => {}
            }
        }
    }

    /// Leaves with the counters what the endpoint has counted.
    fn keep_counts(&self, id: EndpointId, statistics: &Statistics) {
        let Ok(settings) = self.settings.lock() else {
            return;
        };
        for (counter, _) in &settings.counters {
            // SAFETY: a counter is not closed while an endpoint uses it.
            unsafe { &**counter }.detach(id, statistics);
        }
    }

    /// Gives back what `bind` has taken.
    fn release(&self) {
        let Ok(mut settings) = self.settings.lock() else {
            return;
        };
        if std::mem::replace(&mut settings.closed, true) {
            return;
        }
        for (queue, _) in [settings.transmit.take(), settings.receive.take()]
            .into_iter()
            .flatten()
        {
            // SAFETY: they are not closed while an endpoint uses them.
            unsafe { &*queue }.users.remove();
        }
        if let Some(events) = settings.events.take() {
            // SAFETY: likewise.
            unsafe { &*events }.users.remove();
        }
        for (counter, _) in settings.counters.drain(..) {
            // SAFETY: likewise.
            unsafe { &*counter }.users.remove();
        }
        if let Some(vector) = settings.vector.take() {
            // SAFETY: likewise.
            unsafe { &*vector }.users.remove();
        }
        self.domain().users.remove();
    }
}

/// How an operation that sends data is started.
pub(crate) struct Start {
    /// What the engine is told.
    pub(crate) flags: OperationFlags,
    /// The context that the engine returns.
    pub(crate) context: u64,
    /// The application's context, if a success is to be reported by [`Endpoint::started`]: the
    /// engine reports nothing of data that was copied within the call.
    reports_now: Option<u64>,
}

impl Start {
    /// A call that has no completion.
    pub(crate) const INJECT: Start = Start {
        flags: OperationFlags::INJECT,
        context: INJECTED,
        reports_now: None,
    };
}

impl Enabled {
    /// How a call is started that has these flags, if it has any.
    #[inline]
    pub(crate) fn start(&self, flags: Option<u64>, context: *mut c_void) -> Start {
        let flags = self.sends.of(self.sends.or_default(flags));
        let context = context.addr() as u64;
        match flags.contains(OperationFlags::INJECT) {
            false => Start {
                flags,
                context,
                reports_now: None,
            },
            true => Start {
                flags: flags.difference(OperationFlags::COMPLETION),
                context: INJECTED,
                reports_now: flags
                    .contains(OperationFlags::COMPLETION)
                    .then_some(context),
            },
        }
    }

    /// The entries of the address vector.
    ///
    /// # Errors
    /// `FI_EINVAL` if the vector is gone.
    #[inline]
    pub(crate) fn addresses<'a>(&self, tables: &'a Tables) -> Result<&'a Addresses> {
        let addresses = tables.vectors.get(self.place).and_then(Option::as_ref);
        addresses.ok_or(Errno::EINVAL)
    }
}

/// # Safety
/// As libfabric documents `fi_close`.
unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let endpoint: &Endpoint = unsafe { border::object(fid.cast()) }?;
        if let Some(enabled) = endpoint.enabled.get() {
            endpoint.say_farewell(enabled.id)?;
            let mut state = endpoint.domain().state()?;
            state.endpoints.retain(|(id, _)| *id != enabled.id);
            state.claims.retain(|(id, _), _| *id != enabled.id);
            let mut queue = None;
            if let Some(engine) = state.core.endpoint(enabled.id) {
                endpoint.keep_counts(enabled.id, engine.statistics());
                queue = Some(engine.nic().queue_pair().completion_queue());
            }
            state.core.close_endpoint(enabled.id);
            if let Some(queue) = queue {
                state.end_queue(queue);
            }
        }
        endpoint.release();
        // SAFETY: the domain does not know it any more, and C gives up its pointer.
        drop(unsafe { border::take(endpoint) });
        Ok(())
    })
}

/// # Safety
/// As libfabric documents `fi_ep_bind`.
unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, flags: u64) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let endpoint: &Endpoint = unsafe { border::object(fid.cast()) }?;
        let mut settings = endpoint.settings.lock().map_err(|_| Errno::EOTHER)?;
        if endpoint.enabled.get().is_some() {
            return Err(EOPBADSTATE);
        }
        // SAFETY: by the caller's contract, here and below.
        if let Ok(vector) = unsafe { border::object::<AddressVector>(other.cast()) } {
            if settings.vector.is_some() || !std::ptr::eq(vector.domain, endpoint.domain) {
                return Err(Errno::EINVAL);
            }
            vector.users.add();
            settings.vector = Some(vector);
            return Ok(());
        }
        // SAFETY: as above.
        if let Ok(queue) = unsafe { border::object::<CompletionQueue>(other.cast()) } {
            let directions = flags & (FI_TRANSMIT | FI_RECV);
            let taken = (directions & FI_TRANSMIT != 0 && settings.transmit.is_some())
                || (directions & FI_RECV != 0 && settings.receive.is_some());
            if directions == 0
                || taken
                || flags & !(directions | FI_SELECTIVE_COMPLETION) != 0
                || !std::ptr::eq(queue.domain, endpoint.domain)
            {
                return Err(Errno::EINVAL);
            }
            if directions & FI_TRANSMIT != 0 {
                queue.users.add();
                settings.transmit = Some((queue, flags));
            }
            if directions & FI_RECV != 0 {
                queue.users.add();
                settings.receive = Some((queue, flags));
            }
            return Ok(());
        }
        // SAFETY: as above.
        if let Ok(counter) = unsafe { border::object::<Counter>(other.cast()) } {
            Counter::check(flags)?;
            if !std::ptr::eq(counter.domain, endpoint.domain) {
                return Err(Errno::EINVAL);
            }
            counter.users.add();
            settings.counters.push((counter, flags));
            return Ok(());
        }
        // SAFETY: as above.
        let events: &EventQueue = unsafe { border::object(other.cast()) }?;
        if settings.events.is_some() {
            return Err(Errno::EINVAL);
        }
        events.users.add();
        settings.events = Some(events);
        Ok(())
    })
}

/// # Safety
/// As libfabric documents `fi_control` of endpoints.
unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let endpoint: &Endpoint = unsafe { border::object(fid.cast()) }?;
        let command = u32::try_from(command).map_err(|_| border::ENOSYS)?;
        match command {
            FI_ENABLE => endpoint.enable(),
            FI_GETOPSFLAG | FI_SETOPSFLAG => {
                // SAFETY: by the caller's contract.
                let flags = unsafe { argument.cast::<u64>().as_mut() }.ok_or(Errno::EINVAL)?;
                endpoint.operation_flags(flags, command == FI_SETOPSFLAG)
            }
            // An alias would be the same queues with other flags, which `FI_SETOPSFLAG` gives as
            // well.
            _ => Err(border::ENOSYS),
        }
    })
}

/// # Safety
/// As libfabric documents `fi_getname`.
unsafe extern "C" fn getname(fid: fid_t, address: *mut c_void, length: *mut usize) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let endpoint: &Endpoint = unsafe { border::object(fid.cast()) }?;
        if length.is_null() {
            return Err(Errno::EINVAL);
        }
        let id = endpoint.enabled()?.id;
        let mut state = endpoint.domain().state()?;
        let own = state.core.endpoint(id).ok_or(EOPBADSTATE)?.address();
        // SAFETY: by the caller's contract.
        unsafe { border::copy_out(&own.to_bytes(), address, length) }
    })
}

/// # Safety
/// As libfabric documents `fi_cancel`.
unsafe extern "C" fn cancel(fid: fid_t, context: *mut c_void) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        let endpoint: &Endpoint = unsafe { border::object(fid.cast()) }?;
        let Enabled { id, zero_copy, .. } = *endpoint.enabled()?;
        if zero_copy {
            // The device does not give back what it has.
            return Err(EOPNOTSUPP);
        }
        let mut state = endpoint.domain().state()?;
        let engine = state.core.endpoint(id).ok_or(EOPBADSTATE)?;
        let found = engine.cancel_context(context.addr() as u64);
        state.deliver();
        match found {
            true => Ok(0),
            false => Err(Errno::ENOENT),
        }
    })
}

/// # Safety
/// As libfabric documents `fi_getopt`.
unsafe extern "C" fn getopt(
    fid: fid_t,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: *mut usize,
) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let endpoint: &Endpoint = unsafe { border::object(fid.cast()) }?;
        if level != FI_OPT_ENDPOINT as c_int {
            return Err(Errno(libc::ENOPROTOOPT));
        }
        if option == FI_OPT_MIN_MULTI_RECV as c_int {
            let bytes = endpoint.min_multi_recv.load(Ordering::Relaxed);
            // SAFETY: by the caller's contract.
            return unsafe { options::give(&bytes.to_ne_bytes(), value, length) };
        }
        let limits = endpoint.limits()?;
        let settings = endpoint.settings.lock().map_err(|_| Errno::EOTHER)?;
        // SAFETY: by the caller's contract.
        unsafe { settings.options.get(option, &limits, value, length) }
    })
}

/// # Safety
/// As libfabric documents `fi_setopt`.
unsafe extern "C" fn setopt(
    fid: fid_t,
    level: c_int,
    option: c_int,
    value: *const c_void,
    length: usize,
) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let endpoint: &Endpoint = unsafe { border::object(fid.cast()) }?;
        if level != FI_OPT_ENDPOINT as c_int {
            return Err(Errno(libc::ENOPROTOOPT));
        }
        if option == FI_OPT_MIN_MULTI_RECV as c_int {
            // SAFETY: by the caller's contract.
            let bytes = usize::from_ne_bytes(unsafe { options::take(value, length) }?);
            endpoint.min_multi_recv.store(bytes, Ordering::Relaxed);
            return Ok(());
        }
        let limits = endpoint.limits()?;
        let is_enabled = endpoint.enabled.get().is_some();
        let mut settings = endpoint.settings.lock().map_err(|_| Errno::EOTHER)?;
        let options = &mut settings.options;
        // SAFETY: by the caller's contract.
        unsafe { options.set(option, &limits, is_enabled, value, length) }
    })
}

/// The failure that an event queue gets for something that belongs to no operation of the
/// application, if it gets one.
fn failure_of(event: &Event) -> Option<Failure> {
    let Event::PacketRefused { reason, .. } = event else {
        return None;
    };
    let provider = match reason {
        PacketError::MessageWithHeader => ProviderError::HeaderAtZeroCopyReceiver,
        PacketError::NoMessage { .. } => ProviderError::PeerAborted,
        _ => return None,
    };
    Some(Failure {
        errno: Errno::EINVAL,
        provider,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_queue_gets_what_the_application_would_miss() {
        let failure = |reason| {
            let event = Event::PacketRefused {
                peer: None,
                packet_type: 12,
                reason,
            };
            failure_of(&event).map(|failure| (failure.errno, failure.provider.code()))
        };
        for (reason, code) in [
            (PacketError::MessageWithHeader, 4125),
            (PacketError::NoMessage { id: 7 }, 4127),
        ] {
            assert_eq!(failure(reason), Some((Errno::EINVAL, code)));
        }
        assert_eq!(failure(PacketError::StaleOperation { id: 7 }), None);
    }
}
