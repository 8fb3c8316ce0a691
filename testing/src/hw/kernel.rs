//! Properties of the kernel's devices and memory that the emulated device lacks; see `kernel.c`.

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

/// The library of `kernel.c`, to be preloaded before the emulated libibverbs. It has the same
/// SONAME and depends on it by path, so `dlopen` of `libibverbs.so.1` finds the functions of both,
/// in this order.
pub fn library() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let emulated = directory.path().join("emulated.so");
    let library = directory.path().join("libkernel.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/hw/kernel.c");
    // The linker stores the SONAME of the libraries it links. A library without a SONAME is stored
    // with its path.
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
