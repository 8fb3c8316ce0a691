//! Messages of datagram endpoints (`fi_msg`).

use efa_core::endpoint::{Errno, IoVec, OperationFlags, TagFilter};

use crate::calls::start::Call;
use crate::ffi::result::{EBADFLAGS, EOPBADSTATE, Result};
use crate::ffi::*;
use crate::objects::enabled::Flags;
use crate::objects::endpoint::Endpoint;
use crate::state::datagrams::PostedRequest;
use crate::state::route::INJECTED;

/// The flags of sends.
const SEND_FLAGS: u64 = FI_MORE
    | FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_REMOTE_CQ_DATA;

/// The flags of receives.
const RECEIVE_FLAGS: u64 = FI_MORE | FI_COMPLETION;

/// Sends a datagram, which has no tag. Its bytes are copied in any case.
pub(crate) fn start_send(
    endpoint: &Endpoint,
    data: &[IoVec],
    _tag: Option<u64>,
    call: Call,
) -> Result<usize> {
    let enabled = endpoint.datagrams()?;
    let reports = reports(&enabled.sends, &call, SEND_FLAGS)?;
    let (context, reports) = match call.is_injected() {
        true => (INJECTED, false),
        false => (call.context.addr() as u64, reports),
    };
    let immediate = call.data.map(u32::try_from).transpose();
    let immediate = immediate.map_err(|_| Errno::EINVAL)?;
    endpoint.domain().operation(|state| {
        let sender = state.datagrams.get_mut(enabled.key).ok_or(EOPBADSTATE)?;
        let peer = sender.route.addresses(&state.tables)?.peer(call.peer)?;
        let destination = state.core.destination(peer).ok_or(Errno::EINVAL)?;
        if context != INJECTED {
            state.tables.check_room(sender.route.transmit)?;
        }
        let posted = PostedRequest::send(context, reports, peer);
        let nic = state.core.nic_mut();
        sender.send(nic, destination, data, immediate, posted)
    })
}

/// Posts a receive, for a datagram of anyone.
pub(crate) fn start_receive(
    endpoint: &Endpoint,
    buffer: &[IoVec],
    _tag: Option<TagFilter>,
    call: Call,
) -> Result<usize> {
    let enabled = endpoint.datagrams()?;
    let reports = reports(&enabled.receives, &call, RECEIVE_FLAGS)?;
    let context = call.context.addr() as u64;
    endpoint.domain().operation(|state| {
        let receiver = state.datagrams.get_mut(enabled.key).ok_or(EOPBADSTATE)?;
        state.tables.check_room(receiver.route.receive)?;
        let posted = PostedRequest::receive(context, reports);
        receiver.receive(state.core.nic_mut(), buffer, posted)
    })
}

/// Whether the success of a call is reported.
///
/// # Errors
/// `FI_EBADFLAGS` for flags that are not in `known`.
fn reports(flags: &Flags, call: &Call, known: u64) -> Result<bool> {
    match call.flags.unwrap_or(0) & !known {
        0 => {
            let flags = flags.of(flags.or_default(call.flags));
            Ok(flags.contains(OperationFlags::COMPLETION))
        }
        _ => Err(EBADFLAGS),
    }
}
