//! Changes each event of a run once: the engine recovers, and a program that does not is detected.

use efa_play::application::Report;
use efa_play::scenario::Software;
use efa_play::trace::Trace;
use efa_replay::replay::emu::Emu;
use efa_replay::replay::{Engine, Opener};
use efa_replay::synthetic;
use efa_suite::each_event::{self, Change, RunResults};

fn load(name: &str) -> Trace {
    let path = efa_testing::workspace::traces().join(name);
    synthetic::load(&path).unwrap_or_else(|error| panic!("{error}"))
}

fn turns(trace: &str, role: usize, opener: &mut dyn Opener<Emu>, change: Change) -> RunResults {
    each_event::run_with_changes(&load(trace), role, opener, &[change], 1).unwrap()
}

/// A trace of each subprotocol. The rest of the corpus, and the events between those of [`EVERY`],
/// are left to `efa-conformance run --each-event all`.
const SHARE: [&str; 10] = [
    "eager-tagged.pcapng",
    "medium-untagged.pcapng",
    "long-cts.pcapng",
    "long-read.pcapng",
    "runting-read.pcapng",
    "delivery-complete.pcapng",
    "write-emulated.pcapng",
    "read-emulated.pcapng",
    "releases/atomic-fetch-2.5-2.5.pcapng",
    "written/read-nack-message.toml",
];

/// One event in this many is changed; the first of each type always is.
const EVERY: usize = 3;

#[test]
fn the_engine_gets_over_each_event() {
    let mut runs = 0;
    for name in SHARE {
        let trace = load(name);
        for role in 0..trace.scenario.endpoints.len() {
            if trace.scenario.endpoints[role].software == Software::Script {
                continue;
            }
            let engine = &mut Engine::default();
            let turns =
                each_event::run_with_changes(&trace, role, engine, &Change::ALL, EVERY).unwrap();
            assert_eq!(turns.texts, Vec::<String>::new(), "{name}, endpoint {role}");
            runs += turns.runs;
        }
    }
    // Each trace has tens of events, of which a third are changed in several ways.
    assert!(runs > 100, "{runs}");
}

/// The engine with an error in its reports to the application.
fn faulty(report_fault: fn(Report) -> Vec<Report>) -> Engine {
    Engine {
        report_fault: Some(report_fault),
        ..Engine::default()
    }
}

#[test]
fn hidden_failures_are_detected() {
    let wrong = |report: Report| match report.failure {
        Some(_) => Vec::new(),
        None => vec![report],
    };
    let turns = turns("read-direct.pcapng", 0, &mut faulty(wrong), Change::Fail);
    let found = turns
        .texts
        .iter()
        .any(|text| text.starts_with("fail of ") && text.contains("neither completes nor fails"));
    assert!(found, "{:?}", turns.texts);
}

#[test]
fn failures_reported_as_success_are_detected() {
    let wrong = |report: Report| {
        let failure = None;
        vec![Report { failure, ..report }]
    };
    let turns = turns("read-direct.pcapng", 0, &mut faulty(wrong), Change::Fail);
    let found = turns
        .texts
        .iter()
        .any(|text| text.starts_with("fail of own RDMA read") && text.contains("bytes"));
    assert!(found, "{:?}", turns.texts);
}

#[test]
fn a_program_that_completes_twice_is_noticed() {
    let wrong = |report: Report| vec![report.clone(), report];
    for change in Change::ALL {
        let turns = turns("eager-tagged.pcapng", 0, &mut faulty(wrong), change);
        let found = turns
            .texts
            .iter()
            .any(|text| text.contains("completed twice"));
        assert!(found, "{change}: {:?}", turns.texts);
    }
}
