//! Helpers for C functions: error numbers, structures of other versions, signals that interrupt a
//! call, and the caller's stack.

pub(crate) mod errno;
pub(crate) mod interrupted;
pub(crate) mod stack;
pub(crate) mod structures;
