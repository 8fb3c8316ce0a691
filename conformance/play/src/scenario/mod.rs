//! Scenarios: what the applications of a trace do and see.
//!
//! A scenario is a TOML file that a person can read from top to bottom: the endpoints, then the
//! steps in the order in which they happen. It drives the recording of a trace, it drives the
//! endpoint under test when the trace is replayed, and it says what that endpoint's application
//! must see. `docs/scenarios.md` describes the format for writers.

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
