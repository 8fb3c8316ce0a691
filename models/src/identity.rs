//! Replaces the module of this name in `efa-shm`: the same files, with loom's memory.

#[path = "../../efa-emu/shm/src/identity/device_name.rs"]
#[allow(dead_code, unreachable_pub, reason = "the models use a part")]
pub(crate) mod device_name;
pub mod numbers;
#[path = "../../efa-emu/shm/src/identity/qpn.rs"]
pub(crate) mod qpn;
