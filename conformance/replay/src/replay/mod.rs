//! Replaying one side of a trace against an implementation.
//!
//! One endpoint of the trace is under test: its application does what the scenario says, over the
//! implementation. The other endpoints are *scripted* ([`peer`]): they send the packets that were
//! recorded there, each as soon as everything that its sender had received before has arrived
//! ([`script`]). Every packet that the endpoint under test sends is compared with the recorded one
//! in its place ([`crate::compare`]) under what the protocol allows: where it leaves a choice, such
//! as the size of segments and windows, the scripted endpoints follow the choice of the endpoint
//! under test. If that starts an operation by another subprotocol than the recorded one, no
//! recorded answer fits: the scenario is played with the engine as its peer instead ([`live`]). The
//! application must see what the scenario says ([`efa_play::verify`]) in any case.
//!
//! The two sides meet on a [`backend::Backend`].

mod addresses;
mod armed_faults;
mod arrivals;
pub mod backend;
pub mod codec;
pub mod coverage;
mod driver;
pub mod emu;
mod exchange;
pub mod frames;
mod headerless;
pub mod hw;
pub mod live;
mod memory;
mod opener;
pub mod operations;
pub mod outside;
pub mod peer;
mod ranges;
mod rdma;
pub(crate) mod recording;
mod release;
mod requirements;
mod run;
pub mod script;
mod session;
mod verdict;

pub use exchange::{Exchanged, WireEvent};
pub use opener::{Engine, Opener};
pub use run::{replay, replay_with_hook};
pub use session::{PacketHook, Strictness};
pub use verdict::Verdict;
