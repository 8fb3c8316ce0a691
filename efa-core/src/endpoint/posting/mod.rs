//! Packets and RDMA requests on their way to the device and back.

pub(crate) mod backoff;
pub(crate) mod buffers;
pub(crate) mod in_flight;
pub(crate) mod work;
