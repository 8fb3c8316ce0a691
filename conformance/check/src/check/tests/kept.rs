//! Captures of mistakes that `check` once missed, and of forms of captures that it once refused:
//! files in `tests/captures/kept`, each with the findings that it has to give.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use efa_wire::rules::Severity;

use super::*;

/// A segment beyond its message, which one packet shows, and an EOR before its read, which only the
/// order of packets at their receiver shows.
fn two_mistakes() -> Vec<CapturedPacket> {
    let mut b = Builder::acquainted(all());
    b.send(A, B, &A.medium(1, 250), &[0; 100]);
    let memory = RmaIov::new(0x1000, 5000, 1);
    b.send(A, B, &A.long_read(2, 7, memory), b"");
    b.send(B, A, &B.eor(7), b"");
    for frame in &mut b.capture.frames {
        frame.time += Duration::from_secs(1_700_000_000);
    }
    b.capture.frames
}

type Change = fn(&mut CapturedPacket);

/// The forms in which tools write captures: files with the two mistakes, and what differs in their
/// frames.
const FORMS: [(&str, Change); 14] = [
    ("options-without-end.pcapng", |_| {}),
    // Names of interfaces, and comments, that are not UTF-8.
    ("not-utf8.pcapng", |_| {}),
    // In the description of the interfaces.
    ("reserved-not-zero.pcapng", |_| {}),
    // The clock of B is written 1,000 seconds ahead, and moved back.
    ("negative-offset.pcapng", |_| {}),
    ("simple-packet-blocks.pcapng", |frame| {
        one_interface_without_directions(frame);
        frame.time = Duration::ZERO;
    }),
    // The upper half of the interface's word counts packets that were dropped before.
    ("obsolete-packet-blocks.pcapng", |_| {}),
    (
        "classic-of-two-hosts.pcap",
        one_interface_without_directions,
    ),
    ("cooked.pcap", |frame| frame.interface = 0),
    ("cooked-2.pcap", |frame| frame.interface = 0),
    ("raw-ip.pcap", one_interface_without_directions),
    // The first interface is a USB port, and so is the first packet.
    ("unrelated-interface.pcapng", |frame| {
        frame.interface += 1;
        frame.number += 1;
    }),
    // Made of `reserved-not-zero.pcapng` by `gzip`, `zstd` and `lz4`.
    ("packed.pcapng.gz", |_| {}),
    ("packed.pcapng.zst", |_| {}),
    ("packed.pcapng.lz4", |_| {}),
];

fn one_interface_without_directions(frame: &mut CapturedPacket) {
    (frame.interface, frame.direction) = (0, None);
}

/// Files with a kind of mistake each, and the findings.
const MISTAKES: [(&str, &[(&str, u64)]); 7] = [
    ("refused-left-behind.pcapng", &[("msg-id-refused", 11)]),
    // Packets of each extra feature, to a peer that announced only connids.
    (
        "features-not-announced.pcapng",
        &[
            ("feature-announced", 7),
            ("feature-announced", 9),
            ("feature-announced", 11),
            ("feature-announced", 13),
            ("feature-announced", 15),
            ("feature-announced", 17),
            ("rdma-announced", 19),
        ],
    ),
    ("read-flag-of-message.pcapng", &[("cts-read-flag", 9)]),
    ("read-flag-missing.pcapng", &[("cts-read-flag", 11)]),
    ("numbers-go-on.pcapng", &[("msg-id-first", 11)]),
    ("runt-too-long.pcapng", &[("runt-length", 7)]),
    ("old-connid.pcapng", &[("connid-fresh", 13)]),
];

/// A file without damage, and the rules that it breaks for certain.
fn load(name: &str) -> (Vec<CapturedPacket>, Vec<(&'static str, u64)>) {
    let capture = Capture::load(&directory().join(name)).unwrap();
    assert_eq!(capture.damage, [""; 0], "{name}");
    let errors = check(&capture).findings.into_iter();
    let errors = errors.filter(|finding| finding.severity == Severity::Error);
    let errors = errors.map(|it| (it.rule.id, it.packet)).collect();
    (capture.frames, errors)
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/captures/kept")
}

/// The compared parts of a frame.
fn read(frame: &CapturedPacket) -> impl PartialEq + std::fmt::Debug + use<> {
    let header = (frame.header.kind, frame.header.sequence, frame.header.qkey);
    let place = (frame.number, frame.interface, frame.time, frame.direction);
    (place, frame.source, header, frame.payload.clone())
}

#[test]
fn all_forms_have_the_same_frames_and_findings() {
    for (name, change) in FORMS {
        let mut expected = two_mistakes();
        expected.iter_mut().for_each(change);
        let (frames, broken) = load(name);
        let compared = |frames: &[CapturedPacket]| frames.iter().map(read).collect::<Vec<_>>();
        assert_eq!(compared(&frames), compared(&expected), "{name}");
        // Without directions it is not known which packet was first.
        let is_directed = expected[0].direction.is_some();
        let mistakes = [("segment-bounds", 6), ("eor-early", 10)];
        let mistakes = &mistakes[..1 + usize::from(is_directed)];
        let mistakes = mistakes
            .iter()
            .map(|(rule, at)| (*rule, expected[*at].number));
        assert_eq!(broken, mistakes.collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn kept_captures_have_their_findings() {
    for (name, broken) in MISTAKES {
        assert_eq!(load(name).1, broken, "{name}");
    }
    let names = fs::read_dir(directory()).unwrap();
    let names: BTreeSet<_> = names.map(|it| it.unwrap().file_name()).collect();
    let known = FORMS
        .map(|it| it.0)
        .into_iter()
        .chain(MISTAKES.map(|it| it.0));
    assert_eq!(names, known.map(Into::into).collect());
}
