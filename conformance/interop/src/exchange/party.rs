//! The two endpoints of an exchange.

use efa_play::drive::EndpointOptions;
use efa_play::player::{self, Program};
use efa_play::scenario::Capability;

/// The endpoint that starts operations.
pub(super) const INITIATOR: usize = 0;
/// The endpoint that receives messages, and whose memory is accessed.
pub(super) const TARGET: usize = 1;

/// One of the two endpoints.
#[derive(Clone, Debug)]
pub(crate) struct Party {
    pub(crate) program: Program,
    pub(crate) opening: EndpointOptions,
    /// The host on which it runs. The bench fills in the name and the log.
    pub(crate) host: player::Host,
}

impl Party {
    /// Makes the application give the promises that libfabric's efa provider requires for receiving
    /// into its buffers: messages of at most `largest` bytes, which fit into a packet, in any
    /// order; registered memory; no feature that needs matching.
    pub(crate) fn promise_packets(&mut self, largest: usize) {
        self.opening.capabilities = vec![Capability::Msg, Capability::Rma];
        self.opening.register_local = true;
        self.opening.max_message = Some(largest);
        let no_shared_memory = ("FI_EFA_ENABLE_SHM_TRANSFER".into(), "0".into());
        self.host.environment.extend([no_shared_memory]);
    }
}
