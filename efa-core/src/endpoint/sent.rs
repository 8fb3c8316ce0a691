//! Completions of packets and RDMA requests: their effects on the operations.

use crate::endpoint::Endpoint;
use crate::endpoint::api::error::{EndpointError, Failure};
use crate::endpoint::base::ids::PacketId;
use crate::endpoint::channel::Channel;
use crate::endpoint::posting::{CompletedRequest, FinishedRequest, PacketOwner};
use crate::endpoint::sending::Loss;
use crate::nic::{Nic, Status};

impl<N: Nic> Endpoint<N> {
    /// Handles the completion of a packet or an RDMA request.
    #[inline]
    pub(crate) fn on_done(&mut self, context: u64, status: Status) {
        let id = PacketId::from_wire(context as u32);
        if status != Status::Ok {
            if let Some((failure, loss)) = self.channel.not_done(id, status) {
                self.lose_packet(id, failure, loss);
            }
            return;
        }
        let Channel {
            posting,
            peers,
            reports,
            ..
        } = &mut self.channel;
        let ended = posting.end_one_packet(id, |peer, operation, sequenced| {
            let failure = peers.arrived(peer, sequenced);
            reports.sent(peer, &operation.report, operation.length, failure);
        });
        match ended {
            Some(peer) => {
                self.sending.free();
                self.channel.got_through(peer);
            }
            None => self.on_other_done(id),
        }
    }

    /// Handles the completion of anything but an operation of one packet.
    #[inline(never)]
    fn on_other_done(&mut self, id: PacketId) {
        // The device completed the same request twice.
        let Some(done) = self.take_packet(id) else {
            self.channel.reports.statistics.stray_completions += 1;
            return;
        };
        self.channel.got_through(done.peer);
        if let FinishedRequest::Packet(_, Some(buffer)) = done.what {
            self.channel.posting.recycle(buffer);
        }
        let failure = self.channel.peers.arrived(done.peer, done.sequenced);
        match done.owner {
            PacketOwner::OnePacket(operation) => {
                self.channel
                    .reports
                    .sent(done.peer, &operation.report, operation.length, failure);
            }
            PacketOwner::Outbound(id) => {
                self.sending.done(id);
                self.send_side().finish_outbound(id);
            }
            PacketOwner::Inbound(id) => {
                if let FinishedRequest::Read(length) = done.what {
                    self.receive_side().on_read_done(id, length, None);
                }
            }
            PacketOwner::Control | PacketOwner::Provocation => {}
        }
    }

    /// Posts a packet or RDMA request again.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`]; other errors end its operation.
    pub(crate) fn retry(&mut self, id: PacketId) -> Result<(), EndpointError> {
        match self.channel.retry_post(id) {
            Err(error) if !matches!(error, EndpointError::TryAgain) => {
                self.lose_packet(id, Failure::of_post(&error), Loss::NotDelivered);
                Ok(())
            }
            posted => posted,
        }
    }

    /// Forgets a packet or RDMA request.
    #[inline]
    fn take_packet(&mut self, id: PacketId) -> Option<CompletedRequest> {
        let taken = self.channel.posting.take(id)?;
        if let PacketOwner::OnePacket(_) = taken.owner {
            self.sending.free();
        }
        Some(taken)
    }

    /// Gives up a packet or RDMA request that the device lost, or that waited to be posted again.
    fn lose_packet(&mut self, id: PacketId, failure: Failure, loss: Loss) {
        let Some(lost) = self.take_packet(id) else {
            return;
        };
        self.channel.lost(&lost, failure, loss);
        match (lost.owner, lost.what) {
            (PacketOwner::OnePacket(operation), _) => {
                let failure = self.channel.peers.failure_of(lost.peer).unwrap_or(failure);
                self.channel.reports.sent(
                    lost.peer,
                    &operation.report,
                    operation.length,
                    Some(failure),
                );
            }
            (PacketOwner::Outbound(id), what) => {
                if self.sending.is_peers_read(id) {
                    self.channel.answer_lost(lost.peer, what, failure);
                }
                self.sending.lost(id, failure, loss);
                self.send_side().finish_outbound(id);
            }
            (PacketOwner::Inbound(id), FinishedRequest::Packet(..)) => {
                self.receive_side().fail_inbound(id, failure)
            }
            (PacketOwner::Inbound(id), _) => self.receive_side().on_read_done(id, 0, Some(failure)),
            (PacketOwner::Control | PacketOwner::Provocation, _) => {}
        }
    }
}
