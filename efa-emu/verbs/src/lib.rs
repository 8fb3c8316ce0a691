//! The ABI of libibverbs and libefa over the emulated EFA device.
//!
//! The package builds a shared library with the SONAME `libibverbs.so.1` and all its symbol versions
//! ([`exports`]); `efa-emu-efadv` builds the one with the SONAME `libefa.so.1`, a front for this one.
//! `efa-emu run` preloads both.
//!
//! Every function here is a thin shell: it checks and converts what a program passes, and calls safe
//! code. What the hardware and the kernel driver would do is in [`efa_device_model::device`], what rdma-core's
//! user-space driver would do in [`efa_device_model::provider`], and how requests reach other processes in
//! [`efa_shm`]. The contract of each function is that of the verb in rdma-core's manual
//! pages; what a `# Safety` section adds is what this library relies on.

mod abi;
#[cfg(test)]
mod abi_layout;
mod address_handle;
mod async_event;
mod buffer;
mod builder;
mod channel;
mod comp_counter;
mod comp_queue;
mod context;
mod device;
mod device_node;
mod domain;
mod efadv;
mod errno;
mod event_pipe;
mod event_queue;
mod exports;
mod handles;
mod hardware;
mod interrupted;
mod loading;
mod mapping;
mod memory_region;
mod poll;
mod post;
mod qp_plan;
mod query;
mod queue_pair;
mod queues;
mod residue;
mod spin;
mod strings;
mod sysfs_files;
mod unsupported;
mod vanished;

// `spin` names it so, that the models can give it loom's types.
use efa_shm::sync;
