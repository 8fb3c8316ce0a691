#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! * [`wire`]: every packet type of the protocol, parsed from and emitted into byte slices. It is a
//!   separate package, `efa-wire`, for programs that read packets without the engine.
//! * [`address`]: addresses of endpoints and queue pairs, [`rules`]: the rules that traffic is
//!   checked against; both are part of `efa-wire` too.
//! * [`nic`]: the device interface that the protocol requires.
//! * [`endpoint`]: the protocol engine.

#![forbid(unsafe_code)]

pub mod endpoint;
pub mod nic;

pub use efa_wire as wire;
pub use efa_wire::{address, rules};
