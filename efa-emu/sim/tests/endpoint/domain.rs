//! Two endpoints in one domain of a simulated host.

use std::time::Duration;

use efa_core::endpoint::Instant;
use efa_core::nic::{DomainConfig, UserSlice};
use efa_sim::{Fabric, FabricConfig, HostConfig, NetworkConfig, SimDomain, SimHost, SimQueuePair};
use efa_testing::shared_domain::{self, Machine};

/// A host of a fabric.
struct SimulatedHost(SimHost);

impl Machine for SimulatedHost {
    type Domain = SimDomain;

    fn open_domain(&self, config: &DomainConfig) -> SimDomain {
        shared_domain::open_domain(&self.0, config)
    }

    fn allocate(&self, _: &mut SimDomain, length: usize) -> UserSlice {
        self.0.allocate(length).unwrap()
    }

    fn doorbells(queue_pair: &SimQueuePair) -> u64 {
        queue_pair.doorbells()
    }

    fn free_buffers(domain: &SimDomain) -> usize {
        domain.free_buffers()
    }

    fn pass_time(&self) -> Instant {
        let fabric = self.0.fabric();
        if fabric.step().is_none() {
            fabric.advance(Duration::from_micros(10));
        }
        Instant(fabric.now())
    }
}

/// Plays a test on two hosts, with many seeds.
fn play(test: impl Fn(&SimulatedHost, &SimulatedHost)) {
    for seed in 0..20 {
        let fabric = Fabric::new(FabricConfig {
            network: NetworkConfig {
                path_spread: Duration::from_micros(50),
                jitter: Duration::from_micros(20),
                ..NetworkConfig::default()
            },
            log: false,
            ..FabricConfig::seeded(seed)
        });
        let host = || SimulatedHost(fabric.add_host(HostConfig::default()));
        test(&host(), &host());
    }
}

#[test]
fn what_is_shared_serves_both_endpoints() {
    play(shared_domain::everything_is_shared);
}

#[test]
fn one_endpoint_is_closed_while_the_other_works() {
    play(shared_domain::one_is_closed_while_the_other_works);
}

#[test]
fn a_batch_always_rings_exactly_one_doorbell() {
    play(shared_domain::a_batch_rings_once);
}
