//! A software EFA device: device model, network model, transports and captures.
pub mod link;
