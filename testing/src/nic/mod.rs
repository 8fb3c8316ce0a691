//! Devices for tests of the protocol engine.
//!
//! There is one device ([`TestNic`]), and what carries its packets is one of two:
//!
//! * a [`Network`], where every packet can be looked at, delivered in any order, refused, repeated or
//!   made up. It keeps each packet on the heap and looks everything up, so that mistakes of the engine
//!   are found at once;
//! * a [`Loopback`] to the device itself, which allocates nothing and costs next to nothing, so that
//!   what the engine allocates and costs can be counted.

mod device;
mod loopback;
mod network;

pub use device::{Buffers, Carrier, TestDomain, TestNic, TestQueuePair};
pub use loopback::{Loopback, LoopbackNic};
pub use network::{Flight, MEMORY, Network, NetworkNic, Port, Traits};
