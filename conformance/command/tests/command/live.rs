//! The suite with stock libfabric over emulated devices.
//!
//! Needs the other programs of the workspace (`cargo build --workspace`): without them the tests
//! fail. If no libfabric with the efa provider is installed, they print a message and are skipped.

use std::process::Command;

use efa_check::check;
use efa_core::rules::Severity;
use efa_play::trace::Trace;
use efa_testing::workspace::{
    captures, efa_conformance, efa_conformance_on_host, efa_emu, expect, root, traces,
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

/// The program, in the directory of the workspace.
fn in_workspace(arguments: &[&str]) -> Command {
    let mut command = efa_conformance(arguments);
    command.current_dir(root());
    command
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
        let directory = tempfile::tempdir().unwrap();
        let files = directory.path().display().to_string();
        expect(
            in_workspace(&["interop", &scenario, "--directory", &files]),
            0,
            &[
                "efa-core 0.1.0 and libfabric",
                "and efa-core 0.1.0",
                "2 passed, 0 known, 0 skipped, 0 failed",
            ],
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
    expect(in_workspace(&["record", &scenario, "-o", &output]), 0, &[]);
    let trace = Trace::load(&file("eager-tagged.pcapng")).unwrap();
    let checked = check::check(&trace.capture);
    assert_eq!(
        checked.at_least(Severity::Warning),
        0,
        "{:?}",
        checked.findings
    );
    expect(in_workspace(&["run", &output]), 0, &[]);
}

#[test]
fn a_failed_scenario_is_not_recorded() {
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
    expect(
        in_workspace(&["record", &scenario, "-o", &output_path]),
        1,
        &["`question-arrives`: result: expected success, actual FI_ETRUNC"],
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
    expect(
        command.args(captures()),
        0,
        &[" hw   core as a: ", " emu  core as a: "],
    );
}

#[test]
fn stock_libfabric_passes_its_own_traces() {
    if !has_stock() {
        return;
    }
    let traces = traces().display().to_string();
    let mut command = efa_conformance_on_host(&[], &["run", &traces, "--backend", "hw"]);
    command.args(["--dut", "libfabric", "--filter", "tagged"]);
    expect(command, 0, &["libfabric as a: "]);
}
