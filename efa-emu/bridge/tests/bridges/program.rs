//! `efa-emu bridge` and the program that it executes.

use std::fs;

use efa_testing::workspace::{built, outcome};

#[test]
fn a_missing_bridge_names_the_way_to_install() {
    let directory = tempfile::tempdir().unwrap();
    let alone = directory.path().join("efa-emu");
    fs::copy(built("efa-emu"), &alone).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(&alone);
        command.args(arguments).current_dir(directory.path());
        outcome(&command.output().unwrap())
    };
    let (status, text) = run(&["bridge", "key", "fabric.key"]);
    assert_eq!(status, Some(2), "{text}");
    let missing = directory.path().join("efa-emu-bridge");
    assert!(text.contains(missing.to_str().unwrap()), "{text}");
    assert!(text.contains("docs/install.md"), "{text}");
    assert!(
        text.contains("`cargo install --path efa-emu/bridge`"),
        "{text}"
    );
    // Its help does not need that program.
    let (status, text) = run(&["bridge", "--help"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("--peer <ADDRESS>"), "{text}");
}

#[test]
fn arguments_after_bridge_are_passed_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("a key");
    let mut command = std::process::Command::new(built("efa-emu"));
    command.args(["bridge", "key", "--days", "1"]).arg(&key);
    let (status, text) = outcome(&command.output().unwrap());
    assert_eq!(status, Some(0), "{text}");
    let text = fs::read_to_string(&key).unwrap();
    assert!(text.contains("-----BEGIN CERTIFICATE-----"), "{text}");
}
