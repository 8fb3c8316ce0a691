//! Incoming messages: from matching to the subprotocol that brings the data.

use crate::endpoint::subprotocols::ReceiveSide;
use crate::nic::Nic;
use crate::wire::{
    EagerRtm, Header, LongctsRtm, LongreadRtm, MediumRtm, Message, MsgId, Packet, PacketType,
    Payload, RmaIovs, Rta, RuntreadRtm, SendId,
};

use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::ids::{InboundId, PeerId};
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::endpoint::posting::DeferredPacketId;
use crate::endpoint::receiving::{ReadStart, ReceivedRanges, UnexpectedMessage};

/// A request that takes its turn among the requests of its sender: a message or an atomic.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sequenced<'a> {
    Message(Rtm<'a>),
    Atomic(&'a Rta, &'a Packet),
}

/// The fields that every request to message (RTM) states, in any subprotocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtm<'a> {
    pub(crate) packet_type: PacketType,
    pub(crate) msg_id: MsgId,
    pub(crate) tag: Option<u64>,
    pub(crate) cq_data: Option<u64>,
    /// Length of the whole message in bytes.
    pub(crate) length: u64,
    pub(crate) extent: MessagePart<'a>,
    /// The position of this packet's data.
    pub(crate) payload: Payload,
}

/// The part of its message that a packet contains.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MessagePart<'a> {
    /// The whole message, with the sender's operation if that expects a RECEIPT.
    Whole(Option<SendId>),
    /// A segment. Others with the same `msg_id` may follow.
    Medium(&'a MediumRtm),
    /// A segment of the part that travels ahead of the read. Others with the same `msg_id` may
    /// follow.
    Runt(&'a RuntreadRtm),
    /// The first part. The rest follows in packets without a `msg_id`.
    LongCts(&'a LongctsRtm),
    /// No data: the packet names the memory to read it from.
    LongRead(&'a LongreadRtm),
}

impl<'a> Sequenced<'a> {
    /// Returns `None` if the packet takes no turn.
    pub(crate) fn of(incoming: &'a Packet) -> Option<Self> {
        match &incoming.header {
            Header::Rta(rta) => Some(Sequenced::Atomic(rta, incoming)),
            _ => Rtm::of(incoming).map(Sequenced::Message),
        }
    }

    #[inline]
    pub(crate) fn msg_id(&self) -> MsgId {
        match self {
            Sequenced::Message(rtm) => rtm.msg_id,
            Sequenced::Atomic(rta, _) => rta.msg_id,
        }
    }

    pub(crate) fn packet_type(&self) -> PacketType {
        match self {
            Sequenced::Message(rtm) => rtm.packet_type,
            Sequenced::Atomic(_, incoming) => incoming.base.packet_type,
        }
    }
}

impl<'a> Rtm<'a> {
    /// A message of one packet.
    #[inline(always)]
    pub(crate) fn eager(packet_type: PacketType, eager: &EagerRtm, payload: Payload) -> Self {
        Rtm {
            packet_type,
            msg_id: eager.msg_id,
            tag: eager.tag,
            cq_data: eager.options.cq_data,
            length: payload.length as u64,
            extent: MessagePart::Whole(eager.receipt),
            payload,
        }
    }

    /// Returns `None` if the packet is not a message request.
    pub(crate) fn of(incoming: &'a Packet) -> Option<Self> {
        let packet_type = incoming.base.packet_type;
        let payload = incoming.payload;
        let header = &incoming.header;
        let extent = match header {
            Header::EagerRtm(eager) => return Some(Rtm::eager(packet_type, eager, payload)),
            Header::MediumRtm(medium) => MessagePart::Medium(medium),
            Header::RuntreadRtm(runt) => MessagePart::Runt(runt),
            Header::LongctsRtm(long) => MessagePart::LongCts(long),
            Header::LongreadRtm(long) => MessagePart::LongRead(long),
            _ => return None,
        };
        let message = Message::of(header, payload.length as u64)?;
        Some(Rtm {
            packet_type,
            msg_id: message.msg_id?,
            tag: message.tag,
            cq_data: header.req_options()?.cq_data,
            length: message.length,
            extent,
            payload,
        })
    }

    /// The message as one that no receive has matched. Its packet `head` waits; only `arrived` has
    /// arrived.
    pub(crate) fn unexpected(
        &self,
        head: DeferredPacketId,
        arrived: ReceivedRanges,
    ) -> UnexpectedMessage {
        let mut message = UnexpectedMessage {
            msg_id: self.msg_id,
            length: self.length,
            cq_data: self.cq_data,
            segmented: self.is_segment(),
            head,
            arrived,
            lost: None,
        };
        message.takes(self.offset(), self.payload.length as u64);
        message
    }

    /// The offset of this packet's data in the message.
    pub(crate) fn offset(&self) -> u64 {
        match self.extent {
            MessagePart::Whole(_) | MessagePart::LongCts(_) | MessagePart::LongRead(_) => 0,
            MessagePart::Medium(medium) => medium.seg_offset,
            MessagePart::Runt(runt) => runt.seg_offset,
        }
    }

    /// Returns whether other packets of the same `msg_id` may follow.
    pub(crate) fn is_segment(&self) -> bool {
        matches!(self.extent, MessagePart::Medium(_) | MessagePart::Runt(_))
    }
}

impl<N: Nic> ReceiveSide<'_, N> {
    /// Finds the receive for a message, or stores the message. `rtm` returns the fields of the
    /// message; it is called separately in each case so that the fields of the usual case stay in
    /// registers.
    #[inline(always)]
    pub(crate) fn match_message<'a>(
        &mut self,
        peer: PeerId,
        packet: ReceivedPacket,
        tag: Option<u64>,
        rtm: impl Fn() -> Rtm<'a>,
    ) {
        let Some(found) = self.receiving.posted.match_message(peer, tag) else {
            return self.keep_unexpected(peer, packet, &rtm());
        };
        if found.stays
            && let Some(receive) = self.receiving.posted.id(found.slot)
        {
            return self.match_multi(receive, peer, packet, &rtm());
        }
        let receive = found.slot;
        let message = rtm();
        if let MessagePart::Whole(receipt) = message.extent {
            self.receive_eager(receive, peer, &packet, &message, receipt);
            return self.channel.posting.release(packet);
        }
        let cause = (message.tag, message.cq_data);
        let receiving = &mut *self.receiving;
        match receiving.activate(receive, peer, message.msg_id, message.length, cause) {
            Some(id) => self.begin_message(id, peer, packet, &message),
            None => self.channel.posting.release(packet),
        }
    }

    /// Handles the first packet of a message that has a transfer.
    pub(crate) fn begin_message(
        &mut self,
        id: InboundId,
        peer: PeerId,
        packet: ReceivedPacket,
        rtm: &Rtm<'_>,
    ) {
        if rtm.is_segment() {
            self.receiving.assemble(id);
        }
        self.message_packet(id, peer, &packet, rtm);
        self.channel.posting.release(packet);
    }

    /// Stores a message that no receive accepts yet.
    pub(crate) fn keep_unexpected(&mut self, peer: PeerId, packet: ReceivedPacket, rtm: &Rtm<'_>) {
        self.channel.reports.statistics.unexpected_messages += 1;
        match self.channel.defer(peer, packet, None) {
            Ok(head) => {
                let unexpected = &mut self.receiving.unexpected;
                let arrived = unexpected.nothing_arrived(rtm.is_segment());
                unexpected.defer(peer, rtm.tag, rtm.unexpected(head, arrived));
            }
            Err(packet) => {
                self.channel.posting.release(packet);
                self.channel.give_up(peer, rtm.packet_type);
            }
        }
    }

    /// Handles one packet of a message that has a transfer. A packet that contradicts the message
    /// ends the receive with an error, because its data is missing.
    pub(crate) fn message_packet(
        &mut self,
        id: InboundId,
        peer: PeerId,
        packet: &ReceivedPacket,
        rtm: &Rtm<'_>,
    ) {
        let payload = rtm.payload;
        let taken = match (self.receiving.transfers.get_mut(id), rtm.extent) {
            // An earlier packet has ended it.
            (None, _) => false,
            (Some(transfer), MessagePart::Whole(receipt)) => {
                transfer.note_receipt(receipt);
                self.take_data(id, packet, payload, 0, Protocol::Eager, false)
            }
            (Some(transfer), MessagePart::Medium(medium)) => {
                transfer.note_receipt(medium.receipt);
                let (offset, protocol) = (medium.seg_offset, Protocol::Medium);
                transfer.is_of_length(medium.msg_length)
                    && self.take_data(id, packet, payload, offset, protocol, false)
            }
            (Some(transfer), MessagePart::LongCts(long)) => {
                transfer.windows_follow(long.send_id, long.delivery_complete);
                self.take_data(id, packet, payload, 0, Protocol::LongCts, false)
            }
            (Some(_), MessagePart::LongRead(long)) => {
                self.start_message_read(id, long.send_id, &long.read_iov, 0)
            }
            (Some(transfer), MessagePart::Runt(runt)) => {
                let (offset, protocol) = (runt.seg_offset, Protocol::RuntingRead);
                transfer.is_of_length(runt.msg_length)
                    && self.start_message_read(id, runt.send_id, &runt.read_iov, runt.runt_length)
                    && self.take_data(id, packet, payload, offset, protocol, false)
            }
        };
        if taken {
            self.go_on_with(id);
        } else {
            self.refuse_misfit(id, peer, rtm.packet_type);
        }
    }

    /// Starts to read a message's data, if this is the first packet that names its location.
    /// Returns false if the packet contradicts the known state of the message.
    fn start_message_read(
        &mut self,
        id: InboundId,
        send_id: SendId,
        read_iov: &RmaIovs,
        in_packets: u64,
    ) -> bool {
        let transfer = self.receiving.transfers.get_mut(id);
        match transfer.map(|transfer| transfer.readable(send_id, read_iov, in_packets)) {
            Some(ReadStart::Nothing) => true,
            None | Some(ReadStart::Mismatch) => false,
            Some(ReadStart::Read) => {
                self.start_reads(id, *read_iov, in_packets);
                true
            }
        }
    }
}
