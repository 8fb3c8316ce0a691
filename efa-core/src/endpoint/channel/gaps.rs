//! Messages and atomics that were lost: a peer must not wait for them.

use crate::endpoint::api::completion::Event;
use crate::endpoint::api::error::{EndpointError, Failure};
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::posting::{PacketOwner, Work};
use crate::endpoint::sending::Loss;
use crate::nic::Nic;
use crate::wire::{AtomicDatatype, AtomicOp, MsgId, RmaIovs, Rta, RtaKind};

use super::Channel;
use super::conversation::AfterLoss;

impl<N: Nic> Channel<N> {
    /// Handles the loss of a message or atomic: queues the filling of its place, or reports that
    /// the peer can no longer be sent to.
    pub(crate) fn request_lost(
        &mut self,
        peer: PeerId,
        msg_id: MsgId,
        failure: Failure,
        loss: Loss,
    ) {
        let current = self.peers.current_id(peer);
        match self.peers.request_lost(current, msg_id, failure, loss) {
            // The place of a message to a removed peer is filled regardless of the reason.
            AfterLoss::Nothing if current == peer => {}
            AfterLoss::Nothing | AfterLoss::Fill => self.posting.queue(Work::Fill(current)),
            // The application expects no report about packets to a removed peer.
            AfterLoss::BrokenOff if self.peers.addresses().is_removed(current) => {}
            AfterLoss::BrokenOff => self.reports.event(Event::SendingFailed { peer, failure }),
        }
    }

    /// Fills the gaps of lost messages and atomics with atomics on no memory, so that the peer
    /// proceeds to the later requests. Similarly, stock libfabric uses an empty write to get a
    /// HANDSHAKE.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`].
    pub(crate) fn fill_gaps(&mut self, peer: PeerId) -> Result<(), EndpointError> {
        let peer = self.peers.current_id(peer);
        while let Some(msg_id) = self.peers.oldest_gap(peer) {
            let header = Rta {
                kind: RtaKind::Write,
                msg_id,
                atomic_datatype: AtomicDatatype::UINT8,
                atomic_op: AtomicOp::ATOMIC_WRITE,
                rma_iov: RmaIovs::default(),
                options: self.request_options(self.peers.features(peer), None),
            };
            let posted = self.posting.start_packet(&header).and_then(|mut packet| {
                packet.sequenced = Some(msg_id);
                self.post_packet(peer, PacketOwner::Control, packet)
            });
            match posted {
                Ok(()) => self.peers.gap_filled(peer),
                Err(EndpointError::TryAgain) => return Err(EndpointError::TryAgain),
                Err(error) => {
                    let failure = Failure::of_post(&error);
                    self.request_lost(peer, msg_id, failure, Loss::Unknown);
                }
            }
        }
        Ok(())
    }
}
