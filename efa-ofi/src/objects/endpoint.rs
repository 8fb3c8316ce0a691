//! Endpoints: their configuration before they are enabled, their options, and their end.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use efa_core::address::RawAddress;
use efa_core::endpoint::MAX_REQUEST_HEADER;
use efa_core::endpoint::{EndpointId, Errno};
use efa_core::nic::{Domain as _, Nic as _, QueuePair as _};

use crate::capabilities;
use crate::ffi::object::{Object, Ref, close, copy_out, new_fid, object};
use crate::ffi::result::{
    EBADFLAGS, ENOPROTOOPT, ENOSYS, EOPBADSTATE, EOPNOTSUPP, Result, ssize, status,
};
use crate::ffi::table::Table;
use crate::ffi::*;
use crate::objects::binding::Bindings;
use crate::objects::datagrams::EnabledDatagrams;
use crate::objects::domain::Domain;
use crate::objects::enabled::{Attributes, EnabledEndpoint};
use crate::objects::options::{self, Limits, Options};
use crate::settings;
use crate::state::wait;

/// The time for which a closing endpoint continues to serve operations that peers wait for.
const LINGER: Duration = Duration::from_secs(1);

/// The time that it sleeps between polls.
const LINGER_INTERVAL: Duration = Duration::from_micros(100);

/// An endpoint (`fid_ep`).
#[repr(C)]
pub(crate) struct Endpoint {
    c: fid_ep,
    domain: Ref<Domain>,
    settings: Mutex<Settings>,
    /// The least rest of a multi-receive buffer for another message, in bytes
    /// (`FI_OPT_MIN_MULTI_RECV`): of those that are posted after the option is set, which
    /// applications do before and after they enable the endpoint. At first it is the longest
    /// message that one packet has in any case.
    pub(crate) min_multi_recv: AtomicUsize,
    enabled: OnceLock<EnabledEndpoint>,
    /// As [`Endpoint::enabled`], of a datagram endpoint.
    datagrams: OnceLock<EnabledDatagrams>,
    /// The number of times that it has joined each set of members, by a hash of these.
    joins: Mutex<HashMap<u64, u64>>,
}

/// The configuration of an endpoint, until it is enabled, and options that may change later.
struct Settings {
    bindings: Bindings,
    attributes: Attributes,
    options: Options,
}

// SAFETY: `#[repr(C)]`, and the first member begins with a `fid`; no other type has these
// operations.
unsafe impl Object for Endpoint {
    const CLASS: u32 = FI_CLASS_EP;
    const OPERATIONS: &'static Table<fi_ops> = &FID;

    fn before_close(&self) -> Result<()> {
        if let Some(EnabledDatagrams { key, .. }) = self.datagrams.get() {
            self.domain.state()?.close_datagrams(*key);
        }
        let Some(EnabledEndpoint { id, .. }) = self.enabled.get() else {
            return Ok(());
        };
        self.linger(*id)?;
        let mut state = self.domain.state()?;
        state.endpoints.retain(|(other, _)| other != id);
        state.claims.retain(|(other, _), _| other != id);
        state.deferred.retain(|operation| operation.endpoint != *id);
        let mut queue = None;
        if let Some(engine) = state.core.endpoint(*id) {
            if let Ok(settings) = self.settings.lock() {
                settings.bindings.detach_counters(*id, engine.statistics());
            }
            queue = Some(engine.nic().queue_pair().completion_queue());
        }
        state.core.close_endpoint(*id);
        if let Some(queue) = queue {
            state.end_queue(queue);
        }
        Ok(())
    }
}

static FID: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close::<Endpoint>),
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

/// The calls about addresses, without the calls of groups.
pub(crate) const CM: fi_ops_cm = fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname: Some(unsupported::setname),
    getname: Some(getname),
    getpeer: Some(unsupported::getpeer),
    connect: Some(unsupported::connect),
    listen: Some(unsupported::listen),
    accept: Some(unsupported::accept),
    reject: Some(unsupported::reject),
    shutdown: Some(unsupported::shutdown),
    join: None,
};

/// The tables of the calls that transfer data.
pub(crate) struct TransferCalls {
    pub(crate) msg: &'static Table<fi_ops_msg>,
    pub(crate) tagged: &'static Table<fi_ops_tagged>,
    pub(crate) rma: &'static Table<fi_ops_rma>,
    pub(crate) atomic: &'static Table<fi_ops_atomic>,
    pub(crate) collective: &'static Table<fi_ops_collective>,
    pub(crate) cm: &'static Table<fi_ops_cm>,
}

impl Endpoint {
    /// An endpoint as its info describes it.
    ///
    /// # Errors
    /// `FI_EINVAL` for another type than that of the domain's endpoints.
    ///
    /// # Safety
    /// The attributes of the info are valid or null.
    pub(crate) unsafe fn new(
        domain: &Domain,
        info: &fi_info,
        calls: &TransferCalls,
        context: *mut c_void,
    ) -> Result<Endpoint> {
        // SAFETY: by the caller's contract.
        let (ep, tx, rx) = unsafe {
            (
                info.ep_attr.as_ref(),
                info.tx_attr.as_ref(),
                info.rx_attr.as_ref(),
            )
        };
        let types = [FI_EP_UNSPEC, domain.endpoint_type.number];
        if ep.is_some_and(|attributes| !types.contains(&attributes.type_)) {
            return Err(Errno::EINVAL);
        }
        let (ep, tx, rx) = (
            ep.copied().unwrap_or_default(),
            tx.copied().unwrap_or_default(),
            rx.copied().unwrap_or_default(),
        );
        let max_message = match ep.max_msg_size {
            0 => capabilities::MAX_MESSAGE,
            promised => promised,
        };
        let environment = settings::of_environment();
        let mtu = domain.state()?.core.nic_mut().attributes().mtu;
        Ok(Endpoint {
            c: fid_ep {
                fid: new_fid(context),
                ops: OPS.as_c(),
                cm: calls.cm.as_c(),
                msg: calls.msg.as_c(),
                rma: calls.rma.as_c(),
                tagged: calls.tagged.as_c(),
                atomic: calls.atomic.as_c(),
                collective: calls.collective.as_c(),
            },
            settings: Mutex::new(Settings {
                bindings: Bindings::default(),
                attributes: Attributes {
                    tx_op_flags: tx.op_flags,
                    rx_op_flags: rx.op_flags,
                    directed: info.caps & FI_DIRECTED_RECV != 0,
                    names_source: info.caps & FI_SOURCE != 0,
                    caps: info.caps,
                    msg_order: tx.msg_order | rx.msg_order,
                    service_level: capabilities::service_level(domain.traffic_class, tx.tclass),
                },
                options: Options::new(&environment, max_message, [tx.size, rx.size]),
            }),
            min_multi_recv: AtomicUsize::new(mtu.saturating_sub(MAX_REQUEST_HEADER)),
            enabled: OnceLock::new(),
            datagrams: OnceLock::new(),
            joins: Mutex::default(),
            domain: Ref::new(domain),
        })
    }

    #[inline]
    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    /// # Errors
    /// `FI_EOPBADSTATE` before it is enabled, `FI_ENOSYS` if it is one for datagrams.
    #[inline]
    pub(crate) fn enabled(&self) -> Result<&EnabledEndpoint> {
        self.enabled.get().ok_or_else(|| self.not_enabled())
    }

    #[cold]
    fn not_enabled(&self) -> Errno {
        match self.domain.endpoint_type.is_datagram() {
            true => ENOSYS,
            false => EOPBADSTATE,
        }
    }

    /// The parts of an enabled datagram endpoint.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` before it is enabled.
    pub(crate) fn datagrams(&self) -> Result<&EnabledDatagrams> {
        self.datagrams.get().ok_or(EOPBADSTATE)
    }

    fn is_enabled(&self) -> bool {
        self.enabled.get().is_some() || self.datagrams.get().is_some()
    }

    /// Its address.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` before it is enabled.
    fn address(&self) -> Result<RawAddress> {
        let mut state = self.domain.state()?;
        if self.domain.endpoint_type.is_datagram() {
            let opened = state.datagrams.get(self.datagrams()?.key);
            return Ok(opened.ok_or(EOPBADSTATE)?.queue_pair.address());
        }
        let engine = state.core.endpoint(self.enabled()?.id);
        Ok(engine.ok_or(EOPBADSTATE)?.address())
    }

    /// Returns the number of times that the endpoint has joined a set of members before, and counts
    /// one more.
    pub(crate) fn joins(&self, members: u64) -> Result<u64> {
        let mut joins = self.joins.lock().map_err(|_| Errno::EOTHER)?;
        let count = joins.entry(members).or_default();
        *count += 1;
        Ok(*count - 1)
    }

    fn settings(&self) -> Result<MutexGuard<'_, Settings>> {
        self.settings.lock().map_err(|_| Errno::EOTHER)
    }

    /// Opens the queue pair.
    fn enable(&self) -> Result<()> {
        let settings = self.settings()?;
        if self.is_enabled() {
            return Ok(());
        }
        let Settings {
            bindings,
            attributes,
            options,
        } = &*settings;
        if self.domain.endpoint_type.is_datagram() {
            let opened = EnabledDatagrams::new(&self.c.fid, &self.domain, bindings, attributes)?;
            let _ = self.datagrams.set(opened);
            return Ok(());
        }
        let enabled =
            EnabledEndpoint::new(&self.c.fid, &self.domain, bindings, attributes, options)?;
        let _ = self.enabled.set(enabled);
        Ok(())
    }

    /// Gets or sets the flags of calls that have none. `flags` have one direction.
    ///
    /// # Errors
    /// `FI_EINVAL` without exactly one direction, `FI_EBADFLAGS` for unknown flags.
    fn operation_flags(&self, flags: &mut u64, sets: bool) -> Result<()> {
        let mut settings = self.settings()?;
        let attributes = &mut settings.attributes;
        let of = self.domain.endpoint_type;
        let (sends, receives) = match (self.enabled.get(), self.datagrams.get()) {
            (Some(enabled), _) => (Some(&enabled.sends), Some(&enabled.receives)),
            (_, Some(enabled)) => (Some(&enabled.sends), Some(&enabled.receives)),
            (None, None) => (None, None),
        };
        let (kept, used, known) = match *flags & (FI_TRANSMIT | FI_RECV) {
            FI_TRANSMIT => (&mut attributes.tx_op_flags, sends, of.tx_op_flags),
            FI_RECV => (&mut attributes.rx_op_flags, receives, of.rx_op_flags),
            _ => return Err(Errno::EINVAL),
        };
        if !sets {
            *flags = *kept;
            return Ok(());
        }
        let wanted = *flags & !(FI_TRANSMIT | FI_RECV);
        if wanted & !known != 0 {
            return Err(EBADFLAGS);
        }
        *kept = wanted;
        if let Some(used) = used {
            used.default.store(wanted, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The limits of the device and of its endpoints' queues.
    fn limits(&self) -> Result<Limits> {
        let mut state = self.domain.state()?;
        Ok(Limits::new(state.core.nic_mut().attributes()))
    }

    /// Continues to serve operations that peers wait for, for a limited time. The lock is released
    /// in between, so that other threads can use the domain.
    fn linger(&self, id: EndpointId) -> Result<()> {
        let start = Instant::now();
        loop {
            let mut state = self.domain.state()?;
            let taken = state.progress();
            let engine = state.core.endpoint(id);
            if engine.is_none_or(|engine| !engine.has_packets_in_flight()) {
                return Ok(());
            }
            drop(state);
            match start.elapsed() {
                passed if passed > LINGER => return Ok(()),
                // A peer that accepts no packets must not make this thread spin forever.
                passed if taken == 0 && passed > wait::SPIN => {
                    std::thread::sleep(LINGER_INTERVAL);
                }
                _ => {}
            }
        }
    }
}

/// Binds an address vector, a completion queue, a counter or an event queue (`fi_ep_bind`).
///
/// # Returns
/// 0; `-FI_EOPBADSTATE` after the endpoint was enabled, or an error of [`Bindings::bind`].
///
/// # Safety
/// Any pointers are permitted.
unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, flags: u64) -> c_int {
    status(|| {
        // SAFETY: any pointer is permitted.
        let endpoint: &Endpoint = unsafe { object(fid.cast()) }?;
        let mut settings = endpoint.settings()?;
        if endpoint.is_enabled() {
            return Err(EOPBADSTATE);
        }
        // SAFETY: any pointer is permitted.
        unsafe {
            settings
                .bindings
                .bind(&endpoint.domain, other.cast(), flags)
        }
    })
}

/// Enables an endpoint (`FI_ENABLE`), and gets and sets the flags of calls that have none
/// (`FI_GETOPSFLAG`, `FI_SETOPSFLAG`) (`fi_control`).
///
/// # Returns
/// 0; `-FI_ENOSYS` for other commands, or an error of [`EnabledEndpoint::new`].
///
/// # Safety
/// For the two commands about flags, `argument` is null or points to a `uint64_t`.
unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: any pointer is permitted.
        let endpoint: &Endpoint = unsafe { object(fid.cast()) }?;
        let command = u32::try_from(command).map_err(|_| ENOSYS)?;
        match command {
            FI_ENABLE => endpoint.enable(),
            FI_GETOPSFLAG | FI_SETOPSFLAG => {
                // SAFETY: by the caller's contract.
                let flags = unsafe { argument.cast::<u64>().as_mut() }.ok_or(Errno::EINVAL)?;
                endpoint.operation_flags(flags, command == FI_SETOPSFLAG)
            }
            // An alias would be the same queues with other flags, which `FI_SETOPSFLAG` provides as
            // well.
            _ => Err(ENOSYS),
        }
    })
}

/// Copies the endpoint's own address out (`fi_getname`).
///
/// # Returns
/// 0; `-FI_EOPBADSTATE` before the endpoint is enabled, `-FI_ETOOSMALL` if the buffer is too small.
///
/// # Safety
/// `length` is null or valid for reads and writes, and `address` is valid for `length` bytes.
unsafe extern "C" fn getname(fid: fid_t, address: *mut c_void, length: *mut usize) -> c_int {
    status(|| {
        // SAFETY: any pointer is permitted.
        let endpoint: &Endpoint = unsafe { object(fid.cast()) }?;
        if length.is_null() {
            return Err(Errno::EINVAL);
        }
        let own = endpoint.address()?.to_bytes();
        // SAFETY: by the caller's contract.
        unsafe { copy_out(&own, address, length) }
    })
}

/// Cancels the receive with this context (`fi_cancel`).
///
/// # Returns
/// 0; `-FI_ENOENT` for an unknown context, `-FI_EOPNOTSUPP` with zero-copy receive, because the
/// device does not return posted buffers.
///
/// # Safety
/// Any pointers are permitted.
unsafe extern "C" fn cancel(fid: fid_t, context: *mut c_void) -> isize {
    ssize(|| {
        // SAFETY: any pointer is permitted.
        let endpoint: &Endpoint = unsafe { object(fid.cast()) }?;
        let EnabledEndpoint { id, zero_copy, .. } = *endpoint.enabled()?;
        if zero_copy {
            return Err(EOPNOTSUPP);
        }
        let mut state = endpoint.domain.state()?;
        let engine = state.core.endpoint(id).ok_or(EOPBADSTATE)?;
        let found = engine.cancel_context(context.addr() as u64);
        state.deliver();
        match found {
            true => Ok(0),
            false => Err(Errno::ENOENT),
        }
    })
}

/// Returns the endpoint for an option call at this level.
///
/// # Errors
/// `FI_EINVAL` for an object that is not an endpoint, `FI_ENOPROTOOPT` for levels other than
/// `FI_OPT_ENDPOINT` and for datagram endpoints, like stock.
///
/// # Safety
/// C does not close the endpoint meanwhile; the pointer may be any.
unsafe fn with_options<'a>(fid: fid_t, level: c_int) -> Result<&'a Endpoint> {
    // SAFETY: C does not close it meanwhile, by the caller's contract.
    let endpoint: &Endpoint = unsafe { object(fid.cast()) }?;
    let has_options = !endpoint.domain.endpoint_type.is_datagram();
    match has_options && level == FI_OPT_ENDPOINT as c_int {
        true => Ok(endpoint),
        false => Err(ENOPROTOOPT),
    }
}

/// Returns the value of an option (`fi_getopt`).
///
/// # Returns
/// 0, or an error of [`Options::get`].
///
/// # Safety
/// `length` is null or valid for reads and writes, and `value` is valid for `length` bytes.
unsafe extern "C" fn getopt(
    fid: fid_t,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: *mut usize,
) -> c_int {
    status(|| {
        // SAFETY: any pointer is permitted.
        let endpoint = unsafe { with_options(fid, level) }?;
        if option == FI_OPT_MIN_MULTI_RECV as c_int {
            let bytes = endpoint.min_multi_recv.load(Ordering::Relaxed);
            // SAFETY: by the caller's contract.
            return unsafe { copy_out(&bytes.to_ne_bytes(), value, length) };
        }
        let limits = endpoint.limits()?;
        let settings = endpoint.settings()?;
        // SAFETY: by the caller's contract.
        unsafe { settings.options.get(option, &limits, value, length) }
    })
}

/// Sets an option (`fi_setopt`).
///
/// # Returns
/// 0, or an error of [`Options::set`].
///
/// # Safety
/// `value` is null or has `length` bytes.
unsafe extern "C" fn setopt(
    fid: fid_t,
    level: c_int,
    option: c_int,
    value: *const c_void,
    length: usize,
) -> c_int {
    status(|| {
        // SAFETY: any pointer is permitted.
        let endpoint = unsafe { with_options(fid, level) }?;
        if option == FI_OPT_MIN_MULTI_RECV as c_int {
            // SAFETY: by the caller's contract.
            let bytes = usize::from_ne_bytes(unsafe { options::take(value, length) }?);
            endpoint.min_multi_recv.store(bytes, Ordering::Relaxed);
            return Ok(());
        }
        let limits = endpoint.limits()?;
        let is_enabled = endpoint.is_enabled();
        let options = &mut endpoint.settings()?.options;
        // SAFETY: by the caller's contract.
        unsafe { options.set(option, &limits, is_enabled, value, length) }
    })
}
