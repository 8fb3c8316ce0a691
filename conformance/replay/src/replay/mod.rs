//! Replay of one side of a trace against an implementation.
//!
//! One endpoint of the trace is under test: its application executes the scenario over the
//! implementation. The other endpoints are *scripted* ([`peer`]): they send the recorded packets,
//! each after the arrival of all packets that its sender had received before ([`script`]). Every
//! packet of the endpoint under test is compared with its recorded counterpart ([`crate::compare`])
//! according to the protocol. Where that leaves a choice, such as the size of segments and windows,
//! the scripted endpoints follow the choice of the endpoint under test. If it starts an operation
//! by another subprotocol than the recorded one, no recorded answer fits: the scenario is played
//! with the engine as its peer instead ([`live`]). The application must see the results in the
//! scenario ([`efa_play::verify`]) in any case.
//!
//! [`backend::Backend`] connects the two sides.

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
pub mod peer;
pub mod program_opener;
mod ranges;
mod rdma;
pub(crate) mod recording;
mod release;
mod requirements;
mod run;
pub mod script;
mod session;
mod verdict;

pub use exchange::{ExchangedEvent, WireEvent};
pub use opener::{Engine, Opener};
pub use run::replay;
pub use session::{PacketHook, Strictness};
pub use verdict::Verdict;
