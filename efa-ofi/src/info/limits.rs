//! Limits of the infos of a device: hints that exceed them are refused.

use efa_core::endpoint::IOV_LIMIT;
use efa_core::nic::Device as _;
use efa_hw::{DeviceReport, HwDevice};

use crate::capabilities::{
    DATAGRAM_PREFIX, EndpointType, INJECT_SIZE, MAX_MESSAGE, largest_atomic, queue_sizes,
};
use crate::ffi::*;
use crate::info::hints::Hints;
use crate::settings;
use crate::state::explanation::MAX_DETAIL;

/// The version of the protocol.
const PROTOCOL_VERSION: u32 = 4;
/// The version of datagrams in stock.
const DATAGRAM_VERSION: u32 = 1;
/// Bytes of a datagram's completion data.
const IMMEDIATE_SIZE: usize = size_of::<u32>();
/// The number of objects of each kind that a domain announces. There is no actual limit.
const MANY: usize = 1024;

/// Attributes that are sizes and numbers; the others are 0.
#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) ep: fi_ep_attr,
    pub(crate) tx: fi_tx_attr,
    pub(crate) rx: fi_rx_attr,
    pub(crate) domain: fi_domain_attr,
}

/// The sizes and numbers among the attributes, as (name, requested value, limit).
macro_rules! sizes {
    ($hints:ident, $limits:ident; $($part:ident: $($field:ident)*;)*) => {
        [$($((
            concat!(stringify!($part), "_attr.", stringify!($field)),
            $hints.$part.$field as usize,
            $limits.$part.$field as usize,
        ),)*)*]
    };
}

impl Limits {
    /// The limits of endpoints of a type on a device.
    pub(crate) fn of(
        device: &HwDevice,
        report: Option<&DeviceReport>,
        of: &EndpointType,
    ) -> Limits {
        let limits = Limits::of_messages(device, report);
        match of.is_datagram() {
            true => limits.of_datagrams(device),
            false => limits,
        }
    }

    /// The limits of datagram endpoints.
    fn of_datagrams(self, device: &HwDevice) -> Limits {
        let mtu = device.attributes().mtu;
        Limits {
            ep: fi_ep_attr {
                protocol_version: DATAGRAM_VERSION,
                max_msg_size: mtu,
                msg_prefix_size: DATAGRAM_PREFIX,
                tx_ctx_cnt: 1,
                rx_ctx_cnt: 1,
                ..fi_ep_attr::default()
            },
            tx: fi_tx_attr {
                inject_size: mtu,
                rma_iov_limit: 0,
                ..self.tx
            },
            rx: fi_rx_attr {
                total_buffered_recv: 0,
                iov_limit: IOV_LIMIT.min(device.max_recv_sge() as usize),
                ..self.rx
            },
            domain: fi_domain_attr {
                cq_data_size: IMMEDIATE_SIZE,
                cntr_cnt: 0,
                ..self.domain
            },
        }
    }

    fn of_messages(device: &HwDevice, report: Option<&DeviceReport>) -> Limits {
        let attributes = device.attributes();
        let (tx_size, rx_size) = queue_sizes(&attributes);
        // An atomic has one packet.
        let ordered = largest_atomic(&attributes);
        Limits {
            ep: fi_ep_attr {
                protocol_version: PROTOCOL_VERSION,
                max_msg_size: MAX_MESSAGE,
                max_order_raw_size: ordered,
                max_order_war_size: ordered,
                max_order_waw_size: ordered,
                tx_ctx_cnt: 1,
                rx_ctx_cnt: 1,
                ..fi_ep_attr::default()
            },
            tx: fi_tx_attr {
                inject_size: INJECT_SIZE,
                size: tx_size,
                iov_limit: IOV_LIMIT,
                rma_iov_limit: IOV_LIMIT,
                ..fi_tx_attr::default()
            },
            rx: fi_rx_attr {
                total_buffered_recv: settings::of_environment().deferred_bytes,
                size: rx_size,
                iov_limit: IOV_LIMIT,
                ..fi_rx_attr::default()
            },
            domain: fi_domain_attr {
                mr_key_size: size_of::<u64>(),
                cq_data_size: size_of::<u64>(),
                cq_cnt: MANY,
                // Each has a queue pair.
                ep_cnt: report.map_or(1, |report| report.max_qp as usize),
                tx_ctx_cnt: MANY,
                rx_ctx_cnt: MANY,
                max_ep_tx_ctx: 1,
                max_ep_rx_ctx: 1,
                cntr_cnt: MANY,
                mr_iov_limit: 1,
                max_err_data: MAX_DETAIL,
                mr_cnt: 65_536,
                ..fi_domain_attr::default()
            },
        }
    }

    /// The first attribute whose requested value exceeds the limit, with both values.
    pub(crate) fn exceeded_by(&self, hints: &Hints) -> Option<(&'static str, usize, usize)> {
        let limits = self;
        let sizes = sizes! {
            hints, limits;
            ep: protocol_version max_msg_size max_order_raw_size max_order_war_size
                max_order_waw_size tx_ctx_cnt rx_ctx_cnt auth_key_size;
            tx: inject_size size iov_limit rma_iov_limit;
            rx: total_buffered_recv size iov_limit;
            domain: mr_key_size cq_data_size cq_cnt ep_cnt tx_ctx_cnt rx_ctx_cnt max_ep_tx_ctx
                max_ep_rx_ctx max_ep_stx_ctx max_ep_srx_ctx cntr_cnt mr_iov_limit auth_key_size
                max_err_data mr_cnt;
        };
        sizes
            .into_iter()
            .find(|(_, requested, limit)| requested > limit)
    }
}
