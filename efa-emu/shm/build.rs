//! Tells the programs their build: the commit of a package, or else the clone. With the feature
//! `commit`, the commit of the clone, too.
//!
//! A package has no clone. Another build in a clone has no commit: it would have to be rebuilt
//! after every commit to have the right one.

use std::env;
use std::path::Path;
use std::process::Command;

/// The commit, which the script that makes packages sets.
const COMMIT: &str = "EFA_RDM_COMMIT";

/// The file that cargo adds to the manifest of a crate that it packs; it contains the commit.
const PACKED: &str = ".cargo_vcs_info.json";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={COMMIT}");
    let own = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for build scripts");
    let packed = Path::new(&own).join(PACKED);
    let commit = env::var(COMMIT).ok().or_else(|| {
        let text = std::fs::read_to_string(&packed).ok()?;
        let (_, after) = text.split_once("\"sha1\"")?;
        after.split('"').nth(1).map(str::to_owned)
    });
    // The package is two directories below the clone.
    let clone = Path::new(&own).ancestors().nth(2);
    let clone = clone.unwrap_or(Path::new("/"));
    let commit = commit.or_else(|| {
        println!("cargo::rustc-env=EFA_RDM_CLONE={}", clone.display());
        env::var_os("CARGO_FEATURE_COMMIT")?;
        commit_of(clone)
    });
    if let Some(commit) = &commit {
        println!("cargo::rustc-env={COMMIT}={commit}");
    }
}

/// The commit of a clone, in the form that `scripts/dist` uses for packages. `None` if it is not
/// known: without git, or in a directory of another project, such as an archive of the sources that
/// was unpacked there.
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
