//! The EFA RDM protocol v4 without I/O: packet formats and the protocol engine.
//!
//! The crate does no I/O, reads no clock, starts no thread and contains no `unsafe` code. It is
//! driven from outside: a device implements the traits of [`nic`], an application (or a test) hands in
//! operations and the time.
//!
//! * [`address`]: how endpoints and queue pairs are named.
//! * [`wire`]: every packet type of the protocol, parsed from and emitted into byte slices.
//! * [`nic`]: what the protocol needs from a device.
//! * [`endpoint`]: the protocol engine.
//! * [`rules`]: what traffic is judged by.

#![forbid(unsafe_code)]

pub mod address;
pub mod endpoint;
pub mod nic;
pub mod rules;
pub mod wire;

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
