//! Registrations for a single operation.

use crate::endpoint::api::completion::Event;
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::operation::IoVec;
use crate::endpoint::memory::iov::Iov;
use crate::endpoint::memory::registration::{OwnRegions, Registered, deregister, register_pieces};
use crate::nic::{Access, Nic, NicError};

use super::Channel;

impl<N: Nic> Channel<N> {
    /// Registers the unregistered pieces of a buffer, for one operation.
    ///
    /// # Errors
    /// The device refused a registration. Then none of the pieces is registered.
    pub(crate) fn register_pieces(
        &mut self,
        mut pieces: Iov,
        access: Access,
    ) -> Result<Registered, NicError> {
        match register_pieces(self.posting.nic_mut(), &mut pieces, access) {
            Ok(own_regions) => Ok(Registered {
                pieces,
                own_regions,
            }),
            Err((error, resources)) => {
                self.deregister_own(resources);
                Err(error)
            }
        }
    }

    /// Registers the unregistered pieces of an operation's data. Returns `None` if the device
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

    /// Ends registrations of [`Channel::register_pieces`] or [`Channel::register_source`]. Errors
    /// are reported as events.
    pub(crate) fn deregister_own(&mut self, regions: OwnRegions) {
        for error in deregister(self.posting.nic_mut(), regions) {
            self.reports.event(Event::DeregistrationFailed(error));
        }
    }
}
