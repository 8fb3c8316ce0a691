//! Connected queue pairs, shared receive queues and tag matching, over a bad network.

mod errors;
mod events;
mod hostile_tags;
mod offload;
mod shared;
mod statements;
mod streams;
mod tags;
