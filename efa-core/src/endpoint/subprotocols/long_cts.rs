//! Long-CTS transfers (spec section 3.2): the receiver grants successive windows.
//!
//! A CTS grants a number of bytes. The sender sends exactly this number, in CTSDATA packets whose
//! offsets count from the start of the message, including the data of the request. The receiver
//! grants more only when all of them have arrived, as every stock libfabric does and expects.

use crate::endpoint::subprotocols::{ReceiveSide, SendSide};
use crate::nic::Nic;
use crate::wire::{Cts, CtsData, CtsFlags, PacketType, Payload, Receipt, RecvId};

use crate::endpoint::api::error::EndpointError;
use crate::endpoint::base::ids::{InboundId, OutboundId, PeerId};
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::endpoint::posting::PacketOwner;
use crate::endpoint::sending::AwaitedPacket;

impl<N: Nic> SendSide<'_, N> {
    /// Handles a CTS.
    pub(crate) fn on_cts(&mut self, peer: PeerId, cts: &Cts) {
        let id = OutboundId::from_wire(cts.send_id.0);
        match self.sending.granted(peer, id, cts) {
            Ok(()) => self.queue_outbound(id),
            Err(reason) => self.channel.reports.refuse(
                Some(peer),
                PacketType::Cts.code(),
                reason.error(cts.send_id.0),
            ),
        }
    }
}

impl<N: Nic> ReceiveSide<'_, N> {
    /// Sends a CTS.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`]; other errors end the transfer.
    pub(crate) fn send_cts(&mut self, id: InboundId) -> Result<(), EndpointError> {
        let connid = Some(self.channel.address.qkey.into());
        let Some(transfer) = self.receiving.transfers.get(id) else {
            return Ok(());
        };
        let (peer, window) = (
            transfer.peer,
            transfer.next_window(self.channel.sizes.window),
        );
        let mut cts = Cts {
            connid,
            send_id: window.send_id,
            recv_id: RecvId(id.to_wire()),
            recv_length: window.length,
            ..Cts::default()
        };
        // Only libfabric 1.11 reads it.
        cts.flags.set(CtsFlags::EMULATED_READ, window.is_read);
        self.send_for(id, peer, PacketOwner::Inbound(id), &cts)?;
        if let Some(transfer) = self.receiving.transfers.get_mut(id) {
            transfer.granted(window.length);
        }
        Ok(())
    }

    /// Handles data of a window.
    pub(crate) fn on_cts_data(
        &mut self,
        peer: PeerId,
        data: &CtsData,
        packet: &ReceivedPacket,
        payload: Payload,
    ) {
        match self.receiving.transfers.named_by(peer, data.recv_id) {
            Some((id, _)) => {
                self.take_granted(id, data.seg_offset, packet, payload, PacketType::CtsData)
            }
            None => self
                .channel
                .reports
                .refuse_id(peer, PacketType::CtsData, data.recv_id.0),
        }
    }

    /// Processes data of a window. Data that was not granted ends the transfer.
    pub(crate) fn take_granted(
        &mut self,
        id: InboundId,
        offset: u64,
        packet: &ReceivedPacket,
        payload: Payload,
        packet_type: PacketType,
    ) {
        let Some(transfer) = self.receiving.transfers.get(id) else {
            return;
        };
        let (peer, protocol) = (transfer.peer, transfer.windowed());
        if self.take_data(id, packet, payload, offset, protocol, true) {
            return self.go_on_with(id);
        }
        self.refuse_misfit(id, peer, packet_type);
    }
}

impl<N: Nic> SendSide<'_, N> {
    /// Handles a RECEIPT.
    pub(crate) fn on_receipt(&mut self, peer: PeerId, receipt: &Receipt) {
        self.on_acknowledged(
            peer,
            receipt.send_id.0,
            AwaitedPacket::Receipt,
            PacketType::Receipt,
        );
    }
}
