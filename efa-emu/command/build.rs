//! With the feature `bundled`, builds the pair of emulated libraries that the executable includes.

use std::env;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_BUNDLED").is_some() {
        let own = variable("CARGO_MANIFEST_DIR");
        // The package is two directories below the clone.
        let clone = Path::new(&own).ancestors().nth(2);
        bundle(clone.unwrap_or(Path::new("/")));
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("cargo sets {name} for build scripts: {error}"))
}

/// Builds the libraries with a separate cargo: cargo builds no shared library of another package
/// for an executable. They cannot be part of this package, whose executable must not export their
/// symbols. They report the same commit.
///
/// # Panics
/// If this package is not in a clone: the libraries' packages are not published, because cargo
/// installs no such libraries.
fn bundle(clone: &Path) {
    assert!(
        clone.join("efa-emu/verbs/Cargo.toml").exists(),
        "the feature `bundled` builds libraries from a clone of the repository, and {} is none: \
         run `cargo install --path efa-emu/command --features bundled` in a clone",
        clone.display()
    );
    for directory in ["efa-core/src", "efa-emu"] {
        let directory = clone.join(directory);
        println!("cargo::rerun-if-changed={}", directory.display());
    }
    let target = PathBuf::from(variable("OUT_DIR")).join("bundle");
    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .args([
            "build",
            "--release",
            "--locked",
            "--quiet",
            "--features",
            "efa-shm/commit",
        ])
        .args(["--package", "efa-emu-verbs", "--package", "efa-emu-efadv"])
        .arg("--manifest-path")
        .arg(clone.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .arg("--target")
        .arg(variable("TARGET"));
    // The outer cargo's variables about this package do not apply to the inner one.
    for (name, _) in env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("CARGO_FEATURE_") || name_text.starts_with("CARGO_CFG_") {
            cargo.env_remove(&name);
        }
    }
    let status = cargo.status().expect("cargo starts");
    assert!(status.success(), "the libraries cannot be built: {status}");
    let built = target.join(variable("TARGET")).join("release");
    println!("cargo::rustc-env=EFA_EMU_BUNDLE={}", built.display());
    let mut hash = DefaultHasher::new();
    for library in ["libefa_emu_verbs.so", "libefa_emu_efadv.so"] {
        let content = std::fs::read(built.join(library)).expect("it was built");
        hash.write(&content);
    }
    println!(
        "cargo::rustc-env=EFA_EMU_BUNDLE_HASH={:016x}",
        hash.finish()
    );
}
