//! The protocol engine as a provider that stock libfabric loads: `libefa_rs-fi.so`, provider `efa_rs`.
//!
//! A libfabric that finds the file in a directory of `FI_PROVIDER_PATH` calls [`fi_prov_ini`](entry::fi_prov_ini). All else
//! goes through tables of functions in the objects that C holds. Each function is a thin shell: it checks its
//! pointers ([`border`]), takes the domain's lock, and calls the engine.

mod address_vector;
mod atomics;
mod border;
mod completion_queue;
mod counter;
mod domain;
mod endpoint;
mod entry;
mod event_queue;
mod fabric;
mod ffi;
mod fork;
mod host;
mod info;
mod lock;
mod memory_region;
mod messages;
mod nic;
mod objects;
mod one_sided;
mod options;
mod progress;
mod settings;
mod table;
mod unsupported;
mod wait;
mod zero_copy;
