//! Generates the bindings of libfabric's C interface from the headers that are installed (Debian package
//! `libfabric-dev`).

use std::path::{Path, PathBuf};

use bindgen::callbacks::{IntKind, ParseCallbacks};

/// The headers whose declarations the provider needs.
const HEADERS: &str = "
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_prov.h>
#include <rdma/providers/fi_log.h>
";

/// Flags are 64 bits wide in all structures, whatever their value needs.
#[derive(Debug)]
struct WideFlags;

impl ParseCallbacks for WideFlags {
    fn int_macro(&self, _: &str, value: i64) -> Option<IntKind> {
        (value >= 0).then_some(IntKind::U64)
    }
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let directory = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    name_as_libfabric_does(&directory);
    // libfabric unloads providers when the process ends, while threads of theirs may run.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-z,nodelete");
    let bindings = bindgen::Builder::default()
        .header_contents("libfabric.h", HEADERS)
        .allowlist_type("fi_.*|fid.*|iovec")
        .allowlist_var("FI_.*")
        .ignore_functions()
        .derive_default(true)
        .prepend_enum_name(false)
        .layout_tests(false)
        .generate_comments(false)
        .parse_callbacks(Box::new(WideFlags))
        .generate();
    let bindings = match bindings {
        Ok(bindings) => bindings,
        Err(error) => panic!(
            "libfabric's headers cannot be read: install the Debian package libfabric-dev, or run scripts/setup ({error})"
        ),
    };
    let file = directory.join("bindings.rs");
    bindings
        .write_to_file(&file)
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

/// Makes links with the name that libfabric looks for, which no target of cargo can have, to the library that is going
/// to be built: one in the directory of the profile, and one for the tests. libfabric also takes the library itself for a
/// plug-in where it finds it, and cargo leaves an old one in the directory of the profile when it builds tests only.
fn name_as_libfabric_does(out: &Path) {
    // The directory of a build script is PROFILE/build/PACKAGE-HASH/out.
    let profile = out
        .ancestors()
        .nth(3)
        .expect("cargo's layout of directories");
    // Tests build the library as what they depend on, which stays in this directory.
    let library = profile.join("deps/libefa_rs_fi.so");
    let of_tests = out.join("plug-in");
    std::fs::create_dir_all(&of_tests)
        .unwrap_or_else(|error| panic!("{}: {error}", of_tests.display()));
    for directory in [profile, &of_tests] {
        let link = directory.join("libefa_rs-fi.so");
        // Not `rerun-if-changed`: behind the link is what is built after this, so everything would be built anew each time.
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(&library, &link)
            .unwrap_or_else(|error| panic!("{}: {error}", link.display()));
    }
}
