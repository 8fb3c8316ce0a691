#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! * [`wire`]: every packet type of the protocol, parsed from and emitted into byte slices. It is
//!   a package of its own, `efa-wire`, for whoever reads packets and needs no engine.
//! * [`address`]: how endpoints and queue pairs are named, [`rules`]: what traffic is judged by;
//!   both are of `efa-wire` too.
//! * [`nic`]: what the protocol needs from a device.
//! * [`endpoint`]: the protocol engine.

#![forbid(unsafe_code)]

pub mod endpoint;
pub mod nic;

pub use efa_wire as wire;
pub use efa_wire::{address, rules};
