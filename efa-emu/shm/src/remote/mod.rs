//! Another machine in this fabric. Its devices are members like those of this machine, and requests
//! to them become messages for that machine.
//!
//! A *bridge* has one [`RemoteMachine`] for each machine to which it is connected. The two halves
//! of a request:
//!
//! ```text
//!   local process ── ring ──► proxy of the responder ── messages ──► (the other machine)
//!   local process ◄── ring ── proxy of the initiator ◄── messages ── (the other machine)
//! ```
//!
//! A record stays in its ring until the other machine has answered it. So the ring also bounds the
//! outstanding requests of a process, and data is copied only into and out of messages. The answer
//! of the responder's device is passed on to the initiator. This module answers
//!
//! * RDMA for which the responder would copy between two processes: the initiator must use the
//!   rings;
//! * requests to a machine that has vanished ([`RemoteMachine::give_up_lost`],
//!   [`ReceivePolicy::Unresponsive`]): unresponsive.
//!
//! This module never blocks, and is independent of the transport of messages. They may arrive in
//! any order, except that the answer that defers a request precedes its outcome.

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

pub use machine::{ReceivePolicy, RemoteMachine};
pub use message::{BadMessage, FIRST_MESSAGE, FRAME_HEADER, LONGEST_MESSAGE};
pub use proxy::RemoteDevice;
pub use sleep::{Alarm, Sleep};
