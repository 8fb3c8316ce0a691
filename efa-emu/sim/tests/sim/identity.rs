//! The first generation of the device, queue pair numbers, and completions that outlive them.

use efa_core::address::Qpn;
use efa_core::nic::{Access, Domain, Doorbell, Nic, NicError, RdmaRequest};
use efa_device_model::profile::Profile;
use efa_sim::{
    Action, Fabric, FabricConfig, Fault, HostConfig, Match, NicConfig, Point, QpnPolicy,
    ScriptedPeer,
};

use super::{Pair, finished, orderly, packets};

#[test]
fn the_first_generation_does_not_report_gids() {
    let fabric = Fabric::new(orderly());
    let host = || {
        fabric.add_host(HostConfig {
            profile: Profile::by_name("efa0").unwrap().clone(),
            ..HostConfig::default()
        })
    };
    let mut alice = ScriptedPeer::open(&host(), NicConfig::default()).unwrap();
    let mut bob = ScriptedPeer::open(&host(), NicConfig::default()).unwrap();
    alice.send(bob.address(), b"x").unwrap();
    fabric.run_until_idle();
    let source = packets(&mut bob).remove(0).source;
    assert_eq!((source.ahn, source.gid), (None, None));
    assert_eq!(source.qpn, alice.address().qpn);
}

#[test]
fn the_first_generation_has_no_rdma() {
    let fabric = Fabric::new(FabricConfig::default());
    let host = fabric.add_host(HostConfig {
        profile: Profile::by_name("efa0").unwrap().clone(),
        ..HostConfig::default()
    });
    let mut peer = ScriptedPeer::open(&host, NicConfig::default()).unwrap();
    let memory = host.allocate(64).unwrap();
    let to = peer.address();
    let destination = peer.destination(to).unwrap();
    let region = peer.nic().register(memory, Access::LOCAL_WRITE).unwrap();
    let request = RdmaRequest {
        destination,
        local: memory,
        local_key: region.local_key,
        remote_address: memory.address,
        remote_key: region.remote_key,
        immediate: None,
        context: 0,
    };
    let nic = peer.nic();
    assert!(matches!(
        nic.post_read(&request, Doorbell::Ring),
        Err(NicError::Unsupported(_))
    ));
    assert!(matches!(
        nic.post_write(&request, Doorbell::Ring),
        Err(NicError::Unsupported(_))
    ));
    let remote_read = nic.register(memory, Access::REMOTE_READ);
    assert!(matches!(remote_read, Err(NicError::Unsupported(_))));
}

#[test]
fn the_policy_chooses_new_queue_pair_numbers() {
    let next_number = |qpn_policy| {
        let fabric = Fabric::new(FabricConfig {
            qpn_policy,
            ..FabricConfig::default()
        });
        let host = fabric.add_host(HostConfig::default());
        let open = || host.open_nic(NicConfig::default()).unwrap();
        let first = open();
        let _second = open();
        let number = first.address().qpn;
        drop(first);
        (number, open().address().qpn)
    };
    let (first, next) = next_number(QpnPolicy::Lowest);
    assert_eq!(next, first);
    let (first, next) = next_number(QpnPolicy::Oldest);
    assert_eq!((first, next), (Qpn(2), Qpn(4)));
    let (first, next) = next_number(QpnPolicy::Random);
    assert_ne!(next, first);
}

#[test]
fn a_chosen_number_is_given_once() {
    let fabric = Fabric::new(FabricConfig::default());
    let host = fabric.add_host(HostConfig::default());
    host.prefer_qpn(Qpn(77));
    let open = || host.open_nic(NicConfig::default()).unwrap();
    let (first, second) = (open(), open());
    assert_eq!(first.address().qpn, Qpn(77));
    host.prefer_qpn(Qpn(77));
    let third = open();
    assert_eq!(second.address().qpn, Qpn(2));
    assert_eq!(third.address().qpn, Qpn(3), "77 is in use");
}

#[test]
fn late_completions_miss_the_numbers_next_owner() {
    let mut pair = Pair::orderly();
    let to = pair.bob.address();
    let late = pair
        .fabric
        .install(Fault::new(Match::any(Point::Answer), Action::Hold));
    for _ in 0..10 {
        pair.alice.send(to, b"old").unwrap();
    }
    pair.fabric.run_until_idle();
    assert_eq!(pair.fabric.held(late), 10);
    let host = pair.alice.nic().host().clone();
    let number = pair.alice.address().qpn;
    drop(pair.alice);

    let mut successor = ScriptedPeer::open(&host, NicConfig::default()).unwrap();
    assert_eq!(successor.address().qpn, number);
    let contexts: Vec<u64> = (0..5)
        .map(|_| successor.send(to, b"new").unwrap())
        .collect();
    pair.fabric.remove(late);
    pair.fabric.run_until_idle();
    let done: Vec<u64> = finished(&mut successor).iter().map(|one| one.0).collect();
    assert_eq!(done, contexts);
    assert_eq!(packets(&mut pair.bob).len(), 15, "what was sent arrives");
}
