//! Comparison of packets field by field, according to the protocol.
//!
//! The endpoint under test has another address, other operation ids and other memory than the
//! recorded one. `Bindings` map recorded values to actual ones, and translate the packets of the
//! scripted peer, which must refer to the addresses, ids and memory of the endpoint under test
//! (`Bindings::translate`). The scripted peer's own ids are unique numbers instead of the recorded
//! ones, so that an endpoint that confuses ids cannot use the right one by chance.

mod address;
mod bindings;
mod data;
mod fields;
mod finding;
mod memory;
pub mod policy;
mod recorded;
pub mod words;

pub use finding::Finding;

pub(crate) use bindings::Bindings;
pub(crate) use data::compare_data;
pub(crate) use memory::{BoundRegion, iov_entry};
pub(crate) use recorded::{OperationIndex, Recorded};

#[cfg(test)]
mod tests;
