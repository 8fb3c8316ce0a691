//! Posting for an operation, and what follows when the device is done with what was posted.

use crate::endpoint::Endpoint;
use crate::endpoint::api::completion::Event;
use crate::endpoint::api::error::{EndpointError, Errno, Failure, ProviderError};
use crate::endpoint::base::ids::{PacketId, PeerId};
use crate::endpoint::memory::rdma::RdmaPart;
use crate::endpoint::peers::handshake::{PeerFeatures, identity};
use crate::endpoint::posting::{Finished, Outgoing, Owner, Rdma, What, Work};
use crate::endpoint::sending::Loss;
use crate::nic::{BufferId, Destination, Nic, Status};
use crate::wire::{
    AtomicDatatype, AtomicOp, MsgId, PacketType, Repr, ReqOptions, RmaIovs, Rta, RtaKind,
};

// Posting.
impl<N: Nic> Endpoint<N> {
    /// Where packets for a peer go.
    #[inline]
    pub(crate) fn destination(&self, peer: PeerId) -> Result<Destination, EndpointError> {
        let destination = self.peers.destination(peer);
        destination.ok_or(EndpointError::UnknownPeer(peer))
    }

    /// Posts a packet. On an error it is given up.
    #[inline(always)]
    pub(crate) fn post_packet(
        &mut self,
        peer: PeerId,
        owner: Owner,
        packet: Outgoing,
    ) -> Result<(), EndpointError> {
        let destination = self
            .destination(peer)
            .inspect_err(|_| self.posting.give_up(&packet))?;
        self.post_packet_to(peer, destination, owner, packet)
    }

    /// As [`Endpoint::post_packet`], for a caller that knows where packets for the peer go.
    #[inline(always)]
    pub(crate) fn post_packet_to(
        &mut self,
        peer: PeerId,
        destination: Destination,
        owner: Owner,
        packet: Outgoing,
    ) -> Result<(), EndpointError> {
        self.posting.post_packet(peer, destination, owner, packet)?;
        self.reports.statistics.packets_sent += 1;
        if let Owner::Whole(_) = owner {
            // It counts as an operation.
            self.sending.reserve();
        }
        Ok(())
    }

    /// Posts an RDMA request.
    pub(crate) fn post_rdma(
        &mut self,
        peer: PeerId,
        owner: Owner,
        part: RdmaPart,
        rdma: Rdma,
    ) -> Result<(), EndpointError> {
        let destination = self.destination(peer)?;
        self.posting
            .post_rdma(peer, destination, owner, part, rdma)?;
        self.reports.statistics.packets_sent += 1;
        Ok(())
    }

    /// Posts a packet or RDMA request again.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`]; other errors end its operation.
    pub(crate) fn resend(&mut self, id: PacketId) -> Result<(), EndpointError> {
        let Some(peer) = self.posting.peer(id) else {
            return Ok(());
        };
        let posted = self
            .destination(peer)
            .and_then(|destination| self.posting.post_again(id, destination));
        match posted {
            Ok(()) => self.reports.statistics.packets_sent += 1,
            Err(EndpointError::TryAgain) => return Err(EndpointError::TryAgain),
            Err(error) => self.lose_packet(id, Failure::of_post(&error), Loss::NotDelivered),
        }
        Ok(())
    }

    /// Sends a packet that belongs to no operation of the application.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`]; other errors are told as events.
    pub(crate) fn send_control(
        &mut self,
        peer: PeerId,
        header: &impl Repr,
    ) -> Result<(), EndpointError> {
        let posted = self
            .posting
            .start_packet(header)
            .and_then(|packet| self.post_packet(peer, Owner::Nobody, packet));
        self.control_posted(peer, header.packet_type(), posted)
    }

    /// Judges the posting of a packet that belongs to no operation of the application.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`]; other errors are told as events.
    pub(crate) fn control_posted(
        &mut self,
        peer: PeerId,
        packet_type: PacketType,
        posted: Result<(), EndpointError>,
    ) -> Result<(), EndpointError> {
        match posted {
            Err(EndpointError::TryAgain) => Err(EndpointError::TryAgain),
            // Without the peer nobody waits for the packet.
            Ok(()) | Err(EndpointError::UnknownPeer(_)) => Ok(()),
            Err(error) => {
                self.reports.event(Event::ControlSendFailed {
                    peer,
                    packet_type: packet_type.code(),
                    failure: Failure::of_post(&error),
                });
                Ok(())
            }
        }
    }

    /// The optional headers of a request to a peer: who we are, in the form that the peer needs
    /// (spec section 2.2; stock libfabric since 1.17).
    #[inline]
    pub(crate) fn request_options(
        &self,
        features: Option<&PeerFeatures>,
        cq_data: Option<u64>,
    ) -> ReqOptions {
        identity(features).options(self.address, cq_data)
    }

    /// Gives a packet buffer back.
    #[inline]
    pub(crate) fn recycle(&mut self, buffer: BufferId) {
        self.posting.recycle(buffer, self.receiving.kept_buffers());
    }
}

// What follows.
impl<N: Nic> Endpoint<N> {
    /// The device is done with a packet or an RDMA request.
    #[inline]
    pub(crate) fn on_done(&mut self, context: u64, status: Status) {
        let id = PacketId::from_wire(context as u32);
        if status == Status::RemoteRnr {
            return self.on_receiver_not_ready(id);
        }
        if status != Status::Ok {
            return self.on_undelivered(id, status);
        }
        let Some((peer, operation, buffer, sequenced)) = self.posting.take_whole(id) else {
            return self.on_other_done(id);
        };
        self.sending.free();
        self.got_through(peer);
        self.recycle(buffer);
        let failure = self.arrived(peer, sequenced);
        self.reports
            .sent(peer, &operation.report, operation.length, failure);
    }

    /// Notes that a packet arrived, with which the message or atomic `sequenced` begins, if one does.
    /// Returns why operations with the peer fail, if they do: it may have been removed since.
    #[inline(always)]
    fn arrived(&mut self, peer: PeerId, sequenced: Option<MsgId>) -> Option<Failure> {
        let Some(state) = self.peers.state_mut(peer) else {
            return Some(Failure::CANCELED);
        };
        if let Some(msg_id) = sequenced {
            state.sequence.done(msg_id);
        }
        state.failure
    }

    /// The device is done with something else than an operation of one packet.
    #[inline(never)]
    fn on_other_done(&mut self, id: PacketId) {
        // A completion that comes twice finds nothing.
        let Some(done) = self.take_packet(id) else {
            self.reports.statistics.stray_completions += 1;
            return;
        };
        self.got_through(done.peer);
        if let What::Packet(_, Some(buffer)) = done.what {
            self.recycle(buffer);
        }
        let failure = self.arrived(done.peer, done.sequenced);
        match done.owner {
            Owner::Whole(operation) => {
                self.reports
                    .sent(done.peer, &operation.report, operation.length, failure);
            }
            Owner::Outbound(id) => {
                self.sending.done(id);
                self.finish_outbound(id);
            }
            Owner::Inbound(id) => {
                if let What::Read(length) = done.what {
                    self.on_read_done(id, length, None);
                }
            }
            Owner::Nobody | Owner::Provocation => {}
        }
    }

    /// Notes that a packet to a peer got through.
    #[inline]
    fn got_through(&mut self, peer: PeerId) {
        if self.posting.any_refused()
            && let Some(state) = self.peers.state_mut(peer)
        {
            self.posting.got_through(&mut state.backoff);
        }
    }

    fn on_receiver_not_ready(&mut self, id: PacketId) {
        self.reports.statistics.receiver_not_ready += 1;
        let Some(peer) = self.posting.peer(id) else {
            self.reports.statistics.stray_completions += 1;
            return;
        };
        let Some(state) = self.peers.state_mut(peer) else {
            let failure = Failure::new(Errno::ECANCELED, ProviderError::RemoteRnr);
            return self.lose_packet(id, failure, Loss::NotDelivered);
        };
        let freed = self.posting.refused(id, &mut state.backoff, self.now);
        if let Some(buffer) = freed {
            self.recycle(buffer);
        }
    }

    /// The device could not deliver a packet or carry out an RDMA request.
    #[cold]
    fn on_undelivered(&mut self, id: PacketId, status: Status) {
        let Some(peer) = self.posting.peer(id) else {
            self.reports.statistics.stray_completions += 1;
            return;
        };
        // A packet names no memory of the peer, so the peer's device may well take it the next time.
        if status == Status::RemoteBadAddress && self.posting.repeat(id) {
            return;
        }
        let failure = self.refine(peer, status);
        self.lose_packet(id, failure, status.into());
    }

    /// Forgets a packet or RDMA request.
    #[inline]
    fn take_packet(&mut self, id: PacketId) -> Option<Finished> {
        let taken = self.posting.take(id)?;
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
            self.recycle(buffer);
        }
        if failure.is_peer_gone()
            && let Some(state) = self.peers.state_mut(lost.peer)
        {
            state.handshake.peer_gone();
        }
        if let Some(msg_id) = lost.sequenced {
            if let Some(state) = self.peers.state_mut(lost.peer) {
                state.sequence.done(msg_id);
            }
            match lost.owner {
                // What else the peer has of it is known at its end.
                Owner::Outbound(_) => {}
                // What was to mend a loss is lost too, although the peer is there.
                Owner::Nobody if !failure.is_peer_gone() => {
                    self.request_lost(lost.peer, msg_id, failure, Loss::Unknown);
                }
                _ => self.request_lost(lost.peer, msg_id, failure, loss),
            }
        }
        match (lost.owner, lost.what) {
            (Owner::Whole(operation), _) => {
                let failure = self.failure_of(lost.peer).unwrap_or(failure);
                self.reports.sent(
                    lost.peer,
                    &operation.report,
                    operation.length,
                    Some(failure),
                );
            }
            (Owner::Outbound(id), _) => {
                self.sending.lost(id, failure, loss);
                self.finish_outbound(id);
            }
            (Owner::Inbound(id), What::Packet(..)) => self.fail_inbound(id, failure),
            (Owner::Inbound(id), _) => self.on_read_done(id, 0, Some(failure)),
            (Owner::Provocation, _) => {
                if let Some(state) = self.peers.state_mut(lost.peer) {
                    state.handshake.provocation_lost(failure);
                }
            }
            (Owner::Nobody, _) if failure.is_peer_gone() => {
                // Normal at the end of a program: the peer closed its endpoint without waiting for
                // what the application does not know of (spec section 2.3).
                self.reports.statistics.control_packets_lost += 1;
            }
            (Owner::Nobody, what) => self.reports.event(Event::ControlSendFailed {
                peer: lost.peer,
                packet_type: match what {
                    What::Packet(packet_type, _) => packet_type.code(),
                    What::Read(_) | What::Write => 0,
                },
                failure,
            }),
        }
    }

    /// Keeps the peer from waiting for a message or atomic that was lost: its id is used again. If the
    /// peer may have it, or has a part of it, that cannot be, and no more can be sent.
    pub(crate) fn request_lost(
        &mut self,
        peer: PeerId,
        msg_id: MsgId,
        failure: Failure,
        loss: Loss,
    ) {
        let Some(state) = self.peers.state_mut(peer) else {
            return;
        };
        if state.failure.is_some() || state.sequence.is_broken() {
            return;
        }
        match loss {
            Loss::NotDelivered => {
                state.sequence.not_delivered(msg_id);
                // One that is not there is asked again when there is something to send.
                if state.sequence.has_gaps() && !failure.is_peer_gone() {
                    self.posting.queue(Work::Fill(peer));
                }
            }
            Loss::Unknown => {
                state.sequence.break_off(failure);
                self.reports.event(Event::SendingFailed { peer, failure });
            }
        }
    }

    /// Sends atomics on no memory in the place of messages and atomics that were lost, so that the peer
    /// goes on to those behind them. Stock libfabric provokes a HANDSHAKE by a write of that kind.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`].
    pub(crate) fn fill_gaps(&mut self, peer: PeerId) -> Result<(), EndpointError> {
        while let Some(msg_id) = self
            .peers
            .state(peer)
            .filter(|state| state.failure.is_none())
            .and_then(|state| state.sequence.oldest_gap())
        {
            let header = Rta {
                kind: RtaKind::Write,
                msg_id,
                atomic_datatype: AtomicDatatype::UINT8,
                atomic_op: AtomicOp::ATOMIC_WRITE,
                rma_iov: RmaIovs::default(),
                options: self.request_options(self.features(peer), None),
            };
            let posted = self.posting.start_packet(&header).and_then(|mut packet| {
                packet.sequenced = Some(msg_id);
                self.post_packet(peer, Owner::Nobody, packet)
            });
            match posted {
                Ok(()) => {
                    if let Some(state) = self.peers.state_mut(peer) {
                        state.sequence.filled();
                    }
                }
                Err(EndpointError::TryAgain) => return Err(EndpointError::TryAgain),
                Err(error) => {
                    let failure = Failure::of_post(&error);
                    self.request_lost(peer, msg_id, failure, Loss::Unknown);
                }
            }
        }
        Ok(())
    }

    /// Says whether a peer that does not respond ever did, as stock libfabric does.
    fn refine(&self, peer: PeerId, status: Status) -> Failure {
        let mut failure = Failure::from(status);
        if status == Status::LocalUnresponsiveRemote {
            let state = self.peers.state(peer);
            failure.provider = match state.and_then(|state| state.handshake.features()) {
                Some(_) => ProviderError::EstablishedUnresponsive,
                None => ProviderError::UnestablishedUnresponsive,
            };
        }
        failure
    }
}
