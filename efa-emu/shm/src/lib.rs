//! The fabric between processes: shared memory on one machine, no daemon, no privileges.
//!
//! `efa-emu run` enters a [`Fabric`] as an emulated [`Host`], once for each of its devices, and
//! configures the programs that it starts by environment variables ([`HostConfig`]). A program that
//! opens the device becomes a participant of that host and gets an [`Engine`]:
//!
//! ```text
//!   application's threads ──┐                                   (another process)
//!                           ├── Engine ── lock ── EngineState     ┌────────────┐
//!   engine's own thread ────┘                       │ Device      │            │
//!   (engine::worker)                                │ Outbound ───┼─► ring ──► │ Inbound
//!                                                   │ Inbound ◄───┼── ring ◄── │ Outbound
//!                                                                 └────────────┘
//! ```
//!
//! Each module uses only those before it:
//!
//! * `process`: system resources of a process. Shared memory, locks that the kernel releases when a
//!   process ends, the monotonic clock.
//! * `identity`: names of devices, settings, and queue pair numbers owned by compare-and-swap.
//! * `transport`: the transport of bytes from one process to another. Data that is read from shared
//!   memory is never trusted.
//! * `fabric`: the live hosts and processes, as directories and files; faults
//!   ([`efa_device_model::fault`]) that are armed in the fabric.
//! * `link`: the two halves of a device's [`Link`](efa_device_model::link::Link): from a
//!   destination to a ring and its answers back, and from rings into the device. An RDMA request is
//!   executed by the target's engine after the device's checks, by copying between the two address
//!   spaces if the system permits it, otherwise through the rings. The effects of
//!   [`efa_device_model::network`] on a request, and of faults, are here too.
//! * `engine`: one opened device behind a mutex, and the threads that run it.
//! * [`remote`]: devices of other machines as members of the fabric, for a program that carries
//!   requests there.
//!
//! A process may be killed at any instruction. The kernel releases its locks, so its peers detect
//! its death within milliseconds of waiting for it, and the next scan of all hosts removes its
//! files.

mod engine;
mod error;
mod fabric;
mod identity;
mod link;
mod process;
pub mod remote;
mod transport;

#[cfg(feature = "fuzzing")]
pub use engine::fuzzing;
pub use engine::{CommandOutcome, Engine, EventHandler, is_device_thread};
pub use error::{DirectoryContent, EngineError, FabricError};
pub use fabric::board::ArmedFault;
pub use fabric::capture_files::CaptureScope;
pub use fabric::directory::{Fabric, LAYOUT, SHARED_MEMORY, check_limits};
pub use fabric::gids::is_emulated;
pub use fabric::host::Host;
pub use fabric::members::list_hosts;
pub use fabric::recorder::{BridgeRegistration, Recorder};
pub use fabric::status::{HostStatus, ParticipantStatus};
pub use fabric::{usage, version};
pub use identity::config::{
    DEFAULT_FABRIC, DEFAULT_PROFILE, ENV_FABRIC, ENV_FABRICS, ENV_GID, ENV_HOST, ENV_NETWORK,
    ENV_PROFILE, ENV_RDMA, ENV_RUN, ENV_UNKNOWN_PEERS, HostConfig, NetworkOptions, RdmaPath,
    parse_duration,
};
pub use identity::device_name::DeviceName;
pub use link::staged::{CarriedFault, PortRules, PortState};
