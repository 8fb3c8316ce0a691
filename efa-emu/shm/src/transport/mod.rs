//! How bytes go from one process to another: rings of records in shared segments, and the doorbells
//! that wake their owners. Nothing that is read from shared memory is trusted.

pub(crate) mod claim;
pub(crate) mod doorbell;
pub(crate) mod record;
pub(crate) mod ring;
pub(crate) mod segment;
pub(crate) mod switchboard;
