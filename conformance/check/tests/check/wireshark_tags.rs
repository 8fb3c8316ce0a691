//! The Wireshark dissector and `efa-conformance check` find the same breaches of tag matching in the
//! same frames, and neither of them where all is right.

use std::collections::BTreeSet;

use efa_capture::Reader;
use efa_check::capture::{Frames, Seen};
use efa_check::check::Judge;
use efa_wireshark::Tshark;
use efa_wireshark::connected::{Connected, WHOLE, captured, misuses, right_talk};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

/// (frame, rule)
type Breaches = BTreeSet<(u64, String)>;

fn by_check(capture: &[u8]) -> Breaches {
    let mut frames = Frames::new(Reader::new(capture, "test").unwrap());
    let mut judge = Judge::new();
    while let Some(seen) = frames.next_seen().unwrap() {
        match seen {
            Seen::Frame(frame) => judge.frame(frame).unwrap(),
            Seen::Connected(packet) => judge.connected(&packet),
        }
    }
    let findings = judge.finish().findings.into_iter();
    findings
        .map(|finding| (finding.packet, finding.rule.id.to_owned()))
        .collect()
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

#[test]
fn both_judges_find_each_mistake_with_tags() {
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
    assert_eq!(by_check(&capture), expected);
    assert_eq!(by_dissector(&tshark, &capture), expected);
}

/// Packets lost, doubled and exchanged, and bits changed, of right connections and of wrong ones.
#[test]
fn both_judges_agree_on_damaged_connections() {
    let Some(tshark) = Tshark::find() else { return };
    let mut rng = StdRng::seed_from_u64(3);
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
    for most in [WHOLE, 100] {
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
        assert!(most < WHOLE || checked.len() > 20, "{}", checked.len());
    }
}
