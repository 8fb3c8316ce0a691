//! Completion counters (rdma-core 65).

use core::ffi::c_int;
use std::sync::Arc;

use efa_device_model::device::{CompCounter, CountedOps, CounterValue};

use crate::abi::{
    EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM, EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM,
    EFADV_MEMORY_LOCATION_VA, IBV_COMP_CNTR_TYPE_WRS, efadv_comp_cntr_init_attr,
    efadv_memory_location, ibv_comp_cntr, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr, ibv_context,
    ibv_qp, ibv_qp_attach_comp_cntr_attr,
};
use crate::ffi::errno::{self, Errno};
use crate::ffi::interrupted::Locking;
use crate::ffi::structures::{read_sized, write, write_sized};
use crate::objects::comp_counter::Counter;
use crate::objects::handle::Handle;
use crate::registry::{CONTEXTS, COUNTERS, QUEUE_PAIRS};

/// The location of a counted value: the program's memory if it requests that.
///
/// # Safety
/// A location that is used is memory of the program that stays until the counter is destroyed.
unsafe fn value(location: &efadv_memory_location, is_used: bool) -> Result<CounterValue, Errno> {
    if location.r#type != EFADV_MEMORY_LOCATION_VA {
        return Err(Errno::OPNOTSUPP);
    }
    if !is_used {
        return Ok(CounterValue::own());
    }
    let address = core::ptr::with_exposed_provenance_mut(location.ptr);
    // SAFETY: by contract.
    unsafe { CounterValue::in_program(address) }.ok_or(Errno::FAULT)
}

/// # Safety
/// `attributes` is null or valid for reads; a location that `efa` uses is memory of the program
/// that stays until the counter is destroyed.
unsafe fn create(
    context: *mut ibv_context,
    attributes: *const ibv_comp_cntr_init_attr,
    efa: &efadv_comp_cntr_init_attr,
) -> Result<*mut ibv_comp_cntr, Errno> {
    const COMPLETIONS: u32 = EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM;
    const ERRORS: u32 = EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM;
    let context = CONTEXTS.get(context)?;
    // SAFETY: by contract.
    let attributes = unsafe { attributes.as_ref() }.ok_or(Errno::INVAL)?;
    if attributes.comp_mask != 0
        || attributes.flags != 0
        || attributes.r#type != IBV_COMP_CNTR_TYPE_WRS
        || efa.comp_mask != 0
        || efa.flags & !(COMPLETIONS | ERRORS) != 0
    {
        return Err(Errno::OPNOTSUPP);
    }
    // SAFETY: by contract.
    let values = unsafe {
        CompCounter {
            completions: value(&efa.comp_cntr_ext_mem, efa.flags & COMPLETIONS != 0)?,
            errors: value(&efa.err_cntr_ext_mem, efa.flags & ERRORS != 0)?,
        }
    };
    Ok(COUNTERS.insert(Counter::create(context, values)?))
}

/// Makes a completion counter that the library counts in.
///
/// Returns the counter, or null with `errno`: `EINVAL` for an unknown context or null attributes,
/// `EOPNOTSUPP` for options that EFA does not have, or the device's error.
///
/// # Safety
/// `attributes` is null or valid for reads.
pub(crate) unsafe extern "C" fn ibv_create_comp_cntr(
    context: *mut ibv_context,
    attributes: *const ibv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    let efa = efadv_comp_cntr_init_attr::default();
    // SAFETY: passed on; no location is used.
    errno::pointer(unsafe { create(context, attributes, &efa) })
}

/// Makes a completion counter, in the program's memory where `efa` requests it.
///
/// Returns the counter, or null with the `errno` of [`ibv_create_comp_cntr`]; `EOPNOTSUPP` for a
/// context of another library, `EFAULT` for a location that is null or not aligned.
///
/// # Safety
/// `attributes` is null or valid for reads; `efa` is null or valid for reads of `size` bytes, and
/// its locations are memory of the program that stays until the counter is destroyed.
pub(crate) unsafe extern "C" fn efadv_create_comp_cntr(
    context: *mut ibv_context,
    attributes: *const ibv_comp_cntr_init_attr,
    efa: *const efadv_comp_cntr_init_attr,
    size: u32,
) -> *mut ibv_comp_cntr {
    let known = CONTEXTS.get(context).map_err(|_| Errno::OPNOTSUPP);
    errno::pointer(
        known
            // SAFETY: by contract.
            .and_then(|_| unsafe { read_sized(efa, size, size_of::<efadv_comp_cntr_init_attr>()) })
            // SAFETY: passed on.
            .and_then(|efa| unsafe { create(context, attributes, &efa) }),
    )
}

/// Destroys a completion counter.
///
/// Returns 0 or an errno: `EBUSY` while the counter is attached to a queue pair, `EINVAL` for a
/// pointer that is not a counter.
pub(crate) extern "C" fn ibv_destroy_comp_cntr(counter: *mut ibv_comp_cntr) -> c_int {
    errno::status_of_end(|| {
        let counter = COUNTERS.get(counter)?;
        counter.destroy()?;
        COUNTERS.remove(counter.c_pointer()).map(drop)
    })
}

/// Defines functions that change a value of a counter by a command of the device.
macro_rules! changes {
    ($($(#[$doc:meta])* $name:ident: $values:ident.$change:ident;)+) => { $(
        $(#[$doc])*
        ///
        /// Returns 0 or an errno: `EINVAL` for a pointer that is not a counter, `EIO` after the
        /// device was removed.
        pub(crate) extern "C" fn $name(counter: *mut ibv_comp_cntr, value: u64) -> c_int {
            errno::status(COUNTERS.get(counter).and_then(|counter| {
                counter.context.check_present()?;
                counter.values.$values.$change(value);
                Ok(())
            }))
        }
    )+ };
}

changes! {
    /// Sets the number of completions to `value`.
    ibv_set_comp_cntr: completions.set;
    /// Sets the number of failed completions to `value`.
    ibv_set_err_comp_cntr: errors.set;
    /// Adds `value` to the number of completions.
    ibv_inc_comp_cntr: completions.add;
    /// Adds `value` to the number of failed completions.
    ibv_inc_err_comp_cntr: errors.add;
}

/// Defines functions that read a value of a counter in memory. They first run the device in this
/// thread, because a program may read its counters without polling.
macro_rules! reads {
    ($($(#[$doc:meta])* $name:ident: $values:ident;)+) => { $(
        $(#[$doc])*
        ///
        /// Returns 0 or an errno: `EINVAL` for a pointer that is not a counter, or a null `value`.
        ///
        /// # Safety
        /// `value` is null or valid for a write.
        pub(crate) unsafe extern "C" fn $name(
            counter: *mut ibv_comp_cntr,
            value: *mut u64,
        ) -> c_int {
            errno::status(COUNTERS.get(counter).and_then(|counter| {
                if let Ok(hardware) = counter.context.hardware() {
                    hardware.progress(&Locking::new());
                }
                // SAFETY: valid by contract.
                unsafe { write(value, counter.values.$values.get()) }
            }))
        }
    )+ };
}

reads! {
    /// Writes the number of completions to `*value`.
    ibv_read_comp_cntr: completions;
    /// Writes the number of failed completions to `*value`.
    ibv_read_err_comp_cntr: errors;
}

/// Counts operations of a queue pair, those in `op_mask`, from now on.
///
/// Returns 0 or an errno: `EINVAL` for unknown handles or handles of different contexts, null
/// attributes, or no operation that is known; or the device's error.
///
/// # Safety
/// `attributes` is null or valid for reads.
pub(crate) unsafe extern "C" fn ibv_qp_attach_comp_cntr(
    pair: *mut ibv_qp,
    counter: *mut ibv_comp_cntr,
    attributes: *const ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    errno::status(QUEUE_PAIRS.get(pair).and_then(|pair| {
        let counter = COUNTERS.get(counter)?;
        // SAFETY: valid by contract.
        let attributes = unsafe { attributes.as_ref() }.ok_or(Errno::INVAL)?;
        // Unknown operations are ignored, as in rdma-core.
        let ops = CountedOps::from_bits_truncate(attributes.op_mask);
        if !Arc::ptr_eq(&pair.context, &counter.context)
            || attributes.comp_mask != 0
            || ops.is_empty()
        {
            return Err(Errno::INVAL);
        }
        counter.attach(&pair, ops)
    }))
}

/// Writes the number of counters that the device has, and the operations that they count.
///
/// Returns 0 or an errno: `EOPNOTSUPP` if the device's generation has no counters, `EINVAL` for an
/// unknown context or null `caps`, `EIO` after the device was removed.
///
/// # Safety
/// `caps` is null or valid for writes of `size` bytes.
pub(crate) unsafe extern "C" fn _ibv_query_comp_cntr_caps(
    context: *mut ibv_context,
    caps: *mut ibv_comp_cntr_caps,
    size: usize,
) -> c_int {
    errno::status(CONTEXTS.get(context).and_then(|context| {
        if caps.is_null() {
            return Err(Errno::INVAL);
        }
        context.check_present()?;
        let max_counters = context.device.profile.max_comp_counters;
        if max_counters == 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let answer = ibv_comp_cntr_caps {
            max_value: u64::MAX,
            max_counters,
            supported_qp_attach_ops: CountedOps::all().bits(),
        };
        // SAFETY: valid by contract.
        unsafe { write_sized(caps, &answer, size, 0) }
    }))
}
