//! Scenarios: the operations of the applications of a trace, and their results.
//!
//! A scenario is a TOML file for human readers: the endpoints, then the steps in their order. It is
//! used to record a trace, to run the endpoint under test when the trace is replayed, and to check
//! the results of that endpoint's application. `docs/scenarios.md` describes the format for
//! authors.

mod contents;
mod endpoint;
mod error;
mod expectation;
mod fault;
mod keys;
mod load;
mod packet;
mod policy;
mod step;
mod steps;
pub mod tags;

pub use contents::Scenario;
pub use endpoint::{Capability, EndpointSpec, Settings, Software};
pub use error::{ScenarioError, suggest};
pub use expectation::{ErrorName, Expectation};
pub use fault::file_of_faults;
pub use packet::{WrittenKey, WrittenPacket};
pub use policy::{FieldPolicy, PolicyOverride};
pub use step::{Action, Operation, Step};
