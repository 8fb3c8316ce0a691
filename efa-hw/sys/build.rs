//! Generates the structures of libibverbs from the installed headers (Debian package
//! `libibverbs-dev`).

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let directory = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let bindings = bindgen::Builder::default()
        .header_contents("verbs.h", "#include <infiniband/verbs.h>")
        .allowlist_type("ibv_.*|verbs_context")
        .allowlist_var("IBV_.*")
        .ignore_functions()
        .bitfield_enum("ibv_access_flags|ibv_qp_attr_mask|ibv_wc_flags|ibv_send_flags")
        .constified_enum_module("ibv_qp_type|ibv_qp_state|ibv_port_state")
        .constified_enum_module("ibv_wc_opcode|ibv_wr_opcode|ibv_wc_status")
        .derive_default(true)
        .prepend_enum_name(false)
        .generate_comments(false)
        .generate();
    let bindings = match bindings {
        Ok(bindings) => bindings,
        Err(error) => panic!(
            "the headers of libibverbs cannot be read: install the Debian package libibverbs-dev, \
             or run scripts/setup ({error})"
        ),
    };
    let file = directory.join("bindings.rs");
    bindings
        .write_to_file(&file)
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}
