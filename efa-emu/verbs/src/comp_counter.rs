//! Completion counters: `ibv_create_comp_cntr` and the calls around it.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use std::sync::Arc;

use efa_device_model::device::{CompCounter, CountedOps, CounterId, CounterValue};

use crate::abi::{
    EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM, EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM,
    EFADV_MEMORY_LOCATION_VA, IBV_COMP_CNTR_TYPE_WRS, efadv_comp_cntr_init_attr,
    efadv_memory_location, ibv_comp_cntr, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr, ibv_context,
    ibv_qp, ibv_qp_attach_comp_cntr_attr,
};
use crate::context::{CONTEXTS, Context};
use crate::efadv::copy_in;
use crate::errno::{self, Errno};
use crate::handles::{Handle, Registry};
use crate::interrupted::Locking;
use crate::query::copy_out;
use crate::queue_pair::PAIRS;

static COUNTERS: Registry<Counter> = Registry::new();

/// A completion counter.
pub(crate) struct Counter {
    c: UnsafeCell<ibv_comp_cntr>,
    context: Arc<Context>,
    id: CounterId,
    values: Arc<CompCounter>,
}

// SAFETY: the C structure is written only while it is made; programs read it.
unsafe impl Send for Counter {}
// SAFETY: as above.
unsafe impl Sync for Counter {}

// SAFETY: the structure is inside the cell.
unsafe impl Handle for Counter {
    type C = ibv_comp_cntr;

    fn c_pointer(&self) -> *mut ibv_comp_cntr {
        self.c.get()
    }
}

/// Where a value is counted: in the program's memory if it wants that.
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
/// `attributes` is null or valid for reads; as for [`value`].
unsafe fn create(
    context: *mut ibv_context,
    attributes: *const ibv_comp_cntr_init_attr,
    efa: &efadv_comp_cntr_init_attr,
) -> Result<*mut ibv_comp_cntr, Errno> {
    let context = CONTEXTS.get(context)?;
    if attributes.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: by contract.
    let attributes = unsafe { attributes.read() };
    let known =
        EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM | EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM;
    if attributes.comp_mask != 0
        || attributes.flags != 0
        || attributes.r#type != IBV_COMP_CNTR_TYPE_WRS
        || efa.comp_mask != 0
        || efa.flags & !known != 0
    {
        return Err(Errno::OPNOTSUPP);
    }
    let has = |flag| efa.flags & flag != 0;
    // SAFETY: by contract.
    let values = Arc::new(unsafe {
        CompCounter {
            completions: value(
                &efa.comp_cntr_ext_mem,
                has(EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM),
            )?,
            errors: value(
                &efa.err_cntr_ext_mem,
                has(EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM),
            )?,
        }
    });
    let hardware = context.hardware()?;
    let id = hardware.with_device(|device| device.create_counter(Arc::clone(&values)))??;
    Ok(COUNTERS.insert(Arc::new(Counter {
        c: UnsafeCell::new(ibv_comp_cntr {
            context: context.c_pointer(),
            handle: id.0,
        }),
        context,
        id,
        values,
    })))
}

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

/// # Safety
/// `attributes` is null or valid for reads; `efa` is null or valid for reads of `size` bytes, and what it names is
/// memory of the program that stays until the counter is destroyed.
pub(crate) unsafe extern "C" fn efadv_create_comp_cntr(
    context: *mut ibv_context,
    attributes: *const ibv_comp_cntr_init_attr,
    efa: *const efadv_comp_cntr_init_attr,
    size: u32,
) -> *mut ibv_comp_cntr {
    errno::pointer(
        CONTEXTS
            .get(context)
            // Not a device of ours.
            .map_err(|_| Errno::OPNOTSUPP)
            // SAFETY: by contract.
            .and_then(|_| unsafe { copy_in(efa, size, size_of::<efadv_comp_cntr_init_attr>()) })
            // SAFETY: passed on.
            .and_then(|efa| unsafe { create(context, attributes, &efa) }),
    )
}

/// `EBUSY` while the counter is attached to a queue pair.
pub(crate) extern "C" fn ibv_destroy_comp_cntr(counter: *mut ibv_comp_cntr) -> c_int {
    errno::status_of_end(|| {
        let counter = COUNTERS.get(counter)?;
        counter
            .context
            .forget(|device| device.destroy_counter(counter.id))?;
        COUNTERS.remove(counter.c_pointer()).map(drop)
    })
}

/// Changes a counter by a command of the device; `EIO` after its removal.
fn change(counter: *mut ibv_comp_cntr, work: impl FnOnce(&CompCounter)) -> c_int {
    errno::status(COUNTERS.get(counter).and_then(|counter| {
        counter.context.check_present()?;
        work(&counter.values);
        Ok(())
    }))
}

/// Reads a value in memory. Lets the device work for this thread first: a program may look at its counters
/// and poll nothing.
///
/// # Safety
/// `to` is null or valid for a write.
unsafe fn read(
    counter: *mut ibv_comp_cntr,
    to: *mut u64,
    of: impl FnOnce(&CompCounter) -> &CounterValue,
) -> c_int {
    errno::status(COUNTERS.get(counter).and_then(|counter| {
        if to.is_null() {
            return Err(Errno::INVAL);
        }
        if let Ok(hardware) = counter.context.hardware() {
            hardware.progress(&Locking::new());
        }
        // SAFETY: valid by contract.
        unsafe { to.write(of(&counter.values).get()) };
        Ok(())
    }))
}

pub(crate) extern "C" fn ibv_set_comp_cntr(counter: *mut ibv_comp_cntr, value: u64) -> c_int {
    change(counter, |values| values.completions.set(value))
}

pub(crate) extern "C" fn ibv_set_err_comp_cntr(counter: *mut ibv_comp_cntr, value: u64) -> c_int {
    change(counter, |values| values.errors.set(value))
}

pub(crate) extern "C" fn ibv_inc_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64) -> c_int {
    change(counter, |values| values.completions.add(amount))
}

pub(crate) extern "C" fn ibv_inc_err_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64) -> c_int {
    change(counter, |values| values.errors.add(amount))
}

/// # Safety
/// `value` is null or valid for a write.
pub(crate) unsafe extern "C" fn ibv_read_comp_cntr(
    counter: *mut ibv_comp_cntr,
    value: *mut u64,
) -> c_int {
    // SAFETY: passed on.
    unsafe { read(counter, value, |values| &values.completions) }
}

/// # Safety
/// `value` is null or valid for a write.
pub(crate) unsafe extern "C" fn ibv_read_err_comp_cntr(
    counter: *mut ibv_comp_cntr,
    value: *mut u64,
) -> c_int {
    // SAFETY: passed on.
    unsafe { read(counter, value, |values| &values.errors) }
}

/// Counts operations of a queue pair from now on.
///
/// # Safety
/// `attributes` is null or valid for reads.
pub(crate) unsafe extern "C" fn ibv_qp_attach_comp_cntr(
    pair: *mut ibv_qp,
    counter: *mut ibv_comp_cntr,
    attributes: *const ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    errno::status(PAIRS.get(pair).and_then(|pair| {
        let counter = COUNTERS.get(counter)?;
        if attributes.is_null() || !Arc::ptr_eq(&pair.context, &counter.context) {
            return Err(Errno::INVAL);
        }
        // SAFETY: valid by contract.
        let attributes = unsafe { attributes.read() };
        // As the headers are, the library leaves out operations that it does not know.
        let ops = CountedOps::from_bits_truncate(attributes.op_mask);
        if attributes.comp_mask != 0 || ops.is_empty() {
            return Err(Errno::INVAL);
        }
        let hardware = pair.context.hardware()?;
        Ok(hardware.with_device(|device| device.attach_counter(pair.qpn, counter.id, ops))??)
    }))
}

/// `EOPNOTSUPP` if the device's generation has no counters.
///
/// # Safety
/// `caps` is null or valid for writes of `size` bytes.
pub(crate) unsafe extern "C" fn ibv_query_comp_cntr_caps(
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
        unsafe { copy_out(&answer, caps, size) };
        Ok(())
    }))
}
