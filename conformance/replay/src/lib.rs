//! Replay of one side of a trace against an implementation: [`replay`] scripts the other side,
//! [`compare`] checks each packet, and [`synthetic`] makes traces from packets in a scenario.
//! [`tagged`] does the same for devices with tag matching.
//!
//! ```no_run
//! use efa_replay::replay::emu::Emu;
//! use efa_replay::replay::{Engine, Strictness, replay};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let trace = efa_replay::synthetic::load("traces/eager-tagged.pcapng".as_ref())?;
//! let (backend, engine) = (&mut Emu::orderly(), &mut Engine::default());
//! let verdict = replay(&trace, 0, Strictness::Fields, backend, engine, None)?;
//! for finding in &verdict.findings {
//!     println!("{finding}");
//! }
//! # Ok(())
//! # }
//! ```

pub mod compare;
pub mod replay;
pub mod synthetic;
pub mod tagged;
