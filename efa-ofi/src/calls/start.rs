//! Common part of all calls that send data.

use std::ffi::c_void;

use efa_core::endpoint::{
    CompletionEntry, CompletionFlags, Endpoint as Engine, EndpointError, EndpointId, Errno,
    OperationFlags, PeerId,
};
use efa_core::nic::LentNic;
use efa_hw::HwDomain;

use crate::ffi::result::{EBADFLAGS, EOPBADSTATE, Result};
use crate::ffi::*;
use crate::objects::enabled::EnabledEndpoint;
use crate::objects::endpoint::Endpoint;
use crate::state::deferred::DeferredOperation;
use crate::state::domain::DomainState;
use crate::state::route::INJECTED;

/// The flags of sends and writes. A fence and the completion of a match (`FI_FENCE`,
/// `FI_MATCH_COMPLETE`) are not offered.
const SEND_FLAGS: u64 = FI_MORE
    | FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_REMOTE_CQ_DATA
    | HIGH_PPS;

/// A flag of libfabric 2.7's efa provider (`FI_EFA_WR_HIGH_PPS`): that the device may trade latency
/// for more messages per second. It changes nothing that an application can rely on, and is not
/// passed to the device.
const HIGH_PPS: u64 = 1 << 60;

/// An operation as its call describes it, without the memory.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) peer: fi_addr_t,
    /// For the peer's completion queue.
    pub(crate) data: Option<u64>,
    /// The call's flags, if it has any.
    pub(crate) flags: Option<u64>,
    pub(crate) context: *mut c_void,
    inject: Inject,
}

/// Whether the data is copied within the call.
#[derive(Clone, Copy)]
enum Inject {
    Always,
    /// If the flags have `FI_INJECT`.
    ByFlag,
    /// Never: the data is from the peer.
    Never,
}

impl Call {
    /// A call without flags.
    #[inline]
    pub(crate) fn new(peer: fi_addr_t, context: *mut c_void) -> Call {
        Call {
            peer,
            data: None,
            flags: None,
            context,
            inject: Inject::ByFlag,
        }
    }

    /// A call whose buffer is free when it returns, and whose success is not reported.
    #[inline]
    pub(crate) fn inject(peer: fi_addr_t) -> Call {
        Call {
            inject: Inject::Always,
            ..Call::new(peer, std::ptr::null_mut())
        }
    }

    /// A call that a structure describes.
    #[inline]
    pub(crate) fn message(peer: fi_addr_t, data: u64, flags: u64, context: *mut c_void) -> Call {
        Call {
            data: (flags & FI_REMOTE_CQ_DATA != 0).then_some(data),
            flags: Some(flags),
            ..Call::new(peer, context)
        }
    }

    #[inline]
    pub(crate) fn with_data(self, data: u64) -> Call {
        Call {
            data: Some(data),
            ..self
        }
    }

    /// A call that fetches data from the peer: its memory is in use until it has completed.
    #[inline]
    pub(crate) fn fetching(self) -> Call {
        Call {
            inject: Inject::Never,
            ..self
        }
    }

    /// Whether the buffer is free when the call returns, and its success is not reported.
    pub(crate) fn is_injected(&self) -> bool {
        matches!(self.inject, Inject::Always)
    }

    /// # Errors
    /// `FI_EBADFLAGS` for flags that sends, writes and atomics do not have.
    #[inline]
    pub(crate) fn check_flags(&self) -> Result<()> {
        match self.flags {
            Some(flags) if flags & !SEND_FLAGS != 0 => Err(EBADFLAGS),
            _ => Ok(()),
        }
    }
}

/// How an operation is started.
pub(crate) struct Start {
    pub(crate) peer: PeerId,
    /// The engine's flags.
    pub(crate) flags: OperationFlags,
    /// The context that the engine returns.
    pub(crate) context: u64,
    /// The application's context, if a success is to be reported immediately: the engine does not
    /// report data that was copied within the call.
    pub(crate) reports_now: Option<u64>,
}

impl Start {
    /// How the operation of a call is started, if it may start now.
    ///
    /// # Errors
    /// `FI_EINVAL` for an unknown peer, `FI_EAGAIN` if completions have to be read first.
    #[inline(always)]
    pub(crate) fn of(
        enabled: &EnabledEndpoint,
        call: &Call,
        state: &mut DomainState,
    ) -> Result<Start> {
        let peer = enabled.route.addresses(&state.tables)?.peer(call.peer)?;
        let start = Start::new(enabled, call, peer);
        if start.context != INJECTED || start.reports_now.is_some() {
            state.tables.check_room(enabled.route.transmit)?;
        }
        Ok(start)
    }

    /// Reports the success of an operation that was started, if the report is due immediately.
    #[inline(never)]
    pub(crate) fn report(
        &self,
        enabled: &EnabledEndpoint,
        state: &mut DomainState,
        (completion, length): (CompletionFlags, u64),
    ) {
        if let Some(context) = self.reports_now {
            let done = CompletionEntry {
                context,
                flags: completion,
                length,
                data: 0,
                tag: 0,
                source: None,
                buffer: 0,
            };
            enabled.route.report(&mut state.tables, &Ok(done));
        }
    }

    #[inline(always)]
    fn new(enabled: &EnabledEndpoint, call: &Call, peer: PeerId) -> Start {
        let injected = |flags, reports_now| Start {
            peer,
            flags,
            context: INJECTED,
            reports_now,
        };
        let flags = match call.inject {
            Inject::Always => return injected(OperationFlags::INJECT, None),
            Inject::ByFlag => enabled.sends.or_default(call.flags),
            Inject::Never => enabled.sends.or_default(call.flags) & !FI_INJECT,
        };
        let flags = enabled.sends.of(flags);
        let context = call.context.addr() as u64;
        if flags.contains(OperationFlags::INJECT) {
            let reports_now = flags.contains(OperationFlags::COMPLETION);
            let flags = flags.difference(OperationFlags::COMPLETION);
            return injected(flags, reports_now.then_some(context));
        }
        Start {
            peer,
            flags,
            context,
            reports_now: None,
        }
    }
}

/// The arguments of a [`DeferredOperation`] operation besides its memory.
pub(crate) struct OperationArguments {
    pub(crate) endpoint: EndpointId,
    pub(crate) peer: PeerId,
    pub(crate) flags: OperationFlags,
    pub(crate) context: u64,
}

/// Result of giving the engine an operation.
type PostResult = std::result::Result<(), EndpointError>;

/// Starts an operation that sends `length` bytes to a peer, and whose completion has these flags.
///
/// # Errors
/// `FI_EOPBADSTATE` before the endpoint is enabled, and the errors of [`Start::of`] and of the
/// engine.
pub(crate) fn start(
    endpoint: &Endpoint,
    call: &Call,
    completion: (CompletionFlags, u64),
    post: impl FnOnce(&mut Engine<LentNic<HwDomain>>, &Start) -> PostResult,
) -> Result<usize> {
    start_or_defer(endpoint, call, completion, post, |_| None)
}

/// As [`start`]. An operation that waits for its peer's HANDSHAKE is stored as `defer` describes
/// it.
pub(crate) fn start_or_defer(
    endpoint: &Endpoint,
    call: &Call,
    completion: (CompletionFlags, u64),
    post: impl FnOnce(&mut Engine<LentNic<HwDomain>>, &Start) -> PostResult,
    defer: impl FnOnce(OperationArguments) -> Option<DeferredOperation>,
) -> Result<usize> {
    let enabled = endpoint.enabled()?;
    endpoint.domain().operation(|state| {
        let start = Start::of(enabled, call, state)?;
        let engine = state.core.endpoint(enabled.id).ok_or(EOPBADSTATE)?;
        match post(engine, &start) {
            Ok(()) => {}
            // Injected data is copied within the call. Its memory may be freed later, so the
            // operation cannot wait.
            Err(EndpointError::TryAgain) if start.context != INJECTED => {
                let waiting = OperationArguments {
                    endpoint: enabled.id,
                    peer: start.peer,
                    flags: start.flags,
                    context: start.context,
                };
                let deferred = defer(waiting).ok_or(Errno::EAGAIN)?;
                return state.defer(deferred).map(|()| 0);
            }
            Err(error) => return Err(error.errno()),
        }
        start.report(enabled, state, completion);
        Ok(0)
    })
}
