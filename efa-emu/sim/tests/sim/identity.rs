//! Address handles, queue pair numbers, and packets that outlive them.

use efa_core::address::{Gid, Qpn};
use efa_core::nic::{Domain, Nic, Status};
use efa_device_model::profile::Profile;
use efa_sim::{
    Action, Fabric, FabricConfig, Fault, HostConfig, Match, NicConfig, Point, QpnPolicy,
    ScriptedPeer,
};

use super::{Pair, finished, orderly, packets};

#[test]
fn senders_are_unknown_without_an_address_handle() {
    let mut pair = Pair::orderly();
    let (to, from) = (pair.bob.address(), pair.alice.address());
    pair.alice.send(to, b"first").unwrap();
    pair.fabric.run_until_idle();
    let first = packets(&mut pair.bob).remove(0);
    assert_eq!(first.source.ahn, None);
    assert_eq!(
        first.source.gid,
        Some(from.gid),
        "the device reports the GID"
    );
    assert_eq!(first.source.qpn, from.qpn);

    let ahn = pair.bob.know(from.gid).unwrap();
    pair.alice.send(to, b"second").unwrap();
    pair.fabric.run_until_idle();
    let second = packets(&mut pair.bob).remove(0);
    assert_eq!(second.source.ahn, Some(ahn));
    assert_eq!(second.source.gid, None);

    pair.bob.forget(from.gid).unwrap();
    pair.alice.send(to, b"third").unwrap();
    pair.fabric.run_until_idle();
    assert_eq!(packets(&mut pair.bob).remove(0).source.ahn, None);
}

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
fn queue_pairs_have_distinct_numbers_and_address_books() {
    let fabric = Fabric::new(orderly());
    let host = fabric.add_host(HostConfig::default());
    let mut peers = [0; 3].map(|_| ScriptedPeer::open(&host, NicConfig::default()).unwrap());
    let addresses = peers.each_ref().map(ScriptedPeer::address);
    assert_eq!(addresses.map(|one| one.qpn.0), [2, 3, 4]);
    peers[1].know(host.gid()).unwrap();
    for to in addresses {
        peers[0].send(to, &[to.qpn.0 as u8]).unwrap();
    }
    fabric.run_until_idle();
    let knows = peers.each_mut().map(|peer| {
        let number = peer.address().qpn.0 as u8;
        let arrived = packets(peer);
        assert_eq!(arrived.len(), 1);
        assert_eq!(arrived[0].bytes, [number]);
        assert_eq!(arrived[0].source.qpn, addresses[0].qpn);
        arrived[0].source.ahn.is_some()
    });
    // The sender has a handle of its own host, the second program created one, the third did not.
    assert_eq!(knows, [true, true, false]);
}

#[test]
fn handles_of_a_gid_share_one_number() {
    let fabric = Fabric::new(orderly());
    let host = fabric.add_host(HostConfig::default());
    let mut nic = host.open_nic(NicConfig::default()).unwrap();
    let gid = Gid([9; 16]);
    let first = nic.create_address_handle(gid).unwrap();
    assert_eq!(nic.create_address_handle(gid), Ok(first));
    nic.destroy_address_handle(first).unwrap();
    assert_eq!(nic.create_address_handle(gid), Ok(first));
    nic.destroy_address_handle(first).unwrap();
    nic.destroy_address_handle(first).unwrap();
    assert!(nic.destroy_address_handle(first).is_err());
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
fn late_packets_miss_the_numbers_next_owner() {
    let mut pair = Pair::orderly();
    let old = pair.bob.address();
    let late = pair
        .fabric
        .install(Fault::new(Match::packet(64), Action::Hold));
    let context = pair.alice.send(old, &[64, 4, 0, 0]).unwrap();
    pair.fabric.run_until_idle();
    assert_eq!(pair.fabric.held(late), 1);

    let host = pair.bob.nic().host().clone();
    drop(pair.bob);
    let mut successor = ScriptedPeer::open(&host, NicConfig::default()).unwrap();
    let new = successor.address();
    assert_eq!(new.qpn, old.qpn, "the number is reused");
    assert_ne!(new.qkey, old.qkey);
    pair.alice.send(new, b"for the successor").unwrap();
    pair.fabric.run_until_idle();
    pair.fabric.remove(late);
    pair.fabric.run_until_idle();

    let arrived = packets(&mut successor);
    assert_eq!(arrived.len(), 1);
    assert_eq!(arrived[0].bytes, b"for the successor");
    assert_eq!(
        finished(&mut pair.alice)[0],
        (context, Status::RemoteBadDestQpn)
    );
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

#[test]
fn wrong_qpns_and_qkeys_are_refused() {
    let mut pair = Pair::orderly();
    let mut to = pair.bob.address();
    to.qpn = Qpn(999);
    let nobody = pair.alice.send(to, b"x").unwrap();
    let mut to = pair.bob.address();
    to.qkey.0 ^= 1;
    let wrong_key = pair.alice.send(to, b"x").unwrap();
    pair.fabric.run_until_idle();
    assert_eq!(
        finished(&mut pair.alice),
        [
            (nobody, Status::RemoteBadDestQpn),
            (wrong_key, Status::RemoteBadDestQpn)
        ]
    );
    assert!(packets(&mut pair.bob).is_empty());
}
