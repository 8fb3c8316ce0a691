//! Protection domains, parent domains and thread domains.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::offset_of;
use std::sync::Arc;

use efa_device_model::device::PdId;

use crate::abi::{
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, ibv_context, ibv_parent_domain_init_attr, ibv_pd,
    ibv_td,
};
use crate::context::{CONTEXTS, Context};
use crate::errno::{self, Errno};
use crate::handles::{Handle, Registry, SharedLife};
use crate::query::beginning;

pub(crate) static DOMAINS: Registry<Domain> = Registry::new();
static THREAD_DOMAINS: Registry<ThreadDomain> = Registry::new();

/// A protection domain, or a parent domain, which is another name for one.
pub(crate) struct Domain {
    c: UnsafeCell<ibv_pd>,
    pub(crate) context: Arc<Context>,
    pub(crate) id: PdId,
    /// Objects are made in it.
    pub(crate) life: SharedLife,
    kind: Kind,
}

enum Kind {
    Protection,
    Parent {
        original: Arc<Domain>,
        thread_domain: Option<Arc<ThreadDomain>>,
    },
}

// SAFETY: the C structure is written only while it is made; programs read it.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

// SAFETY: the structure is inside the cell.
unsafe impl Handle for Domain {
    type C = ibv_pd;

    fn c_pointer(&self) -> *mut ibv_pd {
        self.c.get()
    }
}

impl Domain {
    fn new(context: Arc<Context>, id: PdId, kind: Kind) -> Arc<Domain> {
        let c = ibv_pd {
            context: context.c_pointer(),
            handle: id.0,
        };
        Arc::new(Domain {
            c: UnsafeCell::new(c),
            context,
            id,
            life: SharedLife::new(),
            kind,
        })
    }

    pub(crate) fn is_parent(&self) -> bool {
        matches!(self.kind, Kind::Parent { .. })
    }
}

/// A promise of the program to use objects in one thread only. There are no locks to save here.
pub(crate) struct ThreadDomain {
    c: UnsafeCell<ibv_td>,
    /// Parent domains are made with it.
    life: SharedLife,
}

// SAFETY: as for `Domain`.
unsafe impl Send for ThreadDomain {}
// SAFETY: as above.
unsafe impl Sync for ThreadDomain {}

// SAFETY: the structure is inside the cell.
unsafe impl Handle for ThreadDomain {
    type C = ibv_td;

    fn c_pointer(&self) -> *mut ibv_td {
        self.c.get()
    }
}

pub(crate) extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    errno::pointer(CONTEXTS.get(context).and_then(|context| {
        let id = context
            .hardware()?
            .with_device(|device| device.alloc_pd())??;
        Ok(DOMAINS.insert(Domain::new(context, id, Kind::Protection)))
    }))
}

/// `EBUSY` while anything uses the domain.
pub(crate) extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    errno::status_of_end(|| dealloc(pd))
}

fn dealloc(pd: *mut ibv_pd) -> Result<(), Errno> {
    let domain = DOMAINS.get(pd)?;
    domain.life.end(|| {
        if !domain.is_parent() {
            domain
                .context
                .forget(|device| device.dealloc_pd(domain.id))?;
        }
        DOMAINS.remove(pd).map(drop)
    })?;
    if let Kind::Parent {
        original,
        thread_domain,
    } = &domain.kind
    {
        original.life.leave();
        if let Some(thread_domain) = thread_domain {
            thread_domain.life.leave();
        }
    }
    Ok(())
}

/// Slot of `verbs_context`. Custom allocators are refused, and a parent domain has no parent.
///
/// # Safety
/// `attributes` is null or valid for reads up to `comp_mask`; nothing behind it is read.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attributes: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    errno::pointer(CONTEXTS.get(context).and_then(|context| {
        if attributes.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: by contract; integers, and pointers that may be null.
        let attributes =
            unsafe { beginning(attributes, offset_of!(ibv_parent_domain_init_attr, alloc)) };
        let original = DOMAINS.get(attributes.pd)?;
        if attributes.comp_mask & !IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if original.is_parent() || !Arc::ptr_eq(&original.context, &context) {
            return Err(Errno::INVAL);
        }
        let thread_domain = match attributes.td.is_null() {
            true => None,
            false => Some(THREAD_DOMAINS.get(attributes.td)?),
        };
        let id = original.id;
        original.life.join(|| match &thread_domain {
            Some(thread_domain) => thread_domain.life.join(|| Ok(())),
            None => Ok(()),
        })?;
        let kind = Kind::Parent {
            original,
            thread_domain,
        };
        Ok(DOMAINS.insert(Domain::new(context, id, kind)))
    }))
}

/// Slot of `verbs_context`.
///
/// # Safety
/// `attributes` is null or a structure that starts with 32 bits of `comp_mask`.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attributes: *mut c_void,
) -> *mut ibv_td {
    errno::pointer(CONTEXTS.get(context).and_then(|context| {
        if attributes.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: valid by contract.
        if unsafe { attributes.cast::<u32>().read() } != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let c = ibv_td {
            context: context.c_pointer(),
        };
        Ok(THREAD_DOMAINS.insert(Arc::new(ThreadDomain {
            c: UnsafeCell::new(c),
            life: SharedLife::new(),
        })))
    }))
}

/// Slot of `verbs_context`; `EBUSY` while a parent domain uses the thread domain.
pub(crate) unsafe extern "C" fn dealloc_td(thread_domain: *mut ibv_td) -> c_int {
    errno::status_of_end(|| {
        let found = THREAD_DOMAINS.get(thread_domain)?;
        found
            .life
            .end(|| THREAD_DOMAINS.remove(thread_domain).map(drop))
    })
}
