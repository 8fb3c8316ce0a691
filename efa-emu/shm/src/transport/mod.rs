//! The transport of bytes from one process to another: rings of records in shared segments, and the
//! doorbells that wake their owners. All content of shared memory is validated.

pub(crate) mod doorbell_page;
pub(crate) mod ring;
pub(crate) mod segment;
