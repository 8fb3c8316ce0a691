//! Device statistics, under the names of the real device's `hw_counters`.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What the device has done since it was opened. Bytes are payload bytes.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Every counter with its `hw_counters` name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Bytes handed to the link for sends and writes.
    tx_bytes,
    /// Requests handed to the link.
    tx_pkts,
    /// Bytes that arrived by sends and writes.
    rx_bytes,
    /// Requests that arrived and were accepted.
    rx_pkts,
    /// Requests that arrived and were refused or dropped.
    rx_drops,
    /// Bytes of successful sends.
    send_bytes,
    /// Successful sends.
    send_wrs,
    /// Bytes of messages received.
    recv_bytes,
    /// Messages received.
    recv_wrs,
    /// Successful RDMA reads.
    rdma_read_wrs,
    /// Bytes of successful RDMA reads.
    rdma_read_bytes,
    /// Failed RDMA reads.
    rdma_read_wr_err,
    /// Bytes read from this host by peers.
    rdma_read_resp_bytes,
    /// Successful RDMA writes.
    rdma_write_wrs,
    /// Bytes of successful RDMA writes.
    rdma_write_bytes,
    /// Failed RDMA writes.
    rdma_write_wr_err,
    /// Bytes written to this host by peers.
    rdma_write_recv_bytes,
    /// Bytes sent again because the receiver was not ready.
    retrans_bytes,
    /// Requests sent again because the receiver was not ready.
    retrans_pkts,
    /// Requests given up because the receiver stayed not ready.
    retrans_timeout_events,
    /// Peers that had answered before and stopped.
    unresponsive_remote_events,
    /// Peers that could not be reached at all.
    impaired_remote_conn_events,
}
