//! The subprotocols: they combine the parts of the endpoint for each kind of operation.
//!
//! Each operation has a source and a destination of its data. [`SendSide`] and [`ReceiveSide`]
//! borrow the parts that each needs. Neither can reach the parts of the other.

pub(crate) mod atomics;
pub(crate) mod eager;
pub(crate) mod headerless;
pub(crate) mod incoming_message;
pub(crate) mod intake;
pub(crate) mod long_cts;
pub(crate) mod long_read;
pub(crate) mod outgoing_message;
pub(crate) mod peer_error;
pub(crate) mod rdma;
pub(crate) mod read;
pub(crate) mod receive_calls;
pub(crate) mod transmission;
pub(crate) mod turns;
pub(crate) mod write;

use crate::endpoint::channel::Channel;
use crate::endpoint::one_sided::ExposedRegions;
use crate::endpoint::receiving::Receiving;
use crate::endpoint::sending::Sending;

/// This endpoint as a source of data: sends and writes of its application, and emulated reads of
/// peers.
pub(crate) struct SendSide<'a, N> {
    pub(crate) channel: &'a mut Channel<N>,
    pub(crate) sending: &'a mut Sending,
    pub(crate) exposed: &'a ExposedRegions,
}

/// This endpoint as a destination of data: receives and reads of its application, and emulated
/// writes of peers.
pub(crate) struct ReceiveSide<'a, N> {
    pub(crate) channel: &'a mut Channel<N>,
    pub(crate) receiving: &'a mut Receiving,
    pub(crate) exposed: &'a ExposedRegions,
}
