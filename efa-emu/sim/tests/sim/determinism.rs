//! Same seed, same run.

use efa_core::nic::{Access, Domain, Doorbell, Nic, RdmaRequest, UserSlice};
use efa_sim::{
    Action, Fabric, FabricConfig, Fault, HostConfig, Match, NetworkConfig, NicConfig, Probability,
    QpnPolicy, ScriptedPeer,
};

/// Everything that can be random, in one run: four hosts, loss, refused receives, RDMA, faults, a
/// crash, reused queue pair numbers.
fn busy_run(seed: u64) -> Fabric {
    let fabric = Fabric::new(FabricConfig {
        network: NetworkConfig {
            loss: Probability::new(0.05).unwrap(),
            rnr: Probability::new(0.05).unwrap(),
            ..NetworkConfig::default()
        },
        qpn_policy: QpnPolicy::Random,
        ..FabricConfig::seeded(seed)
    });
    let hosts: Vec<_> = (0..4)
        .map(|_| fabric.add_host(HostConfig::default()))
        .collect();
    let mut peers: Vec<_> = hosts
        .iter()
        .map(|host| ScriptedPeer::open(host, NicConfig::default()).unwrap())
        .collect();
    let held = fabric.install(
        Fault::new(Match::packet(64), Action::Hold)
            .skip(5)
            .times(20),
    );
    let target = hosts[1].allocate_from(&[7; 4096]).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let region = peers[1].nic().register(target, access).unwrap();
    for round in 0..20_u64 {
        // The fourth host is down in one round.
        let alive = if round == 13 { 3 } else { 4 };
        for from in 0..alive {
            let to = peers[(from + 1 + round as usize % 3) % 4].address();
            for index in 0..10 {
                let packet = [64 + index as u8 % 3; 100];
                peers[from].send(to, &packet).unwrap();
            }
        }
        let local = hosts[0].allocate(4096).unwrap();
        let nic = peers[0].nic();
        let local_key = nic.register(local, Access::LOCAL_WRITE).unwrap().local_key;
        let (address, gid) = (peers[1].address(), peers[0].address().gid);
        peers[1].know(gid).unwrap();
        let destination = peers[0].destination(address).unwrap();
        let request = RdmaRequest {
            destination,
            local: UserSlice {
                length: 1 + 200 * round as usize,
                ..local
            },
            local_key,
            remote_address: target.address,
            remote_key: region.remote_key,
            immediate: None,
            context: round,
        };
        peers[0].nic().post_read(&request, Doorbell::Ring).unwrap();
        for _ in 0..100 {
            fabric.step();
        }
        for (index, peer) in peers.iter_mut().enumerate() {
            while let Some(packet) = peer.next_packet().unwrap() {
                fabric.note(format_args!("{index} got {} bytes", packet.bytes.len()));
            }
            while let Some(request) = peer.next_finished().unwrap() {
                fabric.note(format_args!("{index} finished {request:?}"));
            }
        }
        match round {
            8 => {
                drop(peers.remove(2));
                peers.insert(
                    2,
                    ScriptedPeer::open(&hosts[2], NicConfig::default()).unwrap(),
                );
            }
            12 => fabric.kill(hosts[3].id()),
            13 => {
                fabric.run_until_idle();
                fabric.restart(hosts[3].id());
                peers[3] = ScriptedPeer::open(&hosts[3], NicConfig::default()).unwrap();
            }
            15 => drop(fabric.release(held, 10)),
            _ => {}
        }
    }
    fabric.remove(held);
    fabric.run_until_idle();
    fabric
}

#[test]
fn one_seed_gives_one_log() {
    for seed in 0..5 {
        let (first, second) = (busy_run(seed), busy_run(seed));
        assert_eq!(first.log().text(), second.log().text(), "seed {seed}");
        assert_eq!(first.log().digest(), second.log().digest());
        assert_eq!(first.now(), second.now());
        let lines = first.log().text().lines().count();
        assert!(lines > 3000, "the run has only {lines} events");
    }
}

#[test]
fn different_seeds_give_different_runs() {
    let digests: std::collections::BTreeSet<u64> =
        (0..10).map(|seed| busy_run(seed).log().digest()).collect();
    assert_eq!(digests.len(), 10);
}

#[test]
fn the_busy_run_contains_all_kinds_of_events() {
    let fabric = busy_run(1);
    let log = fabric.log();
    for event in [
        " send ",
        " resend ",
        " deliver ",
        " answer-again ",
        " lose ",
        " lose-answer ",
        " hold ",
        " release ",
        " kill ",
        " restart ",
        " RDMA_READ ",
        " RemoteRnr",
        " RemoteBadDestQpn",
    ] {
        assert!(log.text().contains(event), "no{event}in the log");
    }
}
