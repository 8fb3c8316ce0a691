//! The fabric between processes: shared memory on one machine, no daemon, no privileges.
//!
//! A process that opens a device becomes a participant of its emulated host ([`Fabric`], [`Host`])
//! and gets an [`Engine`].

mod config;
mod engine;
mod error;
mod fabric;
mod fork;
mod host;
mod inbound;
mod lock;
mod memory;
mod outbound;
mod peer;
mod qpn;
mod record;
mod ring;
mod schedule;
mod segment;
mod shared;
mod state;
mod worker;

pub use config::{
    DEFAULT_FABRIC, DEFAULT_PROFILE, ENV_FABRIC, ENV_GID, ENV_HOST, ENV_NETWORK, ENV_PROFILE,
    ENV_RDMA, HostConfig, NetworkOptions, QpnReuse, RdmaPath, parse_duration,
};
pub use engine::{Engine, EventHandler};
pub use error::{EngineError, FabricError};
pub use fabric::Fabric;
pub use host::{Host, HostStatus, ParticipantStatus, list_hosts};
