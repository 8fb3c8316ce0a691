//! The suite with another provider of libfabric under test than its own for EFA.
//!
//! Needs the other programs of the workspace (`cargo build --workspace`).

use efa_conformance::libfabric::Library;
use efa_testing::workspace::{efa_conformance_on_host, outcome, traces};

/// A provider that no libfabric has is missed by name, wherever the plug-ins are looked for, and the command that
/// repeats the case names it again.
#[test]
fn a_provider_that_is_missing_is_named() {
    if let Err(error) = Library::load(Library::DEFAULT.as_ref()) {
        println!("SKIPPED: {error}");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().display().to_string();
    let trace = traces().join("eager-tagged.pcapng");
    let mut command = efa_conformance_on_host(&[], &["run", "--backend", "hw"]);
    command.args(["--dut", "libfabric", "--provider", "no-such"]);
    command.args(["--provider-path", &path]).arg(trace);
    let (status, printed) = outcome(&command.output().unwrap());
    assert_eq!(status, Some(1), "{printed}");
    for text in [
        "under test: libfabric:no-such ",
        "finds no endpoint of its provider no-such for",
        &format!("--provider no-such --provider-path {path}"),
    ] {
        assert!(printed.contains(text), "{text}\n{printed}");
    }
}
