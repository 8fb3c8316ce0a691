//! A queue pair with a private domain, for programs that need no more.

use crate::device::HwDevice;
use crate::domain::HwDomain;
use crate::error::OpenError;
use crate::queue_pair::Inline;
use efa_core::address::Qkey;
use efa_core::nic::{Device as _, Domain as _, DomainConfig, OwnNic, QueuePairConfig};

/// A queue pair of an EFA device with a private domain.
pub type HwNic = OwnNic<HwDomain>;

/// The configuration of a [`HwNic`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NicConfig {
    /// The depth of the send queue, at most the device's `send_queue_depth`.
    pub send_queue_depth: usize,
    /// The depth of the receive queue, at most the device's `recv_queue_depth`.
    pub recv_queue_depth: usize,
    /// Packet buffers, shared by sends and receives.
    pub packet_buffers: usize,
    /// The Q-key; a random one if `None`. Its upper bit must be clear: Q-keys with that bit set are
    /// privileged.
    pub qkey: Option<Qkey>,
    /// As [`QueuePairConfig::rnr_retry`].
    pub rnr_retry: u8,
    /// As [`QueuePairConfig::unsolicited_write_recv`].
    pub unsolicited_write_recv: bool,
    /// As [`Inline::size`].
    pub inline_size: Option<usize>,
    /// As [`Inline::writes`].
    pub inline_writes: bool,
    /// Whether the completion queue has a channel, on which a program can sleep
    /// ([`HwDomain::arm`]).
    pub completion_channel: bool,
}

impl Default for NicConfig {
    fn default() -> Self {
        NicConfig {
            send_queue_depth: 512,
            recv_queue_depth: 512,
            packet_buffers: 2048,
            qkey: None,
            rnr_retry: 3,
            unsolicited_write_recv: true,
            inline_size: None,
            inline_writes: false,
            completion_channel: false,
        }
    }
}

impl From<NicConfig> for Inline {
    fn from(config: NicConfig) -> Self {
        Inline {
            size: config.inline_size,
            writes: config.inline_writes,
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

impl HwDevice {
    /// Creates a queue pair with a private domain.
    ///
    /// # Errors
    /// [`OpenError::Config`] if a depth exceeds the device's limit, [`OpenError::Verbs`] with the
    /// failed call otherwise.
    pub fn open_nic(&self, config: NicConfig) -> Result<HwNic, OpenError> {
        let mut domain = self.open_domain(&DomainConfig {
            packet_buffers: config.packet_buffers,
        })?;
        let queue_pair = QueuePairConfig::from(config);
        let entries = queue_pair.completions();
        let queue = match config.completion_channel {
            true => domain.create_completion_queue_with_channel(entries)?,
            false => domain.create_completion_queue(entries)?,
        };
        let queue_pair = domain.create_queue_pair_with(queue, &queue_pair, config.into())?;
        Ok(HwNic::new(domain, queue_pair))
    }
}
