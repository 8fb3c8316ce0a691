//! The suite with stock libfabric over emulated devices.
//!
//! Needs the other programs of the workspace (`cargo build --workspace`): without them the tests
//! fail. If no libfabric with the efa provider is installed, they print a message and are skipped.

use std::process::Command;

use efa_check::check;
use efa_core::rules::Severity;
use efa_play::trace::Trace;
use efa_testing::workspace::{
    captures, efa_conformance, efa_conformance_on_host, efa_emu, outcome, root, traces,
};

/// Returns whether stock libfabric finds an emulated device here; prints why if not.
fn has_stock() -> bool {
    let found = efa_emu(&["run", "--", "fi_info", "-p", "efa"])
        .output()
        .expect("efa-emu starts");
    if !found.status.success() {
        let why = String::from_utf8_lossy(&found.stderr).into_owned();
        efa_testing::skip(format_args!(
            "fi_info finds no EFA device under efa-emu: {why}"
        ));
    }
    found.status.success()
}

/// Runs a command in the directory of the workspace.
fn run(mut command: Command) -> (Option<i32>, String) {
    outcome(&command.current_dir(root()).output().unwrap())
}

fn path(name: &str) -> String {
    traces().join(name).display().to_string()
}

#[test]
fn engine_and_libfabric_interoperate_in_both_directions() {
    if !has_stock() {
        return;
    }
    for name in [
        "ping-pong",
        "unexpected-tagged",
        "truncation",
        "long-cts",
        "long-read",
    ] {
        let scenario = path(&format!("{name}.toml"));
        let (status, printed) = run(efa_conformance(&["interop", &scenario]));
        assert_eq!(status, Some(0), "{printed}");
        assert!(
            printed.contains("efa-core 0.1.0 and libfabric"),
            "{printed}"
        );
        assert!(printed.contains("and efa-core 0.1.0"), "{printed}");
        assert!(
            printed.contains("2 passed, 0 known, 0 skipped, 0 failed"),
            "{printed}"
        );
    }
}

#[test]
fn a_fresh_recording_is_a_passing_trace() {
    if !has_stock() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    std::fs::copy(
        traces().join("eager-tagged.toml"),
        file("eager-tagged.toml"),
    )
    .unwrap();
    let output = file("eager-tagged.pcapng").display().to_string();
    let scenario = file("eager-tagged.toml").display().to_string();
    let (status, printed) = run(efa_conformance(&["record", &scenario, "-o", &output]));
    assert_eq!(status, Some(0), "{printed}");
    let trace = Trace::load(&file("eager-tagged.pcapng")).unwrap();
    let checked = check::check(&trace.capture);
    assert_eq!(
        checked.at_least(Severity::Warning),
        0,
        "{:?}",
        checked.findings
    );
    let (status, printed) = run(efa_conformance(&["run", &output]));
    assert_eq!(status, Some(0), "{printed}");
}

#[test]
fn a_scenario_that_goes_otherwise_is_no_trace() {
    if !has_stock() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let scenario = directory.path().join("wrong.toml");
    let text = std::fs::read_to_string(traces().join("eager-tagged.toml")).unwrap();
    // The receive is too short, which the scenario does not expect.
    let text = text.replace("length = 256", "length = 99");
    std::fs::write(&scenario, text).unwrap();
    let output = directory.path().join("wrong.pcapng");
    let [scenario, output_path] = [&scenario, &output].map(|path| path.display().to_string());
    let command = efa_conformance(&["record", &scenario, "-o", &output_path]);
    let (status, printed) = run(command);
    assert_eq!(status, Some(1), "{printed}");
    assert!(
        printed.contains("`question-arrives`: result: expected success, actual FI_ETRUNC"),
        "{printed}"
    );
    assert!(!output.exists());
}

#[test]
fn the_corpus_passes_over_verbs() {
    if !has_stock() {
        return;
    }
    // One trace of each kind; `make conformance` plays all traces.
    let mut command = efa_conformance_on_host(&[], &["run", "--backend", "all"]);
    command.args(captures());
    let (status, printed) = run(command);
    assert_eq!(status, Some(0), "{printed}");
    assert!(printed.contains(" hw   core as a: "), "{printed}");
    assert!(printed.contains(" emu  core as a: "), "{printed}");
}

#[test]
fn stock_libfabric_passes_its_own_traces() {
    if !has_stock() {
        return;
    }
    let traces = traces().display().to_string();
    let options = [
        "--backend",
        "hw",
        "--dut",
        "libfabric",
        "--filter",
        "tagged",
    ];
    let mut command = efa_conformance_on_host(&[], &["run", &traces]);
    command.args(options);
    let (status, printed) = run(command);
    assert_eq!(status, Some(0), "{printed}");
    assert!(printed.contains("libfabric as a: "), "{printed}");
}
