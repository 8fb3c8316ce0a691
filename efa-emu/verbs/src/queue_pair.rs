//! Queue pairs: making, changing, querying and destroying them. Posting is in [`crate::post`] and
//! [`crate::builder`].

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint};
use core::mem::offset_of;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use efa_core::address::{Qkey, Qpn};
use efa_device_model::device::queue::RequestIdSize;
use efa_device_model::device::{QpAttributes, QpChange, QpConfig, QpRings, QpState};
use efa_device_model::provider::{RecvQueue, RecvQueueConfig, SendQueue, SendQueueConfig};

use crate::abi::{
    IBV_QP_CAP, IBV_QP_CUR_STATE, IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_RNR_RETRY,
    IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR,
    IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPT_UD, IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS, efadv_qp,
    efadv_qp_init_attr, ibv_context, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, verbs_qp,
};
use crate::builder;
use crate::comp_queue::{CompQueue, QUEUES};
use crate::context::{CONTEXTS, Context};
use crate::domain::{DOMAINS, Domain};
use crate::errno::{self, Errno};
use crate::handles::{Handle, Life, Registry};
use crate::interrupted::Locking;
use crate::qp_plan::{QpPlan, plan};
use crate::query::{beginning, copy_out, zeroed};
use crate::queues::{Queues, Sender};
use crate::spin::SpinCell;

pub(crate) static PAIRS: Registry<QueuePair> = Registry::new();

/// Aligned writes of 128 bytes become visible in order.
const DATA_IN_ORDER_ALIGNED_128_BYTES: c_int = 1 << 1;

/// What programs see of a queue pair.
#[repr(C)]
pub(crate) struct QueuePairC {
    pub(crate) verbs: verbs_qp,
    pub(crate) efa: efadv_qp,
}

/// A queue pair. It starts with its C structure, so that a program's pointer is one to it.
#[repr(C)]
pub(crate) struct QueuePair {
    pub(crate) c: UnsafeCell<QueuePairC>,
    pub(crate) context: Arc<Context>,
    pub(crate) qpn: Qpn,
    life: Life,
    pub(crate) queues: Arc<Queues>,
    domain: Arc<Domain>,
    send_cq: Arc<CompQueue>,
    recv_cq: Arc<CompQueue>,
    plan: QpPlan,
    signal_all: bool,
    /// `None` once the queue pair was destroyed.
    rings: Mutex<Option<QpRings>>,
    /// The client may write the doorbells without a call.
    watched: AtomicBool,
}

// SAFETY: of the C structure the library writes only `state`, atomically; the rest is the program's.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

// SAFETY: `verbs_qp` starts with `ibv_qp`, and it is inside the cell.
unsafe impl Handle for QueuePair {
    type C = ibv_qp;

    fn c_pointer(&self) -> *mut ibv_qp {
        // Of the whole handle, as `from_pointer` gets it back; only what is in the cell is written to.
        const { assert!(core::mem::offset_of!(Self, c) == 0) };
        core::ptr::from_ref(self).cast_mut().cast()
    }
}

impl QueuePair {
    /// The queue pair behind a pointer of the data path.
    ///
    /// # Safety
    /// `pointer` is null or a queue pair of this library that was not destroyed long ago.
    #[inline]
    pub(crate) unsafe fn from_pointer<'a>(pointer: *const ibv_qp) -> Option<&'a QueuePair> {
        // SAFETY: the C structure is at the start of the `repr(C)` handle, which lives by contract.
        unsafe { pointer.cast::<QueuePair>().as_ref() }
    }

    /// Has the device look at the doorbells from now on; the rings, for the client.
    pub(crate) fn watch(&self) -> Result<QpRings, Errno> {
        self.life.during(|| {
            let hardware = self.context.hardware()?;
            let rings = self.with_rings(|rings| rings.clone()).ok_or(Errno::INVAL)?;
            if !self.watched.swap(true, Ordering::AcqRel) {
                hardware.watch_qp(self.qpn, true)?;
            }
            Ok(rings)
        })
    }

    pub(crate) fn request_ids(&self) -> RequestIdSize {
        self.plan.request_ids
    }

    fn with_rings<R>(&self, work: impl FnOnce(&mut Option<QpRings>) -> R) -> R {
        let _locking = Locking::new();
        work(&mut self.rings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Tells both queues, and the program, of a new state.
    fn set_state(&self, state: QpState) {
        let locking = Locking::new();
        if let Some(sender) = self.queues.send.lock(&locking).as_mut() {
            sender.queue.set_state(state);
        }
        if let Some(queue) = self.queues.recv.lock(&locking).as_mut() {
            queue.set_state(state);
        }
        self.show(state);
    }

    /// As [`QueuePair::set_state`], of a queue pair that the device has failed. A queue that is in use learns it by
    /// its completions.
    fn show_failure(&self) {
        let locking = Locking::new();
        if let Some(mut queue) = self.queues.send.try_lock(&locking)
            && let Some(sender) = queue.as_mut()
        {
            sender.queue.set_state(QpState::Error);
        }
        if let Some(mut queue) = self.queues.recv.try_lock(&locking)
            && let Some(queue) = queue.as_mut()
        {
            queue.set_state(QpState::Error);
        }
        self.show(QpState::Error);
    }

    fn show(&self, state: QpState) {
        // SAFETY: the field is in the handle, and the library accesses it only here. Programs read it when they like.
        let shown = unsafe { AtomicI32::from_ptr(&raw mut (*self.c_pointer()).state) };
        shown.store(state_number(state), Ordering::Relaxed);
    }
}

fn state_number(state: QpState) -> c_int {
    match state {
        QpState::Reset => IBV_QPS_RESET,
        QpState::Init => IBV_QPS_INIT,
        QpState::ReadyToReceive => IBV_QPS_RTR,
        QpState::ReadyToSend => IBV_QPS_RTS,
        QpState::SendQueueDrained => IBV_QPS_SQD,
        QpState::Error => IBV_QPS_ERR,
    }
}

fn state_from_number(number: c_int) -> Result<QpState, Errno> {
    match number {
        IBV_QPS_RESET => Ok(QpState::Reset),
        IBV_QPS_INIT => Ok(QpState::Init),
        IBV_QPS_RTR => Ok(QpState::ReadyToReceive),
        IBV_QPS_RTS => Ok(QpState::ReadyToSend),
        IBV_QPS_SQD => Ok(QpState::SendQueueDrained),
        IBV_QPS_ERR => Ok(QpState::Error),
        _ => Err(Errno::INVAL),
    }
}

/// Distinguishes the request ids of queue pairs that get the same number one after the other.
fn next_generation() -> u32 {
    static GENERATION: AtomicU32 = AtomicU32::new(1);
    GENERATION.fetch_add(1, Ordering::Relaxed)
}

/// The part of a program's request that its `comp_mask` vouches for, as far as EFA has a use for it. `None`
/// for a null pointer.
///
/// # Safety
/// `request` is null or valid for reads up to the last field that its `comp_mask` names.
pub(crate) unsafe fn read_request(
    request: *const ibv_qp_init_attr_ex,
) -> Option<ibv_qp_init_attr_ex> {
    if request.is_null() {
        return None;
    }
    // SAFETY: the fields up to `comp_mask` are there in every version.
    let mut known = unsafe { beginning(request, offset_of!(ibv_qp_init_attr_ex, pd)) };
    if known.comp_mask & IBV_QP_INIT_ATTR_PD != 0 {
        // SAFETY: by contract.
        known.pd = unsafe { (*request).pd };
    }
    if known.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0 {
        // SAFETY: by contract.
        known.send_ops_flags = unsafe { (*request).send_ops_flags };
    }
    Some(known)
}

/// Makes a queue pair and writes the sizes that it really has into the request.
pub(crate) fn create(
    context: &Arc<Context>,
    attributes: &mut ibv_qp_init_attr_ex,
    efa: &efadv_qp_init_attr,
) -> Result<*mut ibv_qp, Errno> {
    let profile = &context.device.profile;
    let plan = plan(profile, attributes, efa)?;
    let domain = DOMAINS.get(attributes.pd)?;
    let send_cq = QUEUES.get(attributes.send_cq)?;
    let recv_cq = QUEUES.get(attributes.recv_cq)?;
    let owners = [&domain.context, &send_cq.context, &recv_cq.context];
    if owners.iter().any(|owner| !Arc::ptr_eq(owner, context)) {
        return Err(Errno::INVAL);
    }
    let hardware = context.hardware()?;
    let config = QpConfig {
        service: plan.service,
        pd: domain.id,
        send_cq: send_cq.id,
        recv_cq: recv_cq.id,
        send_entries: plan.send_entries,
        wqe_size: plan.wqe_size,
        recv_descriptors: plan.recv_descriptors,
        unsolicited_write_recv: plan.unsolicited_write_recv,
        request_ids: plan.request_ids,
    };
    let (qpn, rings) = domain
        .life
        .join(|| Life::during_both(&send_cq.life, &recv_cq.life, || hardware.create_qp(config)))?;
    let generation = next_generation();
    let signal_all = attributes.sq_sig_all != 0;
    let queues = Arc::new(Queues {
        send: SpinCell::new(Some(Sender::new(
            SendQueue::new(
                Arc::clone(&rings.send),
                SendQueueConfig {
                    max_sge: plan.cap.max_send_sge,
                    max_rdma_sge: profile.max_rdma_sge,
                    max_inline: plan.cap.max_inline_data,
                    inline_write: plan.inline_write,
                    signal_all,
                    request_ids: plan.request_ids,
                    generation,
                },
            ),
            hardware,
        ))),
        recv: SpinCell::new(Some(RecvQueue::new(
            Arc::clone(&rings.recv),
            RecvQueueConfig {
                max_sge: plan.cap.max_recv_sge,
                generation,
            },
        ))),
    });
    for queue in [&send_cq, &recv_cq] {
        if let Some(polled) = queue.polled.lock(&Locking::new()).as_mut() {
            polled.owners.insert(qpn, Arc::clone(&queues));
        }
    }
    let base = base_structure(context, attributes, qpn);
    attributes.cap = plan.cap.into();
    Ok(PAIRS.insert(Arc::new(QueuePair {
        c: UnsafeCell::new(QueuePairC {
            verbs: builder::extended(base, &plan),
            efa: builder::efa_extension(&plan),
        }),
        context: Arc::clone(context),
        qpn,
        life: Life::new(),
        queues,
        domain,
        send_cq,
        recv_cq,
        plan,
        signal_all,
        rings: Mutex::new(Some(rings)),
        watched: AtomicBool::new(false),
    })))
}

fn base_structure(context: &Context, attributes: &ibv_qp_init_attr_ex, qpn: Qpn) -> ibv_qp {
    ibv_qp {
        context: context.c_pointer(),
        qp_context: attributes.qp_context,
        pd: attributes.pd,
        send_cq: attributes.send_cq,
        recv_cq: attributes.recv_cq,
        srq: null_mut(),
        handle: u32::from(qpn.0),
        qp_num: u32::from(qpn.0),
        state: IBV_QPS_RESET,
        qp_type: attributes.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    }
}

/// Makes a queue pair for a program that knows only the basic attributes.
pub(crate) fn create_basic(
    pd: *mut ibv_pd,
    attributes: Option<&mut ibv_qp_init_attr>,
    efa: &efadv_qp_init_attr,
) -> Result<*mut ibv_qp, Errno> {
    let context = Arc::clone(&DOMAINS.get(pd)?.context);
    let attributes = attributes.ok_or(Errno::INVAL)?;
    // SAFETY: integers, and pointers that may be null.
    let none: ibv_qp_init_attr_ex = unsafe { zeroed() };
    let mut extended = ibv_qp_init_attr_ex {
        qp_context: attributes.qp_context,
        send_cq: attributes.send_cq,
        recv_cq: attributes.recv_cq,
        srq: attributes.srq,
        cap: attributes.cap,
        qp_type: attributes.qp_type,
        sq_sig_all: attributes.sq_sig_all,
        comp_mask: IBV_QP_INIT_ATTR_PD,
        pd,
        ..none
    };
    let pair = create(&context, &mut extended, efa)?;
    attributes.cap = extended.cap;
    Ok(pair)
}

/// Makes a UD queue pair; the others have calls of their own.
///
/// # Safety
/// `attributes` is null or valid for reads and writes.
pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    attributes: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: valid by contract.
    let attributes = unsafe { attributes.as_mut() };
    if attributes
        .as_ref()
        .is_some_and(|attributes| attributes.qp_type != IBV_QPT_UD)
    {
        return errno::pointer(Err(Errno::OPNOTSUPP));
    }
    errno::pointer(create_basic(pd, attributes, &efadv_qp_init_attr::default()))
}

/// Slot of `verbs_context`; as [`ibv_create_qp`].
///
/// # Safety
/// `attributes` is null or valid for reads up to the last field that its `comp_mask` names, and for writes of `cap`.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    errno::pointer(CONTEXTS.get(context).and_then(|context| {
        // SAFETY: by contract.
        let mut known = unsafe { read_request(attributes) }.ok_or(Errno::INVAL)?;
        if known.qp_type != IBV_QPT_UD {
            return Err(Errno::OPNOTSUPP);
        }
        let pair = create(&context, &mut known, &efadv_qp_init_attr::default())?;
        // SAFETY: by contract.
        unsafe { (*attributes).cap = known.cap };
        Ok(pair)
    }))
}

/// The attributes that `mask` selects. Those that EFA does not have are `EOPNOTSUPP`.
fn change(attributes: &ibv_qp_attr, mask: u32) -> Result<QpChange, Errno> {
    let known = IBV_QP_STATE
        | IBV_QP_CUR_STATE
        | IBV_QP_EN_SQD_ASYNC_NOTIFY
        | IBV_QP_PKEY_INDEX
        | IBV_QP_PORT
        | IBV_QP_QKEY
        | IBV_QP_SQ_PSN
        | IBV_QP_RNR_RETRY;
    if mask & !known != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let given = |bit: u32| mask & bit != 0;
    let state = |bit: u32, number: c_int| given(bit).then(|| state_from_number(number)).transpose();
    Ok(QpChange {
        state: state(IBV_QP_STATE, attributes.qp_state)?,
        current_state: state(IBV_QP_CUR_STATE, attributes.cur_qp_state)?,
        pkey_index: given(IBV_QP_PKEY_INDEX).then_some(attributes.pkey_index),
        port: given(IBV_QP_PORT).then_some(attributes.port_num),
        qkey: given(IBV_QP_QKEY).then_some(Qkey(attributes.qkey)),
        sq_psn: given(IBV_QP_SQ_PSN).then_some(attributes.sq_psn),
        rnr_retry: given(IBV_QP_RNR_RETRY).then_some(attributes.rnr_retry),
        drained_event: given(IBV_QP_EN_SQD_ASYNC_NOTIFY),
    })
}

/// Bytes of `ibv_qp_attr` in every version: the last field came later.
const QP_ATTR_SIZE: usize = offset_of!(ibv_qp_attr, rate_limit);

/// # Safety
/// `attributes` is null or valid for reads of [`QP_ATTR_SIZE`] bytes.
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    pair: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    errno::status(PAIRS.get(pair).and_then(|pair| {
        if attributes.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: by contract; the structure consists of integers.
        let attributes = unsafe { beginning(attributes, QP_ATTR_SIZE) };
        let change = change(&attributes, mask as u32)?;
        pair.life.during(|| {
            pair.context.hardware()?.modify_qp(pair.qpn, &change)?;
            if let Some(state) = change.state {
                pair.set_state(state);
            }
            Ok(())
        })
    }))
}

/// Returns all attributes that EFA has, whatever the mask selects; a mask with others is `EOPNOTSUPP`. A queue
/// pair that the device has failed is shown as such from then on.
///
/// # Safety
/// `attributes` is null or valid for writes of [`QP_ATTR_SIZE`] bytes, `initial` null or valid for writes.
pub(crate) unsafe extern "C" fn ibv_query_qp(
    pair: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    mask: c_int,
    initial: *mut ibv_qp_init_attr,
) -> c_int {
    let known = IBV_QP_STATE
        | IBV_QP_PKEY_INDEX
        | IBV_QP_PORT
        | IBV_QP_QKEY
        | IBV_QP_SQ_PSN
        | IBV_QP_CAP
        | IBV_QP_RNR_RETRY;
    errno::status(PAIRS.get(pair).and_then(|pair| {
        if attributes.is_null() || initial.is_null() {
            return Err(Errno::INVAL);
        }
        if mask as u32 & !known != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let found = pair.life.during(|| {
            let hardware = pair.context.hardware()?;
            let found = hardware.with_device(|device| device.query_qp(pair.qpn))??;
            if mask as u32 & IBV_QP_STATE != 0 && found.state == QpState::Error {
                pair.show_failure();
            }
            Ok(found)
        })?;
        // SAFETY: valid by contract.
        unsafe {
            copy_out(&current_attributes(&pair, &found), attributes, QP_ATTR_SIZE);
            initial.write(initial_attributes(&pair));
        }
        Ok(())
    }))
}

fn current_attributes(pair: &QueuePair, found: &QpAttributes) -> ibv_qp_attr {
    // SAFETY: the structure consists of integers.
    let mut attributes: ibv_qp_attr = unsafe { zeroed() };
    // The driver leaves `cur_qp_state` zero.
    attributes.qp_state = state_number(found.state);
    attributes.qkey = found.qkey.0;
    attributes.sq_psn = found.sq_psn;
    attributes.cap = pair.plan.cap.into();
    attributes.pkey_index = found.pkey_index;
    attributes.port_num = found.port;
    attributes.rnr_retry = found.rnr_retry;
    attributes
}

fn initial_attributes(pair: &QueuePair) -> ibv_qp_init_attr {
    let pointer = pair.c_pointer();
    // SAFETY: the fields are not written by the library after the queue pair was made.
    let (qp_context, qp_type) = unsafe { ((*pointer).qp_context, (*pointer).qp_type) };
    ibv_qp_init_attr {
        qp_context,
        send_cq: pair.send_cq.c_pointer(),
        recv_cq: pair.recv_cq.c_pointer(),
        srq: null_mut(),
        cap: pair.plan.cap.into(),
        qp_type,
        sq_sig_all: c_int::from(pair.signal_all),
    }
}

/// `EBUSY`, and the queue pair is as it was, while a peer that has stopped in the middle of a copy from
/// or to the memory of a request would go on with it. Waits until all asynchronous events that were taken are
/// acknowledged.
pub(crate) extern "C" fn ibv_destroy_qp(pair: *mut ibv_qp) -> c_int {
    errno::status_of_end(|| {
        let found = PAIRS.get(pair)?;
        found.life.end(|| {
            if let Ok(hardware) = found.context.hardware() {
                hardware.stop_qp(found.qpn)?;
            }
            PAIRS.remove(pair)?;
            end(&found)
        })?;
        // Those of a forked child are its parent's.
        if !found.context.is_forked()
            && let Ok(events) = found.context.async_events()
        {
            events.settle(found.c_pointer().addr());
        }
        Ok(())
    })
}

/// Ends a queue pair that programs do not know any more.
fn end(pair: &QueuePair) -> Result<(), Errno> {
    // First, because the number may go to another queue pair as soon as the device has it back.
    let locking = Locking::new();
    let hardware = pair.context.hardware().ok();
    // In a forked child, the threads whose sessions these are do not exist.
    let orphaned = hardware
        .as_ref()
        .is_none_or(|hardware| hardware.is_forked());
    for queue in [&pair.send_cq, &pair.recv_cq] {
        let mut polled = queue.polled.lock_beside_session(&locking, orphaned);
        if let Some(polled) = polled.as_mut() {
            polled.owners.remove(pair.qpn);
        }
    }
    let destroyed = match &hardware {
        Some(hardware) => {
            if pair.watched.swap(false, Ordering::AcqRel) {
                // It fails in a forked child, whose device looks at nothing.
                let _ = hardware.watch_qp(pair.qpn, false);
            }
            hardware.destroy_qp(pair.qpn)
        }
        None => Ok(()),
    };
    // Whoever still has the pointer finds no queues.
    *pair.queues.send.lock_or_break_session(&locking) = None;
    *pair.queues.recv.lock_or_break_session(&locking) = None;
    pair.with_rings(|rings| *rings = None);
    pair.domain.life.leave();
    destroyed
}

/// Ends the queue pairs of a context that is being closed.
pub(crate) fn end_all(context: &Arc<Context>) {
    for pair in PAIRS.remove_all(|pair| Arc::ptr_eq(&pair.context, context)) {
        // The context is being closed; an error has no recipient.
        let _ = pair.life.end(|| end(&pair));
    }
}

/// `NULL` for a queue pair that was made without builders.
pub(crate) extern "C" fn ibv_qp_to_qp_ex(pair: *mut ibv_qp) -> *mut ibv_qp_ex {
    match PAIRS.get(pair) {
        Ok(found) if found.plan.send_ops.is_some() => pair.cast(),
        _ => null_mut(),
    }
}

/// What is guaranteed about the order in which the bytes of a message become visible.
pub(crate) extern "C" fn ibv_query_qp_data_in_order(
    pair: *mut ibv_qp,
    _operation: c_uint,
    flags: u32,
) -> c_int {
    let Ok(pair) = PAIRS.get(pair) else {
        return 0;
    };
    // Without the flag the question is whether whole messages arrive in order: they do not.
    if flags & IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS != 0
        && pair.context.device.profile.data_polling_128
    {
        DATA_IN_ORDER_ALIGNED_128_BYTES
    } else {
        0
    }
}
