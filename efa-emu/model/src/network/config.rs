//! How the network behaves.

use std::time::Duration;

use super::random::Probability;
use super::reliability::Reliability;

/// How the network behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkConfig {
    /// Paths between each pair of hosts, at least 1.
    pub paths: u16,
    /// Latency that every path has at least, one way.
    pub latency: Duration,
    /// The longest path takes this much longer than the shortest; those between are evenly spaced.
    pub path_spread: Duration,
    /// Each frame adds a random latency of its own, from zero to this.
    pub jitter: Duration,
    /// How fast a host puts bytes on the wire, in bytes per second; 0 for no limit. Only the
    /// simulator limits it: between processes, memory does.
    pub bandwidth: u64,
    /// How likely a frame, request or answer, is lost each time that it is on the wire.
    pub loss: Probability,
    /// How likely a receiver answers a send that it is not ready although it is.
    pub rnr: Probability,
    /// Retransmission of lost frames by the network card.
    pub reliability: Reliability,
    /// Requests that one host may have in flight; a device with more to send has to wait. Only the
    /// simulator limits it: between processes, the rings do.
    pub in_flight: usize,
}

/// Bytes that Ethernet, IPv6, UDP and the transport header add to each packet.
const FRAME_OVERHEAD: u64 = 14 + 40 + 8 + 32;

impl Default for NetworkConfig {
    /// 16 paths at about 10 µs with 100 Gbit/s, no loss: a calm cluster network.
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
    /// A network that takes no time and loses nothing.
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

    /// A network that changes nothing: one path, a constant latency, no loss, no bandwidth limit.
    /// Frames arrive in the order in which they were sent.
    pub fn orderly(latency: Duration) -> Self {
        NetworkConfig {
            latency,
            ..NetworkConfig::perfect()
        }
    }

    /// How long a frame with `length` bytes of data occupies its sender's port.
    pub fn wire_time(&self, length: usize) -> Duration {
        if self.bandwidth == 0 {
            return Duration::ZERO;
        }
        let nanoseconds = (length as u64 + FRAME_OVERHEAD)
            .saturating_mul(1_000_000_000)
            .div_ceil(self.bandwidth);
        Duration::from_nanos(nanoseconds)
    }

    /// Whether nothing happens to frames.
    pub fn is_perfect(&self) -> bool {
        self.is_immediate() && self.rnr == Probability::NEVER
    }

    /// Whether every frame arrives in the moment in which it is sent.
    pub fn is_immediate(&self) -> bool {
        let extra = self.path_spread.is_zero() || self.paths <= 1;
        self.latency.is_zero() && self.jitter.is_zero() && extra && self.loss == Probability::NEVER
    }
}
