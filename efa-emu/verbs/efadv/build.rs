//! Gives the shared library its SONAME, its symbol versions, and the dependency on the library that
//! has the implementation. Why lld: see the build script of `efa-emu-verbs`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// SONAME of the library that `efa-emu-verbs` builds.
const IMPLEMENTATION: &str = "libibverbs.so.1";

fn main() {
    let script = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("libefa.map");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", script.display());
    let lld = bundled_lld();
    let stand_in = link_stand_in(&lld);
    for argument in [
        format!("-B{}", lld.display()),
        "-fuse-ld=lld".to_owned(),
        "-Wl,-soname,libefa.so.1".to_owned(),
        format!("-Wl,--version-script={}", script.display()),
        "-Wl,--no-as-needed".to_owned(),
        stand_in.display().to_string(),
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}

/// Makes an empty library of the implementation's name to link against. Cargo does not build one
/// shared library before another, and the linker needs no more than the name.
fn link_stand_in(lld: &Path) -> PathBuf {
    let path = PathBuf::from(variable("OUT_DIR")).join("stand-in.so");
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let status = Command::new(&compiler)
        .arg(format!("-B{}", lld.display()))
        .args(["-fuse-ld=lld", "-shared", "-nostdlib"])
        .args(["-x", "c", "/dev/null"])
        .arg(format!("-Wl,-soname,{IMPLEMENTATION}"))
        .arg("-o")
        .arg(&path)
        .status()
        .unwrap_or_else(|error| panic!("cannot run the C compiler {compiler}: {error}"));
    assert!(
        status.success(),
        "{compiler} could not link an empty library: {status}"
    );
    path
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
