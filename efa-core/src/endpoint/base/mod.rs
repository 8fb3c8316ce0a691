//! The base of all parts: ids and arenas, lists by peer, hashing.

pub(crate) mod by_peer;
pub(crate) mod fifo;
pub(crate) mod hash;
pub(crate) mod ids;
pub(crate) mod immediate;
pub(crate) mod random;
#[cfg(any(test, debug_assertions))]
pub(crate) mod steps;
