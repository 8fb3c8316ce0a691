//! What is meant for crates.io can be packaged, and says what it is. The libraries that programs load are not (the two in
//! place of rdma-core, the tap, the provider of libfabric): `cargo` installs no such libraries.

use std::process::Command;

use efa_testing::workspace::root;
use serde_json::Value;

/// The packages that are published, in the order of their names.
const PUBLISHED: [&str; 7] = [
    "efa-conformance",
    "efa-conformance-cli",
    "efa-core",
    "efa-emu",
    "efa-emu-bridge",
    "efa-hw",
    "efa-interop",
];

/// `cargo` of the toolchain that builds the tests.
fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("cargo starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("cargo prints text")
}

#[test]
fn every_package_that_is_published_can_be() {
    let metadata = cargo(&[
        "metadata",
        "--no-deps",
        "--offline",
        "--format-version",
        "1",
    ]);
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let published: Vec<&Value> = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|package| package["publish"].is_null())
        .collect();
    let mut names: Vec<&str> = published
        .iter()
        .map(|package| package["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, PUBLISHED);
    for package in &published {
        let name = &package["name"];
        for key in ["description", "license", "readme", "rust_version"] {
            assert!(package[key].is_string(), "{name}: {key}");
        }
        for key in ["keywords", "categories"] {
            let count = package[key].as_array().unwrap().len();
            assert!((1..=5).contains(&count), "{name}: {key}");
        }
    }
    let target = tempfile::tempdir().unwrap();
    let target = target.path().display().to_string();
    // Building them takes minutes, which `scripts/dist-test crates` takes.
    let mut package = vec![
        "package",
        "--offline",
        "--no-verify",
        "--allow-dirty",
        "--quiet",
    ];
    package.extend(["--target-dir", &target]);
    for entry in &published {
        package.extend(["--package", entry["name"].as_str().unwrap()]);
    }
    cargo(&package);
    for entry in &published {
        let name = format!(
            "{}-{}",
            entry["name"].as_str().unwrap(),
            entry["version"].as_str().unwrap()
        );
        let files = Command::new("tar")
            .args(["-tzf", &format!("{target}/package/{name}.crate")])
            .output()
            .expect("tar starts");
        let files = String::from_utf8_lossy(&files.stdout);
        for file in ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "Cargo.toml"] {
            let path = format!("{name}/{file}");
            assert!(files.lines().any(|line| line == path), "{path}");
        }
        // Their tests need the rest of the workspace.
        let with_tests = files
            .lines()
            .any(|line| line.starts_with(&format!("{name}/tests/")));
        assert!(!with_tests, "{name}");
    }
}
