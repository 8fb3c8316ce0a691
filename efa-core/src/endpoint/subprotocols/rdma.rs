//! RDMA: posting reads into, and writes from, memory of the application; registrations made for them.

use crate::endpoint::Endpoint;
use crate::endpoint::api::completion::Event;
use crate::endpoint::api::error::{EndpointError, Failure};
use crate::endpoint::api::operation::IoVec;
use crate::endpoint::base::ids::ReceiveId;
use crate::endpoint::memory::iov::Iov;
use crate::endpoint::memory::registration::{OwnRegions, Registered, deregister, register_pieces};
use crate::endpoint::posting::{Owner, QUANTUM, Rdma};
use crate::endpoint::subprotocols::long_cts::SIZE_MISMATCH;
use crate::nic::{Access, Domain, Nic, NicError};
use crate::wire::RmaIovs;

impl<N: Nic> Endpoint<N> {
    fn rdma_limit(&self) -> usize {
        self.config
            .read_segment_size
            .min(self.posting.nic().attributes().max_rdma_size)
            .max(1)
    }

    /// Registers those pieces that are not registered, for one operation.
    ///
    /// # Errors
    /// The device refused; then nothing is registered.
    fn register_pieces(&mut self, mut pieces: Iov, access: Access) -> Result<Registered, NicError> {
        match register_pieces(self.posting.nic_mut(), &mut pieces, access) {
            Ok(own_regions) => Ok(Registered {
                pieces,
                own_regions,
            }),
            Err((error, leftovers)) => {
                self.deregister_own(leftovers);
                Err(error)
            }
        }
    }

    /// Registers the data of an operation as far as it is not registered. `None` if the device
    /// refuses.
    ///
    /// # Errors
    /// There are too many pieces.
    pub(crate) fn register_source(
        &mut self,
        data: &[IoVec],
        access: Access,
    ) -> Result<Option<Registered>, EndpointError> {
        Ok(self.register_pieces(Iov::new(data)?, access).ok())
    }

    /// Ends registrations that were made for one operation.
    pub(crate) fn deregister_own(&mut self, regions: OwnRegions) {
        for error in deregister(self.posting.nic_mut(), regions) {
            self.reports.event(Event::DeregistrationFailed(error));
        }
    }

    /// Plans to read the bytes from `next` on of a transfer. The bytes beyond its buffer count as
    /// received.
    ///
    /// # Errors
    /// The target could not be registered; nothing changed.
    pub(crate) fn plan_reads(
        &mut self,
        id: ReceiveId,
        remote: RmaIovs,
        next: u64,
        tells_peer: bool,
    ) -> Result<(), NicError> {
        let Some(target) = self.receiving.target(id).cloned() else {
            return Ok(());
        };
        let target = self.register_pieces(target, Access::LOCAL_WRITE)?;
        self.receiving
            .plan_reads(id, remote, next, tells_peer, target);
        self.queue_inbound(id);
        Ok(())
    }

    /// Posts reads of a transfer, up to [`QUANTUM`]. Returns whether there are more.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`]; other errors end the transfer.
    pub(crate) fn post_reads(&mut self, id: ReceiveId) -> Result<bool, EndpointError> {
        let limit = self.rdma_limit();
        for _ in 0..QUANTUM {
            let (peer, part) = match self.receiving.next_read(id, limit) {
                Ok(Some(next)) => next,
                Ok(None) => return Ok(false),
                // The peer's memory is shorter than its message.
                Err(()) => {
                    self.fail_inbound(id, SIZE_MISMATCH);
                    return Ok(false);
                }
            };
            let length = part.local.length as u64;
            match self.post_rdma(peer, Owner::Inbound(id), part, Rdma::Read) {
                Ok(()) => self.receiving.read_posted(id, length),
                Err(EndpointError::TryAgain) => return Err(EndpointError::TryAgain),
                Err(error) => {
                    self.fail_inbound(id, Failure::of_post(&error));
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The device finished a read.
    pub(crate) fn on_read_done(&mut self, id: ReceiveId, length: u64, failure: Option<Failure>) {
        if !self.receiving.read_done(id, length) {
            return;
        }
        match failure {
            None => self.go_on_with(id),
            Some(failure) => self.fail_inbound(id, failure),
        }
    }
}
