//! Memory that peers may access, and the arithmetic of atomics.

pub(crate) mod arithmetic;
pub(crate) mod exposed;
pub(crate) mod soft_float;
