//! Gives the plug-in the name by which libfabric finds it.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let directory = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    name_as_libfabric_does(&directory);
    // libfabric unloads providers when the process ends, while threads of theirs may run.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-z,nodelete");
}

/// Makes links with the name that libfabric looks for, which no target of cargo can have, to the
/// library that is going to be built: one in the directory of the profile, and one for the tests.
/// libfabric also takes the library itself for a plug-in where it finds it, and cargo leaves an old
/// one in the directory of the profile when it builds tests only.
fn name_as_libfabric_does(out: &Path) {
    // The directory of a build script is PROFILE/build/PACKAGE-HASH/out.
    let profile = out
        .ancestors()
        .nth(3)
        .expect("cargo's layout of directories");
    // Tests build the library as their dependency, which stays in this directory.
    let library = profile.join("deps/libefa_rs_fi.so");
    let of_tests = out.join("plug-in");
    std::fs::create_dir_all(&of_tests)
        .unwrap_or_else(|error| panic!("{}: {error}", of_tests.display()));
    for directory in [profile, &of_tests] {
        let link = directory.join("libefa_rs-fi.so");
        // Not `rerun-if-changed`: the link leads to a file that is built after this, so everything
        // would be rebuilt each time.
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(&library, &link)
            .unwrap_or_else(|error| panic!("{}: {error}", link.display()));
    }
}
