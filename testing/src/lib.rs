//! Helpers that the tests of several packages share. Only tests and benchmarks depend on this
//! package.

pub mod addresses;
pub mod callgrind;
pub mod choices;
#[cfg(feature = "device")]
pub mod device;
#[cfg(feature = "engine")]
pub mod engine;
#[cfg(feature = "events")]
pub mod events;
pub mod fields;
pub mod heap;
pub mod hostile_peer;
#[cfg(feature = "hw")]
pub mod hw;
pub mod json;
pub mod mpi;
pub mod nic;
pub mod patience;
mod pattern;
pub mod pcap;
#[cfg(feature = "programs")]
pub mod programs;
pub mod self_talk;
pub mod shared_domain;
mod skip;
mod test_name;
mod udmabuf;
#[cfg(feature = "verbs")]
pub mod verbs;
pub mod wire_invariants;
pub mod workspace;

pub use pattern::pattern;
pub use skip::skip;
pub use test_name::test_name;
pub use udmabuf::udmabuf;
