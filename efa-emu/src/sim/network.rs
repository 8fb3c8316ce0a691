//! The network between simulated hosts: paths, latency, loss and reachability.
//!
//! SRD sprays the packets of one queue pair over many paths and repairs loss in the network card,
//! so programs see neither loss nor order. Here a frame draws one of its host pair's paths; each path
//! has its own fixed latency, and each frame its own jitter on top. A lost frame is sent again after
//! a timeout, which a program sees as delay; after too many attempts the request completes with
//! [`Status::LocalUnresponsiveRemote`](efa_core::nic::Status::LocalUnresponsiveRemote).

use std::time::Duration;

use super::HostId;
use super::random::{Probability, Purpose, Random};

/// How the network behaves. All times are virtual.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkConfig {
    /// Paths between each pair of hosts, at least 1.
    pub paths: u16,
    /// Latency that every path has at least, one way.
    pub latency: Duration,
    /// Each path of each host pair adds a fixed latency of its own, from zero to this.
    pub path_spread: Duration,
    /// Each frame adds a random latency of its own, from zero to this.
    pub jitter: Duration,
    /// How fast a host puts bytes on the wire, in bytes per second; 0 for no limit.
    pub bandwidth: u64,
    /// How likely a frame, request or answer, is lost in the network.
    pub loss: Probability,
    /// How likely a receiver answers a send that it is not ready although it is.
    pub rnr: Probability,
    /// How long the network card waits before it sends a lost frame again; doubled each time.
    pub retransmit_timeout: Duration,
    /// How often a frame is sent before its request fails, at least 1.
    pub attempts: u32,
    /// Requests that one host may have in flight; a device with more to send has to wait.
    pub in_flight: usize,
}

impl Default for NetworkConfig {
    /// 16 paths at about 10 µs with 100 Gbit/s, no loss: a calm cluster network.
    fn default() -> Self {
        NetworkConfig {
            paths: 16,
            latency: Duration::from_micros(8),
            path_spread: Duration::from_micros(4),
            jitter: Duration::from_micros(2),
            bandwidth: 12_500_000_000,
            loss: Probability::NEVER,
            rnr: Probability::NEVER,
            retransmit_timeout: Duration::from_micros(500),
            attempts: 8,
            in_flight: usize::MAX,
        }
    }
}

impl NetworkConfig {
    /// A network that changes nothing: one path, a constant latency, no loss, no bandwidth limit.
    /// Frames arrive in the order in which they were sent.
    pub fn orderly(latency: Duration) -> Self {
        NetworkConfig {
            paths: 1,
            latency,
            path_spread: Duration::ZERO,
            jitter: Duration::ZERO,
            bandwidth: 0,
            ..NetworkConfig::default()
        }
    }
}

/// Bytes that Ethernet, IPv6, UDP and the transport header add to each packet.
const FRAME_OVERHEAD: u64 = 14 + 40 + 8 + 32;

/// The state of the network.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) config: NetworkConfig,
    seed: u64,
    path: Random,
    loss: Random,
    rnr: Random,
}

/// How one frame travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Route {
    /// The path's number, from 0.
    pub(super) path: u16,
    /// From the sender's port to the receiver's.
    pub(super) latency: Duration,
}

impl Network {
    pub(super) fn new(config: NetworkConfig, seed: u64) -> Self {
        Network {
            config,
            seed,
            path: Random::new(seed, Purpose::Path),
            loss: Random::new(seed, Purpose::Loss),
            rnr: Random::new(seed, Purpose::ReceiverNotReady),
        }
    }

    /// Draws the path and the latency of one frame.
    pub(super) fn route(&mut self, from: HostId, to: HostId) -> Route {
        let path = self.path.below(u64::from(self.config.paths.max(1))) as u16;
        let latency = self.config.latency
            + self.path_latency(from, to, path)
            + self.path.up_to(self.config.jitter);
        Route { path, latency }
    }

    /// What `path` adds for this pair of hosts: a pure function, so that no table grows with the
    /// square of the number of hosts.
    fn path_latency(&self, from: HostId, to: HostId, path: u16) -> Duration {
        let spread = u64::try_from(self.config.path_spread.as_nanos()).unwrap_or(u64::MAX - 1);
        let pair = (u64::from(from.0) << 40) ^ (u64::from(to.0) << 16) ^ u64::from(path);
        let hash = mix(self.seed ^ mix(pair));
        let share = (u128::from(hash) * (u128::from(spread) + 1)) >> 64;
        Duration::from_nanos(share as u64)
    }

    /// How long a sender's port is busy with a frame of `length` bytes of data.
    pub(super) fn wire_time(&self, length: usize) -> Duration {
        if self.config.bandwidth == 0 {
            return Duration::ZERO;
        }
        let bits = u128::from(length as u64 + FRAME_OVERHEAD) * 1_000_000_000;
        let nanoseconds = bits.div_ceil(u128::from(self.config.bandwidth));
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    /// Whether the next frame is lost.
    pub(super) fn loses(&mut self) -> bool {
        self.loss.chance(self.config.loss)
    }

    /// A time from zero to `longest`.
    pub(super) fn up_to(&mut self, longest: Duration) -> Duration {
        self.path.up_to(longest)
    }

    /// Whether a receiver claims not to be ready.
    pub(super) fn refuses(&mut self) -> bool {
        self.rnr.chance(self.config.rnr)
    }

    /// When to send again after `attempt` attempts were lost, `None` if the sender gives up.
    pub(super) fn retransmit_after(&self, attempt: u32) -> Option<Duration> {
        (attempt < self.config.attempts).then(|| {
            let doublings = attempt.saturating_sub(1).min(16);
            self.config
                .retransmit_timeout
                .saturating_mul(1 << doublings)
        })
    }
}

/// The finalizer of SplitMix64: every input bit changes every output bit with probability one half.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const A: HostId = HostId(0);
    const B: HostId = HostId(1);

    #[test]
    fn each_path_has_its_own_fixed_latency_within_the_spread() {
        let network = Network::new(NetworkConfig::default(), 1);
        let of = |path| network.path_latency(A, B, path);
        let latencies: BTreeSet<_> = (0..16).map(of).collect();
        assert!(latencies.len() > 12, "paths differ: {latencies:?}");
        assert!(*latencies.last().unwrap() <= network.config.path_spread);
        assert_eq!(of(3), of(3));
    }

    #[test]
    fn routes_stay_within_latency_spread_and_jitter() {
        let mut network = Network::new(NetworkConfig::default(), 1);
        let (low, high) = (Duration::from_micros(8), Duration::from_micros(14));
        let mut paths = BTreeSet::new();
        for _ in 0..1000 {
            let route = network.route(A, B);
            assert!((low..=high).contains(&route.latency));
            paths.insert(route.path);
        }
        assert_eq!(paths.len(), 16);
    }

    #[test]
    fn an_orderly_network_has_one_latency() {
        let latency = Duration::from_micros(5);
        let mut network = Network::new(NetworkConfig::orderly(latency), 1);
        for _ in 0..100 {
            assert_eq!(network.route(A, B), Route { path: 0, latency });
        }
        assert_eq!(network.wire_time(1 << 30), Duration::ZERO);
    }

    #[test]
    fn retransmission_backs_off_and_ends() {
        let network = Network::new(NetworkConfig::default(), 1);
        let base = network.config.retransmit_timeout;
        assert_eq!(network.retransmit_after(1), Some(base));
        assert_eq!(network.retransmit_after(3), Some(base * 4));
        assert_eq!(network.retransmit_after(8), None);
    }

    #[test]
    fn wire_time_follows_the_bandwidth() {
        let network = Network::new(NetworkConfig::default(), 1);
        // 12.5 bytes per nanosecond.
        assert_eq!(network.wire_time(12_500 - 94), Duration::from_micros(1));
    }
}
