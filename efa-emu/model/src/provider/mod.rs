//! The user-space half of the device: what rdma-core's libefa does between the verbs calls of an
//! application and the rings of the device.
//!
//! Nothing here reaches into [`crate::device::Device`]: a [`SendQueue`] or [`RecvQueue`] writes
//! ring entries and a doorbell word, a [`CompletionQueue`] reads ring entries. After a doorbell the
//! caller tells the device to look (`Device::read_send_doorbell`, `Device::arm_cq`).
//!
//! Completions carry request ids of 16 bits. A request id is a place in the queue's table of work
//! request ids plus a generation of the queue pair, so that the completion of a destroyed queue
//! pair is not taken for one of its successor with the same number. Where the device has request
//! ids of 64 bits, those of send queues are the work request ids; such a completion is taken for
//! one of whatever queue pair has the number, as rdma-core does.

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
