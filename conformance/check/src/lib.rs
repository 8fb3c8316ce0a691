//! Captures of EFA RDM traffic, judged and shown. A program that judges a capture:
//!
//! ```no_run
#![doc = include_str!("../examples/judge.rs")]
//! ```

pub mod capture;
pub mod check;
pub mod clocks;
pub mod merge;
mod rendezvous;
pub mod roce;
pub mod show;
mod stream;
