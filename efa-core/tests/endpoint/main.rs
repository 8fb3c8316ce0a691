//! The protocol engine on mock devices.

mod admission;
mod copies;
mod coverage;
mod faults;
mod handshake;
mod hostile;
mod limits;
mod messages;
mod mock;
mod ordering;
mod random;
mod read_nack;
mod receiving;
mod script;
#[path = "../support/siege.rs"]
mod siege;
mod sieges;
mod withdrawn;
