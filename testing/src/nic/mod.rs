//! Devices for tests of the protocol engine.
//!
//! There is one device ([`TestNic`]) with one of two carriers:
//!
//! * a [`Network`], where every packet can be inspected, delivered in any order, refused, repeated
//!   or made up. It keeps each packet on the heap and checks every use, so that mistakes of the
//!   engine are found at once;
//! * a [`Loopback`] to the device itself, which allocates nothing and costs almost nothing, so that
//!   the allocations and the cost of the engine can be counted.

mod device;
mod loopback;
mod network;

pub use device::{Buffers, Carrier, TestDomain, TestNic, TestQueuePair};
pub use loopback::{Loopback, LoopbackNic};
pub use network::{Flight, MEMORY, Network, NetworkNic, Port, Traits};
