//! Requests of peers on their way into this device.

mod copies;
mod deferred;
mod in_ring;
mod judging;
mod poll;
mod pulls;
mod reads;
mod slots;
mod state;
mod transfers;

#[cfg(feature = "fuzzing")]
pub(crate) use pulls::MOST_READS;
pub(crate) use state::{Inbound, RecordContext};
