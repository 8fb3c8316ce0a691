//! Replaces the module of this name in `efa-shm`: the same files, with loom's memory.

pub mod counter;
#[path = "../../efa-emu/shm/src/process/mutex.rs"]
pub(crate) mod mutex;
#[path = "../../efa-emu/shm/src/process/opening.rs"]
pub(crate) mod opening;
pub(crate) mod shared;
