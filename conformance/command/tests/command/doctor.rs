//! `doctor` on this machine, on emulated hosts, and from one emulated host to another.

use std::process::Command;

use efa_testing::json::assert_documented;
use efa_testing::workspace::{conformance, efa_conformance, efa_emu, emulator, expect};
use serde_json::Value;

/// Prevents a request to AWS's metadata service, wherever the tests run.
const NOBODY: (&str, &str) = ("AWS_EC2_METADATA_DISABLED", "true");

/// The command on an emulated host of a separate fabric.
fn on_host(name: &str, options: &[&str], arguments: &[&str]) -> Command {
    let fabric = format!("doctor-{name}-{}", std::process::id());
    let mut command = efa_emu(&["run", "--quiet", "--fabric", &fabric]);
    command
        .args(options)
        .arg("--")
        .arg(conformance())
        .arg("doctor");
    command.args(arguments).env(NOBODY.0, NOBODY.1);
    command
}

fn findings(output: &std::process::Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// The values of a check.
fn values<'a>(diagnosis: &'a Value, check: &str) -> Vec<&'a str> {
    let all = diagnosis["findings"].as_array().unwrap().iter();
    all.filter(|finding| finding["check"] == check)
        .map(|finding| finding["value"].as_str().unwrap())
        .collect()
}

#[test]
fn an_emulated_host_is_fit() {
    let options = ["--profile", "efa1", "--devices", "2"];
    let output = on_host("fit", &options, &["--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let diagnosis = findings(&output);
    assert_eq!(diagnosis["counts"]["error"], 0);
    assert_eq!(values(&diagnosis, "device").len(), 2);
    assert_eq!(
        values(&diagnosis, "capabilities"),
        ["RDMA_READ, RNR_RETRY, CQ_WITH_SGID"; 2]
    );
    assert_eq!(values(&diagnosis, "packet-size"), ["8928 bytes"; 2]);
    assert_eq!(values(&diagnosis, "emulator").len(), 1);
    let libfabric = values(&diagnosis, "libfabric");
    assert!(
        libfabric
            .iter()
            .any(|value| value.ends_with("its EFA provider works"))
    );
    let verbs = values(&diagnosis, "rdma-core");
    assert!(
        verbs[0].contains("libefa_emu_verbs.so, calls up to IBVERBS_"),
        "{verbs:?}"
    );
}

/// With an option, findings about slow paths, or about some programs only, make the command fail.
#[test]
fn warnings_fail_if_they_are_to() {
    let status = |arguments: &[&str]| {
        let mut command = on_host("severity", &[], &[arguments, &["--json"]].concat());
        // No libfabric finds its EFA provider.
        let output = command.env("FI_PROVIDER", "tcp").output().unwrap();
        (output.status.code(), findings(&output))
    };
    let (code, diagnosis) = status(&[]);
    assert!(
        diagnosis["counts"]["warning"].as_u64() > Some(0),
        "{diagnosis:#}"
    );
    assert_eq!(diagnosis["counts"]["error"], 0, "{diagnosis:#}");
    assert_eq!(code, Some(0));
    assert_eq!(status(&["--fail-on", "warning"]).0, Some(1));
    let command = on_host("wrong", &[], &["--fail-on", "note"]);
    expect(command, 2, &["a severity is error or warning"]);
}

#[test]
fn a_machine_without_a_device_is_not() {
    // A machine with a device has another finding.
    if std::path::Path::new("/sys/class/infiniband").exists() {
        return;
    }
    let mut command = efa_conformance(&["doctor"]);
    let finding = "error    device        there is no EFA device\n";
    let texts = [finding, "-> take an EC2 instance"];
    expect(command.env(NOBODY.0, NOBODY.1), 1, &texts);
}

#[test]
fn the_json_is_as_documented() {
    let staged = tempfile::tempdir().unwrap();
    let root = staged.path().to_str().unwrap();
    let printed = efa_conformance(&["doctor", "--root", root, "--json"])
        .output()
        .unwrap();
    assert_eq!(printed.status.code(), Some(1));
    assert_documented("efa-conformance doctor", &[findings(&printed)], &[]);
    let missing = format!("{root}/none");
    let missing = efa_conformance(&["doctor", "--root", &missing]);
    expect(missing, 2, &["is not a directory"]);
}

/// Runs `doctor --peer` on the first host of a cluster of two.
fn peer(name: &str, options: &[&str], target: &str) -> (Option<i32>, Value) {
    let fabric = format!("doctor-{name}-{}", std::process::id());
    let [program, emulator] = [conformance(), emulator()].map(|path| path.display().to_string());
    let script = format!(
        "exec {emulator} rsh node0 \"{program} doctor --json --peer {target} \
         --rsh '{emulator} rsh' --remote-program {program}\""
    );
    let mut command = efa_emu(&["cluster", "2", "--quiet", "--fabric", &fabric]);
    command.args(options).args(["--", "sh", "-c", &script]);
    let output = command.env(NOBODY.0, NOBODY.1).output().unwrap();
    (output.status.code(), findings(&output))
}

#[test]
fn two_hosts_reach_each_other() {
    let (status, diagnosis) = peer("peer", &[], "node1");
    let values = values(&diagnosis, "peer");
    assert!(values[0].starts_with("answers over EFA"), "{values:?}");
    assert_eq!(status, Some(0));
}

/// As between two security groups without a rule: no packet of one arrives at the other.
#[test]
fn a_blocked_path_between_hosts_suggests_security_groups() {
    let faults = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        faults.path(),
        "[[fault]]\nwhen = { on = \"request\" }\nthen = \"lose\"\n",
    )
    .unwrap();
    let faults = faults.path().to_str().unwrap();
    let (status, diagnosis) = peer("wall", &["--faults", faults], "node1");
    let all = diagnosis["findings"].as_array().unwrap();
    let finding = all
        .iter()
        .find(|finding| finding["check"] == "peer")
        .unwrap();
    let value = finding["value"].as_str().unwrap();
    assert!(value.starts_with("no message came through"), "{value}");
    assert!(
        finding["remedy"]
            .as_str()
            .unwrap()
            .contains("security group")
    );
    assert_eq!(status, Some(1));
}

#[test]
fn an_unusable_peer_is_distinguished_from_blocking() {
    let (status, diagnosis) = peer("nobody", &[], "node7");
    let values = values(&diagnosis, "peer");
    assert!(
        values[0].starts_with("the peer cannot take part"),
        "{values:?}"
    );
    let remedies = diagnosis["findings"].to_string();
    assert!(remedies.contains("(--rsh, --remote-program)"), "{remedies}");
    assert_eq!(status, Some(1));
}
