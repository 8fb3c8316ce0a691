//! The corpus: its scenarios and its traces.

mod support;

use std::path::{Path, PathBuf};

use efa_conformance::replay::emu::Emu;
use efa_conformance::scenario::Scenario;
use efa_conformance::suite::{self, Outcome};

fn files(extension: &str) -> Vec<PathBuf> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces");
    let mut files: Vec<PathBuf> = std::fs::read_dir(corpus)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    files.sort();
    files
}

/// Whatever stock libfabric can do in a scenario, the engine can do with itself, and what was
/// captured of that replays in every role and under disorder.
#[test]
fn the_engine_plays_every_scenario_with_itself() {
    let scenarios = files("toml");
    assert!(!scenarios.is_empty());
    for path in scenarios {
        let scenario = Scenario::load(&path).unwrap_or_else(|error| panic!("{error}"));
        let trace = support::rehearse(&scenario);
        let cases = suite::run_engine(&trace, &mut Emu::orderly(), 5).unwrap();
        for case in cases {
            assert!(matches!(case.outcome, Outcome::Passed { .. }), "{case}");
        }
    }
}
