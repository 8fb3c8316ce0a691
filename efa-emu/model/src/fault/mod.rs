//! Staged faults with one primitive: *when* an event happens, *then* an action.
//!
//! Most failures of EFA programs are of the form 'event X overtakes event Y' or 'an identity was
//! reused'. A [`Fault`] matches events (arriving frames, memory registrations, new queue pairs,
//! commands of an admin queue) and determines their outcome. It is plain data with a text form, so
//! the same rule works in the simulator, in a file for `efa-emu run --faults` and as a command to a
//! running fabric:
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
//! Rules are applied to a *request* when it arrives, before the responder's device sees it, and to
//! its *answer* when that arrives, before the initiator's device writes the send completion.
//! [`crate::network`] executes a decision for all links alike. Delivery and completion are
//! therefore independent: a held answer lets packets that the peer sends in reaction to the message
//! arrive before the completion of that message's send.
//!
//! * `rule`: the data of a rule. `text`: its text form and its errors.
//! * `event`: the events that rules match.
//! * `table`: all armed rules, and their decisions ([`Faults::decide`]).
//! * `deferred`: the frames that rules hold until they are released.

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
pub use table::{EventOutcome, FaultId, Faults, LocalTally, Tally, Trigger, Verdict};
pub use text::{FaultError, parse_file};
