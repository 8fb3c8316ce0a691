//! Devices for tests of the protocol engine.
//!
//! There is one device ([`TestNic`]) with one of two carriers:
//!
//! * a [`Network`], where every packet can be inspected, delivered in any order, refused, repeated
//!   or forged. It allocates each packet separately and checks every use, so that mistakes of the
//!   engine are found at once;
//! * a [`Loopback`] to the device itself, with no allocations and almost no cost, so that the
//!   engine's allocations and cost can be measured.

mod loopback;
mod network;

pub use efa_core::nic::test_device::{Buffers, TestDomain, TestNic, TestQueuePair, Transport};
pub use loopback::{Loopback, LoopbackNic};
pub use network::{DeviceTraits, Flight, MEMORY, Network, NetworkNic, Port};
