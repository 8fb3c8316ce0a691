//! The ABI of libibverbs and libefa over the emulated EFA device.
//!
//! The package builds a shared library with the SONAME `libibverbs.so.1` and all its symbol
//! versions (`exports`); `efa-emu-efadv` builds the library with the SONAME `libefa.so.1`, which
//! calls this one. `efa-emu run` preloads both.
//!
//! | module | contents | uses |
//! |---|---|---|
//! | `abi`, a separate package | layouts and constants of the C headers | |
//! | `ffi` | error numbers, structures of other versions, signals that interrupt a call | |
//! | `objects` | contexts, domains, regions, queues: safe code over the device | `abi`, `ffi` |
//! | `registry` | every object to which a program has a pointer | `objects` |
//! | `calls` | the C functions by family: check, convert, look up, call | all of these |
//! | `exports` | the name and version of each exported function | `calls` |
//!
//! Each uses only those before it. A panic ends the process: verbs are called from C.
//!
//! [`efa_device_model::device`] models the hardware and the kernel driver,
//! [`efa_device_model::provider`] models rdma-core's user-space driver, and [`efa_shm`] transports
//! requests to other processes.

#[cfg(test)]
mod abi_layout;
mod calls;
mod exports;
mod ffi;
mod objects;
mod registry;

use efa_verbs_abi as abi;
