//! Replies of peers to an operation: CTS, RECEIPT, EOR, READ_NACK, PEER_ERROR.

use crate::endpoint::api::completion::PacketError;
use crate::endpoint::api::error::Failure;
use crate::endpoint::base::ids::{OutboundId, PeerId};
use crate::wire::{Cts, PeerError};

use super::Sending;
use super::outbound::{AwaitedPacket, Outbound};
use super::results::RejectReason;
use super::stream::{RequestHead, Stream};

impl Sending {
    /// Processes a CTS, which grants a window.
    ///
    /// # Errors
    /// The packet has no effect.
    pub(crate) fn granted(
        &mut self,
        peer: PeerId,
        id: OutboundId,
        cts: &Cts,
    ) -> Result<(), RejectReason> {
        let bulk = match self.with_bulk(id) {
            Some((operation, bulk))
                if operation.peer == peer
                    && operation.failure.is_none()
                    && matches!(bulk.stream, Stream::CtsData(_)) =>
            {
                bulk
            }
            _ => return Err(RejectReason::NoOperation),
        };
        // All windows of an operation are opened by the same operation of the peer. A different one
        // was started by a duplicate of the request, and the data must not be divided between the
        // two.
        let is_others =
            matches!(bulk.stream, Stream::CtsData(Some(recv_id)) if recv_id != cts.recv_id);
        // The peer opens a window when all data of the last one has arrived. An earlier CTS is a
        // duplicate.
        let is_early = bulk.moved < bulk.allowed;
        if is_others || is_early {
            return Err(RejectReason::Window);
        }
        if cts.recv_length == 0 || cts.recv_length > bulk.to_move - bulk.allowed {
            return Err(RejectReason::Sizes);
        }
        bulk.stream = Stream::CtsData(Some(cts.recv_id));
        bulk.allowed += cts.recv_length;
        Ok(())
    }

    /// Processes the packet for which an operation waits.
    ///
    /// # Errors
    /// The packet has no effect.
    pub(crate) fn acknowledged(
        &mut self,
        peer: PeerId,
        id: OutboundId,
        awaited: AwaitedPacket,
    ) -> Result<(), RejectReason> {
        match self.operations.get_mut(id) {
            Some(operation) if operation.peer == peer && operation.awaited == awaited => {
                operation.awaited = AwaitedPacket::Nothing;
                Ok(())
            }
            _ => Err(RejectReason::NoOperation),
        }
    }

    /// Processes a READ_NACK: the peer cannot read the data of an operation, and gets the rest in
    /// packets. A message continues after its runt, under the same `msg_id`; a write starts again.
    /// Returns the size in bytes of the runt, which must be ended in [`ReadBased`].
    ///
    /// # Errors
    /// The packet has no effect.
    pub(crate) fn nacked(
        &mut self,
        peer: PeerId,
        id: OutboundId,
    ) -> Result<Option<u64>, RejectReason> {
        let (operation, bulk) = match self.with_bulk(id) {
            Some((operation, bulk))
                if operation.peer == peer && operation.awaited == AwaitedPacket::Eor =>
            {
                (operation, bulk)
            }
            _ => return Err(RejectReason::NoOperation),
        };
        let Stream::Silent(Some(request)) = bulk.stream else {
            // The runt was not sent completely, so the peer cannot have tried to read the rest.
            return Err(RejectReason::Sizes);
        };
        bulk.to_move = operation.length;
        let delivery_complete = match request {
            RequestHead::Message(head) => {
                bulk.stream = Stream::NackAnswer(head);
                head.delivery_complete
            }
            RequestHead::Write(head) => {
                bulk.moved = 0;
                bulk.stream = Stream::LongCts(request);
                head.delivery_complete
            }
        };
        bulk.allowed = bulk.moved;
        bulk.protocol = bulk.stream.protocol();
        operation.awaited = AwaitedPacket::for_packets(delivery_complete);
        Ok(bulk.runt.take())
    }

    /// Processes a PEER_ERROR: the receiver of a message has abandoned it, and the message fails
    /// here too, if it has not failed already. The operation that the packet names counts only if
    /// it belongs to that message.
    ///
    /// # Errors
    /// The packet has no effect.
    pub(crate) fn aborted(
        &mut self,
        peer: PeerId,
        error: &PeerError,
    ) -> Result<OutboundId, PacketError> {
        let named = (error.op_id != PeerError::NO_OP).then_some(error.op_id);
        let named = named.map(OutboundId::from_wire);
        let named = named.filter(|id| self.peer(*id) == Some(peer));
        let message = |id: &OutboundId| self.operations.get(*id).and_then(Outbound::message);
        let is_of_message = |id: &OutboundId| message(id) == Some(error.msg_id);
        let id = named.filter(is_of_message);
        let id = id.or_else(|| self.with_peer(peer).into_iter().find(is_of_message));
        let names_no_message = named.is_some_and(|id| message(&id).is_none());
        let Some((id, operation)) = id.and_then(|id| Some((id, self.operations.get_mut(id)?)))
        else {
            let id = error.op_id;
            return Err(match names_no_message {
                true => PacketError::NoMessage { id },
                false => PacketError::StaleOperation { id },
            });
        };
        operation.peer_aborted = true;
        let failure = Failure::of_peer(error.prov_errno);
        operation.failure.get_or_insert(failure);
        Ok(id)
    }
}
