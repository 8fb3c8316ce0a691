//! What the workspace has built, and its files: for tests that start or read them.

use std::path::{Path, PathBuf};

/// A program or library that `cargo build --workspace` puts beside the test programs' directory.
///
/// # Panics
/// If it was not built; says how to. A test that is skipped then would be one that cannot fail.
pub fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("a program knows its path");
    // target/PROFILE/deps/TEST-HASH, or target/PROFILE/examples/NAME
    let mut directories = own.ancestors().skip(1).take(2);
    let found = directories.find_map(|directory| {
        let path = directory.join(name);
        path.is_file().then_some(path)
    });
    found.unwrap_or_else(|| {
        panic!(
            "{name} is not above {}: run `cargo build --workspace` first, with `--release` for \
             benchmarks",
            own.display()
        )
    })
}

/// The program `efa-emu`.
///
/// # Panics
/// As [`built`].
pub fn emulator() -> PathBuf {
    built("efa-emu")
}

/// The directory that the workspace is in.
pub fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().expect("a package is in the workspace")
}

/// The directory of the corpus.
pub fn traces() -> PathBuf {
    root().join("traces")
}
