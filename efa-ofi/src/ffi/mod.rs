//! libfabric's C interface: its declarations, the common code of all functions that C calls, and
//! the libfabric functions that this provider calls.

pub(crate) mod host;
pub(crate) mod object;
mod registry;
pub(crate) mod result;
pub(crate) mod table;
pub(crate) mod unsupported;

pub(crate) use efa_libfabric_sys::*;
