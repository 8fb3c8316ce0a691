//! The constructor of the library, which runs before `main`: it does next to nothing,
//! since shells and launchers load it too.

use efa_shm::usage;

/// Called by the dynamic linker.
#[used]
#[unsafe(link_section = ".init_array")]
static INITIALISER: extern "C" fn() = begin;

extern "C" fn begin() {
    usage::begin();
}
