//! The corpus: its scenarios and its traces.

mod support;

use std::path::{Path, PathBuf};

use efa_conformance::check::{self, Finding};
use efa_conformance::replay::codec;
use efa_conformance::replay::emu::Emu;
use efa_conformance::scenario::{Scenario, Software};
use efa_conformance::suite::{self, Options, Outcome};
use efa_conformance::trace::Trace;
use efa_core::rules::Severity;

fn files(extension: &str) -> Vec<PathBuf> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces");
    let found = [corpus.clone(), corpus.join("releases")];
    suite::find(&found, extension, None).unwrap()
}

fn seeds(seeds: u64) -> Options {
    Options {
        seeds,
        ..Options::default()
    }
}

#[test]
fn every_trace_has_its_scenario_and_the_other_way_round() {
    let names = |files: Vec<PathBuf>| -> Vec<String> {
        files.iter().map(|path| suite::name_of(path)).collect()
    };
    assert_eq!(names(files("pcapng")), names(files("toml")));
    for path in files("pcapng") {
        let trace = Trace::load(&path).unwrap_or_else(|error| panic!("{error}"));
        // The corpus is recorded from stock software.
        for endpoint in &trace.scenario.endpoints {
            assert_eq!(endpoint.software, Software::Libfabric, "{trace}");
        }
        assert_eq!(trace.capture.damage, Vec::<String>::new(), "{trace}");
        assert!(!trace.scenario.description.is_empty() && !trace.scenario.spec.is_empty());
    }
}

/// The page about the corpus is the output of `efa-conformance list --matrix`, and gives a reason for
/// everything that no trace has.
#[test]
fn the_page_says_what_the_corpus_covers() {
    let traces: Vec<Trace> = files("pcapng")
        .iter()
        .map(|path| Trace::load(path).unwrap_or_else(|error| panic!("{error}")))
        .collect();
    let (page, unexplained) = suite::matrix::render(&traces);
    assert_eq!(unexplained, Vec::<String>::new());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces/README.md");
    let written = std::fs::read_to_string(path).unwrap();
    assert!(
        written.trim_end() == page.trim_end(),
        "traces/README.md is old: efa-conformance list traces --matrix > traces/README.md"
    );
}

#[test]
fn stock_libfabric_breaks_no_rule_and_survives_the_codec() {
    for path in files("pcapng") {
        let trace = Trace::load(&path).unwrap_or_else(|error| panic!("{error}"));
        let checked = check::check(&trace.capture);
        // A release may not know what a later one expects of it (docs/deviations.md): a warning.
        let broken: Vec<_> = checked.worse_than(Severity::Warning).collect();
        assert_eq!(broken, Vec::<&Finding>::new(), "{trace}");
        let (packets, problems) = codec::check(&trace);
        assert_eq!(problems, Vec::<String>::new(), "{trace}");
        assert_eq!(packets as u64, checked.packets, "{trace}");
    }
}

#[test]
fn the_engine_takes_the_place_of_stock_libfabric() {
    let mut emu = Emu::orderly();
    for path in files("pcapng") {
        let trace = Trace::load(&path).unwrap_or_else(|error| panic!("{error}"));
        for case in suite::run_engine(&trace, &mut emu, &seeds(3)).unwrap() {
            let passed = matches!(case.outcome, Outcome::Passed { .. });
            let excused = matches!(case.outcome, Outcome::NotUnderTest { .. });
            assert!(passed || excused, "{case}");
        }
    }
}

/// The engine plays every scenario with itself, and its capture replays in every role and in disorderly
/// networks.
#[test]
fn the_engine_plays_every_scenario_with_itself() {
    let mut themes = std::collections::BTreeSet::new();
    for path in files("toml") {
        let scenario = Scenario::load(&path).unwrap_or_else(|error| panic!("{error}"));
        // For the engine, a theme is the same in all releases.
        let theme = scenario.name.split("-1.").next().unwrap_or_default();
        let theme = theme.split("-2.").next().unwrap_or_default().to_owned();
        if !themes.insert(theme) {
            continue;
        }
        let trace = support::rehearse(&scenario);
        let cases = suite::run_engine(&trace, &mut Emu::orderly(), &seeds(5)).unwrap();
        for case in cases {
            let passed = matches!(case.outcome, Outcome::Passed { .. });
            let excused = matches!(case.outcome, Outcome::NotUnderTest { .. });
            assert!(passed || excused, "{case}");
        }
    }
}
