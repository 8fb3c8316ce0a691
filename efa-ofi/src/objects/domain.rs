//! Domains: an application's use of one device.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use efa_core::endpoint::Errno;

use crate::capabilities::{EndpointType, device_of};
use crate::ffi::object::{Object, Ref, close, new_fid, object};
use crate::ffi::result::{EOPNOTSUPP, Result, status};
use crate::ffi::table::Table;
use crate::ffi::*;
use crate::fork;
use crate::objects::event_queue::EventQueue;
use crate::objects::fabric::Fabric;
use crate::state::domain::DomainState;
use crate::state::lock::{Guard, Lock};
use crate::state::progress::Progress;

/// A domain (`fid_domain`).
#[repr(C)]
pub(crate) struct Domain {
    c: fid_domain,
    /// Its name in infos.
    pub(crate) name: String,
    /// The type of its endpoints.
    pub(crate) endpoint_type: &'static EndpointType,
    /// The application registers all memory that operations use (`FI_MR_LOCAL`).
    pub(crate) registers_all: bool,
    /// The default traffic class of endpoints (`FI_TC_...`).
    pub(crate) traffic_class: u32,
    /// Entries of failures have the length of their data, as since interface 1.5.
    pub(crate) knows_detail_sizes: bool,
    state: Arc<Lock<DomainState>>,
    /// The thread of automatic progress, if the application requested it.
    progress: Option<Progress>,
    _fabric: Ref<Fabric>,
}

// SAFETY: `#[repr(C)]`, and the first member begins with a `fid`; no other type has these
// operations.
unsafe impl Object for Domain {
    const CLASS: u32 = FI_CLASS_DOMAIN;
    const OPERATIONS: &'static Table<fi_ops> = &FID;
}

static FID: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close::<Domain>),
    bind: Some(bind),
    ops_open: Some(ops_open),
    ..unsupported::FID
});

impl Domain {
    /// Opens the device that the info names, with the calls that open other objects from it.
    ///
    /// # Errors
    /// `FI_EINVAL` without a domain's name, `FI_ENODATA` if the device cannot be opened. The log
    /// has the reason.
    ///
    /// # Safety
    /// The info and everything that it points to are valid, or null.
    pub(crate) unsafe fn open(
        fabric: &Fabric,
        info: *const fi_info,
        calls: &'static Table<fi_ops_domain>,
        registration: &'static Table<fi_ops_mr>,
        context: *mut c_void,
    ) -> Result<Domain> {
        // SAFETY: by the caller's contract.
        let attributes = unsafe { info.as_ref().and_then(|info| info.domain_attr.as_ref()) };
        let attributes = attributes.filter(|attributes| !attributes.name.is_null());
        let attributes = attributes.ok_or(Errno::EINVAL)?;
        // SAFETY: a name that is not null is a string.
        let name = unsafe { CStr::from_ptr(attributes.name) }.to_string_lossy();
        fork::prepare()?;
        fork::guard()?;
        let (device, endpoint_type) = device_of(&name);
        let state = DomainState::open(device)?;
        let models = [attributes.control_progress, attributes.data_progress];
        let is_automatic = models.contains(&FI_PROGRESS_AUTO);
        let state = match attributes.threading == FI_THREAD_DOMAIN && !is_automatic {
            // SAFETY: the threading model guarantees this, and the domain has no progress thread.
            true => unsafe { Lock::unsynchronized(state) },
            false => Lock::new(state),
        };
        let state = Arc::new(state);
        let progress = match is_automatic {
            true => Some(Progress::start(&state)?),
            false => None,
        };
        Ok(Domain {
            c: fid_domain {
                fid: new_fid(context),
                ops: calls.as_c(),
                mr: registration.as_c(),
            },
            name: endpoint_type.domain_name(device),
            endpoint_type,
            registers_all: attributes.mr_mode as u64 & FI_MR_LOCAL != 0,
            traffic_class: attributes.tclass,
            knows_detail_sizes: !(1..1 << 16 | 5).contains(&fabric.api_version()),
            state,
            progress,
            _fabric: Ref::new(fabric),
        })
    }

    /// The state, locked.
    ///
    /// # Errors
    /// `FI_EOTHER` after a panic of another thread in the engine.
    #[inline]
    pub(crate) fn state(&self) -> Result<Guard<'_, DomainState>> {
        self.state.lock()
    }

    /// Runs a call that starts an operation. Completions within the call are delivered at its end,
    /// so that sleeping threads are woken.
    ///
    /// # Errors
    /// As for [`Domain::state`], and the errors of the call.
    #[inline]
    pub(crate) fn operation(
        &self,
        call: impl FnOnce(&mut DomainState) -> Result<usize>,
    ) -> Result<usize> {
        let mut state = self.state()?;
        let result = call(&mut state);
        state.end_operation();
        result
    }

    /// Returns whether the domain makes automatic progress.
    pub(crate) fn is_automatic(&self) -> bool {
        self.progress.is_some()
    }
}

/// Binds an event queue, which receives no events (`fi_domain_bind`).
///
/// # Returns
/// 0; `-FI_EINVAL` for other objects and flags, `-FI_EOPNOTSUPP` for `FI_REG_MR`: registration is
/// not asynchronous.
///
/// # Safety
/// Any pointers are permitted.
unsafe extern "C" fn bind(domain: *mut fid, queue: *mut fid, flags: u64) -> c_int {
    status(|| {
        // SAFETY: any pointer is permitted.
        let _: &Domain = unsafe { object(domain.cast()) }?;
        // SAFETY: as above.
        let _: &EventQueue = unsafe { object(queue.cast()) }?;
        match flags {
            0 => Ok(()),
            FI_REG_MR => Err(EOPNOTSUPP),
            _ => Err(Errno::EINVAL),
        }
    })
}

/// Refuses the tables of operations of libfabric's efa provider (`fi_open_ops`), which this
/// provider does not have: queries of the network that a registration uses, and access to the
/// device's queues without the provider.
///
/// # Returns
/// `-FI_EOPNOTSUPP` for tables that stock has for domains (2.7), `-FI_EINVAL` for others, as stock
/// does.
///
/// # Safety
/// `name` is null or a string.
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
