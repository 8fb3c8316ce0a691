//! Scenarios and the programs that play them: the operations and results of the applications of a
//! trace ([`scenario`]), over the protocol engine or stock libfabric ([`application`]), in this
//! process or behind the driver protocol ([`drive`], [`player`]), and recorded ([`record`]) as a
//! [`trace`].
//!
//! An [`operation`] has the same type from the step of a scenario to the driver of the software
//! under test. [`runner`] implements the order of steps, which is the same for recording, replay
//! and live runs, and [`verify`] compares the results of an application with its scenario.
//! [`player`] also runs programs on other hosts, including those without the driver protocol
//! ([`player::hosted`]).
//!
//! ```no_run
//! use efa_play::trace::Trace;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let trace = Trace::load("traces/eager-tagged.pcapng".as_ref())?;
//! for (index, step) in trace.scenario.steps.iter().enumerate() {
//!     println!("{}", step.describe(index, &trace.scenario));
//! }
//! # Ok(())
//! # }
//! ```

pub mod answers;
pub mod application;
pub mod drive;
pub mod libfabric;
pub mod operation;
pub mod player;
pub mod process_runner;
pub mod record;
pub mod runner;
pub mod scenario;
pub mod trace;
pub mod verify;
