//! The objects that applications open, beneath the calls that open them and transfer data.

pub(crate) mod address_vector;
pub(crate) mod av_set;
pub(crate) mod binding;
pub(crate) mod completion_queue;
pub(crate) mod counter;
pub(crate) mod datagrams;
pub(crate) mod domain;
pub(crate) mod enabled;
pub(crate) mod endpoint;
pub(crate) mod event_queue;
pub(crate) mod fabric;
pub(crate) mod group;
pub(crate) mod memory_region;
pub(crate) mod options;
pub(crate) mod poll_set;
pub(crate) mod queue;
pub(crate) mod wait_set;
pub(crate) mod zero_copy;
