//! The objects behind the handles of programs, and their parts. They refer to each other by
//! references: [`crate::calls`] handles the programs' pointers and the registry that finds them.

pub(crate) mod address_handle;
pub(crate) mod async_events;
pub(crate) mod buffer;
pub(crate) mod channel;
pub(crate) mod comp_counter;
pub(crate) mod comp_queue;
pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod domain;
pub(crate) mod event_pipe;
pub(crate) mod event_queue;
pub(crate) mod handle;
pub(crate) mod hardware;
pub(crate) mod liveness;
pub(crate) mod mapping;
pub(crate) mod memory_region;
pub(crate) mod page_faults;
pub(crate) mod qp_plan;
pub(crate) mod queue_pair;
pub(crate) mod queues;
pub(crate) mod shared_queue;
