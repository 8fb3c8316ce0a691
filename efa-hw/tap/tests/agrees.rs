//! The tap stacked on the emulated libraries: what it captures of stock programs agrees with what the device captures.

#[path = "../../../efa-emu/verbs/tests/common/mod.rs"]
mod common;
mod compared;

use std::path::Path;

use common::{Dialogue, TestFabric, installed};
use compared::{agree, check, frames};
use efa_testing::workspace::built;

/// A dialogue of `fi_pingpong`, in which both programs run under the tap; its captures go into this directory, as
/// `HOST.tap`.
fn tapped<'a>(fabric: &'a TestFabric, tap: &'a [String], program: &[&'a str]) -> Dialogue<'a> {
    let tap: Vec<&str> = tap.iter().map(String::as_str).collect();
    Dialogue::new(fabric, &[&tap[..], program].concat(), "-B", "-P")
}

/// The words that start a program under the tap on any emulated host.
fn tap(directory: &Path, options: &str) -> Vec<String> {
    let script = format!(
        "exec {} run --pcap {}/$EFA_EMU_HOST.tap {options} -- \"$@\"",
        built("efa-tap").display(),
        directory.display()
    );
    ["sh", "-c", &script, "tap"].map(str::to_owned).into()
}

fn options(directory: &Path, host: &str) -> Vec<String> {
    let pcap = directory.join(format!("{host}.emu"));
    ["--host", host, "--pcap", pcap.to_str().unwrap()]
        .map(str::to_owned)
        .into()
}

/// Runs a program on two hosts under the tap, and compares what both captures have.
fn run(program: &[&str], tap_options: &str, emulator_options: &[&str]) -> tempfile::TempDir {
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let tap = tap(directory.path(), tap_options);
    let dialogue = tapped(&fabric, &tap, program);
    let both = ["alpha", "beta"].map(|host| {
        let mut all = options(directory.path(), host);
        all.extend(emulator_options.iter().map(|text| (*text).to_owned()));
        all
    });
    let [alpha, beta] = both
        .each_ref()
        .map(|list| list.iter().map(String::as_str).collect::<Vec<_>>());
    let outcomes = dialogue.run(&alpha, &beta);
    for outcome in &outcomes {
        assert!(
            outcome.stderr.contains("efa-tap: ") && outcome.stderr.contains(", 0 dropped"),
            "{}",
            outcome.stderr
        );
    }
    directory
}

/// Messages of 64 bytes to 1 MiB.
const PINGPONG: [&str; 7] = ["fi_pingpong", "-p", "efa", "-e", "rdm", "-I", "5"];

/// Debian's libfabric 1.17, with messages that travel in packets and by RDMA reads.
#[test]
fn captures_of_fi_pingpong_agree() {
    if installed("fi_pingpong", "libfabric-bin").is_none() {
        return;
    }
    let directory = run(&PINGPONG, "", &[]);
    for host in ["alpha", "beta"] {
        let path = |ending: &str| directory.path().join(format!("{host}.{ending}"));
        agree(&path("tap"), &path("emu"));
        check(&path("tap"));
    }
    let sent = frames(&directory.path().join("alpha.tap"));
    let reads = sent.iter().filter(|seen| seen.what.starts_with("read of"));
    assert!(reads.count() > 0 && sent.len() > 100, "{}", sent.len());
}
