//! Packets and RDMA requests that the device returns with an error: whether they are posted again,
//! and the effects for the peer.

use crate::endpoint::api::completion::Event;
use crate::endpoint::api::error::{EndpointError, Errno, Failure, ProviderError};
use crate::endpoint::base::ids::{PacketId, PeerId};
use crate::endpoint::posting::{AbandonedMessage, CompletedRequest, FinishedRequest, PacketOwner};
use crate::endpoint::sending::Loss;
use crate::nic::{Nic, Status};
use crate::wire::{OpeType, PacketType, PeerError};

use super::Channel;

impl<N: Nic> Channel<N> {
    /// Handles a packet or RDMA request that the device returned with an error status. Returns the
    /// reason of the loss, or `None` if the request is posted again.
    #[cold]
    pub(crate) fn not_done(&mut self, id: PacketId, status: Status) -> Option<(Failure, Loss)> {
        if status == Status::RemoteRnr {
            self.reports.statistics.receiver_not_ready += 1;
        }
        let Some(peer) = self.posting.peer(id) else {
            self.reports.statistics.stray_completions += 1;
            return None;
        };
        match status {
            Status::RemoteRnr => match self.peers.state_mut(peer) {
                Some(state) => {
                    self.posting.rnr(id, &mut state.backoff, self.now);
                    None
                }
                None => {
                    let failure = Failure::new(Errno::ECANCELED, ProviderError::RemoteRnr);
                    Some((failure, Loss::NotDelivered))
                }
            },
            // A packet names no memory of the peer, so the peer's device may accept it the next
            // time.
            Status::RemoteBadAddress | Status::RemoteAbort if self.posting.retry(id) => None,
            _ => Some((self.peers.failure_for(peer, status), status.into())),
        }
    }

    /// Posts a packet or RDMA request again.
    ///
    /// # Errors
    /// The device refused it, or the peer is unknown.
    pub(crate) fn retry_post(&mut self, id: PacketId) -> Result<(), EndpointError> {
        let Some(peer) = self.posting.peer(id) else {
            return Ok(());
        };
        let destination = self.destination(peer)?;
        self.posting.retry_post(id, destination)?;
        self.reports.statistics.packets_sent += 1;
        Ok(())
    }

    /// Records the loss of a packet or RDMA request: the effects for its peer and for the sequence
    /// of messages. The caller handles the effects for an operation.
    pub(crate) fn lost(&mut self, lost: &CompletedRequest, failure: Failure, loss: Loss) {
        tracing::debug!(
            peer = %lost.peer,
            packet_type = %lost.what,
            msg_id = lost.sequenced.map(|id| id.0),
            reason = %failure,
            ?loss,
            "packet lost"
        );
        if let FinishedRequest::Packet(_, Some(buffer)) = lost.what {
            self.posting.recycle(buffer);
        }
        if failure.is_peer_gone() {
            self.peer_gone(lost.peer, failure);
        }
        // The peer may have been removed since.
        let peer = self.peers.current_id(lost.peer);
        if let FinishedRequest::Packet(packet_type, _) = lost.what
            && let Some(state) = self.peers.state_mut(peer)
        {
            match packet_type {
                PacketType::Handshake => state.handshake.mark_lost(),
                packet_type if packet_type.is_req() => state.handshake.request_lost(),
                _ => {}
            }
        }
        if let Some(msg_id) = lost.sequenced {
            if let Some(state) = self.peers.state_mut(peer) {
                state.sequence.done(msg_id);
            }
            match (lost.owner, lost.what) {
                // The operation decides at its end how much of the message has reached the peer.
                (PacketOwner::Outbound(_), _) => {}
                // It is unknown whether the peer has the message. Without the PEER_ERROR it may
                // wait for it.
                (PacketOwner::Control, FinishedRequest::Packet(PacketType::PeerError, _)) => {
                    self.request_lost(lost.peer, msg_id, failure, Loss::Unknown);
                }
                // A packet that was to fill a gap is also lost, although the peer exists.
                (PacketOwner::Control, _) if !failure.is_peer_gone() => {
                    self.request_lost(lost.peer, msg_id, failure, Loss::Unknown);
                }
                (PacketOwner::OnePacket(_), _) if loss == Loss::Unknown => {
                    let what = AbandonedMessage {
                        msg_id,
                        op_id: PeerError::NO_OP,
                        side: OpeType::TXE,
                    };
                    self.abandon(lost.peer, what, failure, Some(loss));
                }
                _ => self.request_lost(lost.peer, msg_id, failure, loss),
            }
        }
        match lost.owner {
            PacketOwner::Control => self.answer_lost(lost.peer, lost.what, failure),
            PacketOwner::Provocation => {
                if let Some(state) = self.peers.state_mut(peer) {
                    state.handshake.provocation_lost(failure);
                }
            }
            PacketOwner::OnePacket(_) | PacketOwner::Outbound(_) | PacketOwner::Inbound(_) => {}
        }
    }

    /// Handles the loss of a packet that belongs to no operation of the application.
    pub(crate) fn answer_lost(&mut self, peer: PeerId, what: FinishedRequest, failure: Failure) {
        if failure.is_peer_gone() {
            // This is normal at the end of a program: the peer closed its endpoint without waiting
            // for internal packets of the protocol (spec section 2.3).
            self.reports.statistics.control_packets_lost += 1;
            return;
        }
        self.reports.event(Event::ControlSendFailed {
            peer,
            packet_type: match what {
                FinishedRequest::Packet(packet_type, _) => packet_type.code(),
                FinishedRequest::Read(_) | FinishedRequest::Write => 0,
            },
            failure,
        });
    }
}
