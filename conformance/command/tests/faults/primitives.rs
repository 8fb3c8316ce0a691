//! Each action of a fault rule, and its effect.

use efa_device_model::fault::{Action, HostName};

use crate::rig::{Rig, Side, Software};
use crate::with_each;

fn pair(software: Software) -> Rig {
    let mut rig = Rig::pair(software);
    rig.greet();
    rig
}

/// Runs a test with each implementation that is here, at both ends.
fn with_pair(test: impl Fn(Rig, Software) + Sync) {
    with_each(|software| test(pair(software), software));
}

/// The error number of an operation with a peer that does not respond.
fn unresponsive(software: Software) -> i32 {
    match software {
        Software::Stock => libc::EIO,
        Software::Engine => libc::ECONNABORTED,
    }
}

/// Posts receives for, and sends, tagged messages `0..count`; returns the receives.
fn burst(rig: &mut Rig, count: u64) -> Vec<u64> {
    let arrive: Vec<_> = (0..count).map(|tag| rig.trecv(1, tag, 64)).collect();
    for tag in 0..count {
        rig.tsend(0, 1, tag, 64);
    }
    arrive
}

#[test]
fn a_held_packet_waits_for_its_release() {
    with_pair(|mut rig, _| {
        rig.fault(
            r#"label = "k", when = { packet = "EAGER_TAGRTM", sender = "a", nth = 3 }, then = "hold""#,
        );
        let arrive = burst(&mut rig, 6);
        rig.wait_ok(&arrive[..2]);
        rig.settle();
        let done: Vec<_> = arrive.iter().map(|token| rig.is_done(*token)).collect();
        // Messages stay in order: those after the held one wait for it in the receiver's window.
        assert_eq!(done, [true, true, false, false, false, false]);
        let armed = rig.armed("k");
        assert_eq!((armed.seen, armed.applied, armed.held), (6, 1, 1));
        rig.release("k");
        rig.wait_ok(&arrive);
        assert_eq!(rig.armed("k").held, 0);
        rig.end();
    });
}

#[test]
fn a_held_packet_waits_for_later_packets() {
    with_pair(|mut rig, _| {
        rig.fault(
            r#"label = "k", when = { packet = "EAGER_TAGRTM", sender = "a", nth = 1 }, then = { hold-packets = 3 }"#,
        );
        let arrive: Vec<_> = (0..4).map(|tag| rig.trecv(1, tag, 64)).collect();
        for tag in 0..3 {
            rig.tsend(0, 1, tag, 64);
        }
        rig.settle();
        assert_eq!(rig.armed("k").held, 1);
        assert!(!arrive.iter().any(|token| rig.is_done(*token)));
        rig.tsend(0, 1, 3, 64);
        rig.wait_ok(&arrive);
        rig.end();
    });
}

#[test]
fn an_event_releases_deferred_packets_first() {
    with_pair(|mut rig, _| {
        // Message ids count from 0, and the greeting had id 0.
        rig.fault(r#"label = "k", when = { msg-id = 1, sender = "a" }, then = "hold""#);
        rig.fault(r#"label = "t", when = { msg-id = 3, sender = "a" }, then = { release = "k" }"#);
        let arrive: Vec<_> = (0..3).map(|tag| rig.trecv(1, tag, 64)).collect();
        rig.tsend(0, 1, 0, 64);
        rig.tsend(0, 1, 1, 64);
        rig.settle();
        assert_eq!(rig.armed("k").held, 1);
        rig.tsend(0, 1, 2, 64);
        rig.wait_ok(&arrive);
        assert_eq!((rig.armed("t").applied, rig.armed("k").held), (1, 0));
        rig.end();
    });
}

#[test]
fn a_delayed_packet_is_overtaken() {
    with_each(|software| {
        let sides = ["a", "b", "c"].map(|name| Side::new(name, software));
        let mut rig = Rig::new(sides);
        rig.fault(
            r#"label = "d", when = { packet = "EAGER_TAGRTM", sender = "a" }, then = { delay = "2s" }"#,
        );
        let from_a = rig.trecv(1, 1, 64);
        let from_c = rig.trecv(1, 2, 64);
        rig.tsend(0, 1, 1, 64);
        rig.await_applied("d", 1);
        rig.tsend(2, 1, 2, 64);
        rig.wait_ok(&[from_a, from_c]);
        let place = |token| rig.order().iter().position(|other| *other == token);
        assert!(place(from_c) < place(from_a), "{:?}", rig.order());
        rig.end();
    });
}

#[test]
fn a_dropped_packet_is_retransmitted_by_the_device() {
    with_pair(|mut rig, _| {
        rig.fault(
            r#"label = "d", when = { packet = "EAGER_TAGRTM", sender = "a", count = 3 }, then = "drop""#,
        );
        let arrives = rig.trecv(1, 1, 64);
        let sent = rig.tsend(0, 1, 1, 64);
        rig.wait_ok(&[arrives, sent]);
        // The first attempt and three retransmissions; the last one succeeded.
        let armed = rig.armed("d");
        assert_eq!((armed.seen, armed.applied), (4, 3));
        rig.end();
    });
}

#[test]
fn a_permanent_loss_makes_the_peer_unresponsive() {
    with_pair(|mut rig, software| {
        rig.fault(r#"when = { packet = "EAGER_TAGRTM", sender = "a" }, then = "lose""#);
        rig.trecv(1, 1, 64);
        let sent = rig.tsend(0, 1, 1, 64);
        assert_eq!(rig.code(sent), unresponsive(software));
    });
}

#[test]
fn every_status_reaches_the_application() {
    with_each(|software| {
        for (on, status, stock, engine) in [
            (
                "request",
                "remote-bad-address",
                (libc::EIO, "Invalid address"),
                (libc::EINVAL, "FI_EINVAL (RemoteBadAddress)"),
            ),
            (
                "answer",
                "remote-abort",
                (libc::EIO, "Receiver connection aborted"),
                (libc::ECONNABORTED, "FI_ECONNABORTED (RemoteAbort)"),
            ),
            (
                "answer",
                "local-unresponsive-remote",
                (libc::EIO, "Unresponsive receiver"),
                (
                    libc::ECONNABORTED,
                    "FI_ECONNABORTED (EstablishedUnresponsive)",
                ),
            ),
        ] {
            let mut rig = pair(software);
            let rule = format!(
                r#"label = "s", when = {{ on = "{on}", packet = "EAGER_TAGRTM", sender = "a", nth = 2, every = 1 }}, then = {{ status = "{status}" }}"#
            );
            rig.fault(&rule);
            let first = rig.tsend(0, 1, 1, 64);
            rig.wait_ok(&[first]);
            let second = rig.tsend(0, 1, 2, 64);
            let failure = rig.failure(second).expect("it fails");
            let expected = match software {
                Software::Stock => stock,
                Software::Engine => engine,
            };
            assert_eq!((failure.code, failure.text.as_str()), expected);
            // The engine retransmits a packet that the peer's device refuses or aborts.
            let repeats = match (software, status) {
                (Software::Engine, "remote-bad-address" | "remote-abort") => 3,
                _ => 0,
            };
            assert_eq!(rig.armed("s").applied, 1 + repeats);
        }
    });
}

#[test]
fn rnr_costs_only_time() {
    with_pair(|mut rig, _| {
        // Queue pairs of RDM endpoints retry three times; the program itself makes the fifth
        // attempt.
        rig.fault(
            r#"label = "r", when = { packet = "EAGER_TAGRTM", sender = "a", nth = 1 }, then = { not-ready = 4 }"#,
        );
        let arrives = rig.trecv(1, 1, 64);
        let sent = rig.tsend(0, 1, 1, 64);
        rig.wait_ok(&[arrives, sent]);
        let armed = rig.armed("r");
        assert_eq!(
            (armed.seen, armed.applied),
            (2, 1),
            "the program sent it again"
        );
        rig.end();
    });
}

#[test]
fn answers_can_overtake_send_completions() {
    with_pair(|mut rig, software| {
        rig.fault(
            r#"label = "h", when = { on = "answer", packet = "DC_EAGER_TAGRTM", sender = "a", nth = 1 }, then = "hold""#,
        );
        rig.fault(r#"label = "receipt", when = { on = "answer", packet = "RECEIPT" }, then = { delay = "0ns" }"#);
        let arrives = rig.trecv(1, 1, 64);
        let sent = rig.tsend_dc(0, 1, 1, 64);
        rig.wait_ok(&[arrives]);
        rig.await_applied("receipt", 1);
        rig.settle();
        assert_eq!(
            rig.armed("h").held,
            1,
            "the send has not completed at the device"
        );
        // Stock completes with the RECEIPT; the engine also waits until the device has released the
        // memory.
        assert_eq!(rig.is_done(sent), software == Software::Stock);
        rig.release("h");
        rig.wait_ok(&[sent]);
        rig.end();
    });
}

#[test]
fn sends_complete_in_random_order() {
    with_pair(|mut rig, _| {
        rig.fault(
            r#"label = "x", when = { on = "answer", sender = "a" }, then = { delay = ["0ns", "20ms"] }"#,
        );
        let arrive: Vec<_> = (0..24).map(|tag| rig.trecv(1, tag, 64)).collect();
        let sent: Vec<_> = (0..24).map(|tag| rig.tsend(0, 1, tag, 64)).collect();
        rig.wait_ok(&arrive);
        rig.wait_ok(&sent);
        let completed: Vec<_> = rig
            .order()
            .iter()
            .filter(|token| sent.contains(token))
            .collect();
        assert!(!completed.is_sorted(), "{completed:?}");
        rig.end();
    });
}

/// Duplicates of completions, and packets that arrive twice: both implementations recognise those
/// by their `msg_id`.
#[test]
fn duplicates_complete_nothing_twice() {
    with_each(|software| {
        for (on, then) in [
            ("request", "duplicate"),
            ("answer", "duplicate"),
            ("request", "repeat"),
        ] {
            let mut rig = pair(software);
            let rule = format!(
                r#"label = "x", when = {{ on = "{on}", packet = "EAGER_TAGRTM", sender = "a", count = 5 }}, then = "{then}""#
            );
            rig.fault(&rule);
            // The rig panics if an operation completes twice.
            let arrive = burst(&mut rig, 20);
            rig.wait_ok(&arrive);
            rig.settle();
            assert_eq!(rig.armed("x").applied, 5, "{on} {then}");
            rig.end();
        }
    });
}

#[test]
fn a_registration_fails() {
    with_pair(|mut rig, software| {
        rig.fault(
            r#"label = "m", when = { on = "registration", host = "a", min-length = 1000000, nth = 1 }, then = { fail = "ENOMEM" }"#,
        );
        let refused = rig.try_register(0, 1_000_000);
        let refusal = refused.unwrap_err().to_string();
        let expected = match software {
            Software::Stock => "Cannot allocate memory",
            Software::Engine => "no resources left for another memory region",
        };
        assert!(refusal.contains(expected), "{refusal}");
        assert_eq!(rig.armed("m").applied, 1);
        rig.register(0, 1_000_000);
        rig.end();
    });
}

#[test]
fn a_queue_pair_gets_the_requested_number() {
    with_pair(|mut rig, _| {
        rig.fault(r#"when = { on = "queue-pair", host = "a", nth = 1 }, then = { qpn = 77 }"#);
        assert_ne!(rig.qpn(0), 77);
        rig.close(0);
        rig.open(0);
        assert_eq!(rig.qpn(0), 77);
        rig.end();
    });
}

#[test]
fn partitioned_hosts_reconnect_after_healing() {
    with_each(|software| {
        let sides = ["a", "b", "c"].map(|name| Side::new(name, software));
        let mut rig = Rig::new(sides);
        rig.greet();
        let ab = || {
            [
                HostName::from("a".to_owned()),
                HostName::from("b".to_owned()),
            ]
        };
        rig.act(Action::Cut(ab()));
        let other = rig.trecv(1, 2, 64);
        let sent = rig.tsend(2, 1, 2, 64);
        rig.wait_ok(&[other, sent]);
        let lost = rig.tsend(0, 1, 1, 64);
        assert_eq!(rig.code(lost), unresponsive(software));
        rig.act(Action::Heal(ab()));
        // The other direction has lost nothing and continues.
        let arrives = rig.trecv(0, 3, 64);
        let sent = rig.tsend(1, 0, 3, 64);
        rig.wait_ok(&[arrives, sent]);
    });
}

#[test]
fn a_partition_healed_in_time_is_invisible() {
    with_pair(|mut rig, _| {
        rig.fault(r#"label = "cut", then = { cut = ["a", "b"] }"#);
        let arrives = rig.trecv(1, 1, 64);
        let sent = rig.tsend(0, 1, 1, 64);
        rig.await_applied("cut", 1);
        rig.act(Action::Heal(
            ["a", "b"].map(|name| HostName::from(name.to_owned())),
        ));
        rig.wait_ok(&[arrives, sent]);
        rig.end();
    });
}

#[test]
fn a_packet_of_another_host_heals_a_cut() {
    with_each(|software| {
        let sides = ["a", "b", "c"].map(|name| Side::new(name, software));
        let mut rig = Rig::new(sides);
        rig.greet();
        rig.fault(r#"label = "cut", then = { cut = ["a", "b"] }"#);
        rig.fault(
            r#"when = { packet = "EAGER_TAGRTM", sender = "c" }, then = { heal = ["a", "b"] }"#,
        );
        let arrives = rig.trecv(1, 1, 64);
        let sent = rig.tsend(0, 1, 1, 64);
        rig.await_applied("cut", 1);
        assert_eq!(rig.done(&[arrives, sent]), [false, false]);
        rig.exchange(2, 1, 2);
        rig.wait_ok(&[arrives, sent]);
        rig.end();
    });
}

#[test]
fn a_host_is_killed_by_a_packet() {
    with_pair(|mut rig, software| {
        rig.fault(
            r#"when = { packet = "EAGER_TAGRTM", sender = "a", nth = 3 }, then = { kill = "b" }"#,
        );
        let mut codes = Vec::new();
        for tag in 0..4 {
            let sent = rig.tsend(0, 1, tag, 64);
            if tag == 2 {
                // This action kills it.
                rig.await_death(1);
            }
            codes.push(rig.code(sent));
        }
        let gone = match software {
            Software::Stock => libc::EIO,
            Software::Engine => libc::ENOTCONN,
        };
        assert_eq!(codes, [0, 0, gone, gone]);
    });
}

/// Rules that hold only packets from `a` to `b`.
#[test]
fn queue_pairs_hosts_and_lengths_select_packets() {
    with_each(|software| {
        // Each host numbers its queue pairs by itself; these seeds give different numbers.
        let sides = [("a", "1"), ("b", "2"), ("c", "3")].map(|(name, seed)| {
            let side = Side::new(name, software).option("--qpn-reuse", "random");
            side.option("--seed", seed)
        });
        let mut rig = Rig::new(sides);
        assert_ne!(rig.qpn(0), rig.qpn(2));
        assert_ne!(rig.qpn(1), rig.qpn(2));
        rig.greet();
        for (from, to) in [(2, 1), (0, 2)] {
            rig.exchange(from, to, 1000);
        }
        let (of_a, of_b) = (rig.qpn(0), rig.qpn(1));
        let gid = rig.gid(0);
        // The message that is sent for comparison, besides the message of 64 bytes from `a` to `b`.
        for (when, (from, to), length) in [
            (format!("source-qpn = {of_a}, receiver = \"b\""), (2, 1), 64),
            (
                format!("destination-qpn = {of_b}, sender = \"a\""),
                (0, 2),
                64,
            ),
            (format!("sender = \"{gid}\""), (2, 1), 64),
            ("receiver = \"b\"".to_owned(), (0, 2), 64),
            // The length includes the packet's header.
            ("max-length = 200".to_owned(), (2, 1), 500),
            ("min-length = 50, max-length = 200".to_owned(), (2, 1), 500),
        ] {
            rig.fault(&format!(
                r#"label = "h", when = {{ packet = "EAGER_TAGRTM", {when} }}, then = "hold""#
            ));
            let held = rig.trecv(1, 1, 64);
            rig.tsend(0, 1, 1, 64);
            rig.await_applied("h", 1);
            let arrives = rig.trecv(to, 2, length);
            let sent = rig.tsend(from, to, 2, length);
            rig.wait_ok(&[arrives, sent]);
            assert!(!rig.is_done(held), "{when}");
            assert_eq!(rig.armed("h").held, 1, "{when}");
            rig.clear();
            rig.wait_ok(&[held]);
        }
        rig.end();
    });
}

#[test]
fn every_other_packet_is_selected() {
    with_pair(|mut rig, _| {
        rig.fault(
            r#"label = "h", when = { packet = "EAGER_TAGRTM", sender = "a", nth = 2, every = 2, count = 2 }, then = "hold""#,
        );
        let arrive = burst(&mut rig, 8);
        rig.wait_ok(&arrive[..1]);
        rig.await_applied("h", 2);
        rig.settle();
        let armed = rig.armed("h");
        assert_eq!((armed.seen, armed.held), (8, 2));
        rig.release("h");
        rig.wait_ok(&arrive);
        rig.end();
    });
}

#[test]
fn rdma_matches_as_a_separate_operation() {
    with_each(|software| {
        let sides = ["a", "b"].map(|name| Side::new(name, software).profile("efa2"));
        let mut rig = Rig::new(sides);
        rig.greet();
        rig.fault(r#"label = "h", when = { operation = "read" }, then = "hold""#);
        let arrives = rig.trecv(1, 1, 2_000_000);
        let sent = rig.tsend(0, 1, 1, 2_000_000);
        rig.await_applied("h", 1);
        rig.settle();
        assert_eq!(rig.done(&[arrives, sent]), [false, false]);
        rig.clear();
        rig.wait_ok(&[arrives, sent]);
        rig.end();
    });
}

/// A rule for completions with one status: only "receiver not ready" becomes another error.
#[test]
fn the_status_of_a_completion_is_selected() {
    with_pair(|mut rig, software| {
        rig.fault(
            r#"label = "refused", when = { packet = "EAGER_TAGRTM", sender = "a", nth = 2 }, then = { not-ready = 9 }"#,
        );
        rig.fault(
            r#"label = "s", when = { on = "answer", status = "remote-rnr", sender = "a" }, then = { status = "remote-bad-length" }"#,
        );
        let sent: Vec<_> = (0..3).map(|tag| rig.tsend(0, 1, tag, 64)).collect();
        let codes: Vec<_> = sent.iter().map(|token| rig.code(*token)).collect();
        let refused = match software {
            Software::Stock => libc::EIO,
            Software::Engine => libc::EMSGSIZE,
        };
        assert_eq!(codes, [0, refused, 0]);
        assert_eq!(rig.armed("s").applied, 1);
    });
}
