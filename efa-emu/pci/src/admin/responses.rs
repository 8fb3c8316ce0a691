//! The data of completions of successful commands.

use efa_device_model::device::{self, Counters};
use zerocopy::little_endian::{U16, U32, U64};

use crate::layout::layout;

layout! {
    /// `efa_admin_create_qp_resp`.
    pub QpMade, from 8 to 32;
    8 handle: U32, "by which later commands name the queue pair";
    12 qpn: U16, "its number";
    14 reserved: U16, "0";
    16 send_sub_queue: U16, "0";
    18 recv_sub_queue: U16, "0";
    20 send_doorbell: U32, "where its doorbell is, in the region of doorbells";
    24 recv_doorbell: U32, "likewise of the receive queue";
    28 send_queue: U32, "where its send queue is, in the region of queues";
}

layout! {
    /// `efa_admin_query_qp_resp`.
    pub QpState, from 8 to 24;
    8 state: U32, "state";
    12 qkey: U32, "Q-key";
    16 sq_psn: U32, "packet sequence number";
    20 is_draining: u8, "0";
    21 rnr_retry: u8, "retries of a request that found the receiver not ready";
    22 reserved: U16, "0";
}

layout! {
    /// `efa_admin_create_ah_resp`.
    pub AhMade, from 8 to 12;
    8 ah: U16, "number of the address handle";
    10 reserved: U16, "0";
}

layout! {
    /// `efa_admin_reg_mr_resp`.
    pub RegionMade, from 8 to 24;
    8 lkey: U32, "local key";
    12 rkey: U32, "remote key";
    16 interconnects: [u8; 8], "which interconnects are used: not said";
}

layout! {
    /// `efa_admin_create_cq_resp`.
    pub CqMade, from 8 to 20;
    8 cq: U16, "number of the queue";
    10 depth: U16, "entries, as many as were asked for";
    12 doorbell: U32, "where its doorbell is, in the region of doorbells";
    16 flags: U32, "bit 0: there is a doorbell";
}

layout! {
    /// The number of a created object: `efa_admin_alloc_pd_resp`, `efa_admin_alloc_uar_resp`,
    /// `efa_admin_create_eq_resp`.
    pub Number, from 8 to 12;
    8 number: U16, "its number";
    10 reserved: U16, "0";
}

impl QpMade {
    /// A completion queue has one sub-queue.
    pub const SUB_QUEUE: U16 = U16::ZERO;
}

impl CqMade {
    /// The completion queue has a doorbell.
    pub const HAS_DOORBELL: U32 = U32::new(1);
}

impl Number {
    /// The response with this number.
    pub fn of(number: u16) -> Number {
        Number {
            number: number.into(),
            reserved: U16::ZERO,
        }
    }
}

/// `efa_admin_basic_stats`: bytes and packets sent, bytes and packets received, packets dropped.
pub fn basic(of: &Counters) -> [U64; 5] {
    [
        of.tx_bytes,
        of.tx_pkts,
        of.rx_bytes,
        of.rx_pkts,
        of.rx_drops,
    ]
    .map(U64::new)
}

/// `efa_admin_messages_stats`: sends and receives, bytes before counts.
pub fn messages(of: &Counters) -> [U64; 4] {
    [of.send_bytes, of.send_wrs, of.recv_bytes, of.recv_wrs].map(U64::new)
}

/// `efa_admin_rdma_read_stats`: requests, bytes, failed requests, bytes that peers have read.
pub fn reads(of: &Counters) -> [U64; 4] {
    [
        of.rdma_read_wrs,
        of.rdma_read_bytes,
        of.rdma_read_wr_err,
        of.rdma_read_resp_bytes,
    ]
    .map(U64::new)
}

/// `efa_admin_rdma_write_stats`: requests, bytes, failed requests, bytes that peers have written.
pub fn writes(of: &Counters) -> [U64; 4] {
    [
        of.rdma_write_wrs,
        of.rdma_write_bytes,
        of.rdma_write_wr_err,
        of.rdma_write_recv_bytes,
    ]
    .map(U64::new)
}

/// `efa_admin_network_stats`: retransmissions and lost peers.
pub fn network(of: &Counters) -> [U64; 5] {
    [
        of.retrans_bytes,
        of.retrans_pkts,
        of.retrans_timeout_events,
        of.unresponsive_remote_events,
        of.impaired_remote_conn_events,
    ]
    .map(U64::new)
}

/// The number of a queue pair's state: `efa_admin_qp_state`.
pub(crate) fn state_number(state: device::QpState) -> u32 {
    match state {
        device::QpState::Reset => 0,
        device::QpState::Init => 1,
        device::QpState::ReadyToReceive => 2,
        device::QpState::ReadyToSend => 3,
        device::QpState::SendQueueDrained => 4,
        device::QpState::Error => 6,
    }
}

/// The state with this number. 5 is a failed send queue, which SRD does not have.
pub(crate) fn state_of(number: u32) -> Option<device::QpState> {
    let mut all = device::QpState::ALL.into_iter();
    all.find(|state| state_number(*state) == number)
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn queue_pair_answers_have_literal_bytes() {
        let made = QpMade {
            handle: 0x0403_0201.into(),
            qpn: 0x1211.into(),
            reserved: U16::ZERO,
            send_sub_queue: QpMade::SUB_QUEUE,
            recv_sub_queue: QpMade::SUB_QUEUE,
            send_doorbell: 0x2423_2221.into(),
            recv_doorbell: 0x3433_3231.into(),
            send_queue: 0x4443_4241.into(),
        };
        #[rustfmt::skip]
        let bytes = [
            0x01, 0x02, 0x03, 0x04, // handle
            0x11, 0x12, 0, 0,       // number
            0, 0, 0, 0,             // sub-queues
            0x21, 0x22, 0x23, 0x24, // doorbells
            0x31, 0x32, 0x33, 0x34,
            0x41, 0x42, 0x43, 0x44, // send queue
        ];
        assert_eq!(made.as_bytes(), bytes);
    }

    #[test]
    fn completion_queue_answers_have_literal_bytes() {
        let made = CqMade {
            cq: 0x0201.into(),
            depth: 0x1211.into(),
            doorbell: 0x2423_2221.into(),
            flags: CqMade::HAS_DOORBELL,
        };
        let bytes = [1, 2, 0x11, 0x12, 0x21, 0x22, 0x23, 0x24, 1, 0, 0, 0];
        assert_eq!(made.as_bytes(), bytes);
    }

    #[test]
    fn each_port_counter_is_in_one_answer() {
        let counters = Counters {
            tx_bytes: 1,
            rx_drops: 2,
            send_bytes: 3,
            recv_wrs: 4,
            rdma_read_wrs: 5,
            rdma_read_resp_bytes: 6,
            rdma_write_wr_err: 7,
            retrans_bytes: 8,
            impaired_remote_conn_events: 9,
            ..Counters::default()
        };
        let numbers = |values: &[U64]| values.iter().map(|value| value.get()).collect::<Vec<_>>();
        assert_eq!(numbers(&basic(&counters)), [1, 0, 0, 0, 2]);
        assert_eq!(numbers(&messages(&counters)), [3, 0, 0, 4]);
        assert_eq!(numbers(&reads(&counters)), [5, 0, 0, 6]);
        assert_eq!(numbers(&writes(&counters)), [0, 0, 7, 0]);
        assert_eq!(numbers(&network(&counters)), [8, 0, 0, 0, 9]);
        let answered = 5 + 4 + 4 + 4 + 5;
        assert_eq!(answered, Counters::COUNT);
    }

    #[test]
    fn states_have_numbers() {
        for (number, state) in [(0, "Reset"), (3, "ReadyToSend"), (6, "Error")] {
            assert_eq!(format!("{:?}", state_of(number).unwrap()), state);
        }
        assert_eq!((state_of(5), state_of(7)), (None, None));
    }
}
