#![doc = include_str!("../README.md")]
//!
//! # Modules
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
