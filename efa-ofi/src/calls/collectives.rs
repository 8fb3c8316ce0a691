//! Collective operations (`fi_collective`), and joining their groups.

use std::ffi::{c_int, c_void};

use efa_core::endpoint::{Errno, OperationFlags, reduce as combine};
use efa_core::wire::{AtomicDatatype, AtomicOp};

use crate::calls::shim::transfer_calls;
use crate::ffi::object::{Object as _, close, object};
use crate::ffi::result::{EBADFLAGS, ENOSYS, EOPBADSTATE, EOPNOTSUPP, Result, status};
use crate::ffi::table::Table;
use crate::ffi::*;
use crate::objects::av_set::AvSet;
use crate::objects::domain::Domain;
use crate::objects::endpoint::{self, Endpoint};
use crate::objects::group::Group;
use crate::state::collective::{Completion, Operands};
use crate::state::schedule::Collective;

pub(crate) static OPS: Table<fi_ops_collective> = Table::new(fi_ops_collective {
    size: size_of::<fi_ops_collective>(),
    barrier: Some(barrier),
    broadcast: Some(broadcast),
    alltoall: Some(alltoall),
    allreduce: Some(allreduce),
    allgather: Some(allgather),
    reduce_scatter: Some(reduce_scatter),
    reduce: Some(reduce),
    scatter: Some(scatter),
    gather: Some(gather),
    msg: Some(message),
    barrier2: Some(barrier2),
});

/// Calls about addresses and groups.
pub(crate) static CM: Table<fi_ops_cm> = Table::new(fi_ops_cm {
    join: Some(join),
    ..endpoint::CM
});

/// The flags of collective operations.
const FLAGS: u64 =
    FI_MORE | FI_COMPLETION | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE;

/// The operations that combine elements: `FI_MIN` to `FI_BXOR`.
const COMBINING: std::ops::RangeInclusive<fi_op> = FI_MIN..=FI_BXOR;

/// A collective operation as its call describes it.
#[derive(Clone, Copy)]
struct Call {
    collective: fi_collective_op,
    group: fi_addr_t,
    root: fi_addr_t,
    buffer: *const c_void,
    result: *const c_void,
    count: usize,
    datatype: fi_datatype,
    operation: fi_op,
    flags: u64,
    context: *mut c_void,
}

impl Call {
    /// A barrier; the fields of others are added.
    fn new(group: fi_addr_t, flags: u64, context: *mut c_void) -> Call {
        Call {
            collective: FI_BARRIER,
            group,
            root: FI_ADDR_UNSPEC,
            buffer: std::ptr::null(),
            result: std::ptr::null(),
            count: 0,
            datatype: FI_VOID,
            operation: FI_NOOP,
            flags,
            context,
        }
    }

    /// The call's operand.
    fn of(self, buffer: *const c_void, count: usize, datatype: fi_datatype) -> Call {
        Call {
            buffer,
            count,
            datatype,
            ..self
        }
    }

    fn start(self, endpoint: &Endpoint) -> Result<usize> {
        let enabled = endpoint.enabled()?;
        let flags = enabled.sends.or_default(Some(self.flags));
        if flags & !FLAGS != 0 {
            return Err(EBADFLAGS);
        }
        let name = std::ptr::with_exposed_provenance(self.group as usize);
        // SAFETY: any pointer is permitted.
        let group: &Group = unsafe { object(name) }?;
        if !std::ptr::eq(&raw const *group.endpoint, endpoint) {
            return Err(Errno::EINVAL);
        }
        if !group.is_joined() {
            return Err(EOPBADSTATE);
        }
        let unit = unit_of(self.collective, self.datatype, self.operation)?;
        let length = unit.checked_mul(self.count).ok_or(Errno::EINVAL)?;
        let members = group.members.len();
        if length
            .checked_mul(2 * members)
            .is_none_or(|all| all > isize::MAX as usize)
        {
            return Err(Errno::EINVAL);
        }
        let mut state = endpoint.domain().state()?;
        state.tables.check_room(enabled.route.transmit)?;
        let root = || -> Result<usize> {
            let peer = enabled.route.addresses(&state.tables)?.peer(self.root)?;
            let rank = group.members.iter().position(|member| *member == peer);
            rank.ok_or(Errno::EINVAL)
        };
        let collective = match self.collective {
            FI_BARRIER => Collective::Barrier,
            FI_BROADCAST => Collective::Broadcast(root()?),
            FI_ALLTOALL => Collective::Alltoall,
            FI_ALLREDUCE => Collective::Allreduce,
            FI_ALLGATHER => Collective::Allgather,
            FI_REDUCE_SCATTER => Collective::ReduceScatter,
            FI_REDUCE => Collective::Reduce(root()?),
            FI_SCATTER => Collective::Scatter(root()?),
            FI_GATHER => Collective::Gather(root()?),
            _ => return Err(EOPNOTSUPP),
        };
        let (reads, writes) = match collective {
            Collective::Barrier => (false, false),
            Collective::Broadcast(_) => (true, false),
            Collective::Reduce(root) | Collective::Gather(root) => (true, group.rank == root),
            Collective::Scatter(root) => (group.rank == root, true),
            _ => (true, true),
        };
        let lacks = (reads && self.buffer.is_null()) || (writes && self.result.is_null());
        if lacks && length > 0 {
            return Err(Errno::EINVAL);
        }
        let operands = Operands {
            buffer: self.buffer.expose_provenance() as u64,
            result: self.result.expose_provenance() as u64,
            action: Some((AtomicDatatype(self.datatype), AtomicOp(self.operation))),
        };
        let flags = enabled.sends.of(flags);
        let completion = Completion {
            queue: enabled.route.transmit,
            context: self.context.expose_provenance() as u64,
            success: flags.contains(OperationFlags::COMPLETION),
        };
        let operation = group.operation(collective, length, operands, completion)?;
        state.start_collective(operation);
        Ok(0)
    }
}

/// The bytes of an element of a collective operation; 0 for those without any.
///
/// # Errors
/// `FI_EOPNOTSUPP` if the operation is not defined for the datatype.
fn unit_of(collective: fi_collective_op, datatype: fi_datatype, operation: fi_op) -> Result<usize> {
    if collective == FI_BARRIER {
        return Ok(0);
    }
    let elements = AtomicDatatype(datatype);
    let is_defined = match collective {
        FI_ALLREDUCE | FI_REDUCE | FI_REDUCE_SCATTER => {
            let combined = combine(elements, AtomicOp(operation), &mut [], &[]);
            combined && COMBINING.contains(&operation)
        }
        FI_BROADCAST | FI_ALLTOALL | FI_ALLGATHER | FI_SCATTER | FI_GATHER => true,
        _ => false,
    };
    let size = elements.size().filter(|_| is_defined);
    size.ok_or(EOPNOTSUPP)
}

transfer_calls! {
    /// Waits until all members do (`fi_barrier`).
    fn barrier(endpoint, group: fi_addr_t, context: *mut c_void) {
        Call::new(group, 0, context).start(endpoint)
    }

    /// As [`barrier`], with flags (`fi_barrier2`).
    fn barrier2(endpoint, group: fi_addr_t, flags: u64, context: *mut c_void) {
        Call::new(group, flags, context).start(endpoint)
    }

    /// Sends the root's data to all members (`fi_broadcast`).
    fn broadcast(
        endpoint, buffer: *mut c_void, count: usize, _descriptor: *mut c_void, group: fi_addr_t,
        root: fi_addr_t, datatype: fi_datatype, flags: u64, context: *mut c_void,
    ) {
        let collective = FI_BROADCAST;
        let call = Call::new(group, flags, context).of(buffer, count, datatype);
        Call { collective, root, ..call }.start(endpoint)
    }

    /// Sends each member its slice of the operand; slices have `count` elements (`fi_alltoall`).
    fn alltoall(
        endpoint, buffer: *const c_void, count: usize, _descriptor: *mut c_void,
        result: *mut c_void, _result_descriptor: *mut c_void, group: fi_addr_t,
        datatype: fi_datatype, flags: u64, context: *mut c_void,
    ) {
        let collective = FI_ALLTOALL;
        let call = Call::new(group, flags, context).of(buffer, count, datatype);
        Call { collective, result, ..call }.start(endpoint)
    }

    /// Combines the operands of all members, for all (`fi_allreduce`).
    fn allreduce(
        endpoint, buffer: *const c_void, count: usize, _descriptor: *mut c_void,
        result: *mut c_void, _result_descriptor: *mut c_void, group: fi_addr_t,
        datatype: fi_datatype, operation: fi_op, flags: u64, context: *mut c_void,
    ) {
        let collective = FI_ALLREDUCE;
        let call = Call::new(group, flags, context).of(buffer, count, datatype);
        Call { collective, result, operation, ..call }.start(endpoint)
    }

    /// Collects the operands of all members, for all (`fi_allgather`).
    fn allgather(
        endpoint, buffer: *const c_void, count: usize, _descriptor: *mut c_void,
        result: *mut c_void, _result_descriptor: *mut c_void, group: fi_addr_t,
        datatype: fi_datatype, flags: u64, context: *mut c_void,
    ) {
        let collective = FI_ALLGATHER;
        let call = Call::new(group, flags, context).of(buffer, count, datatype);
        Call { collective, result, ..call }.start(endpoint)
    }

    /// Combines the operands of all members, and returns to each its slice of `count` elements
    /// (`fi_reduce_scatter`).
    fn reduce_scatter(
        endpoint, buffer: *const c_void, count: usize, _descriptor: *mut c_void,
        result: *mut c_void, _result_descriptor: *mut c_void, group: fi_addr_t,
        datatype: fi_datatype, operation: fi_op, flags: u64, context: *mut c_void,
    ) {
        let collective = FI_REDUCE_SCATTER;
        let call = Call::new(group, flags, context).of(buffer, count, datatype);
        Call { collective, result, operation, ..call }.start(endpoint)
    }

    /// Combines the operands of all members, for the root (`fi_reduce`).
    fn reduce(
        endpoint, buffer: *const c_void, count: usize, _descriptor: *mut c_void,
        result: *mut c_void, _result_descriptor: *mut c_void, group: fi_addr_t, root: fi_addr_t,
        datatype: fi_datatype, operation: fi_op, flags: u64, context: *mut c_void,
    ) {
        let collective = FI_REDUCE;
        let call = Call::new(group, flags, context).of(buffer, count, datatype);
        Call { collective, result, root, operation, ..call }.start(endpoint)
    }

    /// Sends each member its slice of the root's operand (`fi_scatter`).
    fn scatter(
        endpoint, buffer: *const c_void, count: usize, _descriptor: *mut c_void,
        result: *mut c_void, _result_descriptor: *mut c_void, group: fi_addr_t, root: fi_addr_t,
        datatype: fi_datatype, flags: u64, context: *mut c_void,
    ) {
        let collective = FI_SCATTER;
        let call = Call::new(group, flags, context).of(buffer, count, datatype);
        Call { collective, result, root, ..call }.start(endpoint)
    }

    /// Collects the operands of all members at the root (`fi_gather`).
    fn gather(
        endpoint, buffer: *const c_void, count: usize, _descriptor: *mut c_void,
        result: *mut c_void, _result_descriptor: *mut c_void, group: fi_addr_t, root: fi_addr_t,
        datatype: fi_datatype, flags: u64, context: *mut c_void,
    ) {
        let collective = FI_GATHER;
        let call = Call::new(group, flags, context).of(buffer, count, datatype);
        Call { collective, result, root, ..call }.start(endpoint)
    }

    /// Starts the operation that a structure describes (`struct fi_msg_collective`), with one piece
    /// of memory for each of operand and result.
    fn message(
        endpoint, message: *const fi_msg_collective, results: *mut fi_ioc,
        _descriptors: *mut *mut c_void, result_count: usize, flags: u64,
    ) {
        // SAFETY: by the caller's contract.
        let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
        // SAFETY: as above.
        let piece = |list: *const fi_ioc, count| unsafe {
            match (count, list.as_ref()) {
                (0, _) => Ok((std::ptr::null_mut(), 0)),
                (1, Some(piece)) => Ok((piece.addr, piece.count)),
                _ => Err(Errno::EINVAL),
            }
        };
        let (buffer, count) = piece(message.msg_iov, message.iov_count)?;
        let (result, room) = piece(results, result_count)?;
        let call = Call::new(message.coll_addr, flags, message.context);
        Call {
            collective: message.coll,
            result,
            root: message.root_addr,
            operation: message.op,
            ..call.of(buffer, if count == 0 { room } else { count }, message.datatype)
        }
        .start(endpoint)
    }
}

/// Joins the group of a set's members (`fi_join_collective`). An event reports that all members
/// have joined. With the address `FI_ADDR_NOTAVAIL` the application asserts that they have joined,
/// and the event is reported immediately.
///
/// # Returns
/// 0 with the group in `result`, or an error of [`Group::new`]; `-FI_ENOSYS` for groups other than
/// collective ones.
///
/// # Safety
/// With `FI_COLLECTIVE`, `address` is null or a `struct fi_collective_addr`; `result` is null or
/// valid for a write.
unsafe extern "C" fn join(
    endpoint: *mut fid_ep,
    address: *const c_void,
    flags: u64,
    result: *mut *mut fid_mc,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: any pointer is permitted.
        let endpoint: &Endpoint = unsafe { object(endpoint.cast()) }?;
        if flags & FI_COLLECTIVE == 0 {
            return Err(ENOSYS);
        }
        if flags & !(FI_COLLECTIVE | FI_SEND | FI_RECV) != 0 {
            return Err(EBADFLAGS);
        }
        // SAFETY: by the caller's contract.
        let address = unsafe { address.cast::<fi_collective_addr>().as_ref() };
        let address = address.filter(|_| !result.is_null()).ok_or(Errno::EINVAL)?;
        // SAFETY: any pointer is permitted.
        let set: &AvSet = unsafe { object(address.set.cast()) }?;
        let is_agreed = address.coll_addr == FI_ADDR_UNSPEC;
        if !is_agreed && address.coll_addr != set.name() {
            let name = std::ptr::with_exposed_provenance(address.coll_addr as usize);
            // SAFETY: as above.
            let _: &Group = unsafe { object(name) }?;
        }
        let group = Group::new(endpoint, set, context)?.give();
        // SAFETY: it was just opened, and the result is valid for a write.
        unsafe {
            (*group).note_name();
            result.write(group.cast());
            (*group).join(is_agreed).inspect_err(|_| {
                close::<Group>(group.cast());
            })
        }
    })
}

/// Returns the supported collective operations and their limits (`fi_query_collective`).
///
/// # Returns
/// 0; `-FI_EOPNOTSUPP` for unsupported operations, `-FI_EINVAL` for a wrong domain, without
/// attributes, and for flags.
///
/// # Safety
/// The attributes are null or valid.
pub(crate) unsafe extern "C" fn query(
    domain: *mut fid_domain,
    collective: fi_collective_op,
    attributes: *mut fi_collective_attr,
    flags: u64,
) -> c_int {
    status(|| {
        // SAFETY: any pointer is permitted.
        let _: &Domain = unsafe { object(domain.cast()) }?;
        // SAFETY: by the caller's contract.
        let attributes = unsafe { attributes.as_mut() }.ok_or(Errno::EINVAL)?;
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        let unit = unit_of(collective, attributes.datatype, attributes.op)?;
        attributes.datatype_attr = fi_atomic_attr {
            count: (isize::MAX as usize).checked_div(unit).unwrap_or(0),
            size: unit,
        };
        attributes.max_members = usize::MAX;
        attributes.mode = 0;
        Ok(())
    })
}
