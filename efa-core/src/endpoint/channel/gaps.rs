//! Messages and atomics that were lost: the peer must not wait for them.

use crate::endpoint::api::completion::Event;
use crate::endpoint::api::error::{EndpointError, Failure};
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::posting::{Owner, Work};
use crate::endpoint::sending::Loss;
use crate::nic::Nic;
use crate::wire::{AtomicDatatype, AtomicOp, MsgId, RmaIovs, Rta, RtaKind};

use super::Channel;
use super::conversation::AfterLoss;

impl<N: Nic> Channel<N> {
    /// Keeps the peer from waiting for a message or atomic that was lost, if that can be.
    pub(crate) fn request_lost(
        &mut self,
        peer: PeerId,
        msg_id: MsgId,
        failure: Failure,
        loss: Loss,
    ) {
        match self.peers.request_lost(peer, msg_id, failure, loss) {
            AfterLoss::Nothing => {}
            AfterLoss::Fill => self.posting.queue(Work::Fill(peer)),
            AfterLoss::BrokenOff => self.reports.event(Event::SendingFailed { peer, failure }),
        }
    }

    /// Sends atomics on no memory in the place of messages and atomics that were lost, so that the peer
    /// goes on to those behind them. Stock libfabric provokes a HANDSHAKE by a write of that kind.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`].
    pub(crate) fn fill_gaps(&mut self, peer: PeerId) -> Result<(), EndpointError> {
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
                self.post_packet(peer, Owner::Nobody, packet)
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
