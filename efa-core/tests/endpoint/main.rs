//! The protocol engine on mock devices.

mod messages;
mod mock;
mod random;
