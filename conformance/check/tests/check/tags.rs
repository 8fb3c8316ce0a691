//! Rules of tag matching, in captures of one connection: by `check` alone, and compared with the
//! Wireshark dissector, which must find the same breaches.

use std::collections::BTreeSet;

use efa_capture::Reader;
use efa_check::capture::{CapturedItem, Frames};
use efa_check::check::{CheckResult, Judge};
use efa_wire::infiniband::Tmh;
use efa_wire::rules::{Chapter, RULES, Severity};
use efa_wireshark::Tshark;
use efa_wireshark::connected::{Connected, WHOLE, captured, misuses, right_talk};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};

use crate::losses::number;

const BOTH: [usize; 2] = [0, 1];

fn judged(capture: &[u8]) -> CheckResult {
    let mut frames = Frames::new(Reader::new(capture, "test").unwrap());
    let mut judge = Judge::new();
    while let Some(item) = frames.next_item().unwrap() {
        match item {
            CapturedItem::Frame(frame) => frames.reuse(judge.frame(frame).unwrap()),
            CapturedItem::Connected(packet) => judge.connected(&packet),
        }
    }
    for interface in frames.lossy() {
        judge.lossy(interface);
    }
    judge.finish()
}

fn found(capture: &[u8]) -> Vec<(&'static str, u64)> {
    let findings = judged(capture).findings.into_iter();
    findings.map(|it| (it.rule.id, it.packet)).collect()
}

/// Each mistake is found once, in the wrong packet, whichever host recorded the capture.
#[test]
fn mistakes_with_tags_are_found() {
    for (what, talk, rule, at) in misuses() {
        for host in BOTH {
            let expected = [(rule, at as u64 + 1)];
            assert_eq!(
                found(&talk.capture(&[host])),
                expected,
                "{what}, host {host}"
            );
        }
        let expected = [(rule, 2 * at as u64 + 1)];
        assert_eq!(found(&talk.capture(&BOTH)), expected, "{what}");
    }
}

#[test]
fn every_rule_of_tag_matching_can_be_broken() {
    let broken: BTreeSet<_> = misuses().iter().map(|(_, _, rule, _)| *rule).collect();
    let of_chapter = RULES.iter().filter(|it| it.chapter == Chapter::TagMatching);
    assert_eq!(broken, of_chapter.map(|rule| rule.id).collect());
}

#[test]
fn correct_traffic_breaks_no_rule() {
    let talk = right_talk();
    for hosts in [&[0][..], &[1], &BOTH] {
        let checked = judged(&talk.capture(hosts));
        assert_eq!(checked.findings, []);
        let packets = talk.packets.len() * hosts.len();
        assert_eq!(checked.tagged, packets as u64);
        assert!(checked.unproven == 0 && checked.not_judged.is_nothing());
    }
}

/// A packet that the device repeats, or that arrives late, is not a second message.
#[test]
fn repetitions_and_late_packets_break_no_rule() {
    let mut rng = StdRng::seed_from_u64(1);
    for _ in 0..300 {
        let mut talk = right_talk();
        let at = rng.random_range(0..talk.packets.len());
        let again = talk.packets[at].clone();
        let to = rng.random_range(at + 1..=talk.packets.len());
        talk.packets.insert(to, again);
        assert_eq!(
            judged(&talk.capture(&BOTH)).findings,
            [],
            "packet {at} again before {to}"
        );
    }
}

/// `check` reports no error caused by missing frames, a missing beginning, end or host.
#[test]
fn lost_frames_add_no_error() {
    let mut rng = StdRng::seed_from_u64(2);
    for round in 0..3000 {
        let mut talk = right_talk();
        let length = talk.packets.len();
        match round % 3 {
            0 => drop(talk.packets.remove(rng.random_range(0..length))),
            1 => drop(talk.packets.drain(..rng.random_range(0..length))),
            _ => {
                let most = rng.random_range(0..length);
                let mut left: Vec<_> = (0..length).collect();
                left.shuffle(&mut rng);
                left.truncate(most);
                left.sort_unstable();
                talk.packets = left.iter().map(|at| talk.packets[*at].clone()).collect();
            }
        }
        let hosts = [&[0][..], &[1], &BOTH][rng.random_range(0..3)];
        let checked = judged(&talk.capture(hosts));
        assert_eq!(
            checked.at_least(Severity::Warning),
            0,
            "{:?}",
            checked.findings
        );
    }
}

#[test]
fn cut_headers_add_no_error() {
    for most in 0..200 {
        let talk = right_talk();
        let checked = judged(&talk.cut(&[1], most));
        assert_eq!(checked.findings, [], "{most} bytes");
    }
    assert!(judged(&right_talk().cut(&[1], WHOLE)).tagged > 0);
}

/// No packet shows that messages have tags.
#[test]
fn plain_messages_that_look_tagged_are_not_judged() {
    let mut talk = Connected::default();
    talk.rendezvous(0, Tmh::RENDEZVOUS, 5, 0x10_0000, 64);
    talk.rendezvous(1, Tmh::FINISH, 6, 0x20_0000, 64);
    talk.tagged(0, Tmh::RENDEZVOUS, 6, b"short");
    talk.tagged(0, 9, 6, b"operation");
    talk.read(1, 0x50_0000, 64);
    let checked = judged(&talk.capture(&[1]));
    assert_eq!(checked.findings, []);
    assert_eq!(checked.not_judged.untagged, talk.packets.len() as u64);
    assert!(checked.is_empty());
}

/// A queue pair that is connected again restarts its message numbers.
#[test]
fn reused_queue_pairs_are_judged() {
    for (what, later, rule, at) in misuses() {
        let mut talk = right_talk();
        let before = talk.packets.len();
        for mut packet in later.packets {
            // Other sequence numbers, as far away as two random ones usually are.
            packet.bytes[9] = packet.bytes[9].wrapping_add(0x40);
            talk.packets.push(packet);
        }
        let expected = [(rule, (before + at) as u64 + 1)];
        assert_eq!(found(&talk.capture(&[1])), expected, "{what}");
    }
}

/// (frame, rule)
type Breaches = BTreeSet<(u64, String)>;

fn by_check(capture: &[u8]) -> Breaches {
    let found = found(capture).into_iter();
    found.map(|(rule, at)| (at, rule.to_owned())).collect()
}

fn by_dissector(tshark: &Tshark, capture: &[u8]) -> Breaches {
    let mut breaches = Breaches::new();
    const PREFIX: &str = "efa_tm.rule.";
    for (number, shown) in (1..).zip(tshark.dissect_twice(capture)) {
        let rules = shown.fields(PREFIX);
        breaches.extend(rules.map(|(name, _)| (number, name[PREFIX.len()..].to_owned())));
    }
    breaches
}

/// The mistakes of [`mistakes_with_tags_are_found`], all in one capture, one after the other.
#[test]
fn the_dissector_finds_each_mistake_with_tags() {
    let Some(tshark) = Tshark::find() else { return };
    let misuses = misuses();
    let (mut talks, mut expected, mut first) = (Vec::new(), Breaches::new(), 0);
    for (_, talk, rule, at) in &misuses {
        for hosts in [&[0][..], &[1], &[0, 1]] {
            talks.push((talk, hosts));
            let frame = first + at * hosts.len() + 1;
            expected.insert((frame as u64, (*rule).to_owned()));
            first += talk.frames(hosts);
        }
    }
    let right = right_talk();
    talks.push((&right, &[0, 1]));
    let capture = captured(&talks, WHOLE);
    assert_eq!(by_dissector(&tshark, &capture), expected);
}

/// Compares the two judges on correct and wrong connections with packets lost, duplicated and
/// exchanged, and bits changed, of which at most `most` bytes of each frame are captured.
/// `EFA_SEED` is the seed of the changes. Returns the number of breaches.
#[track_caller]
fn compare_judges_on_damaged_connections(most: usize) -> Option<usize> {
    let tshark = Tshark::find()?;
    let mut rng = StdRng::seed_from_u64(number("EFA_SEED").unwrap_or(3));
    let misuses = misuses();
    let damaged: Vec<(Connected, usize)> = (0..100)
        .map(|round| {
            let mut talk = match round % 2 {
                0 => right_talk(),
                _ => misuses[rng.random_range(0..misuses.len())].1.clone(),
            };
            for _ in 0..rng.random_range(1..4) {
                let at = rng.random_range(0..talk.packets.len());
                match rng.random_range(0..5) {
                    0 if talk.packets.len() > 5 => drop(talk.packets.remove(at)),
                    1 => drop(talk.packets.drain(..at / 2)),
                    2 => {
                        let again = talk.packets[at].clone();
                        let to = rng.random_range(at + 1..=talk.packets.len());
                        talk.packets.insert(to, again);
                    }
                    3 => {
                        let other = rng.random_range(0..talk.packets.len());
                        talk.packets.swap(at, other);
                    }
                    _ => {
                        let bytes = &mut talk.packets[at].bytes;
                        let at = rng.random_range(0..bytes.len().min(44));
                        bytes[at] ^= 1 << rng.random_range(0..8);
                    }
                }
            }
            (talk, rng.random_range(0..3))
        })
        .collect();
    let talks: Vec<(&Connected, &[usize])> = damaged
        .iter()
        .map(|(talk, hosts)| (talk, [&[0][..], &[1], &[0, 1]][*hosts]))
        .collect();
    let capture = captured(&talks, most);
    let (checked, dissected) = (by_check(&capture), by_dissector(&tshark, &capture));
    let only: [Vec<_>; 2] = [
        checked.difference(&dissected).collect(),
        dissected.difference(&checked).collect(),
    ];
    assert!(
        only.iter().all(Vec::is_empty),
        "{most} bytes: only one has {only:?}"
    );
    Some(checked.len())
}

#[test]
fn both_judges_agree_on_damaged_connections() {
    let Some(breaches) = compare_judges_on_damaged_connections(WHOLE) else {
        return;
    };
    assert!(breaches > 20, "{breaches}");
}

#[test]
fn both_judges_agree_on_damaged_cut_connections() {
    compare_judges_on_damaged_connections(100);
}
