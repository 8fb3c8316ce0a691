//! The fabric between processes: shared memory on one machine, no daemon, no privileges.
//!
//! `efa-emu run` enters a [`Fabric`] as an emulated [`Host`], once for each of its devices, and
//! tells the programs that it starts by environment variables ([`HostConfig`]). A program that
//! opens the device becomes a participant of that host and gets an [`Engine`]:
//!
//! ```text
//!   application's threads ──┐                                   (another process)
//!                           ├── Engine ── lock ── State           ┌────────────┐
//!   engine's own thread ────┘                       │ Device      │            │
//!   (engine::worker)                                │ Outbound ───┼─► ring ──► │ Inbound
//!                                                   │ Inbound ◄───┼── ring ◄── │ Outbound
//!                                                                 └────────────┘
//! ```
//!
//! * `fabric`, `host`, `lock`, `qpn`: the live hosts and processes. Directories and files, locks
//!   that the kernel releases when a process ends, and queue pair numbers owned by
//!   compare-and-swap.
//! * `segment`, `ring`, `record`: how bytes go from one process to another. Nothing that is
//!   read from shared memory is trusted.
//! * `outbound`, `inbound`: the two halves of a device's [`Link`](efa_device_model::link::Link):
//!   from a destination to a ring and its answers back, and from rings into the device. An RDMA
//!   request is executed by the target's engine after the device's checks, by copying between the
//!   two address spaces where the system permits it and through the rings elsewhere.
//! * `egress`, `clock`: what [`efa_device_model::network`] makes of a request, on the monotonic
//!   clock.
//! * `board`: faults ([`efa_device_model::fault`]) that are armed in the fabric; `staged`: how a
//!   device applies them.
//! * [`remote`]: devices of other machines as members of the fabric, for a program that carries
//!   requests there.
//! * `engine`: one opened device, and which thread works on it when, behind `mutex`.
//! * `warning`: what a user has to know although no call of the program fails.
//!
//! A process may be killed at any instruction. Its locks go, so its peers see it dead within
//! milliseconds of expecting something of it, and the next look at all hosts removes its files.

mod board;
mod claim;
mod clock;
mod config;
mod device_name;
mod doorbell;
mod egress;
mod engine;
mod error;
mod fabric;
mod files;
mod fork;
mod host;
mod inbound;
mod lock;
mod memory;
mod mutex;
mod opening;
mod outbound;
mod peer;
mod qpn;
mod record;
mod recorder;
pub mod remote;
mod ring;
mod segment;
mod shared;
mod staged;
mod statistics;
mod switchboard;
pub mod sync;
mod tap;
pub mod usage;
pub mod version;
mod warning;

pub use board::ArmedFault;
pub use config::{
    DEFAULT_FABRIC, DEFAULT_PROFILE, ENV_FABRIC, ENV_GID, ENV_HOST, ENV_NETWORK, ENV_PROFILE,
    ENV_RDMA, ENV_UNKNOWN_PEERS, HostConfig, NetworkOptions, RdmaPath, parse_duration,
};
pub use device_name::DeviceName;
#[cfg(feature = "fuzzing")]
pub use engine::fuzzing;
pub use engine::{Engine, EventHandler, is_device_thread};
pub use error::{EngineError, FabricError, Holds};
pub use fabric::{Fabric, LAYOUT, check_limits};
pub use host::{Host, HostStatus, ParticipantStatus, Recorded, is_emulated, list_hosts};
pub use recorder::{BridgePost, Recorder};
pub use staged::{CarriedFault, PortRules, PortState};
