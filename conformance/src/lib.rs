//! The EFA RDM conformance suite. A program that judges a capture:
//!
//! ```no_run
#![doc = include_str!("../examples/judge.rs")]
//! ```
//!
//! A *trace* is a capture of stock endpoints together with the *scenario* that they played:
//! `traces/NAME.pcapng` and `traces/NAME.toml`. The suite records traces, replays them with an
//! implementation of the protocol in place of one endpoint, and checks captures against the protocol's
//! rules. `docs/architecture.md` has a map of the modules.
//!
//! The program `efa-conformance` is the package `cli`; the table of stock software that must work on
//! emulated devices is the package `interop`.

pub mod application;
pub mod bundle;
pub mod check;
pub mod clocks;
pub mod compare;
pub mod conduct;
pub mod doctor;
pub mod drive;
pub mod libfabric;
pub mod merge;
pub mod operation;
pub mod play;
pub mod player;
pub mod record;
pub mod replay;
pub mod scenario;
pub mod show;
pub mod suite;
pub mod survey;
pub mod trace;
pub mod verify;
pub mod written;
