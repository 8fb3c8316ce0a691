//! The constructor of the library, which runs before `main`. It does as little as possible, because
//! shells and launchers load the library too.

use efa_shm::usage;

/// Called by the dynamic linker.
#[used]
#[unsafe(link_section = ".init_array")]
static INITIALISER: extern "C" fn() = begin;

extern "C" fn begin() {
    usage::begin();
}
