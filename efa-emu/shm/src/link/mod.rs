//! The two halves of a device's [`Link`](efa_device_model::link::Link), and their common parts:
//! peers, copies between address spaces, the faults of the board and the frames for captures.

pub(crate) mod egress;
pub(crate) mod inbound;
pub(crate) mod memory;
pub(crate) mod outbound;
pub(crate) mod peer;
pub(crate) mod staged;
pub(crate) mod tap;
