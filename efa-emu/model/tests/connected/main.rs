//! Connected queue pairs, shared receive queues and the matching of tags, over a bad network.

mod errors;
mod events;
mod hostile_tags;
mod net;
mod offload;
mod shared;
mod statements;
mod streams;
mod tags;
