//! Reads and writes of peers' memory (`fi_rma`).

use std::ffi::c_void;

use efa_core::endpoint::{self, CompletionFlags, Errno, IoVec, ReadArgs, RemoteIoVec, WriteArgs};
use efa_core::nic::LentNic;
use efa_hw::HwDomain;

use crate::calls::segments::{length_of, local, local_list, remote, remote_list};
use crate::calls::shim::transfer_calls;
use crate::calls::start::{Call, OperationArguments, Start, start_or_defer};
use crate::ffi::result::Result;
use crate::ffi::table::Table;
use crate::ffi::*;
use crate::objects::endpoint::Endpoint;
use crate::state::deferred::{DeferredOperation, Direction};

type Engine = endpoint::Endpoint<LentNic<HwDomain>>;

pub(crate) static OPS: Table<fi_ops_rma> = Table::new(fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read: Some(read),
    readv: Some(readv),
    readmsg: Some(readmsg),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    writedata: Some(writedata),
    injectdata: Some(injectdata),
});

fn start_read(
    endpoint: &Endpoint,
    buffer: &[IoVec],
    remote: &[RemoteIoVec],
    call: Call,
) -> Result<usize> {
    call.check_flags()?;
    let completion = (
        CompletionFlags::RMA | CompletionFlags::READ,
        length_of(buffer),
    );
    let read = |engine: &mut Engine, start: &Start| {
        engine.read(ReadArgs {
            peer: start.peer,
            buffer,
            remote,
            flags: start.flags,
            context: start.context,
        })
    };
    start_or_defer(endpoint, &call.fetching(), completion, read, |waiting| {
        Some(keep(waiting, buffer, remote, Direction::Read))
    })
}

/// The arguments of a deferred operation.
#[cold]
fn keep(
    waiting: OperationArguments,
    local: &[IoVec],
    remote: &[RemoteIoVec],
    direction: Direction,
) -> DeferredOperation {
    let OperationArguments {
        endpoint,
        peer,
        flags,
        context,
    } = waiting;
    DeferredOperation {
        endpoint,
        peer,
        flags,
        context,
        local: local.into(),
        remote: remote.into(),
        direction,
    }
}

fn start_write(
    endpoint: &Endpoint,
    data: &[IoVec],
    remote: &[RemoteIoVec],
    call: Call,
) -> Result<usize> {
    call.check_flags()?;
    let completion = (
        CompletionFlags::RMA | CompletionFlags::WRITE,
        length_of(data),
    );
    let write = |engine: &mut Engine, start: &Start| {
        engine.write(WriteArgs {
            peer: start.peer,
            data,
            remote,
            cq_data: call.data,
            flags: start.flags,
            context: start.context,
        })
    };
    start_or_defer(endpoint, &call, completion, write, |waiting| {
        Some(keep(waiting, data, remote, Direction::Write(call.data)))
    })
}

transfer_calls! {
    /// Reads from a peer's memory (`fi_read`).
    fn read(
        endpoint, buffer: *mut c_void, length: usize, descriptor: *mut c_void, from: fi_addr_t,
        address: u64, key: u64, context: *mut c_void,
    ) {
        // SAFETY: by the caller's contract.
        let data = unsafe { local(buffer, length, descriptor) }?;
        let remote = remote(address, length as u64, key);
        start_read(endpoint, &[data], &[remote], Call::new(from, context))
    }

    /// Reads from a peer's memory into several segments (`fi_readv`).
    fn readv(
        endpoint, list: *const iovec, descriptors: *mut *mut c_void, count: usize,
        from: fi_addr_t, address: u64, key: u64, context: *mut c_void,
    ) {
        // SAFETY: by the caller's contract.
        let data = unsafe { local_list(list, descriptors, count, 1) }?;
        let remote = remote(address, length_of(data.as_slice()), key);
        start_read(endpoint, data.as_slice(), &[remote], Call::new(from, context))
    }

    /// Reads the memory that a structure describes (`fi_readmsg`).
    fn readmsg(endpoint, message: *const fi_msg_rma, flags: u64) {
        // SAFETY: by the caller's contract.
        let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
        // SAFETY: as above.
        let (data, remote) = unsafe {
            (
                local_list(message.msg_iov, message.desc, message.iov_count, 1)?,
                remote_list(message.rma_iov, message.rma_iov_count, 1)?,
            )
        };
        let call = Call::message(message.addr, message.data, flags, message.context);
        start_read(endpoint, data.as_slice(), remote.as_slice(), call)
    }

    /// Writes to a peer's memory (`fi_write`).
    fn write(
        endpoint, buffer: *const c_void, length: usize, descriptor: *mut c_void, to: fi_addr_t,
        address: u64, key: u64, context: *mut c_void,
    ) {
        // SAFETY: by the caller's contract.
        let data = unsafe { local(buffer, length, descriptor) }?;
        let remote = remote(address, length as u64, key);
        start_write(endpoint, &[data], &[remote], Call::new(to, context))
    }

    /// Writes several segments to a peer's memory (`fi_writev`).
    fn writev(
        endpoint, list: *const iovec, descriptors: *mut *mut c_void, count: usize, to: fi_addr_t,
        address: u64, key: u64, context: *mut c_void,
    ) {
        // SAFETY: by the caller's contract.
        let data = unsafe { local_list(list, descriptors, count, 1) }?;
        let remote = remote(address, length_of(data.as_slice()), key);
        start_write(endpoint, data.as_slice(), &[remote], Call::new(to, context))
    }

    /// Writes the memory that a structure describes (`fi_writemsg`).
    fn writemsg(endpoint, message: *const fi_msg_rma, flags: u64) {
        // SAFETY: by the caller's contract.
        let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
        // SAFETY: as above.
        let (data, remote) = unsafe {
            (
                local_list(message.msg_iov, message.desc, message.iov_count, 1)?,
                remote_list(message.rma_iov, message.rma_iov_count, 1)?,
            )
        };
        let call = Call::message(message.addr, message.data, flags, message.context);
        start_write(endpoint, data.as_slice(), remote.as_slice(), call)
    }

    /// Writes from a buffer that is free on return (`fi_inject_write`).
    fn inject(
        endpoint, buffer: *const c_void, length: usize, to: fi_addr_t, address: u64, key: u64,
    ) {
        // SAFETY: there is no descriptor.
        let data = unsafe { local(buffer, length, std::ptr::null_mut()) }?;
        let remote = remote(address, length as u64, key);
        start_write(endpoint, &[data], &[remote], Call::inject(to))
    }

    /// Writes with completion data (`fi_writedata`).
    fn writedata(
        endpoint, buffer: *const c_void, length: usize, descriptor: *mut c_void, data: u64,
        to: fi_addr_t, address: u64, key: u64, context: *mut c_void,
    ) {
        // SAFETY: by the caller's contract.
        let buffer = unsafe { local(buffer, length, descriptor) }?;
        let remote = remote(address, length as u64, key);
        let call = Call::new(to, context).with_data(data);
        start_write(endpoint, &[buffer], &[remote], call)
    }

    /// As [`inject`], with completion data (`fi_inject_writedata`).
    fn injectdata(
        endpoint, buffer: *const c_void, length: usize, data: u64, to: fi_addr_t, address: u64,
        key: u64,
    ) {
        // SAFETY: there is no descriptor.
        let buffer = unsafe { local(buffer, length, std::ptr::null_mut()) }?;
        let remote = remote(address, length as u64, key);
        let call = Call::inject(to).with_data(data);
        start_write(endpoint, &[buffer], &[remote], call)
    }
}
