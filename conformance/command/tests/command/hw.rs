//! `run --backend hw`: the device's errors in a case that fails.

use efa_testing::workspace::{conformance, efa_emu, expect, traces};

/// The output for a trace over verbs, on an emulated host whose network does this to the first four
/// requests.
#[track_caller]
fn run(action: &str, status: i32) -> String {
    let directory = tempfile::tempdir().unwrap();
    let faults = directory.path().join("faults.toml");
    let rule = format!("[[fault]]\nwhen = {{ on = \"request\", count = 4 }}\nthen = {action}\n");
    std::fs::write(&faults, rule).unwrap();
    let fabric = format!("hw-{}", std::process::id());
    let mut command = efa_emu(&["run", "-q", "--fabric", &fabric, "--faults"]);
    command.arg(faults).arg("--").arg(conformance()).arg("run");
    command.arg(traces().join("eager-tagged.pcapng"));
    command.args(["--backend", "hw", "--captures"]);
    expect(command.arg(directory.path()), status, &[])
}

/// The verb, the queue pair, and the device's own status are reported beside the consequences.
#[test]
fn a_failure_contains_the_report_of_the_device() {
    let text = run("{ status = \"remote-abort\" }", 1);
    let mut lines = text.lines();
    let start = "the device of endpoint `a` reported";
    let line = lines.find(|line| line.contains(start) && line.contains(" times: send on"));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains("vendor status 8"), "{line}");
}

/// A delay causes no failure.
#[test]
fn passed_cases_report_no_device_errors() {
    let text = run("{ delay = \"1ms\" }", 0);
    assert!(!text.contains("reported:"), "{text}");
}
