//! What is meant for crates.io can be packaged, says what it is, and brings its users no more than they need. The
//! libraries that programs load are not (the two in place of rdma-core, the tap, the provider of libfabric): `cargo`
//! installs no such libraries.

use std::process::Command;

use efa_testing::workspace::root;
use serde_json::Value;

/// The packages that are published, in the order of their names.
const PUBLISHED: [&str; 11] = [
    "efa-check",
    "efa-conformance",
    "efa-core",
    "efa-doctor",
    "efa-emu",
    "efa-emu-bridge",
    "efa-hw",
    "efa-interop",
    "efa-play",
    "efa-replay",
    "efa-suite",
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

/// The packages of the workspace.
fn packages() -> Vec<Value> {
    let metadata = cargo(&[
        "metadata",
        "--no-deps",
        "--offline",
        "--format-version",
        "1",
    ]);
    let mut metadata: Value = serde_json::from_str(&metadata).unwrap();
    match metadata["packages"].take() {
        Value::Array(packages) => packages,
        other => panic!("{other} is no list of packages"),
    }
}

/// Whoever uses a library does not build a parser of command lines with it.
#[test]
fn libraries_need_no_parser_of_command_lines() {
    let needed = |package: &str, options: &[&str]| -> Vec<String> {
        let mut tree = vec!["tree", "--offline", "--edges", "normal", "--prefix", "none"];
        tree.extend(["--package", package]);
        tree.extend(options);
        let names = cargo(&tree);
        let names = names.lines().filter_map(|line| line.split(' ').next());
        names.map(str::to_owned).collect()
    };
    let parser = |names: Vec<String>| names.into_iter().find(|name| name.starts_with("clap"));
    // What is looked for would be found.
    assert!(parser(needed("efa-emu", &[])).is_some());
    assert_eq!(parser(needed("efa-emu", &["--no-default-features"])), None);
    let mut libraries = Vec::new();
    for package in packages() {
        let targets = package["targets"].as_array().unwrap();
        let has = |kinds: &[&str]| {
            let of = |target: &Value| {
                target["kind"][0]
                    .as_str()
                    .is_some_and(|kind| kinds.contains(&kind))
            };
            targets.iter().any(of)
        };
        if has(&["lib", "cdylib"]) && !has(&["bin"]) {
            let name = package["name"].as_str().unwrap().to_owned();
            assert_eq!(parser(needed(&name, &[])), None, "{name}");
            libraries.push(name);
        }
    }
    for name in [
        "efa-check",
        "efa-core",
        "efa-emu-verbs",
        "efa-hw",
        "efa-interop",
    ] {
        assert!(libraries.iter().any(|library| library == name), "{name}");
    }
}

#[test]
fn every_package_that_is_published_can_be() {
    let packages = packages();
    let published: Vec<&Value> = packages
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
        let packed = format!("{target}/package/{name}.crate");
        let files = Command::new("tar")
            .args(["-tzf", &packed])
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
        // Their examples are built without it.
        let examples = Command::new("tar")
            .args(["-xzOf", &packed, "--wildcards", "*/examples/*.rs"])
            .output()
            .expect("tar starts");
        let examples = String::from_utf8_lossy(&examples.stdout);
        assert!(!examples.contains("efa_testing"), "{name}");
    }
}
