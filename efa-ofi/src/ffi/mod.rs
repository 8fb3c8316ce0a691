//! libfabric's C interface: its declarations, what all functions that C calls have in common, and
//! the functions of libfabric's that this provider calls.

pub(crate) mod host;
pub(crate) mod object;
mod registry;
pub(crate) mod result;
pub(crate) mod table;
pub(crate) mod unsupported;

pub(crate) use efa_libfabric_sys::*;
