//! Operations that send data: the choice of a subprotocol, the packets of each.

pub(crate) mod choice;
pub(crate) mod outbound;
pub(crate) mod read_based;
pub(crate) mod stream;
