//! Gives the shared library its SONAME, its symbol versions, and the dependency on the library that
//! has the implementation.

use std::path::PathBuf;
use std::process::Command;

use efa_verbs_link as link;

/// SONAME of the library that `efa-emu-verbs` builds.
const IMPLEMENTATION: &str = "libibverbs.so.1";

fn main() {
    link::shared_library("libefa.so.1", "libefa.map");
    link::link_argument("-Wl,--no-as-needed");
    link::link_argument(&link_stand_in().display().to_string());
}

/// Makes an empty library of the implementation's name to link against. Cargo does not build one
/// shared library before another, and the linker needs no more than the name.
fn link_stand_in() -> PathBuf {
    let path = PathBuf::from(link::variable("OUT_DIR")).join("stand-in.so");
    // Cargo names the compiler that links for the target, if it is another machine's.
    let named = ["RUSTC_LINKER", "CC"].map(std::env::var);
    let compiler = named
        .into_iter()
        .find_map(Result::ok)
        .unwrap_or_else(|| "cc".to_owned());
    let status = Command::new(&compiler)
        .args(link::use_lld())
        .args(["-shared", "-nostdlib", "-x", "c", "/dev/null"])
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
