//! Tells the programs which build they are: the commit of a package, or else the clone. With the feature `bundled`,
//! builds the pair of emulated libraries, which the executable then carries, and tells the commit of the clone, too.
//!
//! A package has no clone, and another build in a clone has no commit: it would have to be built again after every
//! commit to tell the right one.

use std::env;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The commit, which the script that makes packages sets.
const COMMIT: &str = "EFA_RDM_COMMIT";

/// What cargo puts beside the manifest of a crate that it packs; the commit is in it.
const PACKED: &str = ".cargo_vcs_info.json";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={COMMIT}");
    let own = variable("CARGO_MANIFEST_DIR");
    let packed = Path::new(&own).join(PACKED);
    let commit = env::var(COMMIT).ok().or_else(|| {
        let text = std::fs::read_to_string(&packed).ok()?;
        let (_, after) = text.split_once("\"sha1\"")?;
        after.split('"').nth(1).map(str::to_owned)
    });
    let clone = Path::new(&own).parent().unwrap_or(Path::new("/"));
    let is_bundle = env::var_os("CARGO_FEATURE_BUNDLED").is_some();
    let commit = match commit {
        Some(commit) => Some(commit),
        None => {
            println!("cargo::rustc-env=EFA_RDM_CLONE={}", clone.display());
            is_bundle.then(|| commit_of(clone)).flatten()
        }
    };
    if let Some(commit) = &commit {
        println!("cargo::rustc-env={COMMIT}={commit}");
    }
    if is_bundle {
        bundle(clone, commit.as_deref());
    }
}

/// The commit of a clone, as `scripts/dist` names those of packages. `None` if it is not known: without git, or in a
/// directory that is none of its own, such as an archive of the sources that was unpacked in another project.
fn commit_of(clone: &Path) -> Option<String> {
    let top = git(clone, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != clone.canonicalize().ok()? {
        return None;
    }
    // A line is added to it with each commit, and with each other that is checked out.
    let log = clone.join(git(clone, &["rev-parse", "--git-path", "logs/HEAD"])?);
    if log.exists() {
        println!("cargo::rerun-if-changed={}", log.display());
    }
    git(clone, &["describe", "--always", "--dirty", "--abbrev=12"])
}

/// The line that git prints, if it succeeds.
fn git(clone: &Path, arguments: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    let output = git.arg("-C").arg(clone).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("cargo sets {name} for build scripts: {error}"))
}

/// Builds the libraries by a cargo of its own: cargo builds no shared library of another package for an executable.
/// They cannot be part of this package, whose executable must not export their symbols. They tell the same commit.
///
/// # Panics
/// If this package is not in a clone: the libraries' packages are not published, since cargo installs no such libraries.
fn bundle(clone: &Path, commit: Option<&str>) {
    assert!(
        clone.join("efa-emu/verbs/Cargo.toml").exists(),
        "the feature `bundled` builds libraries from a clone of the repository, and {} is none: \
         run `cargo install --path efa-emu --features bundled` in a clone",
        clone.display()
    );
    for directory in ["efa-core/src", "efa-emu/src", "efa-emu/verbs"] {
        let directory = clone.join(directory);
        println!("cargo::rerun-if-changed={}", directory.display());
    }
    let target = PathBuf::from(variable("OUT_DIR")).join("bundle");
    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .args(["build", "--release", "--locked", "--quiet"])
        .args(["--package", "efa-emu-verbs", "--package", "efa-emu-efadv"])
        .arg("--manifest-path")
        .arg(clone.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .arg("--target")
        .arg(variable("TARGET"));
    if let Some(commit) = commit {
        cargo.env(COMMIT, commit);
    }
    // What the outer cargo says about this package is not for that one.
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
