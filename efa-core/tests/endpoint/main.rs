//! The protocol engine on test devices.

mod abandoned;
mod admission;
mod copies;
#[cfg(debug_assertions)]
mod costs;
mod coverage;
mod endings;
mod faults;
mod handshake;
mod hostile;
mod hostile_at_random;
mod limits;
mod lost;
mod messages;
mod ordering;
mod read_nack;
mod receiving;
mod repeated;
mod requests;
mod script;
mod withdrawn;
