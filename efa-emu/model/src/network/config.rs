//! The parameters of the network model.

use std::time::Duration;

use super::random::Probability;
use super::reliability::Reliability;

/// The parameters of the network model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkConfig {
    /// Paths between each pair of hosts, at least 1.
    pub paths: u16,
    /// One-way latency of the shortest path.
    pub latency: Duration,
    /// Latency of the longest path minus that of the shortest; the others are evenly spaced.
    pub path_spread: Duration,
    /// Each frame has an additional random latency between zero and this.
    pub jitter: Duration,
    /// Bytes per second that a host can send; 0 for no limit. Only the simulator applies it:
    /// between processes, memory is the limit.
    pub bandwidth: u64,
    /// Probability that a frame, request or answer, is lost at each transmission.
    pub loss: Probability,
    /// Probability that a receiver answers a send with RNR although a receive is posted.
    pub rnr: Probability,
    /// Retransmission of lost frames by the network card.
    pub reliability: Reliability,
    /// Requests that one host may have in flight; further requests wait in the device. Only the
    /// simulator applies it: between processes, the rings are the limit.
    pub in_flight: usize,
}

/// Bytes that Ethernet, IPv6, UDP and the transport header add to each packet.
const FRAME_OVERHEAD: u64 = 14 + 40 + 8 + 32;

impl Default for NetworkConfig {
    /// 16 paths at about 10 µs with 100 Gbit/s, no loss: a lightly loaded cluster network.
    fn default() -> Self {
        NetworkConfig {
            paths: 16,
            latency: Duration::from_micros(8),
            path_spread: Duration::from_micros(4),
            jitter: Duration::from_micros(2),
            bandwidth: 12_500_000_000,
            ..NetworkConfig::perfect()
        }
    }
}

impl NetworkConfig {
    /// A network without latency and loss.
    pub fn perfect() -> Self {
        NetworkConfig {
            paths: 1,
            latency: Duration::ZERO,
            path_spread: Duration::ZERO,
            jitter: Duration::ZERO,
            bandwidth: 0,
            loss: Probability::NEVER,
            rnr: Probability::NEVER,
            reliability: Reliability::default(),
            in_flight: usize::MAX,
        }
    }

    /// A network with one path, a constant latency, no loss and no bandwidth limit. Frames arrive
    /// in the order in which they were sent.
    pub fn orderly(latency: Duration) -> Self {
        NetworkConfig {
            latency,
            ..NetworkConfig::perfect()
        }
    }

    /// The time for which a frame with `length` bytes of data occupies its sender's port.
    pub fn wire_time(&self, length: usize) -> Duration {
        if self.bandwidth == 0 {
            return Duration::ZERO;
        }
        let nanoseconds = (length as u64 + FRAME_OVERHEAD)
            .saturating_mul(1_000_000_000)
            .div_ceil(self.bandwidth);
        Duration::from_nanos(nanoseconds)
    }

    /// Whether the network has no effect on frames.
    pub fn is_perfect(&self) -> bool {
        self.is_immediate() && self.rnr == Probability::NEVER
    }

    /// Whether every frame arrives at the time at which it is sent.
    pub fn is_immediate(&self) -> bool {
        let extra = self.path_spread.is_zero() || self.paths <= 1;
        self.latency.is_zero() && self.jitter.is_zero() && extra && self.loss == Probability::NEVER
    }
}
