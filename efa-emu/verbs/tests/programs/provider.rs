//! `--provider`: a libfabric provider of efa-emu, for the programs of a run and of a cluster.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use efa_testing::programs::{TestFabric, run, succeed};
use efa_testing::workspace::{built, efa_emu};

/// A directory of libraries as in an installation, with a provider `other`.
fn libraries(parent: &Path) -> PathBuf {
    let directory = fs::canonicalize(parent).unwrap();
    for library in ["libefa_emu_verbs.so", "libefa_emu_efadv.so"] {
        symlink(built(library), directory.join(library)).unwrap();
    }
    fs::write(directory.join("libother-fi.so"), "").unwrap();
    directory
}

fn printed(mut command: Command, libraries: &Path) -> String {
    command.env("EFA_EMU_LIB", libraries);
    command.env("FI_PROVIDER", "efa");
    command.env("FI_PROVIDER_PATH", "/of/the/user");
    succeed(command, "a provider").stdout
}

const VARIABLES: &str = "echo $FI_PROVIDER $FI_PROVIDER_PATH";

#[test]
fn programs_find_and_may_require_the_provider() {
    let parent = tempfile::tempdir().unwrap();
    let libraries = libraries(parent.path());
    let expected = format!("other {}:/of/the/user\n", libraries.display());
    let fabric = TestFabric::new();
    let command = fabric.run(&["-q", "--provider", "other", "--", "sh", "-c", VARIABLES]);
    assert_eq!(printed(command, &libraries), expected);

    let script = format!("echo $I_MPI_OFI_PROVIDER; ssh node1 '{VARIABLES}'");
    let mut cluster = efa_emu(&["cluster", "2", "--quiet", "--fabric", fabric.name()]);
    cluster.args(["--provider", "other", "--", "sh", "-c", &script]);
    assert_eq!(printed(cluster, &libraries), format!("other\n{expected}"));
}

#[test]
fn without_the_option_the_users_choice_stays() {
    let parent = tempfile::tempdir().unwrap();
    let fabric = TestFabric::new();
    let command = fabric.host(&["sh", "-c", VARIABLES]);
    let answer = printed(command, &libraries(parent.path()));
    assert_eq!(answer, "efa /of/the/user\n");
}

#[test]
fn a_missing_provider_names_the_searched_places() {
    let parent = tempfile::tempdir().unwrap();
    let libraries = libraries(parent.path());
    let fabric = TestFabric::new();
    let mut command = fabric.run(&["--provider", "no-such", "--", "true"]);
    command.env("EFA_EMU_LIB", &libraries);
    let outcome = run(command);
    let place = libraries.display().to_string();
    outcome.expect_refusal(&["libno-such-fi.so", &place, "FI_PROVIDER=no-such"]);
}
