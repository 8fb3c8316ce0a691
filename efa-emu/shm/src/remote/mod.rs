//! Another machine in this fabric: its devices are members like those of this machine, and what
//! local processes ask of them is handed to whoever carries it there.
//!
//! A *bridge* has one [`RemoteMachine`] for each machine that it is connected with. The two halves
//! of a request:
//!
//! ```text
//!   local process ── ring ──► proxy of the responder ── messages ──► (the other machine)
//!   local process ◄── ring ── proxy of the initiator ◄── messages ── (the other machine)
//! ```
//!
//! A record stays in its ring until the other machine has answered it. So a ring is also what
//! bounds the requests of a process that are under way, and nothing is copied but for the carriage.
//! The answer of the responder's device is passed to the initiator's; by itself, this module
//! answers
//!
//! * RDMA for which the responder would copy between two processes: make it through the rings;
//! * requests to a machine that has vanished ([`RemoteMachine::give_up_lost`],
//!   [`Uptake::Unresponsive`]): unresponsive.
//!
//! Nothing here waits, and this module does not know how messages travel. They may arrive in any
//! order, but an answer that defers a request comes before its outcome.

mod backlog;
mod collect;
mod deliver;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod machine;
mod message;
mod names;
mod proxy;
mod rules;
mod sleep;
mod upkeep;

pub use machine::{RemoteMachine, Uptake};
pub use message::{BadMessage, FIRST_MESSAGE, FRAME_HEADER, LONGEST_MESSAGE};
pub use proxy::RemoteDevice;
pub use sleep::{Alarm, Sleep};
