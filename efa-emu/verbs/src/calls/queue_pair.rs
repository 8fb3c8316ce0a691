//! Making, changing, querying and destroying queue pairs.

use core::ffi::{c_int, c_uint};
use core::mem::offset_of;
use core::ptr::null_mut;
use std::sync::Arc;

use efa_core::address::Qkey;
use efa_device_model::device::{QpAttributes, QpChange};

use super::{builder, connected};
use crate::abi::{
    IBV_QP_CAP, IBV_QP_CUR_STATE, IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_RNR_RETRY,
    IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QPT_RC, IBV_QPT_UD, IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS,
    efadv_qp_init_attr, ibv_context, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_init_attr_ex,
};
use crate::ffi::errno::{self, Errno};
use crate::ffi::structures::{read_masked, read_prefix, write, write_sized, zeroed};
use crate::objects::context::Context;
use crate::objects::qp_plan::{plan, plan_connected};
use crate::objects::queue_pair::{
    Dependencies, QueuePair, QueuePairC, state_from_number, state_number,
};
use crate::registry::{COMP_QUEUES, CONTEXTS, DOMAINS, QUEUE_PAIRS};

/// Aligned writes of 128 bytes become visible in order.
const DATA_IN_ORDER_ALIGNED_128_BYTES: c_int = 1 << 1;

/// The bytes of `ibv_qp_attr` in every version; the last field was added later.
const QP_ATTR_SIZE: usize = offset_of!(ibv_qp_attr, rate_limit);

/// Makes a queue pair and writes the granted sizes into the request.
fn create(
    context: &Arc<Context>,
    attributes: &mut ibv_qp_init_attr_ex,
    efa: &efadv_qp_init_attr,
) -> Result<*mut ibv_qp, Errno> {
    let is_connected = attributes.qp_type == IBV_QPT_RC && context.device.profile.connected;
    let plan = match is_connected {
        true => plan_connected(attributes)?,
        false => plan(&context.device.profile, attributes, efa)?,
    };
    let dependencies = Dependencies {
        domain: DOMAINS.get(attributes.pd)?,
        send_cq: COMP_QUEUES.get(attributes.send_cq)?,
        recv_cq: COMP_QUEUES.get(attributes.recv_cq)?,
    };
    let contexts = [
        &dependencies.domain.context,
        &dependencies.send_cq.context,
        &dependencies.recv_cq.context,
    ];
    if contexts.iter().any(|other| !Arc::ptr_eq(other, context)) {
        return Err(Errno::INVAL);
    }
    let pair = match is_connected {
        true => connected::create(context, dependencies, plan, attributes)?,
        false => QueuePair::create(context, dependencies, plan, attributes, |base| QueuePairC {
            verbs: builder::extended(base, &plan),
            efa: builder::efa_extension(&plan),
        })?,
    };
    attributes.cap = plan.cap;
    Ok(QUEUE_PAIRS.insert(pair))
}

/// Makes a queue pair of a type that `check` accepts.
///
/// # Safety
/// `attributes` is null or valid for reads up to the last field that its `comp_mask` names, and for
/// writes of `cap`.
pub(super) unsafe fn create_extended(
    context: &Arc<Context>,
    attributes: *mut ibv_qp_init_attr_ex,
    efa: &efadv_qp_init_attr,
    check: impl FnOnce(u32) -> Result<(), Errno>,
) -> Result<*mut ibv_qp, Errno> {
    // Only the fields that EFA uses.
    let mut known = read_masked!(attributes, ibv_qp_init_attr_ex, pd, {
        IBV_QP_INIT_ATTR_PD: pd,
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: send_ops_flags,
    })?;
    check(known.qp_type)?;
    let pair = create(context, &mut known, efa)?;
    // SAFETY: by contract.
    unsafe { (*attributes).cap = known.cap };
    Ok(pair)
}

/// Makes a queue pair for a program that uses only the basic attributes.
pub(super) fn create_basic(
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

/// The types of queue pairs that the common calls make.
fn types(context: Option<&Context>) -> &'static [u32] {
    match context.is_some_and(|context| context.device.profile.connected) {
        true => &[IBV_QPT_UD, IBV_QPT_RC],
        false => &[IBV_QPT_UD],
    }
}

/// Makes a UD queue pair, or a connected one on a device that supports them. SRD queue pairs are
/// made by calls of libefa. The granted sizes are written to `cap`.
///
/// Returns the queue pair, or null with `errno`: `EOPNOTSUPP` for another type, `EINVAL` for
/// unknown handles, null attributes, or sizes beyond the device; or the device's error.
///
/// # Safety
/// `attributes` is null or valid for reads and writes.
pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    attributes: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: valid by contract.
    let attributes = unsafe { attributes.as_mut() };
    let known = types(DOMAINS.get(pd).ok().as_ref().map(|domain| &*domain.context));
    if attributes
        .as_ref()
        .is_some_and(|attributes| !known.contains(&attributes.qp_type))
    {
        return errno::pointer(Err(Errno::OPNOTSUPP));
    }
    errno::pointer(create_basic(pd, attributes, &efadv_qp_init_attr::default()))
}

/// Makes a UD queue pair with the builders that `send_ops_flags` names. Slot of `verbs_context`.
///
/// Returns the queue pair, or null with the `errno` of [`ibv_create_qp`].
///
/// # Safety
/// `attributes` is null or valid for reads up to the last field that its `comp_mask` names, and for
/// writes of `cap`.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    errno::pointer(CONTEXTS.get(context).and_then(|context| {
        let only_known = |qp_type| match types(Some(&context)).contains(&qp_type) {
            true => Ok(()),
            false => Err(Errno::OPNOTSUPP),
        };
        let efa = efadv_qp_init_attr::default();
        // SAFETY: by contract.
        unsafe { create_extended(&context, attributes, &efa, only_known) }
    }))
}

/// The attributes that `mask` selects. `EOPNOTSUPP` for attributes that EFA does not have.
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

/// Changes the attributes of a queue pair that `mask` selects (`ibv_qp_attr_mask`).
///
/// Returns 0 or an errno: `EOPNOTSUPP` for attributes that EFA does not have, `EINVAL` for a
/// pointer that is null or no queue pair, or a change that its state does not allow; or the
/// device's error.
///
/// # Safety
/// `attributes` is null or valid for reads of [`QP_ATTR_SIZE`] bytes.
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    pair: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    errno::status(QUEUE_PAIRS.get(pair).and_then(|pair| {
        if attributes.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: by contract; the structure consists of integers.
        let attributes = unsafe { read_prefix(attributes, QP_ATTR_SIZE) };
        if let Some(connection) = &pair.connection {
            return connected::modify(&pair, connection, &attributes, mask as u32);
        }
        pair.modify(&change(&attributes, mask as u32)?)
    }))
}

/// Writes all attributes that EFA has, independent of `mask`, and the attributes at creation to
/// `*initial`. From then on the state of a queue pair that the device has failed is shown.
///
/// Returns 0 or an errno: `EOPNOTSUPP` for a mask with attributes that EFA does not have, `EINVAL`
/// for a pointer that is null or no queue pair; or the device's error.
///
/// # Safety
/// `attributes` is null or valid for writes of [`QP_ATTR_SIZE`] bytes, `initial` null or valid for
/// writes.
pub(crate) unsafe extern "C" fn ibv_query_qp(
    pair: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    mask: c_int,
    initial: *mut ibv_qp_init_attr,
) -> c_int {
    let mask = mask as u32;
    let known = IBV_QP_STATE
        | IBV_QP_PKEY_INDEX
        | IBV_QP_PORT
        | IBV_QP_QKEY
        | IBV_QP_SQ_PSN
        | IBV_QP_CAP
        | IBV_QP_RNR_RETRY;
    errno::status(QUEUE_PAIRS.get(pair).and_then(|pair| {
        if attributes.is_null() || initial.is_null() {
            return Err(Errno::INVAL);
        }
        if let Some(connection) = &pair.connection {
            let current = connected::query(&pair, connection)?;
            // SAFETY: valid by contract.
            return unsafe {
                write_sized(attributes, &current, QP_ATTR_SIZE, QP_ATTR_SIZE)?;
                write(initial, pair.initial_attributes())
            };
        }
        if mask & !known != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let found = pair.query(mask & IBV_QP_STATE != 0)?;
        let current = current_attributes(&pair, &found);
        // SAFETY: valid by contract.
        unsafe {
            write_sized(attributes, &current, QP_ATTR_SIZE, QP_ATTR_SIZE)?;
            write(initial, pair.initial_attributes())
        }
    }))
}

fn current_attributes(pair: &QueuePair, found: &QpAttributes) -> ibv_qp_attr {
    // SAFETY: the structure consists of integers.
    let mut attributes: ibv_qp_attr = unsafe { zeroed() };
    // The driver does not set `cur_qp_state`.
    attributes.qp_state = state_number(found.state);
    attributes.qkey = found.qkey.0;
    attributes.sq_psn = found.sq_psn;
    attributes.cap = pair.plan.cap;
    attributes.pkey_index = found.pkey_index;
    attributes.port_num = found.port;
    attributes.rnr_retry = found.rnr_retry;
    attributes
}

/// Destroys a queue pair. Waits until all asynchronous events that the program read are
/// acknowledged.
///
/// Returns 0 or an errno: `EINVAL` for a pointer that is not a queue pair; `EBUSY`, and the queue
/// pair is unchanged, while a stopped peer is in the middle of a copy from or to the memory of a
/// request, and would continue it.
pub(crate) extern "C" fn ibv_destroy_qp(pair: *mut ibv_qp) -> c_int {
    errno::status_of_end(|| {
        let remove = || QUEUE_PAIRS.remove(pair).map(drop);
        QUEUE_PAIRS.get(pair)?.destroy(remove)
    })
}

/// Returns the extended queue pair, which has the same address. Returns null for a queue pair that
/// was made without builders and for any other pointer.
pub(crate) extern "C" fn ibv_qp_to_qp_ex(pair: *mut ibv_qp) -> *mut ibv_qp_ex {
    match QUEUE_PAIRS.get(pair) {
        Ok(found) if found.plan.send_ops.is_some() => pair.cast(),
        _ => null_mut(),
    }
}

/// Returns the guarantees about the order in which the bytes of a message become visible
/// (`ibv_query_qp_data_in_order_caps`); 0 for a pointer that is not a queue pair.
pub(crate) extern "C" fn ibv_query_qp_data_in_order(
    pair: *mut ibv_qp,
    _operation: c_uint,
    flags: u32,
) -> c_int {
    let polls_data = QUEUE_PAIRS
        .get(pair)
        .is_ok_and(|pair| pair.context.device.profile.data_polling_128);
    // Without the flag the question is whether whole messages arrive in order. They do not.
    match polls_data && flags & IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS != 0 {
        true => DATA_IN_ORDER_ALIGNED_128_BYTES,
        false => 0,
    }
}
