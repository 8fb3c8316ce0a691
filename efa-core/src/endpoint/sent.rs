//! Posting packets again, and what follows when the device has completed a packet or RDMA request.

use crate::endpoint::Endpoint;
use crate::endpoint::api::completion::Event;
use crate::endpoint::api::error::{EndpointError, Errno, Failure, ProviderError};
use crate::endpoint::base::ids::{PacketId, PeerId};
use crate::endpoint::posting::{Finished, Owner, What};
use crate::endpoint::sending::Loss;
use crate::nic::{Nic, Status};
use crate::wire::PacketType;

// Posting.
impl<N: Nic> Endpoint<N> {
    /// Posts a packet or RDMA request again.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`]; other errors end its operation.
    pub(crate) fn resend(&mut self, id: PacketId) -> Result<(), EndpointError> {
        let Some(peer) = self.channel.posting.peer(id) else {
            return Ok(());
        };
        let posted = self
            .channel
            .destination(peer)
            .and_then(|destination| self.channel.posting.post_again(id, destination));
        match posted {
            Ok(()) => self.channel.reports.statistics.packets_sent += 1,
            Err(EndpointError::TryAgain) => return Err(EndpointError::TryAgain),
            Err(error) => self.lose_packet(id, Failure::of_post(&error), Loss::NotDelivered),
        }
        Ok(())
    }
}

// What follows.
impl<N: Nic> Endpoint<N> {
    /// Handles the completion of a packet or an RDMA request.
    #[inline]
    pub(crate) fn on_done(&mut self, context: u64, status: Status) {
        let id = PacketId::from_wire(context as u32);
        if status == Status::RemoteRnr {
            return self.on_receiver_not_ready(id);
        }
        if status != Status::Ok {
            return self.on_undelivered(id, status);
        }
        let Some((peer, operation, buffer, sequenced)) = self.channel.posting.take_whole(id) else {
            return self.on_other_done(id);
        };
        self.sending.free();
        self.channel.got_through(peer);
        self.channel.posting.recycle(buffer);
        let failure = self.channel.peers.arrived(peer, sequenced);
        self.channel
            .reports
            .sent(peer, &operation.report, operation.length, failure);
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
        if let What::Packet(_, Some(buffer)) = done.what {
            self.channel.posting.recycle(buffer);
        }
        let failure = self.channel.peers.arrived(done.peer, done.sequenced);
        match done.owner {
            Owner::Whole(operation) => {
                self.channel
                    .reports
                    .sent(done.peer, &operation.report, operation.length, failure);
            }
            Owner::Outbound(id) => {
                self.sending.done(id);
                self.send_side().finish_outbound(id);
            }
            Owner::Inbound(id) => {
                if let What::Read(length) = done.what {
                    self.receive_side().on_read_done(id, length, None);
                }
            }
            Owner::Nobody | Owner::Provocation => {}
        }
    }

    fn on_receiver_not_ready(&mut self, id: PacketId) {
        self.channel.reports.statistics.receiver_not_ready += 1;
        let Some(peer) = self.channel.posting.peer(id) else {
            self.channel.reports.statistics.stray_completions += 1;
            return;
        };
        let Some(state) = self.channel.peers.state_mut(peer) else {
            let failure = Failure::new(Errno::ECANCELED, ProviderError::RemoteRnr);
            return self.lose_packet(id, failure, Loss::NotDelivered);
        };
        let now = self.channel.now;
        self.channel.posting.refused(id, &mut state.backoff, now);
    }

    /// Handles a packet or RDMA request that the device could not deliver or carry out.
    #[cold]
    fn on_undelivered(&mut self, id: PacketId, status: Status) {
        let Some(peer) = self.channel.posting.peer(id) else {
            self.channel.reports.statistics.stray_completions += 1;
            return;
        };
        // A packet names no memory of the peer, so the peer's device may accept it the next time.
        let is_worth_repeating = matches!(status, Status::RemoteBadAddress | Status::RemoteAbort);
        if is_worth_repeating && self.channel.posting.repeat(id) {
            return;
        }
        let failure = self.channel.peers.failure_for(peer, status);
        self.lose_packet(id, failure, status.into());
    }

    /// Forgets a packet or RDMA request.
    #[inline]
    fn take_packet(&mut self, id: PacketId) -> Option<Finished> {
        let taken = self.channel.posting.take(id)?;
        if let Owner::Whole(_) = taken.owner {
            self.sending.free();
        }
        Some(taken)
    }

    /// Gives up a packet that the device lost, or that waited to be posted again.
    fn lose_packet(&mut self, id: PacketId, failure: Failure, loss: Loss) {
        if let Some(lost) = self.take_packet(id) {
            self.on_lost(&lost, failure, loss);
        }
    }

    fn on_lost(&mut self, lost: &Finished, failure: Failure, loss: Loss) {
        if let What::Packet(_, Some(buffer)) = lost.what {
            self.channel.posting.recycle(buffer);
        }
        if failure.is_peer_gone() {
            self.channel.peer_gone(lost.peer, failure);
        }
        if let What::Packet(PacketType::Handshake, _) = lost.what
            && let Some(state) = self.channel.peers.state_mut(lost.peer)
        {
            state.handshake.greeting_lost();
        }
        if let Some(msg_id) = lost.sequenced {
            if let Some(state) = self.channel.peers.state_mut(lost.peer) {
                state.sequence.done(msg_id);
            }
            match lost.owner {
                // How much of the message the peer has is known at the end of the operation.
                Owner::Outbound(_) => {}
                // A packet that was to fill a gap is lost too, although the peer is there.
                Owner::Nobody if !failure.is_peer_gone() => {
                    self.channel
                        .request_lost(lost.peer, msg_id, failure, Loss::Unknown);
                }
                _ => self.channel.request_lost(lost.peer, msg_id, failure, loss),
            }
        }
        match (lost.owner, lost.what) {
            (Owner::Whole(operation), _) => {
                let failure = self.channel.peers.failure_of(lost.peer).unwrap_or(failure);
                self.channel.reports.sent(
                    lost.peer,
                    &operation.report,
                    operation.length,
                    Some(failure),
                );
            }
            (Owner::Outbound(id), what) => {
                if self.sending.is_peers_read(id) {
                    self.tell_lost_answer(lost.peer, what, failure);
                }
                self.sending.lost(id, failure, loss);
                self.send_side().finish_outbound(id);
            }
            (Owner::Inbound(id), What::Packet(..)) => self.receive_side().fail_inbound(id, failure),
            (Owner::Inbound(id), _) => self.receive_side().on_read_done(id, 0, Some(failure)),
            (Owner::Provocation, _) => {
                if let Some(state) = self.channel.peers.state_mut(lost.peer) {
                    state.handshake.provocation_lost(failure);
                }
            }
            (Owner::Nobody, what) => self.tell_lost_answer(lost.peer, what, failure),
        }
    }

    /// Handles the loss of a packet that belongs to no operation of the application.
    fn tell_lost_answer(&mut self, peer: PeerId, what: What, failure: Failure) {
        if failure.is_peer_gone() {
            // This is normal at the end of a program: the peer closed its endpoint without waiting
            // for packets that the application does not know of (spec section 2.3).
            self.channel.reports.statistics.control_packets_lost += 1;
            return;
        }
        self.channel.reports.event(Event::ControlSendFailed {
            peer,
            packet_type: match what {
                What::Packet(packet_type, _) => packet_type.code(),
                What::Read(_) | What::Write => 0,
            },
            failure,
        });
    }
}
