//! The handshake (spec chapter 2): who we are to a peer, and what either can do.
//!
//! Every endpoint sends one HANDSHAKE to every peer, in answer to the first packet of any type. Until
//! the peer's own has arrived, requests carry our raw address, as the peer may not know us.

use crate::address::RawAddress;
use crate::nic::{DeviceCaps, Nic, NicAttributes};
use crate::wire::{Connid, EagerRtw, ExtraFeatures, Handshake, RawAddressHeader};

use crate::endpoint::Endpoint;
use crate::endpoint::api::config::EndpointConfig;
use crate::endpoint::api::error::{EndpointError, Failure};
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::conversation::{PeerFeatures, PeerState};
use crate::endpoint::posting::in_flight::Owner;
use crate::endpoint::posting::work::Work;

/// How a request names its sender. Never by both: stock libfabric asserts that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Identity {
    /// By its whole address: the peer may not know it, or wants headers of constant length.
    RawAddress,
    /// By the connection id, which the peer asked for.
    Connid,
    /// By nothing but AHN and QPN: libfabric before 1.14 takes a connid for data.
    Nothing,
}

/// How requests to a peer name their sender.
#[inline]
pub(crate) fn identity(peer: Option<&PeerState>) -> Identity {
    match peer.and_then(|peer| peer.features.as_ref()) {
        None => Identity::RawAddress,
        Some(features)
            if features
                .extra
                .contains(ExtraFeatures::CONSTANT_HEADER_LENGTH) =>
        {
            Identity::RawAddress
        }
        Some(features) if features.extra.contains(ExtraFeatures::CONNID_HEADER) => Identity::Connid,
        Some(_) => Identity::Nothing,
    }
}

impl Identity {
    pub(crate) fn raw_address_header(self, address: RawAddress) -> Option<RawAddressHeader> {
        (self == Identity::RawAddress).then(|| RawAddressHeader::new(address))
    }

    pub(crate) fn connid(self, address: RawAddress) -> Option<Connid> {
        (self == Identity::Connid).then(|| address.qkey.into())
    }
}

/// The capabilities to announce: what the engine implements and the device can do.
pub(crate) fn own_features(attributes: &NicAttributes, config: &EndpointConfig) -> ExtraFeatures {
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

impl<N: Nic> Endpoint<N> {
    /// Answers the first packet of a peer.
    pub(crate) fn greet(&mut self, peer: PeerId) {
        if let Some(state) = self.peers.state_mut(peer)
            && !state.handshake_sent
        {
            state.handshake_sent = true;
            self.queue_work(Work::Handshake(peer));
        }
    }

    /// Sends our HANDSHAKE.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`].
    pub(crate) fn send_handshake(&mut self, peer: PeerId) -> Result<(), EndpointError> {
        let attributes = self.nic.attributes();
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

    /// Takes a peer's HANDSHAKE.
    pub(crate) fn on_handshake(&mut self, peer: PeerId, features: PeerFeatures) {
        if let Some(state) = self.peers.state_mut(peer) {
            // Peers send one. Should another come, the first one stands: operations were chosen by it.
            state.features.get_or_insert(features);
            let refused = core::mem::take(&mut state.await_features);
            let granted = core::mem::take(&mut state.await_data);
            for id in refused {
                self.refuse_read(peer, id);
            }
            for id in granted {
                if let Some(bulk) = self.bulk_mut(id) {
                    bulk.queued = false;
                }
                self.queue_outbound(id);
            }
        }
    }

    /// Makes a peer send its HANDSHAKE, unless a request that does so is already under way: with an
    /// empty write, as stock libfabric does.
    pub(crate) fn provoke_handshake(&mut self, peer: PeerId) -> Result<(), EndpointError> {
        match self.peers.state_mut(peer) {
            Some(state) if !state.request_sent && state.features.is_none() => {}
            _ => return Ok(()),
        }
        let packet = self.start_packet(&EagerRtw {
            options: self.request_options(peer, None),
            ..EagerRtw::default()
        })?;
        self.post_packet(peer, Owner::Provocation, packet)?;
        if let Some(state) = self.peers.state_mut(peer) {
            state.request_sent = true;
        }
        Ok(())
    }

    /// The handshake will not come: the next operation that needs it fails instead of waiting.
    pub(crate) fn on_provocation_lost(&mut self, peer: PeerId, failure: Failure) {
        if let Some(state) = self.peers.state_mut(peer) {
            state.request_sent = false;
            state.handshake_failure = Some(failure);
        }
    }

    /// Waits for a peer's handshake.
    ///
    /// # Errors
    /// Always: [`EndpointError::TryAgain`], or that the peer could not be reached.
    pub(crate) fn await_handshake(&mut self, peer: PeerId) -> Result<(), EndpointError> {
        let state = self.peers.state_mut(peer);
        if let Some(failure) = state.and_then(|state| state.handshake_failure.take()) {
            return Err(EndpointError::Unreachable { peer, failure });
        }
        self.provoke_handshake(peer)?;
        Err(EndpointError::TryAgain)
    }
}
