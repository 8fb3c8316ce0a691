//! What happens when a process loads the library, before its first instruction: next to nothing,
//! since shells and launchers load it too.

use efa_shm::usage;

/// Called by the dynamic linker.
#[used]
#[unsafe(link_section = ".init_array")]
static INITIALISER: extern "C" fn() = begin;

extern "C" fn begin() {
    usage::begin();
}
