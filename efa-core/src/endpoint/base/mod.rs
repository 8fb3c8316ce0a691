//! What the parts are made of: ids and arenas, lists of what belongs to a peer,
//! hashing.

pub(crate) mod by_peer;
pub(crate) mod hash;
pub(crate) mod ids;
pub(crate) mod immediate;
pub(crate) mod random;
#[cfg(test)]
pub(crate) mod steps;
