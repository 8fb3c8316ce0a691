//! The functions that replace functions of the libraries.
//!
//! Each passes the call on and returns its result. The contract of each is that of the function
//! that it replaces; `SAFETY` comments call it "by contract".

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::Once;

use efa_hw::efadv::{AhAttr, WC_EX_WITH_SGID};
use efa_verbs_sys as ffi;

use super::posted::PostedRequests;
use super::real::{self, RealFunction, bytes_of, say};
use super::spin::Spin;
use super::state::{
    BUILDERS, CONTEXTS, CompQueue, Context, OPS, PAIRS, PAIRS_BY_NUMBER, POLLS, QUEUES, QueuePair,
    RealOps, RealPolls,
};
use super::{memory, polling, posting, ring, verbs_context};
use crate::exchange::{ObjectRecord, object};

/// The PCI vendor of EFA devices.
const AMAZON: u32 = 0x1d0f;
const IBV_QPT_UD: u32 = 4;

/// The library's function, or a return if no library has it.
macro_rules! real {
    ($function:ident, $without:expr) => {
        match real::$function::get() {
            Some(function) => function,
            None => {
                let errno = real::$function::REAL.missing();
                let without: fn(c_int) -> _ = $without;
                return without(errno);
            }
        }
    };
}

/// The functions of this file by their names, with those that they replace.
macro_rules! exported {
    ($($name:ident),*) => {
        /// The function of this file with this name, and the library's.
        pub(super) fn by_name(name: &CStr) -> Option<(&'static RealFunction, *mut c_void)> {
            $(
                if name == real::$name::REAL.name() {
                    return Some((&real::$name::REAL, $name as *mut c_void));
                }
            )*
            None
        }
    };
}

exported!(
    ibv_open_device,
    ibv_close_device,
    ibv_create_ah,
    ibv_create_qp,
    ibv_modify_qp,
    ibv_destroy_qp,
    ibv_destroy_cq,
    ibv_dereg_mr,
    efadv_create_driver_qp,
    efadv_create_qp_ex,
    efadv_create_cq,
    efadv_query_cq,
    efadv_query_qp_wqs
);

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ffi::ibv_device) -> *mut ffi::ibv_context {
    let open = real!(ibv_open_device, |_| null_mut());
    // SAFETY: by contract.
    let context = unsafe { open(device) };
    if !context.is_null() && CONTEXTS.get(context.addr()).is_none() {
        // SAFETY: the context is new.
        unsafe { adopt_context(context) };
    }
    context
}

/// Installs the tap in a new context, if it belongs to an EFA device.
///
/// # Safety
/// The context is valid, and has no other user.
unsafe fn adopt_context(context: *mut ffi::ibv_context) {
    static OPENED: AtomicU32 = AtomicU32::new(0);
    // SAFETY: by contract; all structures are plain data.
    unsafe {
        let (Some(query_device), Some(query_port), Some(query_gid)) = (
            real::ibv_query_device::get(),
            real::ibv_query_port::get(),
            real::ibv_query_gid::get(),
        ) else {
            return say(
                "the program's libibverbs lacks ibv_query_device, ibv_query_port or ibv_query_gid: what goes over its \
                 devices is not recorded",
            );
        };
        let mut attributes = ffi::ibv_device_attr::default();
        if query_device(context, &raw mut attributes) != 0 || attributes.vendor_id != AMAZON {
            return;
        }
        efa_log::init();
        ring::begin();
        let Some(ring) = ring::own() else { return };
        let mut port = ffi::ibv_port_attr::default();
        let mut gid = ffi::ibv_gid { raw: [0; 16] };
        if query_port(context, 1, &raw mut port) != 0 || query_gid(context, 1, 0, &raw mut gid) != 0
        {
            say("a device has no port and no GID: what goes over it is not recorded");
            return;
        }
        let device = OPENED.fetch_add(1, Ordering::Relaxed);
        tracing::info!(device, gid = %efa_core::address::Gid(gid.raw), "device is recorded");
        let end = verbs_context::of(context);
        let ops = &mut (*context).ops;
        let real = RealOps {
            poll_cq: ops.poll_cq,
            post_send: ops.post_send,
            post_recv: ops.post_recv,
            create_cq_ex: end.and_then(|end| (*end).create_cq_ex),
            create_qp_ex: end.and_then(|end| (*end).create_qp_ex),
        };
        let known = Box::leak(Box::new(Context { device, real }));
        if !CONTEXTS.insert(context.addr(), known) {
            return say("too many devices are open: what goes over another one is not recorded");
        }
        OPS.learn(&known.real);
        ring.object(ObjectRecord {
            position: 0,
            kind: object::DEVICE,
            device,
            handle: 0,
            number: port.max_msg_sz,
            reserved: 0,
            gid: gid.raw,
            name: bytes_of(&(*(*context).device).name),
        });
        ops.poll_cq = real.poll_cq.map(|_| polling::poll_cq as _);
        ops.post_send = real.post_send.map(|_| posting::post_send as _);
        ops.post_recv = real.post_recv.map(|_| posting::post_recv as _);
        if let Some(end) = end {
            (*end).create_cq_ex = real.create_cq_ex.map(|_| create_cq_ex as _);
            (*end).create_qp_ex = real.create_qp_ex.map(|_| create_qp_ex as _);
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ffi::ibv_context) -> c_int {
    let close = real!(ibv_close_device, |errno| errno);
    // The context is removed before the call: another thread may get a context at the same address
    // directly after it.
    let known = CONTEXTS.remove(context.addr());
    // SAFETY: by contract.
    let result = unsafe { close(context) };
    if let Some(known) = known.filter(|_| result != 0) {
        CONTEXTS.insert(context.addr(), known);
    }
    result
}

/// `ibv_create_cq_ex`, which programs call through the context.
unsafe extern "C" fn create_cq_ex(
    context: *mut ffi::ibv_context,
    attributes: *mut ffi::ibv_cq_init_attr_ex,
) -> *mut ffi::ibv_cq_ex {
    let known = CONTEXTS.get(context.addr());
    let Some((known, create)) = known.and_then(|known| Some((known, known.real.create_cq_ex?)))
    else {
        return null_mut();
    };
    // SAFETY: by contract.
    unsafe {
        let queue = create(context, attributes);
        adopt_queue(known, queue, null_mut());
        queue
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_create_cq(
    context: *mut ffi::ibv_context,
    attributes: *mut ffi::ibv_cq_init_attr_ex,
    efa: *mut c_void,
    length: u32,
) -> *mut ffi::ibv_cq_ex {
    let create = real!(efadv_create_cq, |_| null_mut());
    // SAFETY: by contract. The structure begins with two words of 64 bits.
    unsafe {
        let queue = create(context, attributes, efa, length);
        if let Some(known) = CONTEXTS.get(context.addr())
            && !queue.is_null()
        {
            let flags = efa.cast::<u64>().add(1).read();
            let extension = real::efadv_cq_from_ibv_cq_ex::get()
                .filter(|_| flags & WC_EX_WITH_SGID != 0)
                .map_or(null_mut(), |extension| extension(queue));
            adopt_queue(known, queue, extension);
        }
        queue
    }
}

/// Installs the tap in a new completion queue.
///
/// # Safety
/// The queue is null, or new; `efa` is its extension, or null.
unsafe fn adopt_queue(
    context: &'static Context,
    queue: *mut ffi::ibv_cq_ex,
    efa: *mut efa_hw::efadv::Cq,
) {
    // SAFETY: by contract.
    let Some(c) = (unsafe { queue.as_mut() }) else {
        return;
    };
    if ring::own().is_none() {
        return;
    }
    if c.read_qp_num.is_none() {
        return say(
            "a completion queue does not tell the queue pair of a completion: what arrives there is not recorded",
        );
    }
    let real = RealPolls {
        start_poll: c.start_poll,
        next_poll: c.next_poll,
    };
    let known = Box::leak(Box::new(CompQueue { context, real, efa }));
    if !QUEUES.insert(queue.addr(), known) {
        return say("too many completion queues: what another one has is not recorded");
    }
    POLLS.learn(&known.real);
    c.start_poll = real.start_poll.map(|_| polling::start_poll as _);
    c.next_poll = real.next_poll.map(|_| polling::next_poll as _);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(queue: *mut ffi::ibv_cq) -> c_int {
    let destroy = real!(ibv_destroy_cq, |errno| errno);
    let known = QUEUES.remove(queue.addr());
    // SAFETY: by contract; a known queue is an extended one.
    unsafe {
        let extended = queue.cast::<ffi::ibv_cq_ex>();
        if let Some(known) = known {
            (*extended).start_poll = known.real.start_poll;
            (*extended).next_poll = known.real.next_poll;
        }
        let result = destroy(queue);
        if let Some(known) = known.filter(|_| result != 0) {
            adopt_queue(known.context, extended, known.efa);
        }
        result
    }
}

/// `ibv_create_qp_ex`, which programs call through the context.
unsafe extern "C" fn create_qp_ex(
    context: *mut ffi::ibv_context,
    attributes: *mut ffi::ibv_qp_init_attr_ex,
) -> *mut ffi::ibv_qp {
    let known = CONTEXTS.get(context.addr());
    let Some(create) = known.and_then(|known| known.real.create_qp_ex) else {
        return null_mut();
    };
    // SAFETY: by contract.
    unsafe { adopted(create(context, attributes)) }
}

/// Defines functions that create queue pairs.
macro_rules! creations {
    ($($function:ident($($argument:ident: $type:ty),*);)+) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $function($($argument: $type),*) -> *mut ffi::ibv_qp {
            let create = real!($function, |_| null_mut());
            // SAFETY: by contract.
            unsafe { adopted(create($($argument),*)) }
        }
    )+ };
}

creations! {
    ibv_create_qp(pd: *mut ffi::ibv_pd, attributes: *mut ffi::ibv_qp_init_attr);
    efadv_create_driver_qp(pd: *mut ffi::ibv_pd, attributes: *mut ffi::ibv_qp_init_attr, kind: u32);
    efadv_create_qp_ex(context: *mut ffi::ibv_context, attributes: *mut ffi::ibv_qp_init_attr_ex,
        efa: *mut c_void, length: u32);
}

/// Installs the tap in a new queue pair, and returns it.
///
/// # Safety
/// The queue pair is null, or new.
unsafe fn adopted(pair: *mut ffi::ibv_qp) -> *mut ffi::ibv_qp {
    // SAFETY: by contract.
    unsafe {
        if let Some(c) = pair.as_ref()
            && let Some(context) = CONTEXTS.get(c.context.addr())
            && PAIRS.get(pair.addr()).is_none()
        {
            let known = QueuePair {
                context,
                qpn: c.qp_num,
                is_datagram: c.qp_type == IBV_QPT_UD,
                qkey: AtomicU32::new(0),
                sequence: AtomicU32::new(0),
                real: posting::NO_BUILDERS,
                session: UnsafeCell::default(),
                receives: Spin::new(PostedRequests::default()),
                reads: Spin::new(PostedRequests::default()),
                reads_under_way: AtomicUsize::new(0),
            };
            let extended = real::ibv_qp_to_qp_ex::get()
                .map_or(null_mut(), |extended| extended(pair))
                .as_ref()
                .filter(|extended| extended.wr_start.is_some());
            let real = extended.map_or(posting::NO_BUILDERS, posting::builders);
            adopt_pair(pair, Box::leak(Box::new(QueuePair { real, ..known })));
        }
    }
    pair
}

/// # Safety
/// The queue pair is valid, and has no other user.
unsafe fn adopt_pair(pair: *mut ffi::ibv_qp, known: &'static QueuePair) {
    let Some(ring) = ring::own() else { return };
    if !PAIRS.insert(pair.addr(), known) {
        return say("too many queue pairs: what another one does is not recorded");
    }
    PAIRS_BY_NUMBER.insert(known.context.pair_key(known.qpn), known);
    ring.object(ObjectRecord {
        position: 0,
        kind: object::QUEUE_PAIR,
        device: known.context.device,
        handle: 0,
        number: known.qpn,
        reserved: 0,
        gid: [0; 16],
        name: [0; 64],
    });
    // SAFETY: by contract.
    if let Some(extended) = unsafe { builders_of(pair, known) } {
        BUILDERS.learn(&known.real);
        posting::install(extended);
    }
}

/// The structure with the builders of a queue pair, if it has some.
///
/// # Safety
/// The queue pair is valid, and has no other user.
unsafe fn builders_of<'a>(
    pair: *mut ffi::ibv_qp,
    known: &QueuePair,
) -> Option<&'a mut ffi::ibv_qp_ex> {
    known.real.wr_start?;
    let extended = real::ibv_qp_to_qp_ex::get()?;
    // SAFETY: by contract.
    unsafe { extended(pair).as_mut() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(
    pair: *mut ffi::ibv_qp,
    attributes: *mut ffi::ibv_qp_attr,
    mask: c_int,
) -> c_int {
    let modify = real!(ibv_modify_qp, |errno| errno);
    // SAFETY: by contract.
    let result = unsafe { modify(pair, attributes, mask) };
    if result == 0
        && let Some(known) = PAIRS.get(pair.addr())
    {
        let has = |bit: ffi::ibv_qp_attr_mask| mask as u32 & bit.0 != 0;
        // SAFETY: the library has read the same fields.
        let attributes = unsafe { &*attributes };
        if has(ffi::ibv_qp_attr_mask::IBV_QP_QKEY) {
            known.qkey.store(attributes.qkey, Ordering::Relaxed);
        }
        if has(ffi::ibv_qp_attr_mask::IBV_QP_STATE)
            && attributes.qp_state == ffi::ibv_qp_state::IBV_QPS_RESET
        {
            known.clear();
            known.sequence.store(0, Ordering::Relaxed);
        }
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(pair: *mut ffi::ibv_qp) -> c_int {
    let destroy = real!(ibv_destroy_qp, |errno| errno);
    let Some(known) = PAIRS.remove(pair.addr()) else {
        // SAFETY: by contract.
        return unsafe { destroy(pair) };
    };
    PAIRS_BY_NUMBER.remove(known.context.pair_key(known.qpn));
    // SAFETY: by contract, no other thread posts to the queue pair.
    unsafe {
        if let Some(extended) = builders_of(pair, known) {
            posting::uninstall(extended, &known.real);
        }
        let result = destroy(pair);
        match result {
            0 => known.clear(),
            _ => adopt_pair(pair, known),
        }
        result
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(
    pd: *mut ffi::ibv_pd,
    attributes: *mut ffi::ibv_ah_attr,
) -> *mut ffi::ibv_ah {
    let create = real!(ibv_create_ah, |_| null_mut());
    // SAFETY: by contract.
    unsafe {
        let handle = create(pd, attributes);
        if !handle.is_null()
            && let Some(ring) = ring::own()
            && let Some(context) = CONTEXTS.get((*pd).context.addr())
        {
            let mut answer = AhAttr::default();
            let number = real::efadv_query_ah::get()
                .filter(|query| query(handle, &raw mut answer, size_of::<AhAttr>() as u32) == 0)
                .map_or(u16::MAX, |_| answer.ahn);
            ring.object(ObjectRecord {
                position: 0,
                kind: object::HANDLE,
                device: context.device,
                handle: handle.addr() as u64,
                number: number.into(),
                reserved: 0,
                gid: (*attributes).grh.dgid.raw,
                name: [0; 64],
            });
        }
        handle
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(region: *mut ffi::ibv_mr) -> c_int {
    let deregister = real!(ibv_dereg_mr, |errno| errno);
    // SAFETY: by contract.
    unsafe {
        let lkey = (*region).lkey;
        let result = deregister(region);
        memory::forget(lkey);
        result
    }
}

/// A program that queries the memory of a queue uses it without calls, which the tap cannot
/// observe. It gets the error of a device that does not support this, such as an older one, and
/// then uses calls, as libfabric does.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_query_cq(
    queue: *mut ffi::ibv_cq,
    attributes: *mut c_void,
    length: u32,
) -> c_int {
    static WARNED: Once = Once::new();
    if ring::own().is_none() {
        let query = real!(efadv_query_cq, |errno| errno);
        // SAFETY: by contract.
        return unsafe { query(queue, attributes, length) };
    }
    WARNED.call_once(|| {
        say(
            "the program asked for the memory of its queues, to use them without calls (data path direct): told \
             that the device does not give it, so that it makes the calls",
        );
    });
    libc::EOPNOTSUPP
}

/// As [`efadv_query_cq`].
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_query_qp_wqs(
    pair: *mut ffi::ibv_qp,
    send: *mut c_void,
    receive: *mut c_void,
    length: u32,
) -> c_int {
    if ring::own().is_none() {
        let query = real!(efadv_query_qp_wqs, |errno| errno);
        // SAFETY: by contract.
        return unsafe { query(pair, send, receive, length) };
    }
    libc::EOPNOTSUPP
}
