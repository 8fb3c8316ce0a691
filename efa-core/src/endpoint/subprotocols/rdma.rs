//! RDMA reads into memory of the application, and the registrations for them.

use crate::endpoint::api::error::{EndpointError, Failure};
use crate::endpoint::base::ids::InboundId;
use crate::endpoint::posting::{PacketOwner, QUANTUM, Rdma};
use crate::endpoint::subprotocols::ReceiveSide;
use crate::nic::{Access, Nic, NicError};
use crate::wire::RmaIovs;

impl<N: Nic> ReceiveSide<'_, N> {
    /// Plans to read the bytes of a transfer from `next` on. Bytes beyond its buffer count as
    /// received.
    ///
    /// # Errors
    /// The target could not be registered. Nothing changed.
    pub(crate) fn plan_reads(
        &mut self,
        id: InboundId,
        remote: RmaIovs,
        next: u64,
        notifies_peer: bool,
    ) -> Result<(), NicError> {
        let Some(transfer) = self.receiving.transfers.get_mut(id) else {
            return Ok(());
        };
        let target = transfer.target().clone();
        let target = self.channel.register_pieces(target, Access::LOCAL_WRITE)?;
        transfer.plan_reads(remote, next, notifies_peer, target);
        self.queue_inbound(id);
        Ok(())
    }

    /// Posts reads of a transfer, up to [`QUANTUM`]. Returns whether there are more.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`]; other errors end the transfer.
    pub(crate) fn post_reads(&mut self, id: InboundId) -> Result<bool, EndpointError> {
        let limit = self.channel.sizes.rdma_read;
        for _ in 0..QUANTUM {
            let Some(transfer) = self.receiving.transfers.get_mut(id) else {
                return Ok(false);
            };
            let part = match transfer.next_read(limit) {
                Ok(Some(part)) => part,
                Ok(None) => return Ok(false),
                // The peer's memory is shorter than its message.
                Err(()) => {
                    self.fail_inbound(id, Failure::SIZE_MISMATCH);
                    return Ok(false);
                }
            };
            let length = part.local.length as u64;
            match self
                .channel
                .post_rdma(transfer.peer, PacketOwner::Inbound(id), part, Rdma::Read)
            {
                Ok(()) => transfer.read_posted(length),
                Err(EndpointError::TryAgain) => return Err(EndpointError::TryAgain),
                Err(error) => {
                    self.fail_inbound(id, Failure::of_post(&error));
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Handles the completion of a read.
    pub(crate) fn on_read_done(&mut self, id: InboundId, length: u64, failure: Option<Failure>) {
        let transfer = self.receiving.transfers.get_mut(id);
        if !transfer.is_some_and(|transfer| transfer.read_done(length)) {
            return;
        }
        match failure {
            None => self.go_on_with(id),
            Some(failure) => self.fail_inbound(id, failure),
        }
    }
}
