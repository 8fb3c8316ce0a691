//! The provider through libfabric's interface, and stock programs that load it.

#[macro_use]
mod common;

mod address_vectors;
mod atomics;
mod attributes;
mod bounded;
mod collectives;
mod completion_data;
mod counters;
mod datagrams;
mod device_description;
mod endpoints;
mod first_access;
mod forks;
mod guide;
mod hints;
mod inject;
mod lifetime;
mod misuse;
mod multi_receive;
mod newest;
mod options;
mod parameters;
mod pingpong;
mod progress;
mod receives;
mod registrations;
mod sets;
mod threads;
mod unsupported;
mod waiting;
mod zero_copy;
