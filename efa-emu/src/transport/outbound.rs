//! Requests on their way from this device to its peers.

use efa_core::address::Gid;
use efa_core::nic::Status;

use crate::link::{Link, LinkBusy, LocalData, RequestHeader, Token};

/// The sending half of a device's link.
#[derive(Default)]
pub(super) struct Outbound {
    /// Requests that no peer will answer, with what became of them.
    failed: Vec<(Token, Status)>,
}

impl Outbound {
    /// The next request that no peer will answer.
    pub(super) fn next_failed(&mut self) -> Option<(Token, Status)> {
        self.failed.pop()
    }
}

impl Link for Outbound {
    fn try_send(
        &mut self,
        _to: Gid,
        token: Token,
        _header: &RequestHeader,
        _data: LocalData<'_>,
    ) -> Result<(), LinkBusy> {
        self.failed.push((token, Status::LocalUnreachableRemote));
        Ok(())
    }
}
