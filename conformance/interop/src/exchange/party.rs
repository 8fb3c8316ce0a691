//! The two endpoints of an exchange.

use efa_play::drive::Opening;
use efa_play::player::{self, Program};
use efa_play::scenario::Capability;

/// The endpoint that starts operations.
pub(super) const INITIATOR: usize = 0;
/// The endpoint that receives messages and whose memory is read and written.
pub(super) const TARGET: usize = 1;

/// One of the two endpoints.
#[derive(Clone, Debug)]
pub struct Party {
    /// The program that plays it.
    pub program: Program,
    /// How the endpoint is opened.
    pub opening: Opening,
    /// The host on which it runs. The bench fills in the name and the log.
    pub host: player::Host,
}

impl Party {
    /// Lets the application promise what libfabric's efa provider needs to receive into its
    /// buffers: messages of at most `largest` bytes, which fit a packet, in no order; registered
    /// memory; nothing that has to be matched.
    pub fn promise_packets(&mut self, largest: usize) {
        self.opening.capabilities = vec![Capability::Msg, Capability::Rma];
        self.opening.register_local = true;
        self.opening.max_message = Some(largest);
        let no_shared_memory = ("FI_EFA_ENABLE_SHM_TRANSFER".into(), "0".into());
        self.host.environment.extend([no_shared_memory]);
    }
}
