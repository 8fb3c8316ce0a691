//! Eager messages (spec section 3.2): the whole message in one packet.

use crate::endpoint::posting::OnePacket;
use crate::nic::Nic;
use crate::wire::{EagerRtm, Payload, SendId};

use crate::endpoint::Endpoint;
use crate::endpoint::api::error::{EndpointError, Errno, Failure, ProviderError};
use crate::endpoint::api::operation::{OperationFlags, SendArgs};
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::ids::{PeerId, ReceiveId};
use crate::endpoint::memory::iov::copy_out;
use crate::endpoint::posting::Owner;
use crate::endpoint::receiving::held::ReceivedPacket;
use crate::endpoint::receiving::transfer::{Audience, Ending, Posted};
use crate::endpoint::sending::outbound::{Awaited, Outbound};
use crate::endpoint::subprotocols::message::receive_flags;

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

    /// Takes a message for a receive that was posted for it.
    #[inline]
    pub(crate) fn receive_eager(
        &mut self,
        id: ReceiveId,
        peer: PeerId,
        packet: &ReceivedPacket,
        payload: Payload,
        eager: &EagerRtm,
    ) {
        let Some(posted) = self.inbound.remove_posted(id) else {
            return;
        };
        let length = payload.length as u64;
        let copied = copy_out(
            self.posting.nic_mut(),
            packet,
            payload.offset,
            payload.length,
            posted.target.as_slice(),
            0,
        );
        let Posted {
            context,
            report_success,
            capacity,
            ..
        } = posted;
        self.reports
            .statistics
            .note_received(Protocol::Eager, length.min(capacity));
        let failure = match copied {
            Ok(()) => None,
            Err(_) => Some(Failure::new(Errno::EFAULT, ProviderError::ReceiveCopy)),
        };
        if let Some(send_id) = eager.receipt
            && failure.is_none()
        {
            self.queue_receipt(peer, send_id, eager.msg_id);
        }
        let cq_data = eager.options.cq_data;
        let ending = Ending {
            context,
            report_success,
            flags: receive_flags(eager.tag.is_some(), cq_data),
            tag: eager.tag.unwrap_or(0),
            cq_data,
            audience: Audience::Starter,
            part: None,
        };
        self.end_inbound(&ending, peer, length, capacity, failure);
    }
}
