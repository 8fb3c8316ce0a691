//! The licences in packages: `scripts/dist licences` is compared with the crates in the built
//! files. `deny.toml` lists the permitted licences.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use efa_testing::workspace::{built, outcome, root};

/// The programs and libraries that are installed, as cargo names their targets.
const INSTALLED: [&str; 8] = [
    "efa-emu",
    "efa-emu-bridge",
    "efa-conformance",
    "efa-tap",
    "libefa_emu_verbs.so",
    "libefa_emu_efadv.so",
    "libefa_tap.so",
    "libefa_rs_fi.so",
];

/// Runs a script that asks cargo, in a directory, without a network.
fn run(program: &Path, arguments: &[&str], directory: &Path) -> (Option<i32>, String) {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory);
    command.env("CARGO_NET_OFFLINE", "true");
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.env_remove("EFA_DIST_MACHINE");
    outcome(&command.output().unwrap())
}

#[test]
fn every_linked_crate_is_named() {
    let (status, document) = run(&root().join("scripts/dist"), &["licences"], root());
    assert_eq!(status, Some(0), "{document}");
    // The names of sources that panics have: `registry/src/INDEX/NAME-VERSION/`.
    let output = Command::new("grep")
        .args(["--text", "--only-matching", "--no-filename"])
        .arg("registry/src/[^/]*/[0-9A-Za-z._+-]*/")
        .args(INSTALLED.map(built))
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let mut found: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split('/').nth(3))
        .collect();
    found.sort_unstable();
    found.dedup();
    assert!(found.len() > 50, "{found:?}");
    let named: Vec<String> = document
        .lines()
        .map(|line| line.replacen(' ', "-", 1))
        .collect();
    found.retain(|directory| !named.iter().any(|name| name == directory));
    // In a build of the whole workspace, loom enables features of the log that packages do not use.
    found.retain(|name| !name.starts_with("nu-ansi-term-") && !name.starts_with("tracing-log-"));
    assert!(found.is_empty(), "{found:?}");
    // Tools that build bindings, and tests.
    for tool in ["bindgen ", "proptest ", "criterion "] {
        assert!(
            !document.lines().any(|line| line.starts_with(tool)),
            "{tool}"
        );
    }
    for text in [
        "Permission is hereby granted",
        "Rust's standard library, of rustc 1.",
        // Code that crates took from others is below their own directory.
        "the fiat-crypto authors",
        "BoringSSL",
    ] {
        assert!(document.contains(text), "{text}");
    }
}

/// The output for a program with a dependency whose manifest has this licence.
fn licences(licence: &str, file: Option<&str>) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let other = "[package]\nname = \"other\"\nversion = \"1.2.3\"\nauthors = [\"A. Uthor\"]\n";
    write("other/Cargo.toml", &format!("{other}{licence}\n"));
    write("other/src/lib.rs", "");
    if let Some(text) = file {
        write("other/LICENSE", text);
        write("other/legal/COPYING", text);
    }
    let own = "[package]\nname = \"own\"\nversion = \"0.1.0\"\n[workspace]\n[dependencies]\n";
    write(
        "own/Cargo.toml",
        &format!("{own}other = {{ path = \"../other\" }}\n"),
    );
    write("own/src/main.rs", "fn main() {}\n");
    let own: PathBuf = directory.path().join("own");
    let (status, text) = run(Path::new(env!("CARGO")), &["generate-lockfile"], &own);
    assert_eq!(status, Some(0), "{text}");
    let script = root().join("scripts/licences.py");
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    run(
        Path::new("python3"),
        &[script.to_str().unwrap(), &triple, "own"],
        &own,
    )
}

#[test]
fn a_crate_without_a_known_text_is_refused() {
    for licence in ["license = \"Zlib\"", "license = \"MIT AND Zlib\"", ""] {
        let (status, text) = licences(licence, None);
        assert_eq!(status, Some(1), "{licence}: {text}");
        assert!(text.contains("other 1.2.3"), "{text}");
    }
    let (status, text) = licences("license = \"Zlib OR MIT\"", None);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("authors: A. Uthor"), "{text}");
    assert!(text.contains("Permission is hereby granted"), "{text}");
}

#[test]
fn a_crate_with_a_text_gets_no_other() {
    let (status, text) = licences("license = \"MIT\"", Some("Do what you like.\n"));
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("Do what you like."), "{text}");
    assert!(
        text.contains("\n  LICENSE [1]\n  legal/COPYING [1]\n\n"),
        "{text}"
    );
}
