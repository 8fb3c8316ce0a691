//! Operations that cannot start before the peer's HANDSHAKE has arrived (spec chapter 2).

use crate::endpoint::api::error::EndpointError;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::posting::PacketOwner;
use crate::endpoint::sending::choice::NoProtocol;
use crate::nic::Nic;
use crate::wire::EagerRtw;

use super::Channel;

impl<N: Nic> Channel<N> {
    /// Sends an empty write, as stock libfabric does. The peer responds with its HANDSHAKE. Does
    /// nothing if such a write to the peer is already in flight.
    fn provoke_handshake(&mut self, peer: PeerId) -> Result<(), EndpointError> {
        match self.peers.state_mut(peer) {
            Some(state) if state.handshake.has_to_be_provoked() => {}
            _ => return Ok(()),
        }
        let packet = self.posting.start_packet(&EagerRtw {
            options: self.request_options(None, None),
            ..EagerRtw::default()
        })?;
        self.post_packet(peer, PacketOwner::Provocation, packet)?;
        tracing::debug!(%peer, "empty write sent, to get the peer's HANDSHAKE");
        if let Some(state) = self.peers.state_mut(peer) {
            state.handshake.request_sent();
        }
        Ok(())
    }

    /// The error of an operation that cannot start until the peer's HANDSHAKE has arrived:
    /// [`EndpointError::TryAgain`], or the failure to reach the peer.
    fn await_handshake(&mut self, peer: PeerId) -> EndpointError {
        let state = self.peers.state_mut(peer);
        if let Some(failure) = state.and_then(|state| state.handshake.take_failure()) {
            return EndpointError::Unreachable { peer, failure };
        }
        match self.provoke_handshake(peer) {
            Ok(()) => EndpointError::TryAgain,
            Err(error) => error,
        }
    }

    /// The error of an operation that no protocol can carry out, either in general or before the
    /// HANDSHAKE.
    #[cold]
    pub(crate) fn no_protocol(&mut self, peer: PeerId, reason: NoProtocol) -> EndpointError {
        tracing::debug!(%peer, %reason, "operation not started");
        match reason {
            NoProtocol::AwaitHandshake => self.await_handshake(peer),
            NoProtocol::Unsupported(what) => EndpointError::Unsupported(what),
        }
    }
}
