//! The packages for crates.io can be packaged, have descriptions, and bring no unnecessary
//! dependencies. The libraries that programs load are not published (the two in place of rdma-core,
//! the tap, the libfabric provider), because `cargo` installs no such libraries.

use std::process::Command;

use efa_testing::workspace::root;
use serde_json::Value;

/// The packages that are published, in the order of their names.
const PUBLISHED: [&str; 24] = [
    "efa-capture",
    "efa-check",
    "efa-cluster",
    "efa-commands",
    "efa-conformance",
    "efa-core",
    "efa-device-model",
    "efa-doctor",
    "efa-emu",
    "efa-emu-bridge",
    "efa-emu-pci",
    "efa-hw",
    "efa-interop",
    "efa-libfabric-sys",
    "efa-lock-free",
    "efa-log",
    "efa-options",
    "efa-play",
    "efa-replay",
    "efa-shm",
    "efa-sim",
    "efa-suite",
    "efa-verbs-sys",
    "efa-wire",
];

/// The output of a program in the directory of the workspace.
fn output(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    let output = command.args(arguments).current_dir(root()).output();
    let output = output.expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("it prints text")
}

/// `cargo` of the toolchain that builds the tests.
fn cargo(arguments: &str, more: &[&str]) -> String {
    let arguments: Vec<&str> = arguments.split(' ').chain(more.iter().copied()).collect();
    output(env!("CARGO"), &arguments)
}

/// The packages of the workspace.
fn packages() -> Vec<Value> {
    let metadata = cargo("metadata --no-deps --offline --format-version 1", &[]);
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap()
}

/// Users of a library do not build a command-line parser with it.
#[test]
fn libraries_need_no_parser_of_command_lines() {
    let has_parser = |package: &str| {
        let tree = "tree --offline --edges normal --prefix none --package";
        let needed = cargo(tree, &[package]);
        needed.lines().any(|line| line.starts_with("clap"))
    };
    // The search works: it finds the parser here.
    assert!(has_parser("efa-options"));
    let mut count = 0;
    for package in packages() {
        let targets = package["targets"].as_array().unwrap();
        let has = |kind: &str| targets.iter().any(|target| target["kind"][0] == kind);
        let is_library = (has("lib") || has("cdylib")) && !has("bin");
        if is_library && name(&package) != "efa-options" {
            assert!(!has_parser(name(&package)), "{}", name(&package));
            count += 1;
        }
    }
    assert!(count >= 5, "{count}");
}

#[test]
fn every_package_that_is_published_can_be() {
    let mut published = packages();
    published.retain(|package| package["publish"].is_null());
    published.sort_by_key(|package| name(package).to_owned());
    assert_eq!(published.iter().map(name).collect::<Vec<_>>(), PUBLISHED);
    for package in &published {
        for key in ["description", "license", "readme", "rust_version"] {
            assert!(package[key].is_string(), "{}: {key}", name(package));
        }
        for key in ["keywords", "categories"] {
            let count = package[key].as_array().unwrap().len();
            assert!((1..=5).contains(&count), "{}: {key}", name(package));
        }
    }
    let target = tempfile::tempdir().unwrap();
    let target = target.path().to_str().unwrap();
    // Building them takes minutes; `scripts/dist-test crates` does that.
    let mut options = vec!["--target-dir", target];
    options.extend(PUBLISHED.iter().flat_map(|name| ["--package", name]));
    cargo(
        "package --offline --no-verify --allow-dirty --quiet",
        &options,
    );
    for package in &published {
        let packed = format!("{}-{}", name(package), package["version"].as_str().unwrap());
        let archive = format!("{target}/package/{packed}.crate");
        let files = output("tar", &["-tzf", &archive]);
        for file in ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "Cargo.toml"] {
            let path = format!("{packed}/{file}");
            assert!(files.lines().any(|line| line == path), "{path}");
        }
        // Their tests need the rest of the workspace, and their examples are built without it.
        assert!(!files.contains(&format!("{packed}/tests/")), "{packed}");
        if files.contains("/examples/") {
            let arguments = ["-xzOf", &archive, "--wildcards", "*/examples/*"];
            assert!(
                !output("tar", &arguments).contains("efa_testing"),
                "{packed}"
            );
        }
    }
}
