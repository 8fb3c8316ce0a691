//! The provider's names, capabilities, flags, and limits.

use std::ffi::CStr;

use efa_core::endpoint::{AtomicKind, atomic_limits};
use efa_core::nic::{NicAttributes, QueuePairConfig};
use efa_core::wire::{AtomicDatatype, AtomicOp};

use crate::ffi::*;

/// The version of the provider: the newest release of libfabric with whose efa provider it was
/// tested, 2.5.1, numbered like libfabric's own providers: `FI_VERSION(major * 100 + minor,
/// revision * 10)`. Open MPI's `btl/ofi` assumes that every provider whose name begins with `efa`
/// is libfabric's, and refuses releases before 1.12.
pub(crate) const VERSION: u32 = 205 << 16 | 10;

/// The name of the fabric: all EFA devices that can reach each other.
pub(crate) const FABRIC: &CStr = c"efa";

/// The number of sends that an endpoint accepts until some complete, and of receive buffers of a
/// packet each, on a device with enough room.
pub(crate) const TX_SIZE: usize = 1024;
pub(crate) const RX_SIZE: usize = 2048;

/// The largest message in bytes.
pub(crate) const MAX_MESSAGE: usize = u64::MAX as usize;

/// The longest message that is copied within the call (`fi_inject`), in bytes, with each of the
/// stock releases as a peer.
pub(crate) const INJECT_SIZE: usize = 8192;

pub(crate) const MESSAGES: u64 = FI_MSG | FI_TAGGED;
pub(crate) const ONE_SIDED: u64 = FI_RMA | FI_ATOMIC;
pub(crate) const SENDING: u64 = FI_SEND | FI_RECV;
pub(crate) const ACCESSING: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
pub(crate) const SECONDARY: u64 =
    FI_MULTI_RECV | FI_SOURCE | FI_DIRECTED_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM;

pub(crate) const TX_CAPS: u64 = MESSAGES | ONE_SIDED | FI_SEND | FI_READ | FI_WRITE | FI_COLLECTIVE;
pub(crate) const RX_CAPS: u64 = MESSAGES
    | ONE_SIDED
    | FI_RECV
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_MULTI_RECV
    | FI_SOURCE
    | FI_DIRECTED_RECV
    | FI_COLLECTIVE;

pub(crate) const DOMAIN_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;

/// An endpoint type and its capabilities. All endpoints of an opened domain have the same type.
#[derive(Debug)]
pub(crate) struct EndpointType {
    /// libfabric's number (`FI_EP_...`).
    pub(crate) number: u32,
    /// The suffix of a domain's name after the device's, as in libfabric's own efa provider.
    domain_suffix: &'static str,
    /// All capabilities that an application may request.
    pub(crate) caps: u64,
    /// Flags that operations may have by default.
    pub(crate) tx_op_flags: u64,
    pub(crate) rx_op_flags: u64,
    pub(crate) msg_order: u64,
    /// The mode bits that every application must accept.
    pub(crate) mode: u64,
}

/// Reliable datagrams: the protocol.
///
/// Messages are matched in the order in which they were sent, and atomics are carried out in
/// theirs. MPICH uses atomics for its windows only if they are ordered.
pub(crate) static RDM: EndpointType = EndpointType {
    number: FI_EP_RDM,
    domain_suffix: "-rdm",
    caps: MESSAGES | ONE_SIDED | SENDING | ACCESSING | SECONDARY | FI_COLLECTIVE,
    tx_op_flags: FI_INJECT
        | FI_COMPLETION
        | FI_TRANSMIT_COMPLETE
        | FI_INJECT_COMPLETE
        | FI_DELIVERY_COMPLETE,
    rx_op_flags: FI_COMPLETION | FI_MULTI_RECV,
    msg_order: FI_ORDER_SAS
        | FI_ORDER_ATOMIC_RAR
        | FI_ORDER_ATOMIC_RAW
        | FI_ORDER_ATOMIC_WAR
        | FI_ORDER_ATOMIC_WAW,
    mode: 0,
};

/// Datagrams: packets of the device, which may be lost.
pub(crate) static DATAGRAM: EndpointType = EndpointType {
    number: FI_EP_DGRAM,
    domain_suffix: "-dgrm",
    caps: FI_MSG | SENDING | FI_SOURCE | FI_LOCAL_COMM | FI_REMOTE_COMM,
    tx_op_flags: FI_INJECT | FI_COMPLETION | FI_TRANSMIT_COMPLETE | FI_INJECT_COMPLETE,
    rx_op_flags: FI_COMPLETION,
    msg_order: 0,
    mode: FI_MSG_PREFIX,
};

/// All types, in the order in which infos are listed.
pub(crate) static ENDPOINT_TYPES: [&EndpointType; 2] = [&RDM, &DATAGRAM];

/// The bytes before each message of a datagram endpoint (`msg_prefix_size`): the device writes a
/// header there when it receives.
pub(crate) const DATAGRAM_PREFIX: usize = 40;

/// The mode bits of memory registration: memory that peers access. Other memory need not be
/// registered.
pub(crate) const MR_MODE: u64 = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

/// The bits of tags that messages of an application with these capabilities may have: collective
/// operations have the highest one (`mem_tag_format`).
pub(crate) fn tag_format(caps: u64) -> u64 {
    match caps & FI_COLLECTIVE {
        0 => u64::MAX,
        _ => u64::MAX >> 1,
    }
}

/// The sizes of the transmit and the receive queue of an endpoint on a device with these limits.
pub(crate) fn queue_sizes(limits: &NicAttributes) -> (usize, usize) {
    (
        TX_SIZE.min(limits.send_queue_depth),
        RX_SIZE.min(limits.recv_queue_depth),
    )
}

/// The longest operand of an atomic, in bytes.
pub(crate) fn largest_atomic(limits: &NicAttributes) -> usize {
    let bytes = atomic_limits(
        limits,
        AtomicDatatype::UINT8,
        AtomicOp::SUM,
        AtomicKind::Write,
    );
    bytes.map_or(0, |limits| limits.count)
}

/// The device whose domain has this name, and the type of the domain's endpoints.
pub(crate) fn device_of(domain: &str) -> (&str, &'static EndpointType) {
    let mut types = ENDPOINT_TYPES.iter();
    let named = types.find_map(|of| Some((domain.strip_suffix(of.domain_suffix)?, *of)));
    named.unwrap_or((domain, &RDM))
}

impl EndpointType {
    /// The name of the domain of a device that has endpoints of this type.
    pub(crate) fn domain_name(&self, device: &str) -> String {
        format!("{device}{}", self.domain_suffix)
    }

    /// Whether messages are datagrams.
    pub(crate) fn is_datagram(&self) -> bool {
        self.number == FI_EP_DGRAM
    }

    /// The capabilities of an endpoint whose application requests these.
    pub(crate) fn granted(&self, wanted: u64) -> u64 {
        match wanted {
            // Collective operations are granted on request only: they need a bit of the tags.
            0 => self.caps & !FI_COLLECTIVE,
            _ => with_directions(wanted),
        }
    }
}

/// A capability without a direction has all of its directions. Secondary capabilities are only
/// provided on request.
fn with_directions(wanted: u64) -> u64 {
    let directions = |kind: u64, directions: u64| {
        if wanted & kind != 0 && wanted & directions == 0 {
            directions
        } else {
            0
        }
    };
    wanted
        | FI_LOCAL_COMM
        | FI_REMOTE_COMM
        | directions(MESSAGES, SENDING)
        | directions(ONE_SIDED, ACCESSING)
}

/// Returns whether peers may access memory with these capabilities: with one-sided operations in
/// no direction, or in theirs.
pub(crate) fn is_target(caps: u64) -> bool {
    let targets = FI_REMOTE_READ | FI_REMOTE_WRITE;
    caps & ONE_SIDED != 0 && (caps & ACCESSING == 0 || caps & targets != 0)
}

/// The traffic class that is granted for a requested one. Like stock, returns `FI_TC_UNSPEC` for
/// classes that the device does not distinguish.
pub(crate) fn traffic_class(requested: u32) -> u32 {
    match requested {
        FI_TC_BEST_EFFORT | FI_TC_LOW_LATENCY => requested,
        _ => FI_TC_UNSPEC,
    }
}

/// The service level of an endpoint's packets, for the traffic classes of its domain and of its
/// sends.
pub(crate) fn service_level(domain: u32, sends: u32) -> u8 {
    let class = match sends {
        FI_TC_UNSPEC => domain,
        class => class,
    };
    match class {
        FI_TC_LOW_LATENCY => QueuePairConfig::LOW_LATENCY,
        _ => 0,
    }
}
