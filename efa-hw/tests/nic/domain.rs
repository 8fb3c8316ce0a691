//! Two endpoints in one domain of a device.

use efa_core::endpoint::Instant;
use efa_core::nic::{DomainConfig, UserSlice};
use efa_hw::{HwDevice, HwDomain, HwQueuePair};
use efa_testing::hw::with_device;
use efa_testing::shared_domain::{self, Machine};

/// A device, and the time at which the test began.
struct Verbs(HwDevice, std::time::Instant);

impl Machine for Verbs {
    type Domain = HwDomain;

    fn open_domain(&self, config: &DomainConfig) -> HwDomain {
        shared_domain::open_domain(&self.0, config)
    }

    fn allocate(&self, domain: &mut HwDomain, length: usize) -> UserSlice {
        domain.allocate(length).unwrap()
    }

    fn doorbells(queue_pair: &HwQueuePair) -> u64 {
        queue_pair.doorbells()
    }

    fn free_buffers(domain: &HwDomain) -> usize {
        domain.free_buffers()
    }

    fn pass_time(&self) -> Instant {
        std::thread::yield_now();
        Instant(self.1.elapsed())
    }
}

/// Runs a test on a device that exchanges messages with itself.
fn play(device: &HwDevice, test: impl Fn(&Verbs, &Verbs)) {
    let machine = || Verbs(device.clone(), std::time::Instant::now());
    test(&machine(), &machine());
}

#[test]
fn what_is_shared_serves_both_endpoints() {
    with_device(|device| play(&device, shared_domain::everything_is_shared));
}

#[test]
fn one_endpoint_is_closed_while_the_other_works() {
    with_device(|device| play(&device, shared_domain::one_is_closed_while_the_other_works));
}

#[test]
fn a_batch_always_rings_exactly_one_doorbell() {
    with_device(|device| play(&device, shared_domain::a_batch_rings_once));
}
