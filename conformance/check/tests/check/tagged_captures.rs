//! The captures in `traces/tag-matching`: what `check`, `show` and the dissector report of them.

use std::path::PathBuf;

use efa_check::capture::{CapturedItem, Frames};
use efa_check::check::{CheckResult, Judge};
use efa_check::show::{Filter, Form, show};
use efa_testing::workspace::{expect_file, traces};
use efa_wireshark::Tshark;
use efa_wireshark::connected::right_talk;

/// How many packets of each direction belong to rendezvous.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RendezvousCounts {
    reads: usize,
    answers: usize,
    ends: usize,
}

const PYVERBS: RendezvousCounts = RendezvousCounts {
    reads: 18,
    answers: 18,
    ends: 18,
};

const WRITTEN: RendezvousCounts = RendezvousCounts {
    reads: 12,
    answers: 20,
    ends: 10,
};

fn path(name: &str) -> PathBuf {
    traces().join(format!("tag-matching/{name}.pcapng"))
}

fn judged(name: &str) -> CheckResult {
    let mut frames = Frames::open(&path(name)).unwrap();
    let mut judge = Judge::new();
    while let Some(CapturedItem::Connected(packet)) = frames.next_item().unwrap() {
        judge.connected(&packet);
    }
    judge.finish()
}

#[test]
fn the_written_capture_is_that_of_its_program() {
    let tests = "-p efa-check --test check tagged_captures";
    expect_file(path("written"), tests, right_talk().capture(&[0, 1]));
}

#[test]
fn tagged_captures_are_judged_whole_and_right() {
    for name in ["pyverbs-rendezvous", "written"] {
        let checked = judged(name);
        assert_eq!(checked.findings, [], "{name}");
        assert!(checked.tagged > 0 && checked.unproven == 0, "{name}");
        assert!(checked.not_judged.is_nothing(), "{name}");
    }
}

#[test]
fn show_links_the_packets_of_each_rendezvous() {
    for (name, expected) in [("pyverbs-rendezvous", PYVERBS), ("written", WRITTEN)] {
        let mut text = Vec::new();
        let mut frames = Frames::open(&path(name)).unwrap();
        show(&mut frames, None, &Filter::default(), Form::Text, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let found = RendezvousCounts {
            reads: text.matches("    reads the data of the rendezvous").count(),
            answers: text.matches("    answers a read of the rendezvous").count(),
            ends: text.matches("    ends the rendezvous").count(),
        };
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn the_dissector_links_the_same_packets() {
    let Some(tshark) = Tshark::find() else { return };
    for (name, expected) in [("pyverbs-rendezvous", PYVERBS), ("written", WRITTEN)] {
        let shown = tshark.dissect_twice(&std::fs::read(path(name)).unwrap());
        let linked = || shown.iter().filter(|it| it.has("efa_tm.request_in"));
        let is_end = |it: &&_| efa_wireshark::DissectedFrame::has(it, "efa_tm.tmh.operation");
        let ends = linked().filter(is_end).count();
        let reads = linked().filter(|it| it.has("infiniband.reth.va")).count();
        let answers = linked().count() - ends - reads;
        let found = RendezvousCounts {
            reads,
            answers,
            ends,
        };
        assert_eq!(found, expected, "{name}");
        assert!(shown.iter().all(|it| it.fields("efa_tm.rule").count() == 0));
    }
}
