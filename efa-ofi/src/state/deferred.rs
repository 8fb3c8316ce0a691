//! Reads and writes that wait for their peer's HANDSHAKE, which decides how they are carried out.
//! For the application they have already started, as with stock.

use efa_core::endpoint::{
    CompletionFlags, Endpoint, EndpointError, EndpointId, Errno, ErrorEntry, Failure, IoVec,
    OperationFlags, PeerId, ProviderError, ReadArgs, RemoteIoVec, WriteArgs,
};
use efa_core::nic::LentNic;
use efa_hw::HwDomain;

/// Maximum number of waiting operations of one endpoint; more are refused with `FI_EAGAIN`. Stock
/// libfabric has the same limit.
pub(crate) const LIMIT: usize = 16;

/// A read or write that waits.
#[derive(Debug)]
pub(crate) struct DeferredOperation {
    pub(crate) endpoint: EndpointId,
    pub(crate) peer: PeerId,
    pub(crate) flags: OperationFlags,
    pub(crate) context: u64,
    pub(crate) local: Vec<IoVec>,
    pub(crate) remote: Vec<RemoteIoVec>,
    pub(crate) direction: Direction,
}

/// The direction of the data.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    Read,
    /// A write, with this data for the peer's completion queue.
    Write(Option<u64>),
}

impl DeferredOperation {
    /// Starts it if the HANDSHAKE has arrived. Returns whether it no longer waits: if it cannot
    /// start, its failure is reported.
    pub(crate) fn resume(&self, engine: &mut Endpoint<LentNic<HwDomain>>) -> bool {
        let failure = match self.start(engine) {
            Ok(()) => return true,
            Err(EndpointError::TryAgain) => return false,
            Err(EndpointError::Unreachable { failure, .. }) => failure,
            // It was removed.
            Err(EndpointError::UnknownPeer(_)) => plain(Errno::ECANCELED),
            Err(error) => plain(error.errno()),
        };
        let kind = match self.direction {
            Direction::Read => CompletionFlags::READ,
            Direction::Write(_) => CompletionFlags::WRITE,
        };
        let (flags, peer) = (CompletionFlags::RMA | kind, Some(self.peer));
        engine.report_failure(ErrorEntry::without_data(self.context, flags, peer, failure));
        true
    }

    fn start(&self, engine: &mut Endpoint<LentNic<HwDomain>>) -> Result<(), EndpointError> {
        let DeferredOperation {
            peer,
            flags,
            context,
            ref local,
            ref remote,
            direction,
            ..
        } = *self;
        match direction {
            Direction::Read => engine.read(ReadArgs {
                peer,
                buffer: local,
                remote,
                flags,
                context,
            }),
            Direction::Write(cq_data) => engine.write(WriteArgs {
                peer,
                data: local,
                remote,
                cq_data,
                flags,
                context,
            }),
        }
    }
}

const fn plain(errno: Errno) -> Failure {
    Failure {
        errno,
        provider: ProviderError::None,
    }
}
