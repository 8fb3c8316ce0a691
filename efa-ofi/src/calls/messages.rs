//! Untagged and tagged messages (`fi_msg`, `fi_tagged`).

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use efa_core::endpoint::{
    ClaimId, ClaimedRecvArgs, CompletionEntry, CompletionFlags, Errno, ErrorEntry, Failure, IoVec,
    MultiRecvArgs, ProviderError, RecvArgs, SendArgs, SourceFilter, TagFilter,
};
use efa_core::nic::LentNic;
use efa_hw::HwDomain;

use crate::calls::segments::{length_of, local, local_list};
use crate::calls::shim::transfer_calls;
use crate::calls::start::{Call, Start};
use crate::ffi::result::{EBADFLAGS, EOPBADSTATE, EOPNOTSUPP, Result};
use crate::ffi::table::Table;
use crate::ffi::*;
use crate::objects::enabled::EnabledEndpoint;
use crate::objects::endpoint::Endpoint;
use crate::state::domain::DomainState;

/// The flags of receives. `FI_REMOTE_CQ_DATA` has no effect, since the data arrives with the
/// message in any case; MPICH 3.4 and Intel MPI set it when they probe.
const RECEIVE_FLAGS: u64 =
    FI_MORE | FI_COMPLETION | FI_MULTI_RECV | FI_PEEK | FI_CLAIM | FI_DISCARD | FI_REMOTE_CQ_DATA;

/// Untagged or tagged, as a flag of completions.
#[inline]
fn kind<T>(tag: Option<T>) -> CompletionFlags {
    match tag {
        Some(_) => CompletionFlags::TAGGED,
        None => CompletionFlags::MSG,
    }
}

// The functions below take no closures, and are inlined into each call, so that their options are
// resolved at compile time.

#[inline(always)]
fn start_send(endpoint: &Endpoint, data: &[IoVec], tag: Option<u64>, call: Call) -> Result<usize> {
    call.check_flags()?;
    let enabled = endpoint.enabled()?;
    if tag.unwrap_or(0) & !enabled.tags != 0 {
        return Err(Errno::EINVAL);
    }
    let mut state = endpoint.domain().state()?;
    let started = send(enabled, &mut state, data, tag, &call);
    state.end_operation();
    started
}

#[inline(always)]
fn send(
    enabled: &EnabledEndpoint,
    state: &mut DomainState,
    data: &[IoVec],
    tag: Option<u64>,
    call: &Call,
) -> Result<usize> {
    let start = Start::of(enabled, call, state)?;
    let engine = state.core.endpoint(enabled.id).ok_or(EOPBADSTATE)?;
    let sent = engine.send(SendArgs {
        peer: start.peer,
        data,
        tag,
        cq_data: call.data,
        flags: start.flags,
        context: start.context,
    });
    if let Err(error) = sent {
        return Err(error.errno());
    }
    if start.reports_now.is_some() {
        let completion = (CompletionFlags::SEND | kind(tag), length_of(data));
        start.report(enabled, state, completion);
    }
    Ok(0)
}

/// Posts a receive, looks for a message (`FI_PEEK`), or receives a claimed message (`FI_CLAIM`).
#[inline(always)]
fn start_receive(
    endpoint: &Endpoint,
    buffer: &[IoVec],
    tag: Option<TagFilter>,
    call: Call,
) -> Result<usize> {
    let enabled = endpoint.enabled()?;
    let tag = tag.map(|filter| TagFilter {
        ignore: filter.ignore & enabled.tags,
        ..filter
    });
    if tag.is_some_and(|filter| filter.tag & !enabled.tags != 0) {
        return Err(Errno::EINVAL);
    }
    let mut state = endpoint.domain().state()?;
    let started = receive(endpoint, enabled, &mut state, buffer, tag, &call);
    state.end_operation();
    started
}

#[inline(always)]
fn receive(
    endpoint: &Endpoint,
    enabled: &EnabledEndpoint,
    state: &mut DomainState,
    buffer: &[IoVec],
    tag: Option<TagFilter>,
    call: &Call,
) -> Result<usize> {
    let source = match call.peer {
        // Without the capability the argument is ignored.
        _ if !enabled.directed => SourceFilter::Any,
        FI_ADDR_UNSPEC => SourceFilter::Any,
        address => SourceFilter::Peer(enabled.route.addresses(&state.tables)?.peer(address)?),
    };
    let flags = enabled.receives.or_default(call.flags);
    let context = call.context.addr() as u64;
    // The default flags of calls without any are other ones.
    if let Some(flags) = call.flags {
        if flags & !RECEIVE_FLAGS != 0 {
            return Err(EBADFLAGS);
        }
        if flags & (FI_PEEK | FI_CLAIM) != 0 {
            if enabled.zero_copy {
                // Messages do not wait here.
                return Err(EOPNOTSUPP);
            }
            return match flags & FI_PEEK {
                0 => take_claimed(enabled, state, buffer, flags, context),
                _ => peek(enabled, state, source, tag, flags, context),
            };
        }
    }
    state.tables.check_room(enabled.route.receive)?;
    let engine = state.core.endpoint(enabled.id).ok_or(EOPBADSTATE)?;
    let posted = if flags & FI_MULTI_RECV != 0 && tag.is_none() {
        let [buffer] = *buffer else {
            return Err(Errno::EINVAL);
        };
        let min_free = endpoint.min_multi_recv.load(Ordering::Relaxed);
        engine.multi_recv(MultiRecvArgs {
            source,
            buffer,
            min_free: min_free.clamp(1, buffer.memory.length.max(1)),
            context,
        })
    } else {
        engine.recv(RecvArgs {
            source,
            buffer,
            tag,
            flags: enabled.receives.of(flags),
            context,
        })
    };
    match posted {
        Ok(_) => Ok(0),
        Err(error) => Err(error.errno()),
    }
}

/// Looks for a message (`FI_PEEK`), and reports the result.
#[inline(never)]
fn peek(
    enabled: &EnabledEndpoint,
    state: &mut DomainState,
    source: SourceFilter,
    tag: Option<TagFilter>,
    flags: u64,
    context: u64,
) -> Result<usize> {
    let engine = state.core.endpoint(enabled.id).ok_or(EOPBADSTATE)?;
    let result = look_for(engine, source, tag, flags, context);
    if let Ok((entry, Some(claim))) = &result {
        let claimed = (*claim, *entry);
        state.claims.insert((enabled.id, context), claimed);
    }
    let result = result.map(|(entry, _)| entry).map_err(|entry| *entry);
    enabled.route.report(&mut state.tables, &result);
    Ok(0)
}

/// Receives or discards the message that was claimed with this context (`FI_CLAIM`).
#[inline(never)]
fn take_claimed(
    enabled: &EnabledEndpoint,
    state: &mut DomainState,
    buffer: &[IoVec],
    flags: u64,
    context: u64,
) -> Result<usize> {
    let engine = state.core.endpoint(enabled.id).ok_or(EOPBADSTATE)?;
    let claimed = state.claims.remove(&(enabled.id, context));
    let (claim, entry) = claimed.ok_or(Errno::EINVAL)?;
    if flags & FI_DISCARD != 0 {
        engine.discard(claim).map_err(|error| error.errno())?;
        enabled.route.report(&mut state.tables, &Ok(entry));
        return Ok(0);
    }
    let posted = engine.recv_claimed(ClaimedRecvArgs {
        claim,
        buffer,
        flags: enabled.receives.of(flags),
        context,
    });
    posted.map(|_| 0).map_err(|error| {
        // The message stays claimed, and can be received later.
        state.claims.insert((enabled.id, context), (claim, entry));
        error.errno()
    })
}

/// Searches for an arrived message (`FI_PEEK`), and claims or discards it if flags request it.
/// Returns the entry for the completion queue, or for its errors.
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
        let flags = CompletionFlags::RECV | kind(tag);
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
        flags: CompletionFlags::RECV | kind(tag) | data,
        length: found.length,
        data: found.cq_data.unwrap_or(0),
        tag: found.tag.unwrap_or(0),
        source: Some(found.source),
        buffer: 0,
    };
    Ok((entry, claim))
}

/// Defines the functions of untagged or of tagged messages. The tagged ones have tags as well, and
/// a filter for them where they receive.
macro_rules! message_calls {
    (
        $table:ident, $message:ty, [$($tag:ident)?], [$($ignore:ident)?],
        $value:expr, $filter:expr, $value_of:expr, $filter_of:expr
    ) => {
        pub(crate) static OPS: Table<$table> = Table::new($table {
            size: size_of::<$table>(),
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

        transfer_calls! {
            /// Receives a message (`fi_recv`, `fi_trecv`).
            fn recv(
                endpoint, buffer: *mut c_void, length: usize, descriptor: *mut c_void,
                from: fi_addr_t, $($tag: u64,)? $($ignore: u64,)? context: *mut c_void,
            ) {
                // SAFETY: by the caller's contract.
                let buffer = unsafe { local(buffer, length, descriptor) }?;
                start_receive(endpoint, &[buffer], $filter, Call::new(from, context))
            }

            /// Receives a message into several segments (`fi_recvv`, `fi_trecvv`).
            fn recvv(
                endpoint, list: *const iovec, descriptors: *mut *mut c_void, count: usize,
                from: fi_addr_t, $($tag: u64,)? $($ignore: u64,)? context: *mut c_void,
            ) {
                // SAFETY: by the caller's contract.
                let buffer = unsafe { local_list(list, descriptors, count, 1) }?;
                start_receive(endpoint, buffer.as_slice(), $filter, Call::new(from, context))
            }

            /// Receives a message that a structure describes (`fi_recvmsg`, `fi_trecvmsg`).
            fn recvmsg(endpoint, message: *const $message, flags: u64) {
                // SAFETY: by the caller's contract.
                let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
                let buffer =
                    // SAFETY: as above.
                    unsafe { local_list(message.msg_iov, message.desc, message.iov_count, 1) }?;
                let call = Call::message(message.addr, message.data, flags, message.context);
                start_receive(endpoint, buffer.as_slice(), $filter_of(message), call)
            }

            /// Sends a message (`fi_send`, `fi_tsend`).
            fn send(
                endpoint, buffer: *const c_void, length: usize, descriptor: *mut c_void,
                to: fi_addr_t, $($tag: u64,)? context: *mut c_void,
            ) {
                // SAFETY: by the caller's contract.
                let buffer = unsafe { local(buffer, length, descriptor) }?;
                start_send(endpoint, &[buffer], $value, Call::new(to, context))
            }

            /// Sends a message of several segments (`fi_sendv`, `fi_tsendv`).
            fn sendv(
                endpoint, list: *const iovec, descriptors: *mut *mut c_void, count: usize,
                to: fi_addr_t, $($tag: u64,)? context: *mut c_void,
            ) {
                // SAFETY: by the caller's contract.
                let buffer = unsafe { local_list(list, descriptors, count, 1) }?;
                start_send(endpoint, buffer.as_slice(), $value, Call::new(to, context))
            }

            /// Sends a message that a structure describes (`fi_sendmsg`, `fi_tsendmsg`).
            fn sendmsg(endpoint, message: *const $message, flags: u64) {
                // SAFETY: by the caller's contract.
                let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
                let buffer =
                    // SAFETY: as above.
                    unsafe { local_list(message.msg_iov, message.desc, message.iov_count, 1) }?;
                let call = Call::message(message.addr, message.data, flags, message.context);
                start_send(endpoint, buffer.as_slice(), $value_of(message), call)
            }

            /// Sends a message whose buffer is free on return (`fi_inject`, `fi_tinject`).
            fn inject(
                endpoint, buffer: *const c_void, length: usize, to: fi_addr_t, $($tag: u64,)?
            ) {
                // SAFETY: there is no descriptor.
                let buffer = unsafe { local(buffer, length, std::ptr::null_mut()) }?;
                start_send(endpoint, &[buffer], $value, Call::inject(to))
            }

            /// Sends a message with completion data (`fi_senddata`, `fi_tsenddata`).
            fn senddata(
                endpoint, buffer: *const c_void, length: usize, descriptor: *mut c_void,
                data: u64, to: fi_addr_t, $($tag: u64,)? context: *mut c_void,
            ) {
                // SAFETY: by the caller's contract.
                let buffer = unsafe { local(buffer, length, descriptor) }?;
                let call = Call::new(to, context).with_data(data);
                start_send(endpoint, &[buffer], $value, call)
            }

            /// As [`inject`], with completion data (`fi_injectdata`, `fi_tinjectdata`).
            fn injectdata(
                endpoint, buffer: *const c_void, length: usize, data: u64, to: fi_addr_t,
                $($tag: u64,)?
            ) {
                // SAFETY: there is no descriptor.
                let buffer = unsafe { local(buffer, length, std::ptr::null_mut()) }?;
                start_send(endpoint, &[buffer], $value, Call::inject(to).with_data(data))
            }
        }
    };
}

/// Untagged messages.
pub(crate) mod untagged {
    use super::*;

    message_calls!(fi_ops_msg, fi_msg, [], [], None, None, |_| None, |_| None);
}

/// The functions of datagram endpoints.
pub(crate) mod datagrams {
    use super::*;
    use crate::calls::datagrams::{start_receive, start_send};

    message_calls!(fi_ops_msg, fi_msg, [], [], None, None, |_| None, |_| None);
}

/// Tagged messages.
pub(crate) mod tagged {
    use super::*;

    message_calls!(
        fi_ops_tagged,
        fi_msg_tagged,
        [tag],
        [ignore],
        Some(tag),
        Some(TagFilter { tag, ignore }),
        |message: &fi_msg_tagged| Some(message.tag),
        |message: &fi_msg_tagged| Some(TagFilter {
            tag: message.tag,
            ignore: message.ignore,
        })
    );
}
