//! What the packages say about the crates that are linked into their programs and libraries: `scripts/dist licences`,
//! beside what is in the built files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use efa_testing::workspace::{built, outcome, root};
use serde_json::Value;

/// The programs and libraries that are installed, as cargo names their targets.
const PROGRAMS: [&str; 4] = ["efa-emu", "efa-emu-bridge", "efa-conformance", "efa-tap"];
const LIBRARIES: [&str; 4] = ["efa_emu_verbs", "efa_emu_efadv", "efa_tap", "efa_rs_fi"];

/// What `scripts/licences.py` prints: the texts of each crate, which is called by name and version.
struct Document {
    crates: BTreeMap<String, Vec<String>>,
    /// About Rust's standard library.
    standard_library: String,
}

/// The words of a text, however its lines are broken.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn parsed(document: &str) -> Document {
    let rule = format!("\n{}\n", "-".repeat(80));
    let mut parts = document.split(rule.as_str());
    let list = parts.next().unwrap();
    let mut texts = BTreeMap::new();
    while let Some(number) = parts.next() {
        let text = words(parts.next().unwrap());
        assert!(!texts.values().any(|known| *known == text), "twice: {text}");
        texts.insert(number.to_owned(), text);
    }
    // The first one says what this is.
    let mut entries = list.split("\n\n").skip(1).peekable();
    let mut crates = BTreeMap::new();
    let mut last = "";
    while let Some(entry) = entries.next() {
        if entries.peek().is_none() {
            last = entry;
            break;
        }
        let (name, lines) = entry.trim_start().split_once('\n').unwrap();
        let numbers = lines.lines().filter(|line| line.ends_with(']'));
        let own = numbers.map(|line| texts[&line[line.rfind('[').unwrap()..]].clone());
        assert_eq!(crates.insert(name.to_owned(), own.collect()), None);
    }
    Document {
        crates,
        standard_library: last.to_owned(),
    }
}

/// Runs a script that asks cargo, in a directory, without a network.
fn run(program: &Path, arguments: &[&str], directory: &Path) -> (Option<i32>, String) {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory);
    command.env("CARGO_NET_OFFLINE", "true");
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.env_remove("EFA_DIST_MACHINE");
    outcome(&command.output().unwrap())
}

fn document() -> Document {
    let (status, text) = run(&root().join("scripts/dist"), &["licences"], root());
    assert_eq!(status, Some(0), "{text}");
    parsed(&text)
}

fn called(package: &Value) -> String {
    let part = |key: &str| package[key].as_str().unwrap();
    format!("{} {}", part("name"), part("version"))
}

/// All packages of `Cargo.lock`.
fn packages() -> Vec<Value> {
    let cargo = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--locked", "--format-version=1"])
        .arg(format!("--filter-platform={}", triple()))
        .current_dir(root())
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&cargo.stdout).expect("cargo prints JSON");
    metadata["packages"].as_array().unwrap().clone()
}

fn triple() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

fn is_procedural_macro(package: &Value) -> bool {
    package["targets"][0]["kind"][0] == "proc-macro"
}

/// The crates of which something is in the installed files, by the names of their sources there.
fn found_in_files() -> BTreeSet<String> {
    let libraries = LIBRARIES.map(|name| built(&format!("lib{name}.so")));
    let files: Vec<PathBuf> = PROGRAMS.map(built).into_iter().chain(libraries).collect();
    let output = Command::new("grep")
        .args(["--text", "--only-matching", "--no-filename"])
        .arg("registry/src/[^/]*/[0-9A-Za-z._+-]*/")
        .args(&files)
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let directories = text.lines().filter_map(|line| line.split('/').nth(3));
    directories.map(str::to_owned).collect()
}

#[test]
fn every_linked_crate_is_named() {
    let named = document().crates;
    let packages = packages();
    let directories: BTreeSet<String> = named.keys().map(|name| name.replace(' ', "-")).collect();
    let found = found_in_files();
    assert!(found.len() > 50, "{found:?}");
    let missing: Vec<&String> = found.difference(&directories).collect();
    assert!(missing.is_empty(), "{missing:?}");
    // One that has no code of its own in a file is linked, too.
    for package in &packages {
        let is_installed = package["targets"].as_array().unwrap().iter().any(|target| {
            let name = target["name"].as_str().unwrap();
            PROGRAMS.contains(&name) || LIBRARIES.contains(&name)
        });
        if !is_installed {
            continue;
        }
        for wanted in package["dependencies"].as_array().unwrap() {
            let name = wanted["name"].as_str().unwrap();
            let is_named = named.keys().any(|its| its.split(' ').next() == Some(name));
            let is_linked = wanted["kind"].is_null()
                && wanted["optional"] == false
                && wanted["path"].is_null()
                && !packages
                    .iter()
                    .any(|package| package["name"] == name && is_procedural_macro(package));
            assert!(!is_linked || is_named, "{name}");
        }
    }
}

#[test]
fn nothing_else_is_named() {
    let named = document().crates;
    let packages = packages();
    for package in &packages {
        let is_ours = package["source"].is_null();
        if is_ours || is_procedural_macro(package) {
            assert!(!named.contains_key(&called(package)), "{}", package["name"]);
        }
    }
    // They build bindings, and test.
    for tool in ["bindgen ", "cmake ", "proptest ", "criterion "] {
        let has_it = packages.iter().any(|its| called(its).starts_with(tool));
        assert!(has_it, "{tool}is not used anywhere");
        assert!(!named.keys().any(|name| name.starts_with(tool)), "{tool}");
    }
}

/// The files of a crate's own directory that say who wrote it and what is permitted.
fn notices(package: &Value) -> Vec<PathBuf> {
    let manifest = Path::new(package["manifest_path"].as_str().unwrap());
    let entries = fs::read_dir(manifest.parent().unwrap()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_notice = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().to_lowercase();
        let begins = ["license", "licence", "unlicense", "copying", "copyright"];
        path.is_file() && begins.iter().any(|begin| name.starts_with(begin))
    };
    paths.filter(is_notice).collect()
}

#[test]
fn every_crate_has_its_texts() {
    let document = document();
    let mut without = Vec::new();
    for package in packages() {
        let name = called(&package);
        let Some(texts) = document.crates.get(&name) else {
            continue;
        };
        let notices = notices(&package);
        for notice in &notices {
            let text = words(&fs::read_to_string(notice).unwrap());
            assert!(texts.contains(&text), "{name}: {}", notice.display());
        }
        if notices.is_empty() {
            let granted = |text: &String| text.starts_with("Permission is hereby granted");
            assert!(texts.iter().any(granted), "{name}: {texts:?}");
            without.push(package["name"].clone());
        }
    }
    // Each of these was looked at: their manifests permit what MIT does.
    let known = ["byteorder_slice", "ibverbs-sys"];
    assert_eq!(without, known, "crates without a licence of their own");
    // What crates have from others is below their own directory.
    let is_ring = |(name, _): &(&String, _)| name.starts_with("ring ");
    let (_, of_ring) = document.crates.iter().find(is_ring).unwrap();
    let has = |words: &str| of_ring.iter().any(|text| text.contains(words));
    assert!(has("the fiat-crypto authors") && has("BoringSSL"));
    let library = document.standard_library;
    assert!(library.contains("Rust's standard library, of rustc 1."));
    assert!(library.contains("MIT OR Apache-2.0"), "{library}");
}

/// A program `own` with a dependency `other`, whose manifest says so much about its licence.
fn workspace(licence: &str, file: Option<&str>) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("other/src/lib.rs", "");
    write(
        "other/Cargo.toml",
        &format!(
            "[package]\nname = \"other\"\nversion = \"1.2.3\"\nauthors = [\"A. Uthor\"]\n{licence}\n"
        ),
    );
    if let Some(text) = file {
        write("other/legal/COPYING", text);
        write("other/LICENSE", text);
    }
    write("own/src/main.rs", "fn main() {}\n");
    write(
        "own/Cargo.toml",
        "[package]\nname = \"own\"\nversion = \"0.1.0\"\n[dependencies]\nother = { path = \"../other\" }\n[workspace]\n",
    );
    let own = directory.path().join("own");
    let (status, text) = run(Path::new(env!("CARGO")), &["generate-lockfile"], &own);
    assert_eq!(status, Some(0), "{text}");
    directory
}

fn licences_of(workspace: &tempfile::TempDir) -> (Option<i32>, String) {
    let script = root().join("scripts/licences.py");
    let arguments = [script.to_str().unwrap(), &triple(), "own"];
    run(
        Path::new("python3"),
        &arguments,
        &workspace.path().join("own"),
    )
}

#[test]
fn a_crate_whose_licence_is_not_known_is_refused() {
    for licence in ["license = \"Zlib\"", "license = \"MIT AND Zlib\"", ""] {
        let (status, text) = licences_of(&workspace(licence, None));
        assert_eq!(status, Some(1), "{licence}: {text}");
        assert!(text.contains("other 1.2.3"), "{text}");
        assert!(text.contains("STANDARD in scripts/licences.py"), "{text}");
    }
}

#[test]
fn a_crate_without_a_text_gets_that_of_its_licence() {
    let (status, text) = licences_of(&workspace("license = \"Zlib OR MIT\"", None));
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("authors: A. Uthor"), "{text}");
    let [granted] = parsed(&text).crates["other 1.2.3"]
        .clone()
        .try_into()
        .unwrap();
    assert!(granted.starts_with("Permission is hereby granted"));
}

#[test]
fn a_crate_with_a_text_gets_no_other() {
    let own = "Do what you like.\n";
    for licence in [
        "license = \"MIT\"",
        "license = \"Own\"",
        "license-file = \"LICENSE\"",
    ] {
        let (status, text) = licences_of(&workspace(licence, Some(own)));
        assert_eq!(status, Some(0), "{text}");
        let texts = &parsed(&text).crates["other 1.2.3"];
        assert_eq!(texts, &["Do what you like."; 2], "{text}");
    }
}
