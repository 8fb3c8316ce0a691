//! Identities: the names of devices, the table of a device with its queue pair numbers and
//! statistics, and the settings that identify a program's host.

pub(crate) mod config;
pub(crate) mod device_name;
pub(crate) mod qpn;
pub(crate) mod statistics;
