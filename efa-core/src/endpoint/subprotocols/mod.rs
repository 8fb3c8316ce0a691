//! The subprotocols: what the parts do together for each kind of operation.
//!
//! Each operation has a side that data comes from and one that it goes to. [`SendSide`] and
//! [`ReceiveSide`] borrow what either needs; neither reaches what the other has.

pub(crate) mod eager;
pub(crate) mod headerless;
pub(crate) mod incoming_message;
pub(crate) mod intake;
pub(crate) mod long_cts;
pub(crate) mod long_read;
pub(crate) mod outgoing_message;
pub(crate) mod rdma;
pub(crate) mod read;
pub(crate) mod receive_calls;
pub(crate) mod transmission;
pub(crate) mod write;

use crate::endpoint::channel::Channel;
use crate::endpoint::one_sided::Exposed;
use crate::endpoint::receiving::Receiving;
use crate::endpoint::sending::Sending;

/// What this endpoint does as the source of data: its sends and writes, and emulated reads of peers.
pub(crate) struct SendSide<'a, N> {
    pub(crate) channel: &'a mut Channel<N>,
    pub(crate) sending: &'a mut Sending,
    pub(crate) exposed: &'a Exposed,
}

/// What this endpoint does as the destination of data: its receives and reads, and emulated writes of
/// peers.
pub(crate) struct ReceiveSide<'a, N> {
    pub(crate) channel: &'a mut Channel<N>,
    pub(crate) receiving: &'a mut Receiving,
    pub(crate) exposed: &'a Exposed,
}
