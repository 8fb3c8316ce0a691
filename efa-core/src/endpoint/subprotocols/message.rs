//! Messages on the receiver's side: from matching to a receive to the subprotocol that brings the data.

use crate::nic::Nic;
use crate::wire::{MsgId, PacketType, SendId};

use crate::endpoint::Endpoint;
use crate::endpoint::api::completion::{CompletionFlags, PacketError};
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::ids::{PeerId, ReceiveId};
use crate::endpoint::incoming::{Incoming, Iovs, Payload, Rtm, RtmProtocol};
use crate::endpoint::receiving::assembly::Assembly;
use crate::endpoint::receiving::held::{HeldId, ReceivedPacket};
use crate::endpoint::receiving::matching::Matcher;
use crate::endpoint::receiving::table::Inbound;
use crate::endpoint::receiving::transfer::{Audience, Ending, Supply, Transfer};
use crate::endpoint::subprotocols::long_cts::SIZE_MISMATCH;

/// A message that no receive has taken yet.
pub(crate) struct UnexpectedMessage {
    pub(crate) msg_id: MsgId,
    /// Length of the whole message in bytes.
    pub(crate) length: u64,
    pub(crate) cq_data: Option<u64>,
    /// It comes in several packets of the same `msg_id`.
    pub(crate) segmented: bool,
    /// Its packets so far.
    pub(crate) head: HeldId,
}

pub(crate) type MessageMatcher = Matcher<UnexpectedMessage>;

impl<N: Nic> Endpoint<N> {
    /// Finds the receive for a message, or keeps the message.
    #[inline]
    pub(crate) fn match_message(
        &mut self,
        peer: PeerId,
        packet: ReceivedPacket,
        incoming: &Incoming,
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
        if let RtmProtocol::Eager { receipt } = rtm.protocol {
            self.receive_eager(id, peer, &packet, incoming.payload, rtm, receipt);
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
        let length = rtm.length(incoming.payload);
        let mut transfer = Transfer::new(peer, length, target, capacity, ending);
        transfer.msg_id = rtm.msg_id;
        self.inbound.activate(id, transfer);
        self.begin(id, peer, packet, incoming, rtm);
    }

    /// Starts a transfer with the first packet of its message.
    pub(crate) fn start_transfer(
        &mut self,
        transfer: Transfer,
        packet: ReceivedPacket,
        incoming: &Incoming,
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
        incoming: &Incoming,
        rtm: &Rtm,
    ) {
        if rtm.is_segment()
            && let Some(transfer) = self.transfer_mut(id)
        {
            transfer.assembled = true;
            self.assemblies.set(peer, rtm.msg_id, Assembly::Receive(id));
        }
        let Incoming {
            payload,
            packet_type,
            ..
        } = *incoming;
        self.message_packet(id, peer, &packet, rtm, payload, packet_type);
        self.release(packet);
    }

    /// Keeps a message that no receive accepts yet.
    pub(crate) fn keep_unexpected(
        &mut self,
        peer: PeerId,
        packet: ReceivedPacket,
        incoming: &Incoming,
        rtm: &Rtm,
    ) {
        self.statistics.unexpected_messages += 1;
        match self.hold(peer, packet, None) {
            Ok(head) => {
                let tagged = rtm.tag.is_some();
                let message = UnexpectedMessage {
                    msg_id: rtm.msg_id,
                    length: rtm.length(incoming.payload),
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
                self.give_up_peer(peer, incoming.packet_type);
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
        rtm: &Rtm,
        payload: Payload,
        packet_type: PacketType,
    ) {
        let taken = match rtm.protocol {
            RtmProtocol::Eager { receipt } => {
                self.note_receipt(id, receipt);
                self.take_data(id, packet, payload, 0, Protocol::Eager)
            }
            RtmProtocol::Medium {
                msg_length,
                seg_offset,
                receipt,
            } => {
                self.note_receipt(id, receipt);
                self.same_length(id, msg_length)
                    && self.take_data(id, packet, payload, seg_offset, Protocol::Medium)
            }
            RtmProtocol::LongCts {
                send_id,
                delivery_complete,
                ..
            } => {
                self.note_receipt(id, delivery_complete.then_some(send_id));
                if let Some(transfer) = self.transfer_mut(id) {
                    transfer.send_id = send_id;
                    transfer.supply = Supply::Windows { granted: 0 };
                }
                self.take_data(id, packet, payload, 0, Protocol::LongCts)
            }
            RtmProtocol::LongRead {
                send_id, read_iov, ..
            } => self.start_message_read(id, send_id, read_iov, 0),
            RtmProtocol::RuntRead {
                msg_length,
                send_id,
                seg_offset,
                runt_length,
                read_iov,
            } => {
                self.same_length(id, msg_length)
                    && self.start_message_read(id, send_id, read_iov, runt_length)
                    && self.take_data(id, packet, payload, seg_offset, Protocol::RuntingRead)
            }
        };
        if taken {
            self.go_on_with(id);
        } else {
            self.refuse(Some(peer), packet_type.code(), PacketError::SizeMismatch);
            self.fail_inbound(id, SIZE_MISMATCH);
        }
    }

    /// Starts to read a message's data, with the first packet that says where it is. Returns false
    /// if the sizes contradict each other.
    fn start_message_read(
        &mut self,
        id: ReceiveId,
        send_id: SendId,
        read_iov: Iovs,
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
            || read_iov.total_length() != Some(transfer.length)
        {
            return false;
        }
        transfer.send_id = send_id;
        self.start_reads(id, read_iov, in_packets);
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
