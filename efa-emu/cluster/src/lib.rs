//! Starting programs on emulated hosts: on one host for `efa-emu run`, or on a cluster of them,
//! where launchers start programs through `efa-emu rsh`.
//!
//! Each host of a cluster is a process (`node`) with the host's namespaces (`namespaces`). The
//! process listens on a socket in the directory of the run, and executes the requests of `rsh`
//! (`session`), as sshd does for ssh. It is forked while the cluster has one thread, and does not
//! execute another program, because it would lose its capabilities. For the same reason a program
//! on one host cannot enter the namespaces of another one itself, unless it is root's: launchers
//! that start programs from host to host need the host's process. `launchers` has the environment
//! for MPI libraries; `device_view` shows the devices in `/sys` and `/dev`; `members` and `gateway`
//! are the hosts of other machines, and [`uplink`] is the bridge that a run starts.
//!
//! ```no_run
//! use efa_shm::Fabric;
//!
//! // Refuses a cluster for which this machine has too little memory.
//! efa_cluster::memory::check(8, 1, 256, &Fabric::open("default")?)?;
//! assert_eq!(efa_cluster::name(0), "node0");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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

pub use cluster::{Cluster, ClusterError, ClusterOptions};
pub use device_view::{DeviceView, DeviceViewError};
pub use files::AGENT;
pub use host::{EmulatedHost, EmulatedHosts, Injection, SysfsError};
pub use launchers::{CommunicationLibrary, Provider};
pub use layout::{Layout, LayoutError, OtherMachine};
pub use live_sysfs::LiveSysfs;
pub use members::{Machines, Members, MembersError};
pub use names::{HostListError, name};
pub use nodes::{Nodes, NodesError};

/// The name of the program in messages.
const PROGRAM: &str = "efa-emu";

/// Writes a line to standard error.
fn complain(reason: &str) {
    efa_commands::complain(PROGRAM, reason);
}
