//! Machines and their devices: whether a machine is fit for EFA ([`doctor`]), how its device
//! behaves ([`survey`]), and a file to send when something fails ([`bundle`]).
//!
//! ```no_run
//! use efa_doctor::doctor::{Machine, examine};
//!
//! for finding in examine(&Machine::this("efa-conformance".into())) {
//!     println!("{}: {}", finding.check, finding.value);
//! }
//! ```

pub mod bundle;
pub mod doctor;
pub mod survey;
