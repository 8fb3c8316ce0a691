//! Generates the bindings of libfabric's C interface from the headers that are installed (Debian
//! package `libfabric-dev`).

use std::path::PathBuf;

use bindgen::callbacks::{IntKind, ParseCallbacks};

/// The headers whose declarations applications and providers need.
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
    let bindings = bindgen::Builder::default()
        .header_contents("libfabric.h", HEADERS)
        .allowlist_type("fi_.*|fid.*|iovec")
        .allowlist_var("FI_.*")
        .ignore_functions()
        .derive_default(true)
        .prepend_enum_name(false)
        .generate_comments(false)
        .parse_callbacks(Box::new(WideFlags))
        .generate();
    let bindings = match bindings {
        Ok(bindings) => bindings,
        Err(error) => panic!(
            "libfabric's headers cannot be read: install the Debian package libfabric-dev, or run \
             scripts/setup ({error})"
        ),
    };
    let file = directory.join("bindings.rs");
    bindings
        .write_to_file(&file)
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}
