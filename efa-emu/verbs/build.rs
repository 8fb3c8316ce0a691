//! Gives the shared library its SONAME and its symbol versions.

#[path = "build/link.rs"]
mod link;

fn main() {
    println!("cargo::rerun-if-changed=build/link.rs");
    link::shared_library("libibverbs.so.1", "libibverbs.map");
}
