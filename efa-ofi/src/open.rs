//! The calls that open objects from others, and the calls of fabrics and domains for several types
//! of objects.

use std::ffi::{c_int, c_void};

use efa_core::endpoint::Errno;

use crate::calls::{atomics, collectives, messages, one_sided};
use crate::ffi::object::{Object, object};
use crate::ffi::result::{Result, status};
use crate::ffi::table::Table;
use crate::ffi::*;
use crate::objects::address_vector::AddressVector;
use crate::objects::completion_queue::CompletionQueue;
use crate::objects::counter::Counter;
use crate::objects::domain::Domain;
use crate::objects::endpoint::{Endpoint, TransferCalls};
use crate::objects::event_queue::EventQueue;
use crate::objects::fabric::Fabric;
use crate::objects::memory_region;
use crate::objects::poll_set::PollSet;
use crate::objects::queue::try_wait;
use crate::objects::wait_set::WaitSet;

/// The calls of fabrics.
pub(crate) static FABRIC: Table<fi_ops_fabric> = Table::new(fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain: Some(domain),
    passive_ep: Some(unsupported::passive_ep),
    eq_open: Some(eq_open),
    wait_open: Some(wait_open),
    trywait: Some(trywait),
    domain2: Some(domain2),
});

/// The calls of domains.
static DOMAIN: Table<fi_ops_domain> = Table::new(fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: Some(av_open),
    cq_open: Some(cq_open),
    endpoint: Some(endpoint),
    scalable_ep: Some(unsupported::scalable_ep),
    cntr_open: Some(cntr_open),
    poll_open: Some(poll_open),
    stx_ctx: Some(unsupported::stx_ctx),
    srx_ctx: Some(unsupported::srx_ctx),
    query_atomic: Some(query_atomic),
    query_collective: Some(collectives::query),
    endpoint2: Some(endpoint2),
});

/// The calls of datagram endpoints: those that they do not have find that, too.
static DATAGRAM_TRANSFERS: TransferCalls = TransferCalls {
    msg: &messages::datagrams::OPS,
    ..TRANSFERS
};

/// The calls of endpoints that transfer data.
const TRANSFERS: TransferCalls = TransferCalls {
    msg: &messages::untagged::OPS,
    tagged: &messages::tagged::OPS,
    rma: &one_sided::OPS,
    atomic: &atomics::OPS,
    collective: &collectives::OPS,
    cm: &collectives::CM,
};

/// The calls of a domain's endpoints that transfer data.
fn transfers_of(domain: &Domain) -> &'static TransferCalls {
    match domain.endpoint_type.is_datagram() {
        true => &DATAGRAM_TRANSFERS,
        false => &TRANSFERS,
    }
}

/// Opens an object from another, and passes it to C.
///
/// # Safety
/// `parent` may be any pointer, and `result` is null or valid for a write of a pointer to the
/// structure at the start of the object.
unsafe fn open<P: Object, T: Object, C>(
    parent: *const c_void,
    result: *mut *mut C,
    open: impl FnOnce(&P) -> Result<T>,
) -> c_int {
    status(|| {
        // SAFETY: any pointer is permitted.
        let opened = open(unsafe { object(parent) }?)?;
        // SAFETY: by the caller's contract.
        unsafe { opened.give_to(result) }
    })
}

/// Defines functions that open an object from another, with attributes, and further arguments after
/// the result.
macro_rules! open_calls {
    ($(
        $(#[$documentation:meta])*
        fn $name:ident($parent:ident: $parent_type:ty, $attributes:ident: $attributes_type:ty)
            -> $result:ty, ($($argument:ident: $argument_type:ty),*) $open:expr
    )*) => {$(
        $(#[$documentation])*
        ///
        /// # Returns
        /// 0 with the object in `result`, or the negative error number of its `open`;
        /// `-FI_EINVAL` for a wrong parent and without `result`.
        ///
        /// # Safety
        /// Attributes and infos are null or valid with all that they lead to, and `result` is null
        /// or valid for a write. The parent may be any pointer.
        unsafe extern "C" fn $name(
            parent: *mut $parent_type,
            $attributes: *mut $attributes_type,
            result: *mut *mut $result,
            $($argument: $argument_type,)*
        ) -> c_int {
            // SAFETY: by the caller's contract.
            unsafe { open(parent.cast(), result, |$parent| $open) }
        }
    )*};
}

open_calls! {
    /// Opens a domain (`fi_domain`).
    fn domain(fabric: fid_fabric, info: fi_info) -> fid_domain, (context: *mut c_void)
        Domain::open(fabric, info, &DOMAIN, &memory_region::OPS, context)

    /// Opens an event queue (`fi_eq_open`).
    fn eq_open(fabric: fid_fabric, attributes: fi_eq_attr) -> fid_eq, (context: *mut c_void)
        EventQueue::open(fabric, attributes.as_ref(), context)

    /// Opens an address vector (`fi_av_open`).
    fn av_open(domain: fid_domain, attributes: fi_av_attr) -> fid_av, (context: *mut c_void)
        AddressVector::open(domain, attributes.as_mut().ok_or(Errno::EINVAL)?, context)

    /// Opens a completion queue (`fi_cq_open`).
    fn cq_open(domain: fid_domain, attributes: fi_cq_attr) -> fid_cq, (context: *mut c_void)
        CompletionQueue::open(domain, attributes.as_mut().ok_or(Errno::EINVAL)?, context)

    /// Opens a counter (`fi_cntr_open`).
    fn cntr_open(domain: fid_domain, attributes: fi_cntr_attr) -> fid_cntr, (context: *mut c_void)
        Counter::open(domain, attributes.as_ref(), context)

    /// Opens an endpoint (`fi_endpoint`).
    fn endpoint(domain: fid_domain, info: fi_info) -> fid_ep, (context: *mut c_void)
        Endpoint::new(domain, info.as_ref().ok_or(Errno::EINVAL)?, transfers_of(domain), context)

    /// Opens a wait set (`fi_wait_open`).
    fn wait_open(fabric: fid_fabric, attributes: fi_wait_attr) -> fid_wait, ()
        WaitSet::open(fabric, attributes.as_ref())

    /// Opens a poll set (`fi_poll_open`).
    fn poll_open(domain: fid_domain, attributes: fi_poll_attr) -> fid_poll, ()
        PollSet::open(domain, attributes.as_ref())

    /// As [`domain`], with flags, of which there are none (`fi_domain2`).
    fn domain2(fabric: fid_fabric, info: fi_info) -> fid_domain, (flags: u64, context: *mut c_void)
        {
            without(flags)?;
            Domain::open(fabric, info, &DOMAIN, &memory_region::OPS, context)
        }

    /// As [`endpoint`], with flags, of which there are none (`fi_endpoint2`).
    fn endpoint2(domain: fid_domain, info: fi_info) -> fid_ep, (flags: u64, context: *mut c_void)
        {
            without(flags)?;
            Endpoint::new(domain, info.as_ref().ok_or(Errno::EINVAL)?, transfers_of(domain), context)
        }
}

/// Refuses flags.
fn without(flags: u64) -> Result<()> {
    match flags {
        0 => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

/// Prepares for sleeping on the descriptors of completion queues, counters, event queues and wait
/// sets (`fi_trywait`).
///
/// # Returns
/// 0 if all are idle; `-FI_EAGAIN` if an object has unread entries, `-FI_EINVAL` for an object
/// without a descriptor.
///
/// # Safety
/// `fids` is null or has `count` pointers, which may be any.
unsafe extern "C" fn trywait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    status(|| {
        // SAFETY: any pointer is permitted, here and below.
        let _: &Fabric = unsafe { object(fabric.cast()) }?;
        let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
        if fids.is_null() && count > 0 {
            return Err(Errno::EINVAL);
        }
        for index in 0..count {
            // SAFETY: there are `count` of them.
            let fid = unsafe { fids.add(index).read() }.cast();
            // SAFETY: as above.
            let tried = unsafe {
                try_wait::<CompletionQueue>(fid)
                    .or_else(|| try_wait::<Counter>(fid))
                    .or_else(|| try_wait::<EventQueue>(fid))
                    .or_else(|| try_wait::<WaitSet>(fid))
            };
            tried.ok_or(Errno::EINVAL)??;
        }
        Ok(())
    })
}

/// The limits of an atomic operation (`fi_query_atomic`).
///
/// # Returns
/// 0, or an error of [`atomics::query`].
///
/// # Safety
/// `result` is null or valid for a write.
unsafe extern "C" fn query_atomic(
    domain: *mut fid_domain,
    datatype: fi_datatype,
    operation: fi_op,
    result: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    status(|| {
        // SAFETY: any pointer is permitted.
        let domain: &Domain = unsafe { object(domain.cast()) }?;
        let limits = atomics::query(domain, datatype, operation, flags)?;
        // SAFETY: by the caller's contract.
        *unsafe { result.as_mut() }.ok_or(Errno::EINVAL)? = limits;
        Ok(())
    })
}
