//! Atomic operations on peers' memory (`fi_atomic`).

use std::ffi::{c_int, c_void};

use efa_core::endpoint::{
    AtomicArgs, AtomicKind, CompletionFlags, Errno, IoVec, RemoteIoVec, atomic_limits,
};
use efa_core::nic::Domain as _;
use efa_core::wire::{AtomicDatatype, AtomicOp};

use crate::calls::segments::{Segments, length_of, local, local_list, remote, remote_list};
use crate::calls::shim::transfer_calls;
use crate::calls::start::{Call, start};
use crate::ffi::object::object;
use crate::ffi::result::{Result, status};
use crate::ffi::table::Table;
use crate::ffi::*;
use crate::objects::domain::Domain;
use crate::objects::endpoint::Endpoint;

pub(crate) static OPS: Table<fi_ops_atomic> = Table::new(fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    readwrite: Some(readwrite),
    readwritev: Some(readwritev),
    readwritemsg: Some(readwritemsg),
    compwrite: Some(compwrite),
    compwritev: Some(compwritev),
    compwritemsg: Some(compwritemsg),
    writevalid: Some(writevalid),
    readwritevalid: Some(readwritevalid),
    compwritevalid: Some(compwritevalid),
});

/// Operation on each element.
#[derive(Clone, Copy)]
struct Action {
    datatype: AtomicDatatype,
    operation: AtomicOp,
}

impl Action {
    fn new(datatype: fi_datatype, operation: fi_op) -> Action {
        Action {
            datatype: AtomicDatatype(datatype),
            operation: AtomicOp(operation),
        }
    }

    /// The bytes of an element.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` for a datatype that is not known.
    fn unit(self) -> Result<usize> {
        self.datatype.size().ok_or(Errno::EOPNOTSUPP)
    }

    /// The bytes of `count` elements.
    ///
    /// # Errors
    /// As [`Action::unit`], and `FI_EINVAL` for more than there is memory.
    fn bytes(self, count: usize) -> Result<usize> {
        self.unit()?.checked_mul(count).ok_or(Errno::EINVAL)
    }

    /// A segment of `count` elements of a peer's memory.
    ///
    /// # Errors
    /// As [`Action::bytes`].
    fn remote(self, address: u64, count: usize, key: u64) -> Result<Segments<RemoteIoVec>> {
        let length = self.bytes(count)? as u64;
        Ok(Segments::one(remote(address, length, key)))
    }

    /// A segment of `count` elements of the application's memory.
    ///
    /// # Errors
    /// As [`Action::bytes`] and [`local`].
    ///
    /// # Safety
    /// The descriptor is null, or of a registration that has not ended.
    unsafe fn local(
        self,
        buffer: *const c_void,
        count: usize,
        descriptor: *mut c_void,
    ) -> Result<Segments<IoVec>> {
        // SAFETY: the descriptor by the caller's contract.
        let segment = unsafe { local(buffer, self.bytes(count)?, descriptor) }?;
        Ok(Segments::one(segment))
    }

    /// Segments of the application's memory, whose lengths are in elements.
    ///
    /// # Errors
    /// As [`Action::unit`] and [`local_list`].
    ///
    /// # Safety
    /// The list is null or has `count` segments. The list of descriptors is null or has `count`
    /// descriptors, each null or of a registration that has not ended.
    unsafe fn local_list(
        self,
        list: *const fi_ioc,
        descriptors: *mut *mut c_void,
        count: usize,
    ) -> Result<Segments<IoVec>> {
        // SAFETY: both lists by the caller's contract.
        unsafe { local_list(list, descriptors, count, self.unit()?) }
    }
}

/// The application's memory besides the operand.
enum Results {
    None,
    Fetch(Segments<IoVec>),
    Compare {
        comparand: Segments<IoVec>,
        result: Segments<IoVec>,
    },
}

/// Whether there is a segment, and all have addresses.
fn is_memory(segments: &[IoVec]) -> bool {
    !segments.is_empty() && segments.iter().all(|segment| segment.memory.address != 0)
}

/// Starts an atomic. `operand` is ignored if the operation has none.
///
/// # Errors
/// `FI_EINVAL` for arguments that contradict each other, `FI_EOPNOTSUPP` for an undefined
/// operation, and the errors of [`start`].
fn start_atomic(
    endpoint: &Endpoint,
    action: Action,
    operand: Result<Segments<IoVec>>,
    results: &Results,
    remote: &Segments<RemoteIoVec>,
    call: Call,
) -> Result<usize> {
    let (kind, call) = match results {
        Results::None => (AtomicKind::Write, call),
        Results::Fetch(result) => {
            let result = result.as_slice();
            (AtomicKind::Fetch { result }, call.fetching())
        }
        Results::Compare { comparand, result } => {
            let (comparand, result) = (comparand.as_slice(), result.as_slice());
            (AtomicKind::Compare { result, comparand }, call.fetching())
        }
    };
    let operand = match (kind, action.operation) {
        // The operand may be absent. The same number of bytes is sent, which the target ignores.
        (AtomicKind::Fetch { result }, AtomicOp::ATOMIC_READ) => match &operand {
            Ok(operand)
                if is_memory(operand.as_slice())
                    && length_of(operand.as_slice()) == length_of(result) =>
            {
                operand.as_slice()
            }
            _ => result,
        },
        _ => operand.as_ref().map_err(|error| *error)?.as_slice(),
    };
    let length = length_of(operand);
    if length == 0 {
        return Err(Errno::EINVAL);
    }
    let completion = (CompletionFlags::ATOMIC | CompletionFlags::WRITE, length);
    start(endpoint, &call, completion, |engine, start| {
        engine.atomic(AtomicArgs {
            peer: start.peer,
            datatype: action.datatype,
            operation: action.operation,
            operand,
            kind,
            remote: remote.as_slice(),
            flags: start.flags,
            context: start.context,
        })
    })
}

/// Starts an atomic that a structure describes.
///
/// # Errors
/// `FI_EINVAL` without a structure, and the errors of [`Call::check_flags`] and [`start_atomic`].
///
/// # Safety
/// The message is null or valid with all structures that it points to.
unsafe fn start_message(
    endpoint: &Endpoint,
    message: *const fi_msg_atomic,
    flags: u64,
    results: impl FnOnce(Action) -> Result<Results>,
) -> Result<usize> {
    // SAFETY: by the caller's contract.
    let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
    let call = Call::message(message.addr, message.data, flags, message.context);
    call.check_flags()?;
    let action = Action::new(message.datatype, message.op);
    // SAFETY: as above.
    let (operand, remote) = unsafe {
        (
            action.local_list(message.msg_iov, message.desc, message.iov_count),
            remote_list(message.rma_iov, message.rma_iov_count, action.unit()?)?,
        )
    };
    start_atomic(endpoint, action, operand, &results(action)?, &remote, call)
}

transfer_calls! {
    /// Changes a peer's memory (`fi_atomic`).
    fn write(
        endpoint, buffer: *const c_void, count: usize, descriptor: *mut c_void, to: fi_addr_t,
        address: u64, key: u64, datatype: fi_datatype, operation: fi_op, context: *mut c_void,
    ) {
        let action = Action::new(datatype, operation);
        let remote = action.remote(address, count, key)?;
        // SAFETY: by the caller's contract.
        let operand = unsafe { action.local(buffer, count, descriptor) };
        let call = Call::new(to, context);
        start_atomic(endpoint, action, operand, &Results::None, &remote, call)
    }

    /// Changes a peer's memory by several segments (`fi_atomicv`).
    fn writev(
        endpoint, list: *const fi_ioc, descriptors: *mut *mut c_void, count: usize, to: fi_addr_t,
        address: u64, key: u64, datatype: fi_datatype, operation: fi_op, context: *mut c_void,
    ) {
        let action = Action::new(datatype, operation);
        // SAFETY: by the caller's contract.
        let operand = unsafe { action.local_list(list, descriptors, count) }?;
        let remote = Segments::one(remote(address, length_of(operand.as_slice()), key));
        let call = Call::new(to, context);
        start_atomic(endpoint, action, Ok(operand), &Results::None, &remote, call)
    }

    /// Changes the memory that a structure describes (`fi_atomicmsg`).
    fn writemsg(endpoint, message: *const fi_msg_atomic, flags: u64) {
        // SAFETY: by the caller's contract.
        unsafe { start_message(endpoint, message, flags, |_| Ok(Results::None)) }
    }

    /// As [`write`], with a buffer that is free on return (`fi_inject_atomic`).
    fn inject(
        endpoint, buffer: *const c_void, count: usize, to: fi_addr_t, address: u64, key: u64,
        datatype: fi_datatype, operation: fi_op,
    ) {
        let action = Action::new(datatype, operation);
        let remote = action.remote(address, count, key)?;
        // SAFETY: there is no descriptor.
        let operand = unsafe { action.local(buffer, count, std::ptr::null_mut()) };
        let call = Call::inject(to);
        start_atomic(endpoint, action, operand, &Results::None, &remote, call)
    }

    /// Changes a peer's memory, and fetches the old values (`fi_fetch_atomic`).
    fn readwrite(
        endpoint, buffer: *const c_void, count: usize, descriptor: *mut c_void,
        result: *mut c_void, result_descriptor: *mut c_void, to: fi_addr_t, address: u64,
        key: u64, datatype: fi_datatype, operation: fi_op, context: *mut c_void,
    ) {
        let action = Action::new(datatype, operation);
        let remote = action.remote(address, count, key)?;
        // SAFETY: by the caller's contract.
        let operand = unsafe { action.local(buffer, count, descriptor) };
        // SAFETY: by the caller's contract.
        let result = unsafe { action.local(result, count, result_descriptor) }?;
        let call = Call::new(to, context);
        start_atomic(endpoint, action, operand, &Results::Fetch(result), &remote, call)
    }

    /// As [`readwrite`], with several segments (`fi_fetch_atomicv`).
    fn readwritev(
        endpoint, list: *const fi_ioc, descriptors: *mut *mut c_void, count: usize,
        results: *mut fi_ioc, result_descriptors: *mut *mut c_void, result_count: usize,
        to: fi_addr_t, address: u64, key: u64, datatype: fi_datatype, operation: fi_op,
        context: *mut c_void,
    ) {
        let action = Action::new(datatype, operation);
        // SAFETY: by the caller's contract.
        let operand = unsafe { action.local_list(list, descriptors, count) };
        // SAFETY: by the caller's contract.
        let result = unsafe { action.local_list(results, result_descriptors, result_count) }?;
        let remote = Segments::one(remote(address, length_of(result.as_slice()), key));
        let call = Call::new(to, context);
        start_atomic(endpoint, action, operand, &Results::Fetch(result), &remote, call)
    }

    /// As [`readwrite`], with the arguments in a structure (`fi_fetch_atomicmsg`).
    fn readwritemsg(
        endpoint, message: *const fi_msg_atomic, results: *mut fi_ioc,
        result_descriptors: *mut *mut c_void, result_count: usize, flags: u64,
    ) {
        // SAFETY: by the caller's contract.
        unsafe {
            start_message(endpoint, message, flags, |action| {
                let result = action.local_list(results, result_descriptors, result_count)?;
                Ok(Results::Fetch(result))
            })
        }
    }

    /// Changes a peer's memory where a comparison holds, and fetches the old values
    /// (`fi_compare_atomic`).
    fn compwrite(
        endpoint, buffer: *const c_void, count: usize, descriptor: *mut c_void,
        comparand: *const c_void, comparand_descriptor: *mut c_void, result: *mut c_void,
        result_descriptor: *mut c_void, to: fi_addr_t, address: u64, key: u64,
        datatype: fi_datatype, operation: fi_op, context: *mut c_void,
    ) {
        let action = Action::new(datatype, operation);
        let remote = action.remote(address, count, key)?;
        // SAFETY: by the caller's contract.
        let operand = unsafe { action.local(buffer, count, descriptor) };
        // SAFETY: by the caller's contract.
        let results = unsafe {
            Results::Compare {
                comparand: action.local(comparand, count, comparand_descriptor)?,
                result: action.local(result, count, result_descriptor)?,
            }
        };
        let call = Call::new(to, context);
        start_atomic(endpoint, action, operand, &results, &remote, call)
    }

    /// As [`compwrite`], with several segments (`fi_compare_atomicv`).
    fn compwritev(
        endpoint, list: *const fi_ioc, descriptors: *mut *mut c_void, count: usize,
        comparands: *const fi_ioc, comparand_descriptors: *mut *mut c_void,
        comparand_count: usize, results: *mut fi_ioc, result_descriptors: *mut *mut c_void,
        result_count: usize, to: fi_addr_t, address: u64, key: u64, datatype: fi_datatype,
        operation: fi_op, context: *mut c_void,
    ) {
        let action = Action::new(datatype, operation);
        // SAFETY: by the caller's contract.
        let operand = unsafe { action.local_list(list, descriptors, count) }?;
        let remote = Segments::one(remote(address, length_of(operand.as_slice()), key));
        // SAFETY: by the caller's contract.
        let results = unsafe {
            Results::Compare {
                comparand: action.local_list(comparands, comparand_descriptors, comparand_count)?,
                result: action.local_list(results, result_descriptors, result_count)?,
            }
        };
        let call = Call::new(to, context);
        start_atomic(endpoint, action, Ok(operand), &results, &remote, call)
    }

    /// As [`compwrite`], with the arguments in a structure (`fi_compare_atomicmsg`).
    fn compwritemsg(
        endpoint, message: *const fi_msg_atomic, comparands: *const fi_ioc,
        comparand_descriptors: *mut *mut c_void, comparand_count: usize, results: *mut fi_ioc,
        result_descriptors: *mut *mut c_void, result_count: usize, flags: u64,
    ) {
        // SAFETY: by the caller's contract.
        unsafe {
            start_message(endpoint, message, flags, |action| {
                let comparand =
                    action.local_list(comparands, comparand_descriptors, comparand_count)?;
                let result = action.local_list(results, result_descriptors, result_count)?;
                Ok(Results::Compare { comparand, result })
            })
        }
    }
}

/// The most elements of an operation, and the size of one in bytes.
///
/// # Errors
/// `FI_EOPNOTSUPP` if the operation is not defined for the datatype.
fn limits(domain: &Domain, action: Action, kind: AtomicKind<'_>) -> Result<fi_atomic_attr> {
    let mut state = domain.state()?;
    let attributes = state.core.nic_mut().attributes();
    let limits = atomic_limits(attributes, action.datatype, action.operation, kind);
    let limits = limits.ok_or(Errno::EOPNOTSUPP)?;
    Ok(fi_atomic_attr {
        count: limits.count,
        size: limits.size,
    })
}

/// The kinds of atomics of `fi_query_atomic`, whose memory is ignored.
const FETCH: AtomicKind<'static> = AtomicKind::Fetch {
    result: &[] as &[IoVec],
};
const COMPARE: AtomicKind<'static> = AtomicKind::Compare {
    result: &[] as &[IoVec],
    comparand: &[] as &[IoVec],
};

/// The limits of an operation on a domain (`fi_query_atomic`). The flags select one of the three
/// kinds.
///
/// # Errors
/// `FI_EINVAL` for other flags, such as atomics on tags; the errors of [`limits`].
pub(crate) fn query(
    domain: &Domain,
    datatype: fi_datatype,
    operation: fi_op,
    flags: u64,
) -> Result<fi_atomic_attr> {
    let kind = match flags {
        0 => AtomicKind::Write,
        FI_FETCH_ATOMIC => FETCH,
        FI_COMPARE_ATOMIC => COMPARE,
        _ => return Err(Errno::EINVAL),
    };
    limits(domain, Action::new(datatype, operation), kind)
}

/// Defines the functions that return the largest number of elements of an operation.
macro_rules! valid_calls {
    ($($(#[$documentation:meta])* $name:ident: $kind:expr;)*) => {$(
        $(#[$documentation])*
        ///
        /// # Returns
        /// 0; `-FI_EINVAL` for an object that is not an endpoint, `-FI_EOPNOTSUPP` if the operation
        /// is not defined for the datatype.
        ///
        /// # Safety
        /// `count` is null or valid for a write.
        unsafe extern "C" fn $name(
            endpoint: *mut fid_ep,
            datatype: fi_datatype,
            operation: fi_op,
            count: *mut usize,
        ) -> c_int {
            status(|| {
                // SAFETY: any pointer is permitted.
                let endpoint: &Endpoint = unsafe { object(endpoint.cast()) }?;
                let action = Action::new(datatype, operation);
                let limits = limits(endpoint.domain(), action, $kind)?;
                // SAFETY: by the caller's contract.
                if let Some(count) = unsafe { count.as_mut() } {
                    *count = limits.count;
                }
                Ok(())
            })
        }
    )*};
}

valid_calls! {
    /// The most elements of [`write`] (`fi_atomicvalid`).
    writevalid: AtomicKind::Write;
    /// The most elements of [`readwrite`] (`fi_fetch_atomicvalid`).
    readwritevalid: FETCH;
    /// The most elements of [`compwrite`] (`fi_compare_atomicvalid`).
    compwritevalid: COMPARE;
}
