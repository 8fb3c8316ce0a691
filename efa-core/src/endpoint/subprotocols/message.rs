//! Messages on the receiver's side: from matching to a receive to the subprotocol that brings the data.

use crate::endpoint::receiving::claims::UnexpectedMessage;
use crate::nic::Nic;
use crate::wire::{Header, MsgId, Packet, RmaIovs, SendId};

use crate::endpoint::Endpoint;
use crate::endpoint::api::completion::{CompletionFlags, PacketError};
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::ids::{PeerId, ReceiveId};
use crate::endpoint::receiving::assembly::Assembly;
use crate::endpoint::receiving::held::ReceivedPacket;
use crate::endpoint::receiving::table::Inbound;
use crate::endpoint::receiving::transfer::{Audience, Ending, Supply, Transfer};
use crate::endpoint::subprotocols::long_cts::SIZE_MISMATCH;

/// What every request to message (RTM) states, whatever its subprotocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtm {
    pub(crate) msg_id: MsgId,
    pub(crate) tag: Option<u64>,
    pub(crate) cq_data: Option<u64>,
    /// Length of the whole message in bytes.
    pub(crate) length: u64,
    pub(crate) extent: Extent,
}

/// How much of its message a packet is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Extent {
    /// All of it.
    Whole,
    /// A segment: others of the same `msg_id` may follow.
    Segment,
    /// The beginning, or only the announcement: the rest comes without a `msg_id`.
    Start,
}

impl Rtm {
    /// `None` if the packet is no request to message.
    #[inline(always)]
    pub(crate) fn of(incoming: &Packet) -> Option<Rtm> {
        let (msg_id, tag, options, length, extent) = match &incoming.header {
            Header::EagerRtm(eager) => {
                let length = incoming.payload.length as u64;
                (
                    eager.msg_id,
                    eager.tag,
                    &eager.options,
                    length,
                    Extent::Whole,
                )
            }
            Header::MediumRtm(medium) => (
                medium.msg_id,
                medium.tag,
                &medium.options,
                medium.msg_length,
                Extent::Segment,
            ),
            Header::RuntreadRtm(runt) => (
                runt.msg_id,
                runt.tag,
                &runt.options,
                runt.msg_length,
                Extent::Segment,
            ),
            Header::LongctsRtm(long) => (
                long.msg_id,
                long.tag,
                &long.options,
                long.msg_length,
                Extent::Start,
            ),
            Header::LongreadRtm(long) => (
                long.msg_id,
                long.tag,
                &long.options,
                long.msg_length,
                Extent::Start,
            ),
            _ => return None,
        };
        Some(Rtm {
            msg_id,
            tag,
            cq_data: options.cq_data,
            length,
            extent,
        })
    }

    /// Whether other packets of the same `msg_id` may follow.
    pub(crate) fn is_segment(&self) -> bool {
        self.extent == Extent::Segment
    }
}

impl<N: Nic> Endpoint<N> {
    /// Finds the receive for a message, or keeps the message.
    #[inline]
    pub(crate) fn match_message(
        &mut self,
        peer: PeerId,
        packet: ReceivedPacket,
        incoming: &Packet,
        rtm: &Rtm,
    ) {
        let tagged = rtm.tag.is_some();
        let tag = rtm.tag.unwrap_or(0);
        let (matcher, receives) = self.matching(tagged);
        let Some(found) = matcher.match_receive(receives, peer, tag) else {
            return self.keep_unexpected(peer, packet, incoming, rtm);
        };
        if found.stays {
            return self.match_multi(found.receive, peer, packet, incoming, rtm);
        }
        let id = found.receive;
        if let Header::EagerRtm(eager) = &incoming.header {
            self.receive_eager(id, peer, &packet, incoming.payload, eager);
            return self.release(packet);
        }
        let Some(Inbound::Posted(posted)) = self.inbound.get_mut(id) else {
            return self.release(packet);
        };
        let ending = Ending {
            context: posted.context,
            report_success: posted.report_success,
            flags: receive_flags(tagged, rtm.cq_data),
            tag,
            cq_data: rtm.cq_data,
            audience: Audience::Starter,
            part: None,
        };
        let capacity = posted.capacity;
        let target = posted.target.clone();
        let mut transfer = Transfer::new(peer, rtm.length, target, capacity, ending);
        transfer.msg_id = rtm.msg_id;
        self.inbound.activate(id, transfer);
        self.begin(id, peer, packet, incoming, rtm);
    }

    /// Starts a transfer with the first packet of its message.
    pub(crate) fn start_transfer(
        &mut self,
        transfer: Transfer,
        packet: ReceivedPacket,
        incoming: &Packet,
        rtm: &Rtm,
    ) {
        let peer = transfer.peer;
        match self.inbound.insert_active(transfer) {
            Ok(id) => self.begin(id, peer, packet, incoming, rtm),
            // The caller has looked whether there is room.
            Err(_) => self.release(packet),
        }
    }

    fn begin(
        &mut self,
        id: ReceiveId,
        peer: PeerId,
        packet: ReceivedPacket,
        incoming: &Packet,
        rtm: &Rtm,
    ) {
        if rtm.is_segment()
            && let Some(transfer) = self.transfer_mut(id)
        {
            transfer.assembled = true;
            self.assemblies.set(peer, rtm.msg_id, Assembly::Receive(id));
        }
        self.message_packet(id, peer, &packet, incoming);
        self.release(packet);
    }

    /// Keeps a message that no receive accepts yet.
    pub(crate) fn keep_unexpected(
        &mut self,
        peer: PeerId,
        packet: ReceivedPacket,
        incoming: &Packet,
        rtm: &Rtm,
    ) {
        self.reports.statistics.unexpected_messages += 1;
        match self.hold(peer, packet, None) {
            Ok(head) => {
                let tagged = rtm.tag.is_some();
                let message = UnexpectedMessage {
                    msg_id: rtm.msg_id,
                    length: rtm.length,
                    cq_data: rtm.cq_data,
                    segmented: rtm.is_segment(),
                    head,
                };
                let key = self
                    .matcher(tagged)
                    .add_unexpected(peer, rtm.tag.unwrap_or(0), message);
                if rtm.is_segment() {
                    self.assemblies
                        .set(peer, rtm.msg_id, Assembly::Unexpected { tagged, key });
                }
            }
            Err(packet) => {
                self.release(packet);
                self.give_up_peer(peer, incoming.base.packet_type);
            }
        }
    }

    /// Takes one packet of a message for its receive. A packet that contradicts the message ends the
    /// receive with an error: the data that it was to bring will not come.
    pub(crate) fn message_packet(
        &mut self,
        id: ReceiveId,
        peer: PeerId,
        packet: &ReceivedPacket,
        incoming: &Packet,
    ) {
        let payload = incoming.payload;
        let taken = match &incoming.header {
            Header::EagerRtm(eager) => {
                self.note_receipt(id, eager.receipt);
                self.take_data(id, packet, payload, 0, Protocol::Eager)
            }
            Header::MediumRtm(medium) => {
                self.note_receipt(id, medium.receipt);
                self.same_length(id, medium.msg_length)
                    && self.take_data(id, packet, payload, medium.seg_offset, Protocol::Medium)
            }
            Header::LongctsRtm(long) => {
                self.note_receipt(id, long.delivery_complete.then_some(long.send_id));
                if let Some(transfer) = self.transfer_mut(id) {
                    transfer.send_id = long.send_id;
                    transfer.supply = Supply::Windows { granted: 0 };
                }
                self.take_data(id, packet, payload, 0, Protocol::LongCts)
            }
            Header::LongreadRtm(long) => {
                self.start_message_read(id, long.send_id, &long.read_iov, 0)
            }
            Header::RuntreadRtm(runt) => {
                self.same_length(id, runt.msg_length)
                    && self.start_message_read(id, runt.send_id, &runt.read_iov, runt.runt_length)
                    && self.take_data(id, packet, payload, runt.seg_offset, Protocol::RuntingRead)
            }
            _ => false,
        };
        if taken {
            self.go_on_with(id);
        } else {
            let packet_type = incoming.base.packet_type;
            self.reports
                .refuse(Some(peer), packet_type.code(), PacketError::SizeMismatch);
            self.fail_inbound(id, SIZE_MISMATCH);
        }
    }

    /// Starts to read a message's data, with the first packet that says where it is. Returns false
    /// if the sizes contradict each other.
    fn start_message_read(
        &mut self,
        id: ReceiveId,
        send_id: SendId,
        read_iov: &RmaIovs,
        in_packets: u64,
    ) -> bool {
        let Some(transfer) = self.transfer_mut(id) else {
            return false;
        };
        let started = transfer.plan.is_some()
            || matches!(transfer.supply, Supply::Refused { .. } | Supply::Nacked)
            || transfer.failure.is_some();
        if started || in_packets == transfer.length {
            return true;
        }
        // Packets may have come that said something else about how the rest comes.
        if in_packets > transfer.length
            || transfer.received > in_packets
            || read_iov.total_len() != Some(transfer.length)
        {
            return false;
        }
        transfer.send_id = send_id;
        self.start_reads(id, *read_iov, in_packets);
        true
    }

    fn same_length(&mut self, id: ReceiveId, length: u64) -> bool {
        self.transfer_mut(id)
            .is_some_and(|transfer| transfer.length == length)
    }

    fn note_receipt(&mut self, id: ReceiveId, receipt: Option<SendId>) {
        if let Some(send_id) = receipt
            && let Some(transfer) = self.transfer_mut(id)
        {
            transfer.send_id = send_id;
            transfer.wants_receipt = true;
        }
    }
}

/// The flags of a completion.
pub(crate) fn message_flags(tagged: bool, direction: CompletionFlags) -> CompletionFlags {
    direction
        | if tagged {
            CompletionFlags::TAGGED
        } else {
            CompletionFlags::MSG
        }
}

/// The flags of a receive's completion.
pub(crate) fn receive_flags(tagged: bool, cq_data: Option<u64>) -> CompletionFlags {
    let mut flags = message_flags(tagged, CompletionFlags::RECV);
    flags.set(CompletionFlags::REMOTE_CQ_DATA, cq_data.is_some());
    flags
}
