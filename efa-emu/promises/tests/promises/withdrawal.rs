//! A program deregisters memory and reuses it, at each moment of a peer's operation.

use efa_core::endpoint::EndpointConfig;
use efa_device_model::profile::Profile;
use efa_sim::{FabricConfig, NetworkConfig, NicConfig, Probability};

use crate::plan::{Buffer, Plan, SendMode, Settings, Step};
use crate::release::Release;
use crate::run;

const BUFFER: Buffer = Buffer {
    pieces: 1,
    registered: true,
};
/// A program that deregisters memory.
const TARGET: usize = 0;

/// Operations of a program on the memory of another, or of itself.
fn operations(from: usize, to: usize, length: usize) -> [Step; 2] {
    let buffer = BUFFER;
    let write = Step::Write {
        from,
        to,
        length,
        with_data: false,
        mode: SendMode::DeliveryComplete,
        buffer,
    };
    let read = Step::Read {
        from,
        to,
        length,
        buffer,
    };
    [write, read]
}

fn plan(network: NetworkConfig, device: &str, use_device_rdma: bool, steps: Vec<Step>) -> Plan {
    let program = Settings {
        release: Release::Ours,
        profile: Profile::by_name(device).unwrap().clone(),
        nic: NicConfig {
            send_queue_depth: 16,
            recv_queue_depth: 16,
            packet_buffers: 32,
            rnr_retry: 3,
            ..NicConfig::default()
        },
        endpoint: EndpointConfig {
            recv_buffers: 16,
            use_device_rdma,
            min_read_write_size: 1500,
            ..EndpointConfig::default()
        },
        patience: 1,
    };
    let mtu = program.profile.mtu as usize;
    let fabric = FabricConfig {
        seed: 1,
        network,
        ..FabricConfig::default()
    };
    Plan {
        seed: 1,
        fabric,
        mtu,
        programs: vec![program; 2],
        steps,
        aborts: false,
    }
}

#[test]
fn deregistered_operations_fail_or_had_correct_data() {
    // Requests wait for room, or for a receiver that was not ready, and their memory is read late.
    let waits = [(1, 0.0), (1000, 0.5)];
    // By packets, by the requester's device, and by the device that is to read: the target's for a
    // write.
    let devices = [("efa2", false), ("efa2", true), ("efa1", true)];
    let cases = waits
        .into_iter()
        .flat_map(|wait| devices.map(|device| (wait, device)));
    for (((in_flight, rnr), (device, rdma)), from) in
        cases.flat_map(|case| [(case, TARGET), (case, 1)])
    {
        let network = NetworkConfig {
            in_flight,
            rnr: Probability::new(rnr).unwrap(),
            ..NetworkConfig::default()
        };
        // The first operation of a run is started with `more`, which does not send it yet.
        let [_, first] = operations(1 - from, 1 - from, 8);
        for operation in operations(from, TARGET, 9_000) {
            let case =
                format!("{operation:?} on {device}, RDMA {rdma}, {in_flight} in flight, RNR {rnr}");
            let mut was_under_way = false;
            for events in 0..200 {
                let steps = vec![
                    first.clone(),
                    operation.clone(),
                    Step::Run { events },
                    Step::Withdraw { at: TARGET },
                ];
                let plan = plan(network, device, rdma, steps);
                let met = run::run(&plan, &[0, 1, 2, 3], |_| {});
                let met = met.unwrap_or_else(|error| panic!("{case}, {events} events: {error}"));
                let is_under_way = met.orphans > 0;
                if was_under_way && !is_under_way {
                    // The operation had completed before.
                    break;
                }
                was_under_way = is_under_way;
            }
            assert!(was_under_way, "{case}: never under way");
        }
    }
}
