//! Faults whose effect depends on the program, too. What each action does to packets is shown by
//! the tests of `efa-device-model`, `efa-sim` and `efa-shm`.

use crate::rig::{Rig, Side, Software};
use crate::with_each;

fn pair(software: Software) -> Rig {
    let mut rig = Rig::pair(software);
    rig.exchange_handshakes();
    rig
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
fn sends_complete_in_random_order() {
    with_each(|software| {
        let mut rig = pair(software);
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
            let arrive: Vec<_> = (0..20).map(|tag| rig.trecv(1, tag, 64)).collect();
            for tag in 0..20 {
                rig.tsend(0, 1, tag, 64);
            }
            rig.wait_ok(&arrive);
            rig.settle();
            assert_eq!(rig.armed("x").applied, 5, "{on} {then}");
            rig.end();
        }
    });
}

/// The answering host delays its answers, whatever the options of the host that sends.
#[test]
fn latency_delays_answers() {
    with_each(|software| {
        let far = Side::new("b", software).option("--latency", "1s");
        let mut rig = Rig::new([Side::new("a", software), far, Side::new("c", software)]);
        let arrive = [rig.trecv(1, 1, 64), rig.trecv(2, 1, 64)];
        let sent = [rig.tsend(0, 1, 1, 64), rig.tsend(0, 2, 1, 64)];
        rig.wait_ok(&sent);
        rig.wait_ok(&arrive);
        let place = |token| rig.order().iter().position(|other| *other == token);
        assert!(place(sent[1]) < place(sent[0]), "{:?}", rig.order());
    });
}
