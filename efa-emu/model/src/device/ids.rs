//! The ids of the device's objects.

/// A protection domain. Memory, address handles and queue pairs can only be used together inside
/// one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PdId(pub u32);

/// A completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CqId(pub u32);
