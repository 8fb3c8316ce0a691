//! Comparing packets field by field with what the protocol allows.
//!
//! The endpoint under test has another address, other operation ids and other memory than the
//! recorded one. [`Bindings`] map recorded values to actual ones. They also serve the scripted
//! peer: its recorded packets must name the addresses, ids and memory of the endpoint under test
//! ([`Bindings::translate`]). The scripted peer's own ids are unique numbers instead of the
//! recorded ones, so that an endpoint that confuses ids cannot name the right one by chance.

mod address;
mod bindings;
mod data;
mod fields;
mod finding;
mod memory;
pub mod policy;
mod recorded;
pub mod words;

pub use bindings::{Bindings, Unbound};
pub use data::{DataDifference, compare_data};
pub use finding::Finding;
pub use memory::{BoundRegion, IovEntry, iov_entry};
pub use recorded::{OperationIndex, Recorded};

#[cfg(test)]
mod tests;
