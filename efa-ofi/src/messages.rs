//! Untagged and tagged messages (`fi_msg`, `fi_tagged`).

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use efa_core::endpoint::{
    ClaimId, ClaimedRecvArgs, CompletionEntry, CompletionFlags, Errno, ErrorEntry, Failure,
    IOV_LIMIT, IoVec, MultiRecvArgs, ProviderError, RecvArgs, SendArgs, SourceFilter, TagFilter,
};
use efa_core::nic::{LentNic, UserSlice};
use efa_hw::HwDomain;

use crate::border::{self, EBADFLAGS, EOPBADSTATE, Result};
use crate::endpoint::{Endpoint, Start};
use crate::ffi::*;
use crate::memory_region::of_descriptor;
use crate::table::Table;

pub(crate) static UNTAGGED: Table<fi_ops_msg> = Table::new(fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
    recv: Some(recv),
    recvv: Some(recvv),
    recvmsg: Some(recvmsg),
    send: Some(send),
    sendv: Some(sendv),
    sendmsg: Some(sendmsg),
    inject: Some(inject),
    senddata: Some(senddata),
    injectdata: Some(injectdata),
});

pub(crate) static TAGGED: Table<fi_ops_tagged> = Table::new(fi_ops_tagged {
    size: size_of::<fi_ops_tagged>(),
    recv: Some(trecv),
    recvv: Some(trecvv),
    recvmsg: Some(trecvmsg),
    send: Some(tsend),
    sendv: Some(tsendv),
    sendmsg: Some(tsendmsg),
    inject: Some(tinject),
    senddata: Some(tsenddata),
    injectdata: Some(tinjectdata),
});

/// The application's memory of one operation.
#[derive(Clone)]
pub(crate) struct Pieces {
    pieces: [IoVec; IOV_LIMIT],
    count: usize,
}

const NOTHING: IoVec = IoVec::new(UserSlice {
    address: 0,
    length: 0,
});

/// The application's memory of an operation with one piece.
///
/// # Errors
/// `FI_EINVAL` for a descriptor that is none.
///
/// # Safety
/// The descriptor is null, or of a registration that has not ended.
#[inline]
unsafe fn piece(buffer: *const c_void, length: usize, descriptor: *mut c_void) -> Result<IoVec> {
    Ok(IoVec {
        memory: UserSlice {
            address: buffer.addr() as u64,
            length,
        },
        // SAFETY: by the caller's contract.
        region: unsafe { of_descriptor(descriptor) }?,
    })
}

/// The bytes of all pieces.
fn length_of(pieces: &[IoVec]) -> u64 {
    let lengths = pieces.iter().map(|piece| piece.memory.length as u64);
    lengths.fold(0, u64::saturating_add)
}

impl Pieces {
    /// One piece.
    ///
    /// # Errors
    /// `FI_EINVAL` for a descriptor that is none.
    ///
    /// # Safety
    /// The descriptor is null, or of a registration that has not ended.
    #[inline]
    pub(crate) unsafe fn one(
        buffer: *const c_void,
        length: usize,
        descriptor: *mut c_void,
    ) -> Result<Pieces> {
        let mut pieces = [NOTHING; IOV_LIMIT];
        // SAFETY: the caller's contract is the same.
        pieces[0] = unsafe { piece(buffer, length, descriptor) }?;
        Ok(Pieces { pieces, count: 1 })
    }

    /// Several pieces.
    ///
    /// # Errors
    /// `FI_EINVAL` for more than [`IOV_LIMIT`], and for a descriptor that is none.
    ///
    /// # Safety
    /// There are `count` pieces, and as many descriptors unless that is null; those are as for [`Pieces::one`].
    pub(crate) unsafe fn several(
        list: *const iovec,
        descriptors: *mut *mut c_void,
        count: usize,
    ) -> Result<Pieces> {
        if count > IOV_LIMIT || (list.is_null() && count > 0) {
            return Err(Errno::EINVAL);
        }
        let mut pieces = [NOTHING; IOV_LIMIT];
        for (index, piece) in pieces.iter_mut().enumerate().take(count) {
            // SAFETY: by the caller's contract.
            let given = unsafe { list.add(index).read() };
            let descriptor = match descriptors.is_null() {
                true => std::ptr::null_mut(),
                // SAFETY: likewise.
                false => unsafe { descriptors.add(index).read() },
            };
            *piece = IoVec {
                memory: UserSlice {
                    address: given.iov_base.addr() as u64,
                    length: given.iov_len,
                },
                // SAFETY: likewise.
                region: unsafe { of_descriptor(descriptor) }?,
            };
        }
        Ok(Pieces { pieces, count })
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[IoVec] {
        &self.pieces[..self.count]
    }

    /// Returns whether there is a piece, and all are memory.
    pub(crate) fn is_memory(&self) -> bool {
        let pieces = self.as_slice();
        !pieces.is_empty() && pieces.iter().all(|piece| piece.memory.address != 0)
    }

    pub(crate) fn length(&self) -> u64 {
        length_of(self.as_slice())
    }
}

/// What a call may say of a send or write. A fence and the completion of a match (`FI_FENCE`, `FI_MATCH_COMPLETE`) are
/// not offered.
pub(crate) const SEND_FLAGS: u64 = FI_MORE
    | FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_REMOTE_CQ_DATA
    | HIGH_PPS;

/// A flag of libfabric 2.7's efa provider (`FI_EFA_WR_HIGH_PPS`): that the device may trade latency for more messages per
/// second. It changes nothing that an application can rely on, and the device is not told.
const HIGH_PPS: u64 = 1 << 60;

/// What a call may say of a receive. `FI_REMOTE_CQ_DATA` changes nothing, since data comes with the message in any case; MPICH 3.4
/// and Intel MPI set it when they probe.
const RECEIVE_FLAGS: u64 =
    FI_MORE | FI_COMPLETION | FI_MULTI_RECV | FI_PEEK | FI_CLAIM | FI_DISCARD | FI_REMOTE_CQ_DATA;

/// A message to send.
struct Send {
    to: fi_addr_t,
    tag: Option<u64>,
    data: Option<u64>,
    /// The call's flags, if it has any.
    flags: Option<u64>,
    context: *mut c_void,
}

/// A receive to post.
struct Receive {
    from: fi_addr_t,
    tag: Option<TagFilter>,
    flags: Option<u64>,
    context: *mut c_void,
}

/// # Safety
/// The endpoint is one of libfabric's.
#[inline]
unsafe fn start_send(endpoint: *mut fid_ep, pieces: &[IoVec], send: Send) -> Result<usize> {
    // SAFETY: by the caller's contract.
    let endpoint: &Endpoint = unsafe { border::transfer_object(endpoint.cast()) }?;
    if send.flags.is_some_and(|flags| flags & !SEND_FLAGS != 0) {
        return Err(EBADFLAGS);
    }
    let enabled = endpoint.enabled()?;
    let mut state = endpoint.domain().operation()?;
    let state = &mut *state;
    let peer = enabled.addresses(&state.tables)?.peer(send.to)?;
    let start = enabled.start(send.flags, send.context);
    let engine = state.core.endpoint(enabled.id).ok_or(EOPBADSTATE)?;
    let started = engine.send(SendArgs {
        peer,
        data: pieces,
        tag: send.tag,
        cq_data: send.data,
        flags: start.flags,
        context: start.context,
    });
    started.map_err(|error| error.errno())?;
    let kind = match send.tag {
        Some(_) => CompletionFlags::TAGGED,
        None => CompletionFlags::MSG,
    };
    let flags = CompletionFlags::SEND | kind;
    endpoint.started(&mut state.tables, &start, flags, length_of(pieces));
    Ok(0)
}

/// Sends data whose buffer is free when the call returns, and whose success is not reported.
///
/// # Safety
/// The endpoint is one of libfabric's, and the buffer has `length` bytes.
unsafe fn start_inject(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    (to, tag, data): (fi_addr_t, Option<u64>, Option<u64>),
) -> Result<usize> {
    // SAFETY: by the caller's contract.
    let endpoint: &Endpoint = unsafe { border::transfer_object(endpoint.cast()) }?;
    // SAFETY: there is no descriptor.
    let pieces = &[unsafe { piece(buffer, length, std::ptr::null_mut()) }?];
    let enabled = endpoint.enabled()?;
    let mut state = endpoint.domain().operation()?;
    let state = &mut *state;
    let peer = enabled.addresses(&state.tables)?.peer(to)?;
    let engine = state.core.endpoint(enabled.id).ok_or(EOPBADSTATE)?;
    let started = engine.send(SendArgs {
        peer,
        data: pieces,
        tag,
        cq_data: data,
        flags: Start::INJECT.flags,
        context: Start::INJECT.context,
    });
    started.map(|()| 0).map_err(|error| error.errno())
}

/// # Safety
/// The endpoint is one of libfabric's.
#[inline]
unsafe fn start_receive(
    endpoint: *mut fid_ep,
    pieces: &[IoVec],
    receive: Receive,
) -> Result<usize> {
    // SAFETY: by the caller's contract.
    let endpoint: &Endpoint = unsafe { border::transfer_object(endpoint.cast()) }?;
    let enabled = endpoint.enabled()?;
    let mut state = endpoint.domain().operation()?;
    let state = &mut *state;
    let source = match receive.from {
        // Without the capability the argument means nothing.
        _ if !enabled.directed => SourceFilter::Any,
        FI_ADDR_UNSPEC => SourceFilter::Any,
        address => SourceFilter::Peer(enabled.addresses(&state.tables)?.peer(address)?),
    };
    let flags = enabled.receives.or_default(receive.flags);
    if flags & !RECEIVE_FLAGS != 0 {
        return Err(EBADFLAGS);
    }
    let context = receive.context.addr() as u64;
    let engine = state.core.endpoint(enabled.id).ok_or(EOPBADSTATE)?;
    if enabled.zero_copy && flags & (FI_PEEK | FI_CLAIM) != 0 {
        // Messages do not wait here.
        return Err(border::EOPNOTSUPP);
    }
    if flags & FI_PEEK != 0 {
        let result = look_for(engine, source, receive.tag, flags, context);
        if let Ok((entry, Some(claim))) = &result {
            let claimed = (*claim, *entry);
            state.claims.insert((enabled.id, context), claimed);
        }
        endpoint.report(
            &mut state.tables,
            result.map(|(entry, _)| entry).map_err(|entry| *entry),
        );
        return Ok(0);
    }
    if flags & FI_CLAIM != 0 {
        let claimed = state.claims.remove(&(enabled.id, context));
        let (claim, entry) = claimed.ok_or(Errno::EINVAL)?;
        if flags & FI_DISCARD != 0 {
            engine.discard(claim).map_err(|error| error.errno())?;
            endpoint.report(&mut state.tables, Ok(entry));
            return Ok(0);
        }
        let posted = engine.recv_claimed(ClaimedRecvArgs {
            claim,
            buffer: pieces,
            flags: enabled.receives.of(flags),
            context,
        });
        return match posted {
            Ok(_) => Ok(0),
            Err(error) => {
                // It can be claimed once more.
                state.claims.insert((enabled.id, context), (claim, entry));
                Err(error.errno())
            }
        };
    }
    if flags & FI_MULTI_RECV != 0 && receive.tag.is_none() {
        let [buffer] = pieces else {
            return Err(Errno::EINVAL);
        };
        let min_free = endpoint.min_multi_recv.load(Ordering::Relaxed);
        let posted = engine.multi_recv(MultiRecvArgs {
            source,
            buffer: *buffer,
            min_free: min_free.clamp(1, buffer.memory.length.max(1)),
            context,
        });
        posted.map_err(|error| error.errno())?;
        return Ok(0);
    }
    let posted = engine.recv(RecvArgs {
        source,
        buffer: pieces,
        tag: receive.tag,
        flags: enabled.receives.of(flags),
        context,
    });
    posted.map(|_| 0).map_err(|error| error.errno())
}

/// The flags of a received message's completion.
fn received(tagged: bool) -> CompletionFlags {
    let kind = match tagged {
        true => CompletionFlags::TAGGED,
        false => CompletionFlags::MSG,
    };
    CompletionFlags::RECV | kind
}

/// Looks for a message that has arrived (`FI_PEEK`), and claims or discards it if the flags say so. Returns the entry for
/// the completion queue, or for its errors.
fn look_for(
    engine: &mut efa_core::endpoint::Endpoint<LentNic<HwDomain>>,
    source: SourceFilter,
    tag: Option<TagFilter>,
    flags: u64,
    context: u64,
) -> std::result::Result<(CompletionEntry, Option<ClaimId>), Box<ErrorEntry>> {
    let found = match flags & (FI_CLAIM | FI_DISCARD) {
        0 => engine.peek(source, tag).map(|found| (None, found)),
        _ => engine
            .claim(source, tag)
            .map(|(claim, found)| (Some(claim), found)),
    };
    let fail = |errno| {
        let failure = Failure {
            errno,
            provider: ProviderError::None,
        };
        let flags = received(tag.is_some());
        let entry = ErrorEntry::without_data(context, flags, None, failure);
        Box::new(ErrorEntry {
            tag: tag.map_or(0, |tag| tag.tag),
            ..entry
        })
    };
    let (mut claim, found) = found.ok_or_else(|| fail(Errno::ENOMSG))?;
    if flags & FI_DISCARD != 0
        && let Some(claim) = claim.take()
    {
        engine.discard(claim).map_err(|error| fail(error.errno()))?;
    }
    let data = match found.cq_data {
        Some(_) => CompletionFlags::REMOTE_CQ_DATA,
        None => CompletionFlags::empty(),
    };
    let entry = CompletionEntry {
        context,
        flags: received(tag.is_some()) | data,
        length: found.length,
        data: found.cq_data.unwrap_or(0),
        tag: found.tag.unwrap_or(0),
        source: Some(found.source),
        buffer: 0,
    };
    Ok((entry, claim))
}

/// # Safety
/// As libfabric documents `fi_recv`.
unsafe extern "C" fn recv(
    endpoint: *mut fid_ep,
    buffer: *mut c_void,
    length: usize,
    descriptor: *mut c_void,
    from: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let receive = Receive {
        from,
        tag: None,
        flags: None,
        context,
    };
    // SAFETY: by the caller's contract.
    border::count(|| unsafe {
        start_receive(endpoint, &[piece(buffer, length, descriptor)?], receive)
    })
}

/// # Safety
/// As libfabric documents `fi_recvv`.
unsafe extern "C" fn recvv(
    endpoint: *mut fid_ep,
    list: *const iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    from: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let receive = Receive {
        from,
        tag: None,
        flags: None,
        context,
    };
    // SAFETY: by the caller's contract.
    border::count(|| unsafe {
        start_receive(
            endpoint,
            Pieces::several(list, descriptors, count)?.as_slice(),
            receive,
        )
    })
}

/// # Safety
/// As libfabric documents `fi_recvmsg`.
unsafe extern "C" fn recvmsg(endpoint: *mut fid_ep, message: *const fi_msg, flags: u64) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
        let receive = Receive {
            from: message.addr,
            tag: None,
            flags: Some(flags),
            context: message.context,
        };
        // SAFETY: likewise.
        unsafe {
            let pieces = Pieces::several(message.msg_iov, message.desc, message.iov_count)?;
            start_receive(endpoint, pieces.as_slice(), receive)
        }
    })
}

/// # Safety
/// As libfabric documents `fi_send`.
unsafe extern "C" fn send(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    descriptor: *mut c_void,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let send = Send {
        to,
        tag: None,
        data: None,
        flags: None,
        context,
    };
    // SAFETY: by the caller's contract.
    border::count(|| unsafe { start_send(endpoint, &[piece(buffer, length, descriptor)?], send) })
}

/// # Safety
/// As libfabric documents `fi_sendv`.
unsafe extern "C" fn sendv(
    endpoint: *mut fid_ep,
    list: *const iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let send = Send {
        to,
        tag: None,
        data: None,
        flags: None,
        context,
    };
    // SAFETY: by the caller's contract.
    border::count(|| unsafe {
        start_send(
            endpoint,
            Pieces::several(list, descriptors, count)?.as_slice(),
            send,
        )
    })
}

/// # Safety
/// As libfabric documents `fi_sendmsg`.
unsafe extern "C" fn sendmsg(endpoint: *mut fid_ep, message: *const fi_msg, flags: u64) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
        let send = Send {
            to: message.addr,
            tag: None,
            data,
            flags: Some(flags),
            context: message.context,
        };
        // SAFETY: likewise.
        unsafe {
            let pieces = Pieces::several(message.msg_iov, message.desc, message.iov_count)?;
            start_send(endpoint, pieces.as_slice(), send)
        }
    })
}

/// # Safety
/// As libfabric documents `fi_inject`.
unsafe extern "C" fn inject(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    to: fi_addr_t,
) -> isize {
    // SAFETY: by the caller's contract.
    border::count(|| unsafe { start_inject(endpoint, buffer, length, (to, None, None)) })
}

/// # Safety
/// As libfabric documents `fi_senddata`.
unsafe extern "C" fn senddata(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    descriptor: *mut c_void,
    data: u64,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let send = Send {
        to,
        tag: None,
        data: Some(data),
        flags: None,
        context,
    };
    // SAFETY: by the caller's contract.
    border::count(|| unsafe { start_send(endpoint, &[piece(buffer, length, descriptor)?], send) })
}

/// # Safety
/// As libfabric documents `fi_injectdata`.
unsafe extern "C" fn injectdata(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    data: u64,
    to: fi_addr_t,
) -> isize {
    // SAFETY: by the caller's contract.
    border::count(|| unsafe { start_inject(endpoint, buffer, length, (to, None, Some(data))) })
}

/// # Safety
/// As libfabric documents `fi_trecv`.
unsafe extern "C" fn trecv(
    endpoint: *mut fid_ep,
    buffer: *mut c_void,
    length: usize,
    descriptor: *mut c_void,
    from: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    let receive = Receive {
        from,
        tag: Some(TagFilter { tag, ignore }),
        flags: None,
        context,
    };
    // SAFETY: by the caller's contract.
    border::count(|| unsafe {
        start_receive(endpoint, &[piece(buffer, length, descriptor)?], receive)
    })
}

/// # Safety
/// As libfabric documents `fi_trecvv`.
unsafe extern "C" fn trecvv(
    endpoint: *mut fid_ep,
    list: *const iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    from: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    let receive = Receive {
        from,
        tag: Some(TagFilter { tag, ignore }),
        flags: None,
        context,
    };
    // SAFETY: by the caller's contract.
    border::count(|| unsafe {
        start_receive(
            endpoint,
            Pieces::several(list, descriptors, count)?.as_slice(),
            receive,
        )
    })
}

/// # Safety
/// As libfabric documents `fi_trecvmsg`.
unsafe extern "C" fn trecvmsg(
    endpoint: *mut fid_ep,
    message: *const fi_msg_tagged,
    flags: u64,
) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
        let filter = TagFilter {
            tag: message.tag,
            ignore: message.ignore,
        };
        let receive = Receive {
            from: message.addr,
            tag: Some(filter),
            flags: Some(flags),
            context: message.context,
        };
        // SAFETY: likewise.
        unsafe {
            let pieces = Pieces::several(message.msg_iov, message.desc, message.iov_count)?;
            start_receive(endpoint, pieces.as_slice(), receive)
        }
    })
}

/// # Safety
/// As libfabric documents `fi_tsend`.
unsafe extern "C" fn tsend(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    descriptor: *mut c_void,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let send = Send {
        to,
        tag: Some(tag),
        data: None,
        flags: None,
        context,
    };
    // SAFETY: by the caller's contract.
    border::count(|| unsafe { start_send(endpoint, &[piece(buffer, length, descriptor)?], send) })
}

/// # Safety
/// As libfabric documents `fi_tsendv`.
unsafe extern "C" fn tsendv(
    endpoint: *mut fid_ep,
    list: *const iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let send = Send {
        to,
        tag: Some(tag),
        data: None,
        flags: None,
        context,
    };
    // SAFETY: by the caller's contract.
    border::count(|| unsafe {
        start_send(
            endpoint,
            Pieces::several(list, descriptors, count)?.as_slice(),
            send,
        )
    })
}

/// # Safety
/// As libfabric documents `fi_tsendmsg`.
unsafe extern "C" fn tsendmsg(
    endpoint: *mut fid_ep,
    message: *const fi_msg_tagged,
    flags: u64,
) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
        let send = Send {
            to: message.addr,
            tag: Some(message.tag),
            data,
            flags: Some(flags),
            context: message.context,
        };
        // SAFETY: likewise.
        unsafe {
            let pieces = Pieces::several(message.msg_iov, message.desc, message.iov_count)?;
            start_send(endpoint, pieces.as_slice(), send)
        }
    })
}

/// # Safety
/// As libfabric documents `fi_tinject`.
unsafe extern "C" fn tinject(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    to: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: by the caller's contract.
    border::count(|| unsafe { start_inject(endpoint, buffer, length, (to, Some(tag), None)) })
}

/// # Safety
/// As libfabric documents `fi_tsenddata`.
unsafe extern "C" fn tsenddata(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    descriptor: *mut c_void,
    data: u64,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let send = Send {
        to,
        tag: Some(tag),
        data: Some(data),
        flags: None,
        context,
    };
    // SAFETY: by the caller's contract.
    border::count(|| unsafe { start_send(endpoint, &[piece(buffer, length, descriptor)?], send) })
}

/// # Safety
/// As libfabric documents `fi_tinjectdata`.
unsafe extern "C" fn tinjectdata(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    data: u64,
    to: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: by the caller's contract.
    border::count(|| unsafe { start_inject(endpoint, buffer, length, (to, Some(tag), Some(data))) })
}
