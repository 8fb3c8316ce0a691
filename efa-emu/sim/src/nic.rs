//! A domain and a queue pair in one, for programs that need no more.

use efa_core::address::Qkey;
use efa_core::nic::{Device, Domain, DomainConfig, NicError, OwnNic, QueuePairConfig};
use efa_device_model::device::Service;

use super::domain::SimDomain;
use super::host::SimHost;
use super::queue_pair::SimQueuePair;

/// A queue pair of a simulated host with a private domain.
pub type SimNic = OwnNic<SimDomain>;

/// The configuration of a [`SimNic`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NicConfig {
    /// The service of the queue pair.
    pub service: Service,
    /// The depth of the send queue, a power of two.
    pub send_queue_depth: usize,
    /// The depth of the receive queue, a power of two.
    pub recv_queue_depth: usize,
    /// The number of packet buffers. A buffer is allocated when it is first used.
    pub packet_buffers: usize,
    /// The Q-key, `None` for a random one.
    pub qkey: Option<Qkey>,
    /// The number of RNR retries of a send; 7 means without limit. libfabric sets 3.
    pub rnr_retry: u8,
    /// RDMA writes with immediate data consume no receive, if the device supports that.
    pub unsolicited_write_recv: bool,
}

impl Default for NicConfig {
    /// SRD, 256 sends, 1024 receives, buffers for both, a random Q-key, 3 RNR retries.
    fn default() -> Self {
        NicConfig {
            service: Service::Srd,
            send_queue_depth: 256,
            recv_queue_depth: 1024,
            packet_buffers: 256 + 1024,
            qkey: None,
            rnr_retry: 3,
            unsolicited_write_recv: false,
        }
    }
}

impl From<NicConfig> for QueuePairConfig {
    fn from(config: NicConfig) -> Self {
        QueuePairConfig {
            send_queue_depth: config.send_queue_depth,
            recv_queue_depth: config.recv_queue_depth,
            qkey: config.qkey,
            rnr_retry: config.rnr_retry,
            unsolicited_write_recv: config.unsolicited_write_recv,
            service_level: 0,
        }
    }
}

impl SimHost {
    /// Opens a queue pair that is ready to send, with a private domain, completion queue and packet
    /// buffers.
    pub fn open_nic(&self, config: NicConfig) -> Result<SimNic, NicError> {
        let packet_buffers = config.packet_buffers;
        let mut domain = self.open_domain(&DomainConfig { packet_buffers })?;
        let service = config.service;
        let config = QueuePairConfig::from(config);
        let queue = domain.create_completion_queue(config.completions())?;
        let queue_pair = SimQueuePair::create(&mut domain, queue, &config, service)?;
        Ok(SimNic::new(domain, queue_pair))
    }
}
