//! Connected queue pairs, shared receive queues and the matching of tags, over a bad network.

mod errors;
mod events;
mod net;
mod offload;
mod shared;
mod streams;
mod tags;
