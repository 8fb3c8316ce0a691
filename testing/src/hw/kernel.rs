//! What the kernel does with devices and memory, and the emulated device does not: `kernel.c` says
//! what.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::built;
use tempfile::TempDir;

/// Compiles a shared library from C.
///
/// # Panics
/// With the compiler's messages, if it fails.
pub fn compile(output: &Path, source: &Path, arguments: &[&str]) {
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-o"])
        .arg(output)
        .arg(source)
        .args(arguments)
        .output()
        .expect("cc starts: Rust links with it");
    let messages = String::from_utf8_lossy(&compiled.stderr);
    assert!(
        compiled.status.success(),
        "{}: {messages}",
        output.display()
    );
}

/// The library of `kernel.c`, to be preloaded in front of the emulated libibverbs. It has its
/// SONAME, and needs it by its path, so whoever opens `libibverbs.so.1` finds the functions of both
/// in this order.
pub fn library() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let emulated = directory.path().join("emulated.so");
    let library = directory.path().join("libkernel.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/hw/kernel.c");
    // The linker writes down the SONAME of what it links. A library without one is named by its
    // path.
    let nothing = directory.path().join("nothing.c");
    std::fs::write(&nothing, "").expect("the directory is ours");
    compile(&emulated, &nothing, &[]);
    let path = emulated.to_str().expect("the path is text");
    let soname = "-Wl,-soname,libibverbs.so.1,--no-as-needed";
    compile(&library, &source, &[soname, path, "-ldl"]);
    std::fs::remove_file(&emulated).expect("it was made above");
    std::os::unix::fs::symlink(built("libefa_emu_verbs.so"), &emulated).expect("it is gone");
    (directory, library)
}
