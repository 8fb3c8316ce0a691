//! Failures that EFA users have met, caused by rules: docs/known-failures.md has the table.
//!
//! Where stock libfabric fails, the test requires this failure.

use crate::rig::{Rig, Side, Software};
use crate::transfers::{Transfer, TransferKind};
use crate::with_each;

/// Late completions of a destroyed queue pair, and late packets to it, reach its successor with the
/// same number.
#[test]
fn k01_k03_late_completions_skip_the_next_qp() {
    with_each(|software| {
        let mut rig = Rig::staged(software, "destroyed-queue-pair");
        rig.exchange_handshakes();
        let mut started = Vec::new();
        for tag in 0..8 {
            rig.trecv(1, tag, 64);
            started.push(rig.tsend(0, 1, tag, 64));
            rig.tsend(1, 0, tag, 64);
        }
        rig.await_held("late", &[8, 8]);
        let before = rig.order().len();
        match software {
            // Stock drains its queue pair first.
            Software::Stock => rig.close_upon_release(0, "late"),
            Software::Engine => rig.close(0),
        }
        rig.open(0);
        assert_eq!(rig.qpn(0), 77);
        rig.introduce(0, 1);
        rig.introduce(1, 0);
        rig.clear();
        rig.settle();
        let surfaced: Vec<_> = rig.order()[before..].to_vec();
        // No completion of an operation of the closed endpoint; completions of the peer's
        // operations are permitted.
        let of_a = surfaced.iter().filter(|token| started.contains(token));
        assert_eq!(of_a.count(), 0, "{surfaced:?}");
        assert_eq!(rig.events, []);
        rig.exchange_handshakes();
    });
}

/// A process dies, the next one gets its queue pair number with another Q-key, and late packets of
/// the first arrive after the first packet of the second.
#[test]
fn k04_late_packets_do_not_reach_the_successor() {
    with_each(|software| {
        let mut rig = Rig::staged(software, "dead-process");
        rig.exchange_handshakes();
        let qkey = rig.qkey(0);
        for tag in 10..13 {
            rig.tsend(0, 1, tag, 64);
        }
        rig.await_applied("late", 3);
        rig.kill(0);
        let successor = rig.join(Side::new("a", software));
        assert_eq!(rig.qpn(successor), 77);
        assert_ne!(rig.qkey(successor), qkey);
        rig.introduce(successor, 1);
        rig.introduce(1, successor);
        // Longer than the messages of the dead process, so that confusion is detected.
        let arrive: Vec<_> = (10..16).map(|tag| rig.trecv(1, tag, 1000)).collect();
        let first = rig.tsend(successor, 1, 13, 500);
        rig.wait_ok(&[first, arrive[3]]);
        assert_eq!(rig.armed("successor").applied, 1);
        for report in rig.wait_ok(&arrive[..3]) {
            assert_eq!(report.source, Some(0));
        }
        for tag in [14, 15] {
            let sent = rig.tsend(successor, 1, tag, 500);
            let report = rig.wait_ok(&[sent, arrive[tag as usize - 10]]).remove(1);
            assert_eq!((report.length, report.source), (500, Some(successor)));
        }
        assert_eq!(rig.events, []);
    });
}

/// Both sides start the handshake at once. One HANDSHAKE is late, and its receiver makes no
/// progress.
#[test]
fn k05_handshakes_cross_and_one_is_late() {
    with_each(|software| {
        let mut rig = Rig::pair(software);
        rig.fault(
            r#"label = "late", when = { packet = "HANDSHAKE", sender = "b" }, then = "hold""#,
        );
        let arrives = [rig.trecv(1, 1, 64), rig.trecv(0, 1, 64)];
        // Stock 1.17 sends a message with delivery complete only after the HANDSHAKE; until then
        // the call fails with FI_EAGAIN. So plain messages start the handshake here.
        let sent = [rig.tsend(0, 1, 1, 64), rig.tsend(1, 0, 1, 64)];
        for _ in 0..20 {
            rig.turn_of(&[0]);
        }
        rig.wait_ok(&arrives);
        rig.wait_ok(&sent);
        rig.await_held("late", &[1]);
        rig.release("late");
        let arrives = [rig.trecv(1, 2, 64), rig.trecv(0, 2, 64)];
        let sent = [rig.tsend_dc(0, 1, 2, 64), rig.tsend_dc(1, 0, 2, 64)];
        rig.wait_ok(&arrives);
        rig.wait_ok(&sent);
        rig.end();
    });
}

/// The receiver has no buffers when the handshake arrives.
#[test]
fn k06_the_handshake_finds_no_receive() {
    with_each(|software| {
        let mut rig = Rig::staged(software, "handshake-not-ready");
        rig.exchange(0, 1, 1);
        // Delivery complete works, which needs the HANDSHAKE.
        let arrives = rig.trecv(1, 2, 64);
        let sent = rig.tsend_dc(0, 1, 2, 64);
        rig.wait_ok(&[arrives, sent]);
        rig.await_applied("refused-again", 1);
        assert_eq!(rig.armed("refused").applied, 1);
        rig.end();
    });
}

/// Each packet type is refused once, beyond the retries of the device.
#[test]
fn k07_every_packet_type_survives_rnr() {
    with_each(|software| {
        for kind in TransferKind::ALL {
            let mut rig = kind.rig(software);
            for packet in kind.packets() {
                rig.fault(&format!(
                    r#"label = "{packet}", when = {{ packet = "{packet}", nth = 1 }}, then = {{ not-ready = 5 }}"#
                ));
                let transfer = Transfer::start(&mut rig, packet);
                rig.await_applied(packet, 1);
                transfer.finish(&mut rig);
            }
            // The last answer, for which no operation waits, has also arrived.
            rig.exchange_handshakes();
            rig.end();
        }
    });
}

/// A message is held while more than a window of later ones arrives.
#[test]
fn k08_more_than_a_window_overtakes_a_message() {
    with_each(|software| {
        const WINDOW: u64 = 64;
        let log = tempfile::NamedTempFile::new().unwrap();
        let b = Side::new("b", software)
            .env("FI_EFA_RECVWIN_SIZE", &WINDOW.to_string())
            .log(log.path());
        let a = Side::new("a", software).recipe("window-overflow");
        let mut rig = Rig::new([a, b]);
        rig.exchange_handshakes();
        let first = rig.trecv(1, 0, 64);
        for tag in 0..=WINDOW - 1 {
            rig.tsend(0, 1, tag, 64);
        }
        rig.settle();
        // So far all messages fit into the window.
        assert!(!rig.is_done(first));
        for tag in WINDOW..3 * WINDOW {
            rig.tsend(0, 1, tag, 64);
        }
        rig.settle();
        if software == Software::Stock {
            rig.await_death(1);
            let said = std::fs::read_to_string(log.path()).unwrap();
            assert!(
                said.contains("receive window size (64) is too small"),
                "{said}"
            );
            return;
        }
        let rest: Vec<_> = (1..3 * WINDOW).map(|tag| rig.trecv(1, tag, 64)).collect();
        rig.release("first");
        rig.wait_ok(&[first]);
        rig.wait_ok(&rest);
        rig.end();
    });
}

/// A message that does not fit, and later ones.
#[test]
fn k09_a_truncated_message_does_not_block_others() {
    /// The receiver reads messages of this length.
    const LONG: usize = 2_000_000;
    with_each(|software| {
        let mut rig = Rig::pair(software);
        for (length, first) in [(64, 0), (40_000, 3), (300_000, 6), (LONG, 9)] {
            let arrive: Vec<_> = [length, length / 2, length]
                .into_iter()
                .zip(first..)
                .map(|(space, tag)| rig.trecv(1, tag, space))
                .collect();
            let sent: Vec<_> = (first..first + 3)
                .map(|tag| rig.tsend(0, 1, tag, length))
                .collect();
            rig.wait_ok(&[arrive[0], sent[0]]);
            let code = rig.code(arrive[1]);
            assert_eq!(code, 265, "FI_ETRUNC is expected for {length}");
            if software == Software::Stock && length == LONG {
                // The receiver never takes the next message in order.
                rig.settle();
                assert_eq!(rig.done(&sent[1..]), [false, false]);
                assert!(!rig.is_done(arrive[2]));
                return;
            }
            rig.wait_ok(&arrive[2..]);
            rig.wait_ok(&sent);
        }
        rig.end();
    });
}

/// Two generations of the device, one without RDMA read.
#[test]
fn k10_a_peer_without_rdma_read() {
    with_each(|software| {
        for profiles in [["efa2", "efa0"], ["efa0", "efa2"]] {
            let sides = [("a", profiles[0]), ("b", profiles[1])];
            let sides = sides.map(|(name, profile)| Side::new(name, software).profile(profile));
            let mut rig = Rig::new(sides);
            rig.exchange_handshakes();
            rig.fault(r#"label = "read", when = { operation = "read" }, then = { delay = "0ns" }"#);
            let arrives = rig.trecv(1, 1, 2_000_000);
            let sent = rig.try_tsend(0, 1, 1, 2_000_000);
            if software == Software::Stock && profiles[0] == "efa2" {
                // Stock chooses a long read before it checks whether the peer can read.
                let refusal = sent.unwrap_err().to_string();
                assert!(refusal.contains("Operation not supported"), "{refusal}");
            } else {
                rig.wait_ok(&[sent.unwrap(), arrives]);
            }
            let region = rig.register(1, 100_000);
            let read = rig.read(0, &region);
            rig.wait_ok(&[read]);
            let write = rig.write(0, &region, false);
            rig.wait_ok(&[write]);
            rig.wait_written(&region);
            // No device was asked for an operation that it lacks.
            assert_eq!(rig.armed("read").applied, 0);
        }
    });
}

/// A rule that counts READ_NACKs.
const NACK: &str =
    r#"label = "nack", when = { packet = "READ_NACK", sender = "b" }, then = { delay = "0ns" }"#;

/// Memory registration fails once at the receiver of a long read.
#[test]
fn k13_long_read_receiver_cannot_register() {
    with_each(|software| {
        let mut rig = Rig::staged(software, "registration-fails");
        rig.exchange_handshakes();
        rig.fault(NACK);
        let arrives = rig.trecv(1, 1, 2_000_000);
        let sent = rig.tsend(0, 1, 1, 2_000_000);
        rig.wait_ok(&[arrives, sent]);
        assert_eq!(rig.armed("registration").applied, 1);
        // Stock tries again; the engine asks for packets.
        let nacks = u64::from(software == Software::Engine);
        assert_eq!(rig.armed("nack").applied, nacks);
        rig.end();
    });
}

/// Memory registration fails once at the sender of a long read.
#[test]
fn k13_long_read_sender_cannot_register() {
    with_each(|software| {
        let mut rig = Rig::pair(software);
        rig.exchange_handshakes();
        rig.fault(NACK);
        rig.fault(
            r#"label = "m", when = { on = "registration", host = "a", min-length = 2000000, max-length = 2100000, nth = 1 }, then = { fail = "ENOMEM" }"#,
        );
        let arrives = rig.trecv(1, 1, 2_000_000);
        let mut sent = rig.try_tsend(0, 1, 1, 2_000_000);
        if software == Software::Stock {
            // The operation is neither queued nor sent by another subprotocol.
            let refusal = sent.unwrap_err().to_string();
            assert!(refusal.contains("Cannot allocate memory"), "{refusal}");
            sent = rig.try_tsend(0, 1, 1, 2_000_000);
        }
        rig.wait_ok(&[arrives, sent.unwrap()]);
        assert_eq!((rig.armed("m").applied, rig.armed("nack").applied), (1, 0));
        rig.end();
    });
}

/// The doorbell is rung for packets that are posted in batches, also before the HANDSHAKE arrives.
#[test]
fn k14_a_batchs_last_packet_is_sent() {
    const MESSAGES: u64 = 12;
    with_each(|software| {
        let mut rig = Rig::pair(software);
        rig.fault(
            r#"label = "late", when = { packet = "HANDSHAKE", sender = "b" }, then = "hold""#,
        );
        rig.fault(r#"label = "parts", when = { packet = "MEDIUM_TAGRTM", sender = "a" }, then = { delay = "0ns" }"#);
        // One after the other, without any progress in between.
        let arrive: Vec<_> = (0..MESSAGES).map(|tag| rig.trecv(1, tag, 40_000)).collect();
        let sent: Vec<_> = (0..MESSAGES)
            .map(|tag| rig.tsend(0, 1, tag, 40_000))
            .collect();
        rig.wait_ok(&arrive);
        rig.wait_ok(&sent);
        rig.await_held("late", &[1]);
        assert_eq!(rig.armed("parts").applied, 5 * MESSAGES);
        rig.clear();
        rig.exchange(0, 1, MESSAGES);
        rig.end();
    });
}

/// An error of the device in the middle of many operations: messages after the lost one must
/// arrive.
#[test]
fn k15_one_bad_status_reaches_the_application() {
    for (status, stock_code, engine_code) in [
        // The packet is sent again.
        ("remote-bad-address", libc::EIO, 0),
        // The packet cannot be sent again: an atomic on no memory takes its `msg_id`.
        ("remote-bad-length", libc::EIO, libc::EMSGSIZE),
    ] {
        with_each(|software| {
            let mut rig = Rig::pair(software);
            rig.exchange_handshakes();
            rig.fault(&format!(
                r#"label = "s", when = {{ packet = "EAGER_TAGRTM", sender = "a", nth = 17 }}, then = {{ status = "{status}" }}"#
            ));
            let received: Vec<_> = (0..30).map(|tag| rig.trecv(1, tag, 64)).collect();
            let sent: Vec<_> = (0..30).map(|tag| rig.tsend(0, 1, tag, 64)).collect();
            let codes: Vec<_> = sent.iter().map(|token| rig.code(*token)).collect();
            let failed = match software {
                Software::Stock => stock_code,
                Software::Engine => engine_code,
            };
            for (index, code) in codes.iter().enumerate() {
                let expected = if index == 16 { failed } else { 0 };
                assert_eq!(*code, expected, "{codes:?}");
            }
            rig.settle();
            let arrived = rig.done(&received);
            for (index, arrived) in arrived.iter().enumerate() {
                let expected = match software {
                    Software::Stock => index < 16,
                    Software::Engine => index != 16 || failed == 0,
                };
                assert_eq!(*arrived, expected, "{index} of {software:?}, {status}");
            }
        });
    }
}

/// Packets, and the peer's packets that answer them.
const ANSWERED: [(TransferKind, &str, &str); 15] = [
    (TransferKind::Packets, "DC_EAGER_TAGRTM", "RECEIPT"),
    (TransferKind::Packets, "DC_MEDIUM_TAGRTM", "RECEIPT"),
    (TransferKind::Packets, "DC_LONGCTS_TAGRTM", "RECEIPT"),
    (TransferKind::Packets, "DC_EAGER_RTW", "RECEIPT"),
    (TransferKind::Packets, "DC_LONGCTS_RTW", "RECEIPT"),
    (TransferKind::Packets, "DC_WRITE_RTA", "RECEIPT"),
    (TransferKind::Packets, "LONGCTS_TAGRTM", "CTS"),
    (TransferKind::Packets, "CTSDATA", "CTS"),
    (TransferKind::Packets, "LONGCTS_RTW", "CTS"),
    (TransferKind::Packets, "SHORT_RTR", "READRSP"),
    (TransferKind::Packets, "LONGCTS_RTR", "READRSP"),
    (TransferKind::Packets, "FETCH_RTA", "ATOMRSP"),
    (TransferKind::Packets, "COMPARE_RTA", "ATOMRSP"),
    (TransferKind::Reads, "LONGREAD_TAGRTM", "EOR"),
    (TransferKind::Reads, "LONGREAD_RTW", "EOR"),
];

/// Starts a transfer. Returns when the completion of the first packet `request` is held, and the
/// peer's `answer` to this packet has arrived.
fn answered_early(rig: &mut Rig, request: &str, answer: &str) -> Transfer {
    rig.fault(&format!(
        r#"label = "kept", when = {{ on = "answer", packet = "{request}", sender = "a", nth = 1 }}, then = "hold""#
    ));
    rig.fault(&format!(
        r#"label = "answer", when = {{ on = "answer", packet = "{answer}", sender = "b" }}, then = {{ delay = "0ns" }}"#
    ));
    let transfer = Transfer::start(rig, request);
    rig.await_held("kept", &[1]);
    // CTSDATA answers the first CTS, so the second CTS is the answer to it.
    rig.await_applied("answer", 1 + u64::from(request == "CTSDATA"));
    transfer
}

/// The peer's answer arrives before the completion of the send that it answers.
#[test]
fn k16_answers_precede_the_completions_of_their_sends() {
    with_each(|software| {
        for kind in [TransferKind::Packets, TransferKind::Reads] {
            let mut rig = kind.rig(software);
            for (_, request, answer) in ANSWERED.iter().filter(|(of, ..)| *of == kind) {
                let transfer = answered_early(&mut rig, request, answer);
                // Time for the program to handle the answer before the completion.
                rig.turn();
                rig.clear();
                transfer.finish(&mut rig);
            }
            rig.end();
        }
    });
}

/// Operations that stock has not finished when it has the answer: it needs the completion to
/// continue.
const UNFINISHED_AT_STOCK: [&str; 5] = [
    "DC_LONGCTS_TAGRTM",
    "DC_LONGCTS_RTW",
    "LONGCTS_TAGRTM",
    "CTSDATA",
    "LONGCTS_RTW",
];

/// As before; the peer is removed from the address vector between its answer and the completion.
#[test]
fn k16_peer_removed_between_answer_and_completion() {
    with_each(|software| {
        for kind in [TransferKind::Packets, TransferKind::Reads] {
            let mut rig = kind.rig(software);
            for (_, request, answer) in ANSWERED.iter().filter(|(of, ..)| *of == kind) {
                let transfer = answered_early(&mut rig, request, answer);
                rig.settle();
                let was_done = rig.done(&transfer.tokens);
                rig.remove(0, 1);
                rig.clear();
                if software == Software::Stock && UNFINISHED_AT_STOCK.contains(request) {
                    // Stock follows a pointer to the removed peer.
                    assert!(was_done.contains(&false), "{request}: {was_done:?}");
                    rig.await_death(0);
                    rig = kind.rig(software);
                    continue;
                }
                for (token, was_done) in transfer.tokens.iter().zip(was_done) {
                    let expected = if was_done { 0 } else { libc::ECANCELED };
                    assert_eq!(rig.code(*token), expected, "{software:?}: {request}");
                }
                // Both start over: message ids count from 0 again.
                rig.remove(1, 0);
                rig.introduce(1, 0);
                rig.introduce(0, 1);
                rig.exchange_handshakes();
            }
            rig.end();
        }
    });
}
