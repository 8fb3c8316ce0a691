//! What the tests of several packages share. Nothing else depends on it.

pub mod heap;
pub mod shared_domain;
