//! Captures of EFA RDM traffic, judged and shown.
//!
//! * [`capture`], [`clocks`], [`merge`]: captures; the clocks of several, compared by their common
//!   packets; captures of several hosts as one.
//! * [`check`], [`show`]: the passive rules, over any capture; every field of every packet.
//! * [`roce`], `stream`, `rendezvous`: packets of reliable connections: their headers, their
//!   numbers, the rendezvous of tag matching.
//!
//! A program that judges a capture:
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
