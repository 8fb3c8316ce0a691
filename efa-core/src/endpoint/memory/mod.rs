//! The application's memory in pieces, its registrations, and its way into and out of packets.

pub(crate) mod iov;
pub(crate) mod packet;
pub(crate) mod rdma;
pub(crate) mod registration;
