//! A deterministic network of simulated hosts, in one thread and in virtual time.
//!
//! A [`Fabric`] has any number of hosts. Each has the device model of [`efa_device_model::device`],
//! separate memory with checked accesses, and any number of domains and queue pairs ([`SimDomain`],
//! [`SimQueuePair`]; a [`SimNic`] is one of each). Work is only done when it is posted, and when
//! [`Fabric::step`] and similar calls advance virtual time. All randomness is derived from one
//! seed, so the same calls produce the same run, byte for byte in the [event log](Fabric::log).
//!
//! The difficult properties of EFA are on by default or need one setting: frames take different
//! paths and overtake each other ([`efa_device_model::network`]); a send's completion and the
//! peer's reaction to it are independent events; completions of one poll are returned in any order;
//! queue pair numbers are reused ([`FabricConfig::qpn_policy`]); late packets reach the next owner
//! of a number; frames are lost and retransmitted below the reliability layer; hosts die. A
//! [`Fault`] causes the rest ([`Fabric::install`]).
//!
//! ```
//! use efa_core::nic::{
//!     CompletionKind, Destination, Domain, Doorbell, Nic, PolledNic, SendRequest,
//! };
//! use efa_sim::{Fabric, FabricConfig, HostConfig, NicConfig};
//!
//! let fabric = Fabric::new(FabricConfig::default());
//! let mut alice = fabric.add_host(HostConfig::default()).open_nic(NicConfig::default())?;
//! let mut bob = fabric.add_host(HostConfig::default()).open_nic(NicConfig::default())?;
//!
//! let buffer = bob.acquire_buffer().expect("a fresh pool has buffers");
//! bob.post_recv(buffer)?;
//! let buffer = alice.acquire_buffer().expect("a fresh pool has buffers");
//! alice.buffer_mut(buffer)[..5].copy_from_slice(b"hello");
//! let to = bob.address();
//! let ahn = alice.create_address_handle(to.gid)?;
//! let request = SendRequest {
//!     destination: Destination::new(ahn, to),
//!     buffer,
//!     header_length: 5,
//!     payload: None,
//!     immediate: None,
//!     context: 1,
//! };
//! alice.post_send(&request, Doorbell::Ring)?;
//!
//! fabric.run_until_idle();
//! let mut completions = Vec::new();
//! assert_eq!(bob.poll(&mut completions, 16), 1);
//! let CompletionKind::Recv { buffer, length, .. } = completions[0].kind else { panic!() };
//! assert_eq!(&bob.buffer(buffer)[..length], b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attachment;
mod config;
mod domain;
mod fabric;
mod flight;
mod host;
mod host_id;
mod log;
mod memory;
mod nic;
mod objects;
mod packet_buffers;
mod queue_pair;
mod recording;
mod scripted;
mod tap;
mod wire;
mod world;

pub use config::{FabricConfig, HostConfig};
pub use domain::SimDomain;
pub use efa_device_model::fault::{Action, Fault, FaultId, Frame, Match, Point, Stage};
pub use efa_device_model::network::{NetworkConfig, Probability, Reliability};
pub use efa_device_model::qpn_policy::QpnPolicy;
pub use fabric::Fabric;
pub use host::SimHost;
pub use host_id::HostId;
pub use log::EventLog;
pub use memory::{MemoryFault, OutOfMemory};
pub use nic::{NicConfig, SimNic};
pub use queue_pair::SimQueuePair;
pub use recording::{CaptureConfig, Recording};
pub use scripted::{FinishedRequest, ReceivedPacket, ScriptedPeer};
pub use tap::{TapId, TappedFrame};
pub use world::FabricStep;
