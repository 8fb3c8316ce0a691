//! Writes of a peer's memory.

use crate::nic::Nic;

use super::Endpoint;
use super::completion::PacketError;
use super::held::ReceivedPacket;
use super::ids::PeerId;
use super::incoming::{Incoming, Rtw, RtwProtocol};

impl<N: Nic> Endpoint<N> {
    /// A peer wants to write our memory.
    pub(super) fn on_write(
        &mut self,
        peer: PeerId,
        rtw: &Rtw,
        _packet: &ReceivedPacket,
        incoming: &Incoming,
    ) {
        // Stock libfabric sends an empty write to make a peer answer with its handshake.
        let is_empty = rtw.target.as_slice().is_empty() && incoming.payload.length == 0;
        if is_empty && matches!(rtw.protocol, RtwProtocol::Eager { receipt: None }) {
            return;
        }
        self.refuse(
            Some(peer),
            incoming.packet_type.code(),
            PacketError::UnsupportedType,
        );
    }
}
