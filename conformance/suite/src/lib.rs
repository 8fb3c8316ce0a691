//! Runs a corpus of traces: finds the traces ([`find_traces`]), and runs a case of one
//! ([`run_trace`]), many at once ([`jobs`], [`parallel`]), or on other hosts ([`hosts`]). [`json`]
//! has the data of a run, from which the files in `templates` make pages and JUnit.
//!
//! ```no_run
//! use efa_replay::replay::emu::Emu;
//! use efa_suite::{Options, Summary, find_traces, run_engine};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut cases = Vec::new();
//! for path in find_traces(&["traces".into()], Some("eager"))? {
//!     let trace = efa_replay::synthetic::load(&path)?;
//!     cases.extend(run_engine(&trace, &mut Emu::orderly(), &Options::default())?);
//! }
//! println!("{}", Summary::of(&cases));
//! # Ok(())
//! # }
//! ```

mod case;
pub mod changes;
mod corpus;
pub mod each_event;
pub mod expected;
pub mod hosts;
pub mod html;
pub mod jobs;
pub mod json;
mod judged;
pub mod junit;
mod ladder;
pub mod matrix;
pub mod pairs;
pub mod parallel;
mod results;
mod run;
pub mod runner;
pub mod sections;
mod subprotocols;
mod tagged;

pub use case::{Case, Outcome, TraceResult};
pub use corpus::{CorpusError, find_cases, find_scenarios, find_traces, name_of};
pub use results::Summary;
pub use run::{ENGINE, Options, STOCK, run_engine, run_trace};
pub use tagged::leave_out;
