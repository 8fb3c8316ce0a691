//! What the tests of several packages share. Nothing else depends on it.

#[cfg(feature = "device")]
pub mod device;
pub mod heap;
pub mod nic;
mod pattern;
pub mod self_talk;
pub mod shared_domain;
pub mod siege;
pub mod workspace;

pub use pattern::pattern;
