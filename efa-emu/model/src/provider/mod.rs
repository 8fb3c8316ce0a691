//! The user-space half of the device: the work of rdma-core's libefa between an application's verbs
//! calls and the device's rings.
//!
//! No code here accesses [`crate::device::Device`]: a [`SendQueue`] or [`RecvQueue`] writes ring
//! entries and a doorbell word, a [`CompletionQueue`] reads ring entries. After a doorbell the
//! caller notifies the device (`Device::read_send_doorbell`, `Device::arm_cq`).
//!
//! Completions contain request ids of 16 bits. A request id is an index into the queue's table of
//! work request ids, and a generation of the queue pair, so that a completion of a destroyed queue
//! pair is not attributed to its successor with the same number. If the device has request ids of
//! 64 bits, those of send queues are the work request ids themselves; such a completion is
//! attributed to the current queue pair with the number, as in rdma-core.

mod poll;
mod recv;
mod request_ids;
mod send;
mod status;
mod tags;

pub use poll::{Completion, CompletionQueue, QueueOwner, WcFlags, WcOpcode};
pub use recv::{RecvQueue, RecvQueueConfig};
pub use request_ids::{RequestIds, Retired};
pub use send::{
    SendData, SendFlags, SendOpcode, SendQueue, SendQueueConfig, SendRequest, UdAddress,
};
pub use status::ibv_wc_status;
pub use tags::{Cancellation, TagListDevice, TagMatcher, TagReceive, UnexpectedMessage};
