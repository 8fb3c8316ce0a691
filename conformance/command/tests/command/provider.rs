//! Another libfabric provider than the one for EFA under test.
//!
//! Needs the other programs of the workspace (`cargo build --workspace`).

use efa_play::libfabric::{Library, Provider};
use efa_testing::workspace::{built, efa_conformance_on_host, expect, traces};

/// A provider that no libfabric has is reported by name, wherever plug-ins are searched, and the
/// command that repeats the case names it again.
#[test]
fn a_provider_that_is_missing_is_named() {
    if let Err(error) = Library::load(Library::DEFAULT.as_ref()) {
        efa_testing::skip(error);
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().display().to_string();
    let trace = traces().join("eager-tagged.pcapng");
    let mut command = efa_conformance_on_host(&[], &["run", "--backend", "hw"]);
    command.args(["--dut", "libfabric", "--provider", "no-such"]);
    command.args(["--provider-path", &path]).arg(trace);
    let texts = [
        "under test: libfabric:no-such ",
        "finds no endpoint of its provider no-such for",
        &format!("--provider no-such --provider-path {path}"),
    ];
    expect(command, 1, &texts);
}

/// One trace of each kind; the group `efa_rs` of `interop` plays all.
const TRACES: [&str; 9] = [
    "cq-data",
    "delivery-complete",
    "eager-tagged",
    "long-cts",
    "long-read",
    "medium-untagged",
    "read-direct",
    "unexpected-tagged",
    "write-emulated",
];

/// The engine as the provider that libfabric loads, in place of each endpoint.
#[test]
fn the_engine_passes_as_a_provider() {
    built("libefa_rs-fi.so");
    if let Err(error) = Library::load(Library::DEFAULT.as_ref()) {
        efa_testing::skip(error);
        return;
    }
    let mut command = efa_conformance_on_host(&[], &["run", "--backend", "hw", "--jobs", "2"]);
    command.args(["--dut", "libfabric", "--provider", "efa_rs"]);
    command.args(TRACES.map(|name| traces().join(name).with_extension("pcapng")));
    // The program finds it itself.
    command.env_remove(Provider::SEARCH_PATH);
    let printed = expect(command, 0, &["under test: libfabric:efa_rs "]);
    let passed = format!(
        "{} passed, 0 codec only, 0 skipped, 0 unsupported",
        2 * TRACES.len()
    );
    assert!(printed.contains(&passed), "{printed}");
}
