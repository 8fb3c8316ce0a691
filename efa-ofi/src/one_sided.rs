//! Reads and writes of peers' memory (`fi_rma`).

use std::ffi::c_void;

use efa_core::endpoint::{CompletionFlags, Errno, IOV_LIMIT, ReadArgs, RemoteIoVec, WriteArgs};
use efa_core::nic::RemoteKey;

use crate::border::{self, EBADFLAGS, EOPBADSTATE, Result};
use crate::endpoint::{Endpoint, Start};
use crate::ffi::*;
use crate::messages::{Pieces, SEND_FLAGS};
use crate::table::Table;

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

/// A peer's memory of one operation.
pub(crate) struct Remote {
    pub(crate) peer: fi_addr_t,
    pieces: [RemoteIoVec; IOV_LIMIT],
    count: usize,
}

const NOTHING: RemoteIoVec = RemoteIoVec {
    address: 0,
    length: 0,
    key: RemoteKey(0),
};

impl Remote {
    pub(crate) fn one(peer: fi_addr_t, address: u64, length: u64, key: u64) -> Remote {
        let mut pieces = [NOTHING; IOV_LIMIT];
        pieces[0] = RemoteIoVec {
            address,
            length,
            key: RemoteKey(key),
        };
        Remote {
            peer,
            pieces,
            count: 1,
        }
    }

    /// # Errors
    /// `FI_EINVAL` for more than [`IOV_LIMIT`] pieces.
    ///
    /// # Safety
    /// There are `count` pieces.
    pub(crate) unsafe fn several(
        peer: fi_addr_t,
        list: *const fi_rma_iov,
        count: usize,
    ) -> Result<Remote> {
        if count > IOV_LIMIT || (list.is_null() && count > 0) {
            return Err(Errno::EINVAL);
        }
        let mut pieces = [NOTHING; IOV_LIMIT];
        for (index, piece) in pieces.iter_mut().enumerate().take(count) {
            // SAFETY: by the caller's contract.
            let given = unsafe { list.add(index).read() };
            *piece = RemoteIoVec {
                address: given.addr,
                length: given.len as u64,
                key: RemoteKey(given.key),
            };
        }
        Ok(Remote {
            peer,
            pieces,
            count,
        })
    }

    pub(crate) fn as_slice(&self) -> &[RemoteIoVec] {
        &self.pieces[..self.count]
    }
}

/// # Safety
/// The endpoint is one of libfabric's.
unsafe fn start_read(
    endpoint: *mut fid_ep,
    pieces: Result<Pieces>,
    remote: Result<Remote>,
    flags: Option<u64>,
    context: *mut c_void,
) -> Result<usize> {
    // SAFETY: by the caller's contract.
    let endpoint: &Endpoint = unsafe { border::transfer_object(endpoint.cast()) }?;
    let (pieces, remote) = (pieces?, remote?);
    if flags.is_some_and(|flags| flags & !SEND_FLAGS != 0) {
        return Err(EBADFLAGS);
    }
    let enabled = endpoint.enabled()?;
    let mut state = endpoint.domain().operation()?;
    let state = &mut *state;
    let peer = enabled.addresses(&state.tables)?.peer(remote.peer)?;
    let engine = state.core.endpoint(enabled.id).ok_or(EOPBADSTATE)?;
    let started = engine.read(ReadArgs {
        peer,
        buffer: pieces.as_slice(),
        remote: remote.as_slice(),
        flags: enabled
            .sends
            .of(enabled.sends.or_default(flags) & !FI_INJECT),
        context: context.addr() as u64,
    });
    started.map(|()| 0).map_err(|error| error.errno())
}

/// What a write has besides memory.
struct Write {
    data: Option<u64>,
    flags: Option<u64>,
    inject: bool,
    context: *mut c_void,
}

/// # Safety
/// The endpoint is one of libfabric's.
unsafe fn start_write(
    endpoint: *mut fid_ep,
    pieces: Result<Pieces>,
    remote: Result<Remote>,
    write: Write,
) -> Result<usize> {
    // SAFETY: by the caller's contract.
    let endpoint: &Endpoint = unsafe { border::transfer_object(endpoint.cast()) }?;
    let (pieces, remote) = (pieces?, remote?);
    if write.flags.is_some_and(|flags| flags & !SEND_FLAGS != 0) {
        return Err(EBADFLAGS);
    }
    let enabled = endpoint.enabled()?;
    let mut state = endpoint.domain().operation()?;
    let state = &mut *state;
    let peer = enabled.addresses(&state.tables)?.peer(remote.peer)?;
    let start = match write.inject {
        true => Start::INJECT,
        false => enabled.start(write.flags, write.context),
    };
    let engine = state.core.endpoint(enabled.id).ok_or(EOPBADSTATE)?;
    let started = engine.write(WriteArgs {
        peer,
        data: pieces.as_slice(),
        remote: remote.as_slice(),
        cq_data: write.data,
        flags: start.flags,
        context: start.context,
    });
    started.map_err(|error| error.errno())?;
    let flags = CompletionFlags::RMA | CompletionFlags::WRITE;
    endpoint.started(&mut state.tables, &start, flags, pieces.length());
    Ok(0)
}

/// # Safety
/// As libfabric documents `fi_read`.
unsafe extern "C" fn read(
    endpoint: *mut fid_ep,
    buffer: *mut c_void,
    length: usize,
    descriptor: *mut c_void,
    from: fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let remote = Ok(Remote::one(from, address, length as u64, key));
    // SAFETY: by the caller's contract.
    border::count(|| unsafe {
        start_read(
            endpoint,
            Pieces::one(buffer, length, descriptor),
            remote,
            None,
            context,
        )
    })
}

/// # Safety
/// As libfabric documents `fi_readv`.
unsafe extern "C" fn readv(
    endpoint: *mut fid_ep,
    list: *const iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    from: fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        let pieces = unsafe { Pieces::several(list, descriptors, count) }?;
        let remote = Remote::one(from, address, pieces.length(), key);
        // SAFETY: likewise.
        unsafe { start_read(endpoint, Ok(pieces), Ok(remote), None, context) }
    })
}

/// # Safety
/// As libfabric documents `fi_readmsg`.
unsafe extern "C" fn readmsg(
    endpoint: *mut fid_ep,
    message: *const fi_msg_rma,
    flags: u64,
) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
        // SAFETY: likewise.
        unsafe {
            let pieces = Pieces::several(message.msg_iov, message.desc, message.iov_count);
            let remote = Remote::several(message.addr, message.rma_iov, message.rma_iov_count);
            start_read(endpoint, pieces, remote, Some(flags), message.context)
        }
    })
}

/// # Safety
/// As libfabric documents `fi_write`.
unsafe extern "C" fn write(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    descriptor: *mut c_void,
    to: fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let remote = Ok(Remote::one(to, address, length as u64, key));
    let write = Write {
        data: None,
        flags: None,
        inject: false,
        context,
    };
    // SAFETY: by the caller's contract.
    border::count(|| unsafe {
        start_write(
            endpoint,
            Pieces::one(buffer, length, descriptor),
            remote,
            write,
        )
    })
}

/// # Safety
/// As libfabric documents `fi_writev`.
unsafe extern "C" fn writev(
    endpoint: *mut fid_ep,
    list: *const iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    to: fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        let pieces = unsafe { Pieces::several(list, descriptors, count) }?;
        let remote = Remote::one(to, address, pieces.length(), key);
        let write = Write {
            data: None,
            flags: None,
            inject: false,
            context,
        };
        // SAFETY: likewise.
        unsafe { start_write(endpoint, Ok(pieces), Ok(remote), write) }
    })
}

/// # Safety
/// As libfabric documents `fi_writemsg`.
unsafe extern "C" fn writemsg(
    endpoint: *mut fid_ep,
    message: *const fi_msg_rma,
    flags: u64,
) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
        let write = Write {
            data,
            flags: Some(flags),
            inject: false,
            context: message.context,
        };
        // SAFETY: likewise.
        unsafe {
            let pieces = Pieces::several(message.msg_iov, message.desc, message.iov_count);
            let remote = Remote::several(message.addr, message.rma_iov, message.rma_iov_count);
            start_write(endpoint, pieces, remote, write)
        }
    })
}

/// # Safety
/// As libfabric documents `fi_inject_write`.
unsafe extern "C" fn inject(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    to: fi_addr_t,
    address: u64,
    key: u64,
) -> isize {
    let remote = Ok(Remote::one(to, address, length as u64, key));
    let write = Write {
        data: None,
        flags: None,
        inject: true,
        context: std::ptr::null_mut(),
    };
    // SAFETY: by the caller's contract.
    border::count(|| unsafe {
        start_write(
            endpoint,
            Pieces::one(buffer, length, std::ptr::null_mut()),
            remote,
            write,
        )
    })
}

/// # Safety
/// As libfabric documents `fi_writedata`.
unsafe extern "C" fn writedata(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    descriptor: *mut c_void,
    data: u64,
    to: fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let remote = Ok(Remote::one(to, address, length as u64, key));
    let write = Write {
        data: Some(data),
        flags: None,
        inject: false,
        context,
    };
    // SAFETY: by the caller's contract.
    border::count(|| unsafe {
        start_write(
            endpoint,
            Pieces::one(buffer, length, descriptor),
            remote,
            write,
        )
    })
}

/// # Safety
/// As libfabric documents `fi_inject_writedata`.
unsafe extern "C" fn injectdata(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    data: u64,
    to: fi_addr_t,
    address: u64,
    key: u64,
) -> isize {
    let remote = Ok(Remote::one(to, address, length as u64, key));
    let write = Write {
        data: Some(data),
        flags: None,
        inject: true,
        context: std::ptr::null_mut(),
    };
    // SAFETY: by the caller's contract.
    border::count(|| unsafe {
        start_write(
            endpoint,
            Pieces::one(buffer, length, std::ptr::null_mut()),
            remote,
            write,
        )
    })
}
