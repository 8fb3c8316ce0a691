//! The state that a domain's objects share, under one lock: the engine, the entries of completion
//! queues and address vectors, and the threads that sleep.

pub(crate) mod addresses;
pub(crate) mod collective;
pub(crate) mod collective_messages;
pub(crate) mod completions;
pub(crate) mod counts;
pub(crate) mod datagrams;
pub(crate) mod deferred;
pub(crate) mod domain;
pub(crate) mod events;
pub(crate) mod explanation;
pub(crate) mod lock;
pub(crate) mod progress;
pub(crate) mod route;
pub(crate) mod schedule;
pub(crate) mod tables;
pub(crate) mod wait;
