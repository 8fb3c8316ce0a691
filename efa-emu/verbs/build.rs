//! Gives the shared library its SONAME and its symbol versions.
//!
//! rustc writes a version script of its own for every cdylib, with one anonymous node that hides
//! what is not exported. GNU ld refuses named nodes beside it. lld takes them, and rustc comes with
//! lld, so that is what links this library wherever it is built.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let script = manifest.join("libibverbs.map");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", script.display());
    link_argument(&format!("-B{}", bundled_lld().display()));
    link_argument("-fuse-ld=lld");
    link_argument("-Wl,-soname,libibverbs.so.1");
    link_argument(&format!("-Wl,--version-script={}", script.display()));
}

fn link_argument(argument: &str) {
    println!("cargo::rustc-cdylib-link-arg={argument}");
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("cargo sets {name} for build scripts: {error}"))
}

/// The directory in which the Rust toolchain keeps lld under the name that a C compiler calls.
fn bundled_lld() -> PathBuf {
    let output = Command::new(variable("RUSTC"))
        .args(["--print", "sysroot"])
        .output()
        .expect("cargo names a rustc that runs");
    let sysroot = String::from_utf8(output.stdout).expect("the path of the toolchain is text");
    PathBuf::from(sysroot.trim())
        .join("lib/rustlib")
        .join(variable("HOST"))
        .join("bin/gcc-ld")
}
