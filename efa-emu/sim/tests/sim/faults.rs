//! Queue pairs that fail, hosts that die and devices that are removed.

use std::time::Duration;

use efa_core::nic::{Nic, NicError, PolledNic, Status};
use efa_device_model::fault::Queues;
use efa_sim::{Action, Fault, Match, NicConfig, Point, ScriptedPeer};

use super::{Pair, finished, packets};

#[test]
fn a_staged_queue_pair_error_flushes() {
    let mut pair = Pair::orderly();
    let (to, from) = (pair.bob.address(), pair.alice.address());
    let queues = Queues {
        host: from.gid.into(),
        qpn: Some(from.qpn),
    };
    let rule = Fault::new(Match::any(Point::Request), Action::QpError(queues)).nth(2);
    let fault = pair.fabric.install(rule);
    let sent = [0, 1, 2].map(|number| pair.alice.send(to, &[65, 4, 0, 0, number]).unwrap());
    pair.fabric.run_until_idle();
    assert_eq!(pair.fabric.applied(fault), 1);
    let ended = finished(&mut pair.alice);
    assert_eq!(
        ended[1..],
        [sent[1], sent[2]].map(|send| (send, Status::Flushed))
    );
    // The peer's queue pair continues, and gets no answer.
    let answer = pair.bob.send(from, b"answer").unwrap();
    pair.fabric.run_until_idle();
    assert_eq!(
        finished(&mut pair.bob),
        [(answer, Status::RemoteBadDestQpn)]
    );
}

#[test]
fn a_dead_host_returns_empty() {
    let mut pair = Pair::orderly();
    let to = pair.bob.address();
    let host = pair.bob.nic().host().clone();
    let memory = host.allocate_from(b"lost").unwrap();
    pair.bob.send(pair.alice.address(), b"last words").unwrap();
    pair.fabric.advance(Duration::from_micros(1));
    pair.fabric.kill(host.id());
    let in_vain = pair.alice.send(to, b"x").unwrap();
    pair.fabric.run_until_idle();
    assert_eq!(
        finished(&mut pair.alice),
        [(in_vain, Status::LocalUnresponsiveRemote)]
    );
    assert_eq!(packets(&mut pair.alice)[0].bytes, b"last words");
    let is_dead = |error| {
        matches!(
            error,
            NicError::Device {
                errno: libc::ENODEV,
                ..
            }
        )
    };
    let refused = pair.bob.nic().post_recv(efa_core::nic::BufferId(0));
    assert!(refused.is_err_and(is_dead));
    assert!(host.open_nic(NicConfig::default()).is_err());

    pair.fabric.restart(host.id());
    assert!(host.read(memory).is_err(), "memory is gone");
    let result = pair.bob.send(pair.alice.address(), b"ghost");
    assert!(
        result.is_err_and(is_dead),
        "queue pairs of the former life are gone"
    );
    let refused = pair.alice.send(to, b"x").unwrap();
    pair.fabric.run_until_idle();
    assert_eq!(
        finished(&mut pair.alice),
        [(refused, Status::RemoteBadDestQpn)]
    );
    let mut bob = ScriptedPeer::open(&host, NicConfig::default()).unwrap();
    pair.alice.send(bob.address(), b"welcome").unwrap();
    pair.fabric.run_until_idle();
    assert_eq!(packets(&mut bob)[0].bytes, b"welcome");
}

/// The device is removed after the second message and restored after the third, without queue
/// pairs. The host's memory does not change.
#[test]
fn a_restored_device_has_nothing_from_before() {
    let mut pair = Pair::orderly();
    let (to, host) = (pair.bob.address(), pair.bob.nic().host().clone());
    let memory = host.allocate_from(b"kept").unwrap();
    for (number, action) in [
        (2, Action::Remove(to.gid.into())),
        (3, Action::Restore(to.gid.into())),
    ] {
        let rule = Fault::new(Match::packet(64), action).nth(number);
        pair.fabric.install(rule);
    }
    let mut send = || {
        let context = pair.alice.send(to, &[64]).unwrap();
        pair.fabric.run_until_idle();
        let ended = finished(&mut pair.alice);
        assert_eq!(ended[0].0, context);
        ended[0].1
    };
    assert_eq!([send(), send()], [Status::Ok; 2]);
    assert!(ScriptedPeer::open(&host, NicConfig::default()).is_err());
    assert_eq!([send(), send()], [Status::RemoteBadDestQpn; 2]);
    assert!(pair.bob.send(to, b"x").is_err(), "opened before");

    let mut back = ScriptedPeer::open(&host, NicConfig::default()).unwrap();
    let to = back.address();
    let context = pair.alice.send(to, b"welcome").unwrap();
    pair.fabric.run_until_idle();
    assert_eq!(finished(&mut pair.alice), [(context, Status::Ok)]);
    assert_eq!(packets(&mut back)[0].bytes, b"welcome");
    assert_eq!(host.read(memory).unwrap(), b"kept");
    drop(pair.bob);
    let context = pair.alice.send(to, b"again").unwrap();
    pair.fabric.run_until_idle();
    assert_eq!(finished(&mut pair.alice), [(context, Status::Ok)]);
}

#[test]
fn an_unknown_gid_fails_the_request() {
    let mut pair = Pair::orderly();
    let mut to = pair.bob.address();
    to.gid.0[15] ^= 0x40;
    let context = pair.alice.send(to, b"x").unwrap();
    pair.fabric.run_until_idle();
    assert_eq!(
        finished(&mut pair.alice),
        [(context, Status::LocalUnreachableRemote)]
    );
}

#[test]
fn a_queue_pair_that_fails_flushes_everything() {
    let mut pair = Pair::orderly();
    let to = pair.bob.address();
    let receives = pair.bob.nic().posted_receives();
    let context = pair.alice.send(to, b"x").unwrap();
    for peer in [&mut pair.alice, &mut pair.bob] {
        let (domain, queue_pair) = peer.nic().parts();
        queue_pair.fail(domain).unwrap();
    }
    assert_eq!(finished(&mut pair.alice), [(context, Status::Flushed)]);
    let buffers = pair.bob.nic().free_buffers();
    assert!(packets(&mut pair.bob).is_empty());
    assert_eq!(pair.bob.nic().free_buffers(), buffers + receives);
    assert!(pair.alice.send(to, b"x").is_err());
    pair.fabric.run_until_idle();
    assert_eq!(pair.alice.nic().poll(&mut Vec::new(), 100), 0);
}
