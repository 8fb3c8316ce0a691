//! Links a shared library with a SONAME and symbol versions, for both build scripts.
//!
//! rustc writes a version script of its own for every cdylib, with one anonymous node that hides
//! unexported symbols. GNU ld refuses named nodes besides it. lld accepts them, and rustc includes
//! lld, so lld links these libraries on every machine.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Links the package's cdylib with the bundled lld, this SONAME and the version nodes in this file
/// of the package.
///
/// # Panics
/// Outside of a build script.
pub fn shared_library(soname: &str, version_script: &str) {
    let script = Path::new(&variable("CARGO_MANIFEST_DIR")).join(version_script);
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", script.display());
    for argument in use_lld() {
        link_argument(&argument);
    }
    link_argument(&format!("-Wl,-soname,{soname}"));
    link_argument(&format!("-Wl,--version-script={}", script.display()));
}

/// Passes an argument to the linker of the package's cdylib.
pub fn link_argument(argument: &str) {
    println!("cargo::rustc-cdylib-link-arg={argument}");
}

/// A variable that cargo sets.
///
/// # Panics
/// If it is not set.
pub fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("cargo sets {name} for build scripts: {error}"))
}

/// The C compiler's arguments for linking with the lld that the Rust toolchain keeps under the name
/// that a C compiler calls.
///
/// # Panics
/// If rustc cannot say where it is.
pub fn use_lld() -> [String; 2] {
    let output = Command::new(variable("RUSTC"))
        .args(["--print", "sysroot"])
        .output()
        .expect("cargo names a rustc that runs");
    let sysroot = String::from_utf8(output.stdout).expect("the path of the toolchain is text");
    let directory = PathBuf::from(sysroot.trim())
        .join("lib/rustlib")
        .join(variable("HOST"))
        .join("bin/gcc-ld");
    [
        format!("-B{}", directory.display()),
        "-fuse-ld=lld".to_owned(),
    ]
}
