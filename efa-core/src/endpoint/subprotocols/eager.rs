//! Eager messages (spec section 3.2): the whole message in one packet.

use crate::endpoint::posting::OnePacket;
use crate::endpoint::subprotocols::outgoing_message::send_report;
use crate::endpoint::subprotocols::{ReceiveSide, SendSide};
use crate::nic::{Destination, Nic};
use crate::wire::{EagerRtm, Payload, SendId};

use crate::endpoint::api::error::{EndpointError, Failure};
use crate::endpoint::api::operation::{OperationFlags, SendArgs};
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::memory::iov::copy_out;
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::endpoint::posting::PacketOwner;
use crate::endpoint::sending::{AwaitedPacket, Outbound};
use crate::endpoint::subprotocols::incoming_message::Rtm;

impl<N: Nic> SendSide<'_, N> {
    /// Sends a message of `length` bytes, which fits one packet. With delivery complete, this fills
    /// in the operation that RECEIPT names.
    #[inline(always)]
    pub(crate) fn send_eager(
        &mut self,
        args: &SendArgs<'_>,
        destination: Destination,
        length: u64,
        header: &mut EagerRtm,
    ) -> Result<(), EndpointError> {
        if self.sending.is_full() {
            return Err(EndpointError::TryAgain);
        }
        let report = send_report(args);
        let owner = match &mut header.receipt {
            None => PacketOwner::OnePacket(OnePacket { report, length }),
            Some(send_id) => {
                let (msg_id, awaited) = (Some(header.msg_id), AwaitedPacket::Receipt);
                let outbound = Outbound::one_packet(args.peer, msg_id, report, length, awaited);
                let Some(id) = self.sending.start(outbound) else {
                    return Err(EndpointError::TryAgain);
                };
                *send_id = SendId(id.to_wire());
                PacketOwner::Outbound(id)
            }
        };
        if let Err(error) = self.post_eager(args, destination, length, header, owner) {
            if let PacketOwner::Outbound(id) = owner {
                self.sending.discard(id);
            }
            return Err(error);
        }
        if header.receipt.is_none() {
            // The packet counts as an operation.
            self.sending.reserve();
        }
        Ok(())
    }

    #[inline(always)]
    fn post_eager(
        &mut self,
        args: &SendArgs<'_>,
        destination: Destination,
        length: u64,
        header: &EagerRtm,
        owner: PacketOwner,
    ) -> Result<(), EndpointError> {
        let mut packet = self.channel.posting.start_packet(header)?;
        packet.sequenced = Some(header.msg_id);
        let may_gather = !args.flags.contains(OperationFlags::INJECT);
        let all = (0, length as usize);
        self.channel
            .attach(&mut packet, Protocol::Eager, args.data, all, may_gather)?;
        self.channel
            .post_packet_to(args.peer, destination, owner, packet)
    }
}

impl<N: Nic> ReceiveSide<'_, N> {
    /// Receives a message of one packet into the posted receive that matches it.
    #[inline(always)]
    pub(crate) fn receive_eager(
        &mut self,
        receive: u32,
        peer: PeerId,
        packet: &ReceivedPacket,
        rtm: &Rtm<'_>,
        receipt: Option<SendId>,
    ) {
        let Some(posted) = self.receiving.posted.matched(receive) else {
            return;
        };
        let Payload { offset, length } = rtm.payload;
        let target = posted.target.as_slice();
        let failure = match copy_out(
            self.channel.posting.nic_mut(),
            packet,
            offset,
            length,
            target,
            0,
        ) {
            Ok(()) => None,
            Err(_) => Some(Failure::COPY_FAILED),
        };
        let capacity = posted.capacity();
        let ending = posted.ending(rtm.tag, rtm.cq_data);
        self.channel
            .reports
            .statistics
            .note_received(Protocol::Eager, rtm.length.min(capacity));
        if let Some(send_id) = receipt
            && failure.is_none()
        {
            self.channel.queue_receipt(peer, send_id, rtm.msg_id);
        }
        // The report is written from the receive, which therefore ends after it.
        self.end_inbound(&ending, peer, rtm.length, capacity, failure);
        self.receiving.posted.end_matched(receive);
    }
}
