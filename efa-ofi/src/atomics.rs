//! Atomic operations on peers' memory (`fi_atomic`).

use std::ffi::{c_int, c_void};

use efa_core::endpoint::{
    AtomicArgs, AtomicKind, CompletionFlags, Errno, IOV_LIMIT, IoVec, atomic_limits,
};
use efa_core::nic::Domain as _;
use efa_core::wire::{AtomicDatatype, AtomicOp};

use crate::border::{self, EOPBADSTATE, Result};
use crate::domain::Domain;
use crate::endpoint::{Endpoint, Start};
use crate::ffi::*;
use crate::messages::Pieces;
use crate::one_sided::Remote;
use crate::table::Table;

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

/// What is done to each element.
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

    /// The bytes of `count` elements.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` for a datatype that is not known, `FI_EINVAL` for more than there is memory.
    fn bytes(self, count: usize) -> Result<usize> {
        let size = self.datatype.size().ok_or(Errno::EOPNOTSUPP)?;
        count.checked_mul(size).ok_or(Errno::EINVAL)
    }

    /// One piece of `count` elements.
    ///
    /// # Errors
    /// As [`Action::bytes`] and [`Pieces::one`].
    ///
    /// # Safety
    /// As [`Pieces::one`].
    unsafe fn one(
        self,
        buffer: *const c_void,
        count: usize,
        descriptor: *mut c_void,
    ) -> Result<Pieces> {
        // SAFETY: the caller's contract is the same.
        unsafe { Pieces::one(buffer, self.bytes(count)?, descriptor) }
    }

    /// Several pieces, whose lengths are in elements.
    ///
    /// # Errors
    /// As [`Action::bytes`] and [`Pieces::several`].
    ///
    /// # Safety
    /// As [`Pieces::several`].
    unsafe fn several(
        self,
        list: *const fi_ioc,
        descriptors: *mut *mut c_void,
        count: usize,
    ) -> Result<Pieces> {
        if count > IOV_LIMIT || (list.is_null() && count > 0) {
            return Err(Errno::EINVAL);
        }
        let mut pieces = [iovec::default(); IOV_LIMIT];
        for (index, piece) in pieces.iter_mut().enumerate().take(count) {
            // SAFETY: by the caller's contract.
            let given = unsafe { list.add(index).read() };
            piece.iov_base = given.addr;
            piece.iov_len = self.bytes(given.count)?;
        }
        // SAFETY: the pieces stand in the array; descriptors by the caller's contract.
        unsafe { Pieces::several(pieces.as_ptr(), descriptors, count) }
    }

    /// A peer's memory, whose lengths are in elements.
    ///
    /// # Errors
    /// As [`Action::bytes`] and [`Remote::several`].
    ///
    /// # Safety
    /// There are `count` pieces.
    unsafe fn remote(
        self,
        peer: fi_addr_t,
        list: *const fi_rma_ioc,
        count: usize,
    ) -> Result<Remote> {
        if count > IOV_LIMIT || (list.is_null() && count > 0) {
            return Err(Errno::EINVAL);
        }
        let mut pieces = [fi_rma_iov::default(); IOV_LIMIT];
        for (index, piece) in pieces.iter_mut().enumerate().take(count) {
            // SAFETY: by the caller's contract.
            let given = unsafe { list.add(index).read() };
            piece.addr = given.addr;
            piece.len = self.bytes(given.count)?;
            piece.key = given.key;
        }
        // SAFETY: the pieces stand in the array.
        unsafe { Remote::several(peer, pieces.as_ptr(), count) }
    }
}

/// The application's memory besides the operand.
enum Memory {
    None,
    Result(Pieces),
    Comparison { comparand: Pieces, result: Pieces },
}

/// How an atomic is carried out and reported.
struct Manner {
    /// The call's flags, if it has any.
    flags: Option<u64>,
    inject: bool,
    context: *mut c_void,
}

impl Manner {
    fn plain(context: *mut c_void) -> Manner {
        Manner {
            flags: None,
            inject: false,
            context,
        }
    }

    fn with(flags: u64, context: *mut c_void) -> Manner {
        Manner {
            flags: Some(flags),
            inject: false,
            context,
        }
    }
}

/// Starts an atomic. `operand` is not looked at where the operation has none.
///
/// # Errors
/// `FI_EINVAL` for arguments that contradict each other, `FI_EOPNOTSUPP` for an operation that is not defined,
/// `FI_EAGAIN` while resources are short.
///
/// # Safety
/// The endpoint is null or one of libfabric's.
unsafe fn start(
    endpoint: *mut fid_ep,
    action: Action,
    operand: Result<Pieces>,
    memory: Memory,
    remote: Remote,
    manner: Manner,
) -> Result<usize> {
    // SAFETY: by the caller's contract.
    let endpoint: &Endpoint = unsafe { border::transfer_object(endpoint.cast()) }?;
    let operand = match (&memory, action.operation) {
        // An operand need not be there. As many bytes are sent, which the target does not use.
        (Memory::Result(result), AtomicOp::ATOMIC_READ) => match operand {
            Ok(operand) if operand.is_memory() && operand.length() == result.length() => operand,
            _ => result.clone(),
        },
        _ => operand?,
    };
    if operand.length() == 0 {
        return Err(Errno::EINVAL);
    }
    let kind = match &memory {
        Memory::None => AtomicKind::Write,
        Memory::Result(result) => AtomicKind::Fetch {
            result: result.as_slice(),
        },
        Memory::Comparison { comparand, result } => AtomicKind::Compare {
            result: result.as_slice(),
            comparand: comparand.as_slice(),
        },
    };
    let enabled = endpoint.enabled()?;
    let mut state = endpoint.domain().operation()?;
    let state = &mut *state;
    let peer = enabled.addresses(&state.tables)?.peer(remote.peer)?;
    let start = match (manner.inject, &memory) {
        (true, _) => Start::INJECT,
        (false, Memory::None) => enabled.start(manner.flags, manner.context),
        // The result is there later in any case.
        (false, _) => {
            let flags = enabled.sends.or_default(manner.flags) & !FI_INJECT;
            enabled.start(Some(flags), manner.context)
        }
    };
    let engine = state.core.endpoint(enabled.id).ok_or(EOPBADSTATE)?;
    let started = engine.atomic(AtomicArgs {
        peer,
        datatype: action.datatype,
        operation: action.operation,
        operand: operand.as_slice(),
        kind,
        remote: remote.as_slice(),
        flags: start.flags,
        context: start.context,
    });
    started.map_err(|error| error.errno())?;
    let flags = CompletionFlags::ATOMIC | CompletionFlags::WRITE;
    endpoint.started(&mut state.tables, &start, flags, operand.length());
    Ok(0)
}

/// # Safety
/// As libfabric documents `fi_atomic`.
unsafe extern "C" fn write(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    count: usize,
    descriptor: *mut c_void,
    to: fi_addr_t,
    address: u64,
    key: u64,
    datatype: fi_datatype,
    operation: fi_op,
    context: *mut c_void,
) -> isize {
    border::count(|| {
        let action = Action::new(datatype, operation);
        let remote = Remote::one(to, address, action.bytes(count)? as u64, key);
        // SAFETY: by the caller's contract.
        unsafe {
            let operand = action.one(buffer, count, descriptor);
            let manner = Manner::plain(context);
            start(endpoint, action, operand, Memory::None, remote, manner)
        }
    })
}

/// # Safety
/// As libfabric documents `fi_atomicv`.
unsafe extern "C" fn writev(
    endpoint: *mut fid_ep,
    list: *const fi_ioc,
    descriptors: *mut *mut c_void,
    count: usize,
    to: fi_addr_t,
    address: u64,
    key: u64,
    datatype: fi_datatype,
    operation: fi_op,
    context: *mut c_void,
) -> isize {
    border::count(|| {
        let action = Action::new(datatype, operation);
        // SAFETY: by the caller's contract.
        unsafe {
            let operand = action.several(list, descriptors, count)?;
            let remote = Remote::one(to, address, operand.length(), key);
            let manner = Manner::plain(context);
            start(endpoint, action, Ok(operand), Memory::None, remote, manner)
        }
    })
}

/// # Safety
/// As libfabric documents `fi_atomicmsg`.
unsafe extern "C" fn writemsg(
    endpoint: *mut fid_ep,
    message: *const fi_msg_atomic,
    flags: u64,
) -> isize {
    // SAFETY: by the caller's contract.
    border::count(|| unsafe { start_message(endpoint, message, flags, |_| Ok(Memory::None)) })
}

/// # Safety
/// As libfabric documents `fi_inject_atomic`.
unsafe extern "C" fn inject(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    count: usize,
    to: fi_addr_t,
    address: u64,
    key: u64,
    datatype: fi_datatype,
    operation: fi_op,
) -> isize {
    border::count(|| {
        let action = Action::new(datatype, operation);
        let remote = Remote::one(to, address, action.bytes(count)? as u64, key);
        let manner = Manner {
            flags: None,
            inject: true,
            context: std::ptr::null_mut(),
        };
        // SAFETY: by the caller's contract; there is no descriptor.
        unsafe {
            let operand = action.one(buffer, count, std::ptr::null_mut());
            start(endpoint, action, operand, Memory::None, remote, manner)
        }
    })
}

/// # Safety
/// As libfabric documents `fi_fetch_atomic`.
unsafe extern "C" fn readwrite(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    count: usize,
    descriptor: *mut c_void,
    result: *mut c_void,
    result_descriptor: *mut c_void,
    to: fi_addr_t,
    address: u64,
    key: u64,
    datatype: fi_datatype,
    operation: fi_op,
    context: *mut c_void,
) -> isize {
    border::count(|| {
        let action = Action::new(datatype, operation);
        let remote = Remote::one(to, address, action.bytes(count)? as u64, key);
        // SAFETY: by the caller's contract.
        unsafe {
            let operand = action.one(buffer, count, descriptor);
            let memory = Memory::Result(action.one(result, count, result_descriptor)?);
            let manner = Manner::plain(context);
            start(endpoint, action, operand, memory, remote, manner)
        }
    })
}

/// # Safety
/// As libfabric documents `fi_fetch_atomicv`.
unsafe extern "C" fn readwritev(
    endpoint: *mut fid_ep,
    list: *const fi_ioc,
    descriptors: *mut *mut c_void,
    count: usize,
    results: *mut fi_ioc,
    result_descriptors: *mut *mut c_void,
    result_count: usize,
    to: fi_addr_t,
    address: u64,
    key: u64,
    datatype: fi_datatype,
    operation: fi_op,
    context: *mut c_void,
) -> isize {
    border::count(|| {
        let action = Action::new(datatype, operation);
        // SAFETY: by the caller's contract.
        unsafe {
            let operand = action.several(list, descriptors, count);
            let result = action.several(results, result_descriptors, result_count)?;
            let remote = Remote::one(to, address, result.length(), key);
            let memory = Memory::Result(result);
            let manner = Manner::plain(context);
            start(endpoint, action, operand, memory, remote, manner)
        }
    })
}

/// # Safety
/// As libfabric documents `fi_fetch_atomicmsg`.
unsafe extern "C" fn readwritemsg(
    endpoint: *mut fid_ep,
    message: *const fi_msg_atomic,
    results: *mut fi_ioc,
    result_descriptors: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        unsafe {
            start_message(endpoint, message, flags, |action| {
                let result = action.several(results, result_descriptors, result_count)?;
                Ok(Memory::Result(result))
            })
        }
    })
}

/// # Safety
/// As libfabric documents `fi_compare_atomic`.
unsafe extern "C" fn compwrite(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    count: usize,
    descriptor: *mut c_void,
    comparand: *const c_void,
    comparand_descriptor: *mut c_void,
    result: *mut c_void,
    result_descriptor: *mut c_void,
    to: fi_addr_t,
    address: u64,
    key: u64,
    datatype: fi_datatype,
    operation: fi_op,
    context: *mut c_void,
) -> isize {
    border::count(|| {
        let action = Action::new(datatype, operation);
        let remote = Remote::one(to, address, action.bytes(count)? as u64, key);
        // SAFETY: by the caller's contract.
        unsafe {
            let operand = action.one(buffer, count, descriptor);
            let memory = Memory::Comparison {
                comparand: action.one(comparand, count, comparand_descriptor)?,
                result: action.one(result, count, result_descriptor)?,
            };
            let manner = Manner::plain(context);
            start(endpoint, action, operand, memory, remote, manner)
        }
    })
}

/// # Safety
/// As libfabric documents `fi_compare_atomicv`.
unsafe extern "C" fn compwritev(
    endpoint: *mut fid_ep,
    list: *const fi_ioc,
    descriptors: *mut *mut c_void,
    count: usize,
    comparands: *const fi_ioc,
    comparand_descriptors: *mut *mut c_void,
    comparand_count: usize,
    results: *mut fi_ioc,
    result_descriptors: *mut *mut c_void,
    result_count: usize,
    to: fi_addr_t,
    address: u64,
    key: u64,
    datatype: fi_datatype,
    operation: fi_op,
    context: *mut c_void,
) -> isize {
    border::count(|| {
        let action = Action::new(datatype, operation);
        // SAFETY: by the caller's contract.
        unsafe {
            let operand = action.several(list, descriptors, count)?;
            let remote = Remote::one(to, address, operand.length(), key);
            let memory = Memory::Comparison {
                comparand: action.several(comparands, comparand_descriptors, comparand_count)?,
                result: action.several(results, result_descriptors, result_count)?,
            };
            let manner = Manner::plain(context);
            start(endpoint, action, Ok(operand), memory, remote, manner)
        }
    })
}

/// # Safety
/// As libfabric documents `fi_compare_atomicmsg`.
unsafe extern "C" fn compwritemsg(
    endpoint: *mut fid_ep,
    message: *const fi_msg_atomic,
    comparands: *const fi_ioc,
    comparand_descriptors: *mut *mut c_void,
    comparand_count: usize,
    results: *mut fi_ioc,
    result_descriptors: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        unsafe {
            start_message(endpoint, message, flags, |action| {
                Ok(Memory::Comparison {
                    comparand: action.several(
                        comparands,
                        comparand_descriptors,
                        comparand_count,
                    )?,
                    result: action.several(results, result_descriptors, result_count)?,
                })
            })
        }
    })
}

/// Starts an atomic that a structure describes.
///
/// # Safety
/// The endpoint is null or one of libfabric's, and the message is null or valid with all that it leads to.
unsafe fn start_message(
    endpoint: *mut fid_ep,
    message: *const fi_msg_atomic,
    flags: u64,
    memory: impl FnOnce(Action) -> Result<Memory>,
) -> Result<usize> {
    // SAFETY: by the caller's contract.
    let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
    let action = Action::new(message.datatype, message.op);
    // SAFETY: likewise.
    unsafe {
        let operand = action.several(message.msg_iov, message.desc, message.iov_count);
        let remote = action.remote(message.addr, message.rma_iov, message.rma_iov_count)?;
        let memory = memory(action)?;
        let manner = Manner::with(flags, message.context);
        start(endpoint, action, operand, memory, remote, manner)
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

/// The kinds of atomics of `fi_query_atomic`, whose memory does not matter.
const FETCH: AtomicKind<'static> = AtomicKind::Fetch {
    result: &[] as &[IoVec],
};
const COMPARE: AtomicKind<'static> = AtomicKind::Compare {
    result: &[] as &[IoVec],
    comparand: &[] as &[IoVec],
};

/// # Safety
/// As libfabric documents `fi_query_atomic`.
pub(crate) unsafe extern "C" fn query(
    domain: *mut fid_domain,
    datatype: fi_datatype,
    operation: fi_op,
    result: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let domain: &Domain = unsafe { border::object(domain.cast()) }?;
        let kind = match flags {
            0 => AtomicKind::Write,
            FI_FETCH_ATOMIC => FETCH,
            FI_COMPARE_ATOMIC => COMPARE,
            // Among others, atomics on tags.
            _ => return Err(Errno::EINVAL),
        };
        let limits = limits(domain, Action::new(datatype, operation), kind)?;
        // SAFETY: null or valid for a write.
        match unsafe { result.as_mut() } {
            Some(result) => {
                *result = limits;
                Ok(())
            }
            None => Err(Errno::EINVAL),
        }
    })
}

/// Answers `fi_atomicvalid` and its like.
///
/// # Safety
/// The endpoint is null or one of libfabric's, and `count` is null or valid for a write.
unsafe fn valid(
    endpoint: *mut fid_ep,
    action: Action,
    kind: AtomicKind<'_>,
    count: *mut usize,
) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let endpoint: &Endpoint = unsafe { border::object(endpoint.cast()) }?;
        let limits = limits(endpoint.domain(), action, kind)?;
        // SAFETY: null or valid for a write.
        if let Some(count) = unsafe { count.as_mut() } {
            *count = limits.count;
        }
        Ok(())
    })
}

/// # Safety
/// As libfabric documents `fi_atomicvalid`.
unsafe extern "C" fn writevalid(
    endpoint: *mut fid_ep,
    datatype: fi_datatype,
    operation: fi_op,
    count: *mut usize,
) -> c_int {
    let action = Action::new(datatype, operation);
    // SAFETY: the caller's contract is the same.
    unsafe { valid(endpoint, action, AtomicKind::Write, count) }
}

/// # Safety
/// As libfabric documents `fi_fetch_atomicvalid`.
unsafe extern "C" fn readwritevalid(
    endpoint: *mut fid_ep,
    datatype: fi_datatype,
    operation: fi_op,
    count: *mut usize,
) -> c_int {
    let action = Action::new(datatype, operation);
    // SAFETY: the caller's contract is the same.
    unsafe { valid(endpoint, action, FETCH, count) }
}

/// # Safety
/// As libfabric documents `fi_compare_atomicvalid`.
unsafe extern "C" fn compwritevalid(
    endpoint: *mut fid_ep,
    datatype: fi_datatype,
    operation: fi_op,
    count: *mut usize,
) -> c_int {
    let action = Action::new(datatype, operation);
    // SAFETY: the caller's contract is the same.
    unsafe { valid(endpoint, action, COMPARE, count) }
}
