//! Scenarios, and who plays them: what the applications of a trace do and see ([`scenario`]), over
//! our engine or stock libfabric ([`application`]), in this process or behind the driver protocol
//! ([`drive`], [`player`]), and as a recording ([`record`]), which becomes a [`trace`].
//!
//! An [`operation`] is one type from the step of a scenario to the driver of what is tested.
//! [`runner`] has the order of steps, the same for recording, replay and live runs, [`verify`]
//! whether an application saw what its scenario says. [`player`] also runs programs on other hosts,
//! those that do not speak the driver protocol included ([`player::hosted`]).
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
