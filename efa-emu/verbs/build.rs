//! Gives the shared library its SONAME and its symbol versions.

fn main() {
    efa_verbs_link::shared_library("libibverbs.so.1", "libibverbs.map");
}
