//! Domains: one device, opened, with the endpoints on it and what they share.

use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use efa_core::endpoint::{ClaimId, EndpointId, Errno};
use efa_core::nic::{Device as _, DomainConfig, UserSlice};
use efa_hw::{CacheLimits, DeviceName, HwDevice, HwDomain};

use crate::address_vector::{self, AddressVector, Addresses};
use crate::atomics;
use crate::border::{self, ENODATA, Object, Result, Users};
use crate::completion_queue::{self, CompletionQueue};
use crate::counter;
use crate::endpoint::{self, Endpoint};
use crate::fabric::Fabric;
use crate::ffi::*;
use crate::host::{Part, explain, warn};
use crate::info::{RX_SIZE, TX_SIZE, device_of};
use crate::memory_region;
use crate::unsupported;

/// Endpoints that a domain has packet buffers for.
pub(crate) const ENDPOINTS: usize = 8;

/// A domain (`fid_domain`).
#[repr(C)]
pub(crate) struct Domain {
    c: fid_domain,
    fabric: *const Fabric,
    pub(crate) users: Users,
    state: Mutex<State>,
}

/// What the objects of a domain share. One lock is held during each of their calls, whatever threading model the
/// application asked for: without contention it costs some nanoseconds.
pub(crate) struct State {
    pub(crate) core: efa_core::endpoint::Domain<HwDomain>,
    opened: Instant,
    pub(crate) endpoints: Vec<(EndpointId, *const Endpoint)>,
    pub(crate) vectors: Vec<Option<Addresses>>,
    /// Messages that were claimed, by the context that claimed them.
    pub(crate) claims: HashMap<(EndpointId, u64), ClaimId>,
}

// SAFETY: `#[repr(C)]`, and the first member begins with a `fid`; no other type has these operations.
unsafe impl Object for Domain {
    const CLASS: u32 = FI_CLASS_DOMAIN;

    fn operations() -> &'static fi_ops {
        &FID
    }
}

static FID: fi_ops = fi_ops {
    close: Some(close),
    bind: Some(bind),
    ..unsupported::FID
};

static OPS: fi_ops_domain = fi_ops_domain {
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
};

impl Domain {
    /// Opens the device that the info names.
    ///
    /// # Errors
    /// `FI_EINVAL` without a domain's name, `FI_ENODATA` if the device cannot be opened, which is in the log.
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
        let state = State::open(device_of(&name)).map_err(|error| {
            warn(Part::Domain, &error);
            ENODATA
        })?;
        fabric.users.add();
        Ok(Domain {
            c: fid_domain {
                fid: fid {
                    context,
                    ..fid::default()
                },
                ops: std::ptr::from_ref(&OPS).cast_mut(),
                mr: std::ptr::from_ref(&memory_region::OPS).cast_mut(),
            },
            fabric,
            users: Users::default(),
            state: Mutex::new(state),
        })
    }

    /// The state, locked.
    ///
    /// # Errors
    /// `FI_EOTHER` after a panic of another thread in the engine.
    #[inline]
    pub(crate) fn state(&self) -> Result<MutexGuard<'_, State>> {
        self.state.lock().map_err(|_| Errno::EOTHER)
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
        let device = HwDevice::open(&DeviceName::Named(device.to_owned()))
            .map_err(|error| error.to_string())?;
        let config = DomainConfig {
            packet_buffers: ENDPOINTS * (RX_SIZE + TX_SIZE),
        };
        let mut domain = device
            .open_domain(&config)
            .map_err(|error| error.to_string())?;
        // SAFETY: libfabric's interface says of all memory in calls what `allow_user` asks for.
        unsafe { domain.allow_user(EVERYTHING) }.map_err(|error| error.to_string())?;
        if let Err(error) = domain.cache_registrations(CacheLimits::default()) {
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
            vectors: Vec::new(),
            claims: HashMap::new(),
        })
    }

    /// The time, as the engine counts it.
    #[inline]
    pub(crate) fn now(&self) -> efa_core::endpoint::Instant {
        efa_core::endpoint::Instant::START + self.opened.elapsed()
    }

    /// Makes progress on all endpoints, and hands what completed to their completion queues.
    pub(crate) fn progress(&mut self) {
        let now = self.now();
        self.core.progress(now);
        self.deliver();
    }

    /// Hands what completed to the completion queues.
    pub(crate) fn deliver(&mut self) {
        for (id, object) in &self.endpoints {
            let Some(engine) = self.core.endpoint(*id) else {
                continue;
            };
            // SAFETY: an endpoint leaves this list before it ends.
            let object = unsafe { &**object };
            while let Some(result) = engine.poll_completion() {
                object.report(&self.vectors, result);
            }
        }
    }
}

/// All memory that a program can have: what libfabric's calls name is the application's responsibility.
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
        let domain = unsafe { border::take(domain) };
        drop(domain);
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

/// Takes a completion queue, checked, from an endpoint's binding.
pub(crate) type Queue = *const CompletionQueue;
/// Takes an address vector, checked, from an endpoint's binding.
pub(crate) type Vector = *const AddressVector;
