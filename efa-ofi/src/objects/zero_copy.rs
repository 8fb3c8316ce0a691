//! Receiving into the application's buffers (zero-copy receive), as the efa provider of libfabric
//! 1.22 to 2.5 does: the application's receives are posted to a second queue pair, and peers send
//! messages there without a header.
//!
//! No single option selects it: an endpoint uses it if its application promises everything that it
//! requires. Such an endpoint exchanges messages only with peers that support the request; messages
//! of other peers are refused.

use efa_core::nic::QueuePairConfig;

use crate::ffi::host::log_info;
use crate::ffi::*;
use crate::settings;

/// The features that need software and so exclude zero copy: to compare tags and senders, to put
/// several messages into one buffer, and to compute.
const PREVENTING: u64 = FI_TAGGED | FI_DIRECTED_RECV | FI_ATOMIC | FI_MULTI_RECV | FI_COLLECTIVE;

/// Promises of an application.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promises {
    pub(crate) caps: u64,
    /// How messages are ordered, in either direction.
    pub(crate) msg_order: u64,
    /// The longest message in bytes (`FI_OPT_MAX_MSG_SIZE`).
    pub(crate) max_message: usize,
    /// Peers of the same host may be reached through shared memory.
    pub(crate) permits_shared_memory: bool,
    /// All memory of receives is registered (`FI_MR_LOCAL`).
    pub(crate) registers_all: bool,
}

/// Returns whether an application with these capabilities and this order of messages may receive
/// into its buffers, if it registers them.
pub(crate) fn is_possible(caps: u64, msg_order: u64) -> bool {
    caps & FI_MSG != 0 && caps & PREVENTING == 0 && msg_order & FI_ORDER_SAS == 0
}

/// The second queue pair of an endpoint with this main queue pair on a device with this largest
/// packet. Returns `None` if the application's promises are not sufficient, and logs the missing
/// ones.
pub(crate) fn queue_pair(
    main: &QueuePairConfig,
    promises: &Promises,
    mtu: usize,
) -> Option<QueuePairConfig> {
    let lacking = match promises {
        _ if !settings::zero_copy() => "FI_EFA_USE_ZCPY_RX is 0",
        Promises { caps, .. } if caps & PREVENTING != 0 => {
            "tags, directed receives, multi-receive buffers, atomics or collectives are asked for"
        }
        Promises { caps, .. } if caps & FI_MSG == 0 => "messages are not asked for",
        promises if promises.max_message > mtu => "messages may be longer than a packet",
        promises if promises.msg_order & FI_ORDER_SAS != 0 => "messages are ordered",
        promises if !promises.registers_all => "FI_MR_LOCAL is not offered",
        promises if promises.permits_shared_memory => "shared memory is permitted",
        _ => {
            log_info!(Endpoint, "receives are into the application's buffers");
            return Some(QueuePairConfig {
                // It sends nothing.
                send_queue_depth: 1,
                qkey: None,
                service_level: 0,
                ..*main
            });
        }
    };
    log_info!(
        Endpoint,
        "receives are not into the application's buffers: {lacking}"
    );
    None
}
