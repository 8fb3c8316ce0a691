//! The deterministic fabric, through its public interface.

mod capture;
mod delivery;
mod determinism;
mod faults;
mod identity;
mod memory;

use std::time::Duration;

use efa_core::nic::Status;
use efa_sim::{
    Fabric, FabricConfig, HostConfig, NetworkConfig, NicConfig, ReceivedPacket, ScriptedPeer,
};

/// Two peers on two hosts.
struct Pair {
    fabric: Fabric,
    alice: ScriptedPeer,
    bob: ScriptedPeer,
}

impl Pair {
    fn new(config: FabricConfig) -> Self {
        let fabric = Fabric::new(config);
        let alice = fabric.add_host(HostConfig::default());
        let bob = fabric.add_host(HostConfig::default());
        Pair {
            alice: ScriptedPeer::open(&alice, NicConfig::default()).unwrap(),
            bob: ScriptedPeer::open(&bob, NicConfig::default()).unwrap(),
            fabric,
        }
    }

    /// One path, constant latency, completions in queue order: nothing is random.
    fn orderly() -> Self {
        Self::new(orderly())
    }
}

fn orderly() -> FabricConfig {
    FabricConfig {
        network: NetworkConfig::orderly(Duration::from_micros(5)),
        completion_window: 1,
        ..FabricConfig::default()
    }
}

fn packets(peer: &mut ScriptedPeer) -> Vec<ReceivedPacket> {
    std::iter::from_fn(|| peer.next_packet().unwrap()).collect()
}

/// The contexts and statuses of the completed requests, by context.
fn finished(peer: &mut ScriptedPeer) -> Vec<(u64, Status)> {
    let mut finished: Vec<_> = std::iter::from_fn(|| peer.next_finished().unwrap())
        .map(|request| (request.context, request.status))
        .collect();
    finished.sort_unstable_by_key(|(context, _)| *context);
    finished
}
