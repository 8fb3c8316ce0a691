//! Faults, cuts and crashes.

use std::time::Duration;

use efa_core::nic::{Nic, NicError, PolledNic, Status};
use efa_device_model::fault::Queues;
use efa_sim::{Action, FabricConfig, Fault, Match, NicConfig, Point, ScriptedPeer};

use super::{Pair, count, finished, packets};

#[test]
fn a_held_packet_is_overtaken_by_all_others() {
    let mut pair = Pair::orderly();
    let to = pair.bob.address();
    let fault = pair
        .fabric
        .install(Fault::new(Match::packet(65), Action::Hold).nth(2));
    for number in 0..6 {
        pair.alice.send(to, &[65, 4, 0, 0, number]).unwrap();
    }
    pair.fabric.run_until_idle();
    let numbers = |peer: &mut ScriptedPeer| -> Vec<u8> {
        packets(peer).iter().map(|packet| packet.bytes[4]).collect()
    };
    assert_eq!(numbers(&mut pair.bob), [0, 2, 3, 4, 5]);
    assert_eq!(
        (pair.fabric.held(fault), pair.fabric.applied(fault)),
        (1, 1)
    );
    assert_eq!(finished(&mut pair.alice).len(), 5);
    assert_eq!(pair.fabric.release(fault, 10), 1);
    pair.fabric.run_until_idle();
    assert_eq!(numbers(&mut pair.bob), [1]);
    assert_eq!(finished(&mut pair.alice), [(1, Status::Ok)]);
}

#[test]
fn answers_can_overtake_send_completions() {
    let mut pair = Pair::orderly();
    let (to, from) = (pair.bob.address(), pair.alice.address());
    let answers_to_alice = Match {
        sender: Some(from.gid.into()),
        ..Match::any(Point::Answer)
    };
    let fault = pair
        .fabric
        .install(Fault::new(answers_to_alice, Action::Hold));
    let question = pair.alice.send(to, b"question").unwrap();
    pair.fabric.run_until_idle();
    assert_eq!(packets(&mut pair.bob)[0].bytes, b"question");
    pair.bob.send(from, b"answer").unwrap();
    pair.fabric.run_until_idle();
    assert_eq!(packets(&mut pair.alice)[0].bytes, b"answer");
    assert_eq!(
        finished(&mut pair.alice),
        [],
        "the send is not complete yet"
    );
    pair.fabric.remove(fault);
    pair.fabric.run_until_idle();
    assert_eq!(finished(&mut pair.alice), [(question, Status::Ok)]);
}

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
fn overtaking_happens_without_staging() {
    // A reply and the acknowledgement take different paths, and sometimes the reply arrives first.
    let mut pair = Pair::new(FabricConfig::seeded(5));
    let (to, from) = (pair.bob.address(), pair.alice.address());
    let mut overtaken = 0;
    for _ in 0..200 {
        pair.alice.send(to, b"question").unwrap();
        let mut completed = false;
        while pair.fabric.step().is_some() {
            for _ in packets(&mut pair.bob) {
                pair.bob.send(from, b"answer").unwrap();
            }
            completed |= !finished(&mut pair.alice).is_empty();
            if !packets(&mut pair.alice).is_empty() && !completed {
                overtaken += 1;
            }
        }
        finished(&mut pair.bob);
    }
    assert!((20..180).contains(&overtaken), "{overtaken} of 200");
}

#[test]
fn a_dropped_frame_is_retransmitted_later() {
    let mut pair = Pair::orderly();
    let to = pair.bob.address();
    let fault = Fault::new(Match::packet(64), Action::Drop).times(2);
    pair.fabric.install(fault);
    let context = pair.alice.send(to, &[64]).unwrap();
    pair.fabric.run_until_idle();
    assert_eq!(count(&pair.fabric, " resend "), 2);
    assert_eq!(packets(&mut pair.bob).len(), 1);
    assert_eq!(finished(&mut pair.alice), [(context, Status::Ok)]);
}

#[test]
fn a_delay_is_added_to_the_latency() {
    let mut pair = Pair::orderly();
    let to = pair.bob.address();
    let delay = Duration::from_millis(3);
    let fault = Fault::new(Match::packet(64), Action::Delay(delay.into()));
    pair.fabric.install(fault);
    pair.alice.send(to, &[64]).unwrap();
    pair.fabric.run_until(delay);
    assert!(packets(&mut pair.bob).is_empty());
    pair.fabric.advance(Duration::from_micros(10));
    assert_eq!(packets(&mut pair.bob).len(), 1);
}

#[test]
fn every_answer_can_be_prescribed() {
    for status in [
        Status::Ok,
        Status::LocalInvalidLkey,
        Status::RemoteBadAddress,
        Status::RemoteAbort,
        Status::RemoteBadDestQpn,
        Status::RemoteBadLength,
        Status::RemoteBadStatus,
        Status::LocalUnresponsiveRemote,
        Status::RemoteUnknownPeer,
        Status::LocalUnreachableRemote,
        Status::RemoteFeatureMismatch,
    ] {
        let mut pair = Pair::orderly();
        let to = pair.bob.address();
        let fault = Fault::new(Match::packet(64), Action::Answer(status)).times(1);
        pair.fabric.install(fault);
        let first = pair.alice.send(to, &[64]).unwrap();
        let second = pair.alice.send(to, &[64]).unwrap();
        pair.fabric.run_until_idle();
        assert_eq!(
            finished(&mut pair.alice),
            [(first, status), (second, Status::Ok)]
        );
        assert_eq!(packets(&mut pair.bob).len(), 1, "only the second arrives");
    }
}

#[test]
fn rnr_can_be_prescribed_a_number_of_times() {
    for (times, outcome) in [(3, Status::Ok), (4, Status::RemoteRnr)] {
        let mut pair = Pair::orderly();
        let to = pair.bob.address();
        let refuse = Action::Answer(Status::RemoteRnr);
        pair.fabric
            .install(Fault::new(Match::packet(9), refuse).times(times));
        let context = pair.alice.send(to, &[9]).unwrap();
        pair.fabric.run_until_idle();
        assert_eq!(finished(&mut pair.alice), [(context, outcome)]);
        let arrived = packets(&mut pair.bob).len();
        assert_eq!(arrived, usize::from(outcome == Status::Ok));
    }
}

#[test]
fn a_partition_delays_or_fails_by_its_length() {
    let mut pair = Pair::orderly();
    let to = pair.bob.address();
    let (alice, bob) = (pair.alice.nic().host().id(), pair.bob.nic().host().id());
    pair.fabric.cut(alice, bob);
    let first = pair.alice.send(to, b"first").unwrap();
    pair.fabric.advance(Duration::from_millis(2));
    assert!(packets(&mut pair.bob).is_empty());
    pair.fabric.heal(bob, alice);
    pair.fabric.run_until_idle();
    assert_eq!(packets(&mut pair.bob).len(), 1);
    assert_eq!(finished(&mut pair.alice), [(first, Status::Ok)]);

    pair.fabric.cut(alice, bob);
    let second = pair.alice.send(to, b"second").unwrap();
    pair.fabric.run_until_idle();
    assert!(packets(&mut pair.bob).is_empty());
    assert_eq!(
        finished(&mut pair.alice),
        [(second, Status::LocalUnresponsiveRemote)]
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

#[test]
fn a_program_killed_by_a_packet_misses_it() {
    let mut pair = Pair::orderly();
    let (to, victim) = (pair.bob.address(), pair.bob.nic().host().id());
    let kill = Action::Kill(to.gid.into());
    pair.fabric
        .install(Fault::new(Match::packet(64), kill).nth(2));
    let contexts = [0; 3].map(|_| {
        let context = pair.alice.send(to, &[64]).unwrap();
        pair.fabric.run_until_idle();
        context
    });
    // Its host's device answers.
    let gone = Status::RemoteBadDestQpn;
    let outcomes = [Status::Ok, gone, gone];
    let expected: Vec<_> = contexts.into_iter().zip(outcomes).collect();
    assert_eq!(finished(&mut pair.alice), expected);
    assert_eq!(count(&pair.fabric, &format!("kill {victim}")), 1);
    assert!(pair.bob.send(to, b"x").is_err(), "no queue pair");
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
