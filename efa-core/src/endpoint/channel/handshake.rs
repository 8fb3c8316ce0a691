//! The handshake (spec chapter 2): who we are to a peer, and what either can do.
//!
//! Every endpoint sends one HANDSHAKE to every peer, in answer to the first packet of any type. Until
//! the peer's own has arrived, requests carry our raw address, as the peer may not know us.

use crate::endpoint::api::config::EndpointConfig;
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::base::ids::{OutboundId, PeerId};
use crate::endpoint::posting::Owner;
use crate::endpoint::sending::choice::NoProtocol;
use crate::nic::{DeviceCaps, Nic, NicAttributes, QueuePair};
use crate::wire::{EagerRtw, ExtraFeatures, Handshake};

use super::Channel;

/// The capabilities to announce: what the engine implements and the device can do.
fn own_features(attributes: &NicAttributes, config: &EndpointConfig) -> ExtraFeatures {
    let has = |cap| config.use_device_rdma && attributes.caps.contains(cap);
    // Without the bits 1 and 4 libfabric 1.17 refuses operations instead of falling back.
    let mut features = ExtraFeatures::CONNID_HEADER
        | ExtraFeatures::DELIVERY_COMPLETE
        | ExtraFeatures::RUNTING_READ
        | ExtraFeatures::READ_NACK;
    features.set(ExtraFeatures::RDMA_READ, has(DeviceCaps::RDMA_READ));
    features.set(ExtraFeatures::RDMA_WRITE, has(DeviceCaps::RDMA_WRITE));
    features.set(
        ExtraFeatures::UNSOLICITED_WRITE_RECV,
        has(DeviceCaps::UNSOLICITED_WRITE_RECV),
    );
    features
}

impl<N: Nic> Channel<N> {
    /// Sends our HANDSHAKE.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`].
    pub(crate) fn send_handshake(&mut self, peer: PeerId) -> Result<(), EndpointError> {
        let attributes = self.posting.nic().queue_pair().attributes();
        let features = own_features(attributes, &self.config);
        let (part_id, host_id) = (attributes.vendor_part_id, attributes.host_id);
        self.send_control(
            peer,
            &Handshake {
                extra_info: features.into(),
                connid: Some(self.address.qkey.into()),
                host_id: (host_id != 0).then_some(host_id),
                // Stock libfabric since 1.20 reads it without looking whether it is there.
                device_version: Some(part_id),
                ..Handshake::default()
            },
        )
    }

    /// Makes a peer send its HANDSHAKE, unless a request that does so is already under way: with an
    /// empty write, as stock libfabric does.
    pub(crate) fn provoke_handshake(&mut self, peer: PeerId) -> Result<(), EndpointError> {
        match self.peers.state_mut(peer) {
            Some(state) if state.handshake.has_to_be_provoked() => {}
            _ => return Ok(()),
        }
        let packet = self.posting.start_packet(&EagerRtw {
            options: self.request_options(None, None),
            ..EagerRtw::default()
        })?;
        self.post_packet(peer, Owner::Provocation, packet)?;
        if let Some(state) = self.peers.state_mut(peer) {
            state.handshake.request_sent();
        }
        Ok(())
    }

    /// Waits for a peer's handshake.
    ///
    /// # Errors
    /// Always: [`EndpointError::TryAgain`], or that the peer could not be reached.
    pub(crate) fn await_handshake(&mut self, peer: PeerId) -> Result<(), EndpointError> {
        let state = self.peers.state_mut(peer);
        if let Some(failure) = state.and_then(|state| state.handshake.take_failure()) {
            return Err(EndpointError::Unreachable { peer, failure });
        }
        self.provoke_handshake(peer)?;
        Err(EndpointError::TryAgain)
    }

    /// Refuses an operation for which there is no protocol, now or at all.
    pub(crate) fn no_protocol(
        &mut self,
        peer: PeerId,
        reason: NoProtocol,
    ) -> Result<(), EndpointError> {
        match reason {
            NoProtocol::AwaitHandshake => self.await_handshake(peer),
            NoProtocol::Unsupported(what) => Err(EndpointError::Unsupported(what)),
        }
    }

    /// Makes an operation wait if its peer has not sent its HANDSHAKE. Only that says whether CTSDATA
    /// may have a connection id, and without one the peer cannot tell us from an earlier owner of our
    /// queue pair number whose last packets arrive late. Stock libfabric since 1.17 waits as well.
    pub(crate) fn waits_for_handshake(&mut self, peer: PeerId, id: OutboundId) -> bool {
        let Some(state) = self.peers.state_mut(peer) else {
            return false;
        };
        let Some(waiting) = state.handshake.waiting() else {
            return false;
        };
        // It stays marked as queued: more windows do not put it here again.
        waiting.granted_data.push(id);
        true
    }
}
