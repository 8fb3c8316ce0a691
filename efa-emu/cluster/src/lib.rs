//! Emulated hosts as programs are started on them: one as `efa-emu run` makes it, or a cluster of
//! them, on which launchers start programs through `efa-emu rsh`.

pub mod bridge;
mod cluster;
mod device_view;
mod files;
mod gateway;
mod host;
mod launchers;
mod layout;
mod live_sysfs;
mod members;
pub mod memory;
mod mounts;
mod names;
mod namespaces;
mod node;
mod nodes;
mod process;
pub mod rsh;
mod service;
mod session;
pub mod uplink;

pub use cluster::{Cluster, ClusterOptions};
pub use device_view::DeviceView;
pub use files::AGENT;
pub use host::{EmulatedHost, EmulatedHosts, Injection};
pub use launchers::{Middleware, Provider};
pub use layout::{Layout, OtherMachine};
pub use live_sysfs::LiveSysfs;
pub use members::{Machines, Members};
pub use names::name;
pub use nodes::Nodes;

/// The program that this is part of.
const PROGRAM: &str = "efa-emu";

/// Writes a line to standard error.
fn complain(reason: &str) {
    efa_commands::complain(PROGRAM, reason);
}
