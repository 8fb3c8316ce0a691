//! Settings of an endpoint. The defaults are those of stock libfabric where it has the same
//! setting.

use core::time::Duration;

/// Settings of an [`Endpoint`](crate::endpoint::Endpoint). They do not change while it is open.
#[derive(Clone, PartialEq, Debug)]
pub struct EndpointConfig {
    /// Receive buffers to keep posted, at most the device's receive queue. Default 8192.
    pub recv_buffers: usize,
    /// Completions read from the device per poll, in entries. Default 64.
    pub poll_batch: usize,
    /// Completions that may wait for the application. At this number the endpoint stops polling the
    /// device until the application reads some. Default 131,072.
    pub completion_queue: usize,
    /// Operations of the application that may be in flight: sends and writes; counted separately,
    /// receives, reads and fetching atomics. Operations of peers do not count. Together with
    /// [`EndpointConfig::remote_operations`] less than 1,048,576. Default 983,039.
    pub max_operations: usize,
    /// Operations of all peers together that may run at a time: emulated writes and reads of local
    /// memory, and messages of more than one packet that arrive in multi-receive buffers.
    /// Operations of the application do not count. A peer may use as many as are still free; its
    /// further operations wait. If 16 peers request more than the limit, each gets a seventeenth,
    /// and the last seventeenth stays free for another peer. At least 1. Default 65,536.
    pub remote_operations: usize,
    /// The number of message ids that a peer may be ahead of the oldest missing one: a power of two
    /// up to 2^20. A packet beyond that violates the protocol (a stock sender of 1.11 or 1.17
    /// aborts its receiver at 16,384): the endpoint refuses it and gives up the peer with an
    /// [`Event::PeerFailed`](crate::endpoint::Event::PeerFailed). Default 65,536.
    pub reorder_window: u32,
    /// Bytes of early or unexpected packets that may be kept outside of device buffers. Beyond that
    /// such packets stay in device buffers, and peers see receiver-not-ready. Default 1 GiB.
    pub deferred_bytes: usize,
    /// Limit in bytes for the waiting packets of one peer, wherever they are stored. Each packet
    /// counts as at least 128 bytes. A peer beyond the limit is given up. Where peers are not
    /// trusted, this prevents one of them from using up [`EndpointConfig::deferred_bytes`].
    /// Default: no limit.
    pub peer_deferred_bytes: usize,
    /// Limit for the pending requests of one peer: its
    /// [`remote_operations`](EndpointConfig::remote_operations), running or waiting, and answers
    /// (RECEIPT, EOR, ATOMRSP) that wait to be sent. A peer beyond the limit is given up. Default
    /// 65,536.
    pub peer_operations: usize,
    /// Whether messages of one peer are matched in the order in which it sent them
    /// (`FI_ORDER_SAS`). Otherwise they are matched as they arrive; atomics still take their turn.
    /// Default true.
    pub ordered: bool,
    /// Peers that may be known only because they sent packets; of one queue pair number the latest
    /// 8 owners. At the limit, an idle one that was silent for long is forgotten
    /// ([`Event::PeerForgotten`](crate::endpoint::Event::PeerForgotten)). If none is idle, the
    /// packet of the new peer is refused. Default 65,536.
    pub max_implicit_peers: usize,
    /// The first message id in either direction with every peer. The protocol requires 0; tests of
    /// the wrap-around start just below 2^32.
    pub first_msg_id: u32,
    /// Largest message sent as medium (`FI_EFA_INTER_MAX_MEDIUM_MESSAGE_SIZE`), in bytes.
    /// Default 65,536.
    pub max_medium_size: usize,
    /// Smallest message sent by RDMA read (`FI_EFA_INTER_MIN_READ_MESSAGE_SIZE`), in bytes.
    /// Default 1 MiB.
    pub min_read_message_size: usize,
    /// Smallest emulated write done by RDMA read (`FI_EFA_INTER_MIN_READ_WRITE_SIZE`), in bytes.
    /// Default 65,536.
    pub min_read_write_size: usize,
    /// Bytes of a message that travel ahead of the RDMA read of the rest (`FI_EFA_RUNT_SIZE`), per
    /// peer. Default 0.
    pub runt_size: usize,
    /// Largest RDMA read that is posted (`FI_EFA_INTER_READ_SEGMENT_SIZE`), in bytes. Default 1
    /// GiB.
    pub read_segment_size: usize,
    /// Packets of data granted by one CTS (`FI_EFA_TX_MIN_CREDITS`), at least 1. Default 32.
    pub cts_window_packets: u32,
    /// Whether messages are sent only after the peer's handshake has arrived:
    /// [`EndpointError::TryAgain`] until then. Necessary where peers may be zero-copy receivers
    /// (libfabric 1.22 to 2.5), which lose messages that are sent to them earlier. Default false.
    ///
    /// [`EndpointError::TryAgain`]: crate::endpoint::EndpointError::TryAgain
    pub handshake_before_messages: bool,
    /// Whether RDMA read and write are used and announced if the device supports them
    /// (`FI_EFA_USE_DEVICE_RDMA`). Default true.
    pub use_device_rdma: bool,
    /// The range of the first wait after repeated receiver-not-ready errors, in microseconds. The
    /// wait is random. Default 40..=119.
    pub backoff_first_micros: (u32, u32),
    /// Longest wait after receiver-not-ready errors. Default 1 s.
    pub backoff_max: Duration,
    /// Seed of random back-off times and of the hash functions, so that runs are reproducible. It
    /// should be random where peers are not trusted, because they choose the hashed values. Default
    /// 0.
    pub seed: u64,
    /// Events that are kept for [`Endpoint::poll_event`](crate::endpoint::Endpoint::poll_event).
    /// Older ones are dropped and counted. Default 1,024.
    pub max_events: usize,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        EndpointConfig {
            recv_buffers: 8192,
            poll_batch: 64,
            completion_queue: 1 << 17,
            max_operations: (1 << 20) - (1 << 16) - 1,
            remote_operations: 1 << 16,
            reorder_window: 1 << 16,
            deferred_bytes: 1 << 30,
            peer_deferred_bytes: usize::MAX,
            peer_operations: 1 << 16,
            ordered: true,
            max_implicit_peers: 1 << 16,
            first_msg_id: 0,
            max_medium_size: 65_536,
            min_read_message_size: 1 << 20,
            min_read_write_size: 65_536,
            runt_size: 0,
            read_segment_size: 1 << 30,
            cts_window_packets: 32,
            handshake_before_messages: false,
            use_device_rdma: true,
            backoff_first_micros: (40, 119),
            backoff_max: Duration::from_secs(1),
            seed: 0,
            max_events: 1024,
        }
    }
}
