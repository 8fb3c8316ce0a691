//! The application's memory: its pieces, its registrations, and copies to and from packets.

pub(crate) mod iov;
pub(crate) mod packet;
pub(crate) mod rdma;
pub(crate) mod registration;
