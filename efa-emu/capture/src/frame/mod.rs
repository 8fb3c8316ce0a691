//! The emulated wire: Ethernet / IPv6 / UDP / transport header / payload.
//!
//! The outer layers are built and parsed by `smoltcp::wire`, the transport header by [`header`].
//! IPv6 source and destination are the GIDs. The UDP destination port is [`UDP_PORT`] in both
//! directions; the source port identifies the path, as multipath networks hash on it.

mod error;
mod ethernet;
pub mod header;
pub(crate) mod link;
mod repr;
mod roce;

#[cfg(test)]
mod tests;

pub use error::Error;
pub use ethernet::{FIRST_SOURCE_PORT, Frame, OUTER_LEN, PATHS, UDP_PORT, ethernet_address};
pub use header::{Flags, MAX_PAYLOAD, Opcode};
pub use repr::{FrameKind, Rdma, Repr};
pub use roce::{LONGEST_PACKET, ROCE_PORT, RocePacket, roce_frame, roce_packet};
