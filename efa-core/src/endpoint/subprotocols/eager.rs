//! Eager messages (spec section 3.2): the whole message in one packet.

use crate::endpoint::posting::OnePacket;
use crate::nic::Nic;
use crate::wire::{EagerRtm, MsgId, Payload, SendId};

use crate::endpoint::Endpoint;
use crate::endpoint::api::error::{EndpointError, Errno, Failure, ProviderError};
use crate::endpoint::api::operation::{IoVec, OperationFlags, SendArgs};
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::memory::iov::copy_out;
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::endpoint::posting::Owner;
use crate::endpoint::receiving::Ending;
use crate::endpoint::sending::outbound::{Awaited, Outbound};

/// A received message of one packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EagerMessage {
    pub(crate) payload: Payload,
    pub(crate) msg_id: MsgId,
    /// The sender's operation, if it wants RECEIPT.
    pub(crate) receipt: Option<SendId>,
}

impl<N: Nic> Endpoint<N> {
    /// Sends a message of `length` bytes, which fit. With delivery complete, the operation that RECEIPT
    /// has to name is filled in here.
    pub(crate) fn send_eager(
        &mut self,
        args: &SendArgs<'_>,
        length: u64,
        header: &mut EagerRtm,
    ) -> Result<(), EndpointError> {
        if self.outbound.is_full() {
            return Err(EndpointError::TryAgain);
        }
        let report = Self::send_report(args);
        let owner = match &mut header.receipt {
            None => Owner::Whole(OnePacket {
                report,
                length,
                failure: None,
            }),
            Some(send_id) => {
                let outbound = Outbound {
                    peer: args.peer,
                    report: Some(report),
                    length,
                    awaited: Awaited::Receipt,
                    outstanding: 1,
                    failure: None,
                    bulk: None,
                };
                let Ok(id) = self.outbound.insert(outbound) else {
                    return Err(EndpointError::TryAgain);
                };
                *send_id = SendId(id.to_wire());
                Owner::Outbound(id)
            }
        };
        let posted = self.posting.start_packet(header).and_then(|mut packet| {
            let may_gather = !args.flags.contains(OperationFlags::INJECT);
            let size = length as usize;
            let copied = self
                .posting
                .attach(&mut packet, args.data, 0, size, may_gather)?;
            self.reports.statistics.note_sent(Protocol::Eager, copied);
            self.post_packet(args.peer, owner, packet)
        });
        if posted.is_err()
            && let Owner::Outbound(id) = owner
        {
            self.outbound.remove(id);
        }
        posted
    }

    /// Delivers a message of one packet to `target`.
    #[inline(always)]
    pub(crate) fn deliver_eager(
        &mut self,
        peer: PeerId,
        packet: &ReceivedPacket,
        message: EagerMessage,
        target: &[IoVec],
        capacity: u64,
        ending: &Ending,
    ) {
        let EagerMessage {
            payload,
            msg_id,
            receipt,
        } = message;
        let length = payload.length as u64;
        let copied = copy_out(
            self.posting.nic_mut(),
            packet,
            payload.offset,
            payload.length,
            target,
            0,
        );
        self.reports
            .statistics
            .note_received(Protocol::Eager, length.min(capacity));
        let failure = match copied {
            Ok(()) => None,
            Err(_) => Some(Failure::new(Errno::EFAULT, ProviderError::ReceiveCopy)),
        };
        if let Some(send_id) = receipt
            && failure.is_none()
        {
            self.queue_receipt(peer, send_id, msg_id);
        }
        self.end_inbound(ending, peer, length, capacity, failure);
    }
}
