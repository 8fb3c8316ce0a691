//! One primitive for staged faults: *when* something happens, *then* do something to it.
//!
//! Most failures that EFA programs have met are of the form 'event X overtakes event Y' or 'an
//! identity was reused'. A [`Fault`] names events (frames on their way, memory registrations, new
//! queue pairs, commands of an admin queue) and says what becomes of them. It is plain data with a
//! text form, so the same rule works in the simulator, in a file for `efa-emu run --faults` and as
//! a command to a running fabric:
//!
//! ```
//! use efa_device_model::fault::Fault;
//!
//! let fault: Fault = r#"{ label = "late", when = { packet = "HANDSHAKE", nth = 2 }, then = "hold" }"#
//!     .parse()?;
//! assert_eq!(fault.label, "late");
//! # Ok::<(), efa_device_model::fault::FaultError>(())
//! ```
//!
//! A test of one event, in the simulator:
//!
//! ```
#![doc = include_str!("../../examples/hold_message.rs")]
//! ```
//!
//! A *request* is judged where it arrives, before the responder's device sees it; its *answer* where
//! it arrives, before the initiator's device writes the send completion. What a decision means for
//! the frame is up to [`crate::network`], for all links alike. Delivery and completion are
//! therefore separate axes: holding an answer lets whatever the peer sends meanwhile arrive before
//! the completion of the send that it reacts to.
//!
//! * `rule`: the model. `text`: its text form and its errors.
//! * `event`: what a rule is matched against.
//! * `table`: all armed rules, and what they decide ([`Faults::decide`]).
//! * `deferred`: the frames that a rule holds, until they are released.

mod admin_command;
mod deferred;
mod event;
mod names;
mod rule;
mod table;
mod text;

pub use admin_command::AdminCommand;
pub use deferred::{Deferred, Flow};
pub use event::{Event, Frame, PACKET_START, Stage};
pub use rule::{
    Action, Delay, Errno, Fault, HostName, Match, PacketTypes, Point, PortSpeed, Queues,
};
pub use table::{Fate, FaultId, Faults, LocalTally, Tally, Trigger, Verdict};
pub use text::{FaultError, parse_file};
