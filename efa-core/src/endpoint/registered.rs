//! Registered memory of the application, for operations of the application and of peers.

use crate::nic::{Access, Domain as _, Nic, PolledNic, Region, UserSlice};

use crate::endpoint::Endpoint;
use crate::endpoint::api::error::{EndpointError, Errno, Failure, ProviderError};
use crate::endpoint::one_sided::WithdrawnRegion;

impl<N: PolledNic> Endpoint<N> {
    /// Registers memory, for use as [`IoVec::region`](crate::endpoint::IoVec::region) and, if
    /// `access` allows it, by peers. Remote access that the device does not support is emulated.
    ///
    /// # Errors
    /// The device refuses.
    pub fn register(&mut self, memory: UserSlice, access: Access) -> Result<Region, EndpointError> {
        let nic = self.channel.posting.nic_mut();
        self.one_sided.exposed.register(&mut **nic, memory, access)
    }

    /// Ends a registration of [`Endpoint::register`]. No operation of the application may be using
    /// it. Writes and reads of peers that use it fail.
    ///
    /// # Errors
    /// The region is not registered.
    pub fn deregister(&mut self, region: Region) -> Result<(), EndpointError> {
        if let Some(gone) = self.one_sided.exposed.withdraw(region) {
            self.end_accesses(&gone);
        }
        Ok(self.channel.posting.nic_mut().deregister(region)?)
    }
}

impl<N: Nic> Endpoint<N> {
    /// Ends the accesses of peers to a region that they may not use any more: after deregistration
    /// its memory may be used for something else.
    pub(crate) fn end_accesses(&mut self, gone: &WithdrawnRegion) {
        if self.channel.quota.pending() == 0 {
            return;
        }
        let exposed = &self.one_sided.exposed;
        let writes = self
            .receiving
            .transfers
            .peers_writes(|target| exposed.loses(gone, target, Access::REMOTE_WRITE));
        let reads = self
            .sending
            .peers_reads(|source| exposed.loses(gone, source, Access::REMOTE_READ));
        let failure = Failure::new(Errno::EINVAL, ProviderError::RmaAddress);
        for id in writes {
            self.receive_side().fail_inbound(id, failure);
        }
        for id in reads {
            self.send_side().fail_outbound(id, failure);
        }
    }
}
