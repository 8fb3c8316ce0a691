//! What the parts are made of: ids and arenas, hashing, pieces of memory.

pub(crate) mod hash;
pub(crate) mod ids;
pub(crate) mod immediate;
pub(crate) mod random;
