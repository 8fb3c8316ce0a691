//! A software EFA device: device model, network model, transports and captures.
pub mod capture;
pub mod device;
mod duration;
pub mod fault;
mod file_size;
pub mod frame;
pub mod link;
pub mod network;
mod prefetch;
pub mod profile;
pub mod provider;
pub mod sim;
mod sync;
pub mod sysfs;
pub mod transport;
