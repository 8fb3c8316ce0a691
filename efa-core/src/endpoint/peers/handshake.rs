//! The handshake (spec chapter 2): whether the local HANDSHAKE was sent, the contents of the peer's
//! HANDSHAKE, and the operations that wait for it.

use crate::address::{Qkey, Qpn, RawAddress};
use crate::endpoint::api::config::EndpointConfig;
use crate::endpoint::api::error::Failure;
use crate::endpoint::base::ids::{InboundId, OutboundId};
use crate::nic::{DeviceCaps, NicAttributes};
use crate::wire::{Connid, ExtraFeatures, Handshake, RawAddressHeader, ReqOptions, UserRecvQp};

/// The content of a peer's HANDSHAKE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PeerFeatures {
    /// Extra features and requests 0 to 63.
    pub(crate) extra: ExtraFeatures,
    /// PCI part id of its device; libfabric before 1.20 does not send it.
    pub(crate) device_version: Option<u32>,
    /// A queue pair that accepts only messages without headers (extra request 7).
    pub(crate) user_recv_qp: Option<(Qpn, Qkey)>,
    /// Whether the peer's device can access all of the peer's memory that operations name. This is
    /// assumed unless the peer announces accelerator memory that its device cannot access.
    pub(crate) peer_to_peer: bool,
}

impl From<&Handshake> for PeerFeatures {
    fn from(handshake: &Handshake) -> Self {
        let extra = handshake.extra_info.features();
        let user_recv_qp = handshake
            .user_recv_qp
            .filter(|_| extra.contains(ExtraFeatures::USER_RECV_QP));
        PeerFeatures {
            extra,
            device_version: handshake.device_version,
            // A peer without the field behaves like stock libfabric before the field was
            // introduced.
            peer_to_peer: handshake.hmem_p2p != Some(0),
            user_recv_qp: user_recv_qp
                .and_then(|qp| Some((Qpn(u16::try_from(qp.qpn).ok()?), qp.qkey))),
        }
    }
}

/// The features that this endpoint announces: those of the engine, and of the device if the
/// settings permit them.
fn own_features(attributes: &NicAttributes, config: &EndpointConfig) -> ExtraFeatures {
    let has = |cap| config.use_device_rdma && attributes.caps.contains(cap);
    // Without bits 1 and 4, libfabric 1.17 refuses operations instead of falling back.
    let mut features = ExtraFeatures::CONNID_HEADER
        | ExtraFeatures::DELIVERY_COMPLETE
        | ExtraFeatures::RUNTING_READ
        | ExtraFeatures::READ_NACK
        | ExtraFeatures::PEER_ERROR;
    features.set(ExtraFeatures::RDMA_READ, has(DeviceCaps::RDMA_READ));
    features.set(ExtraFeatures::RDMA_WRITE, has(DeviceCaps::RDMA_WRITE));
    features.set(
        ExtraFeatures::UNSOLICITED_WRITE_RECV,
        has(DeviceCaps::UNSOLICITED_WRITE_RECV),
    );
    features
}

/// The local HANDSHAKE. Each peer gets it once, in response to its first packet of any type. Until
/// the peer's HANDSHAKE has arrived, requests carry the local raw address, because the peer may not
/// know it.
pub(crate) fn own_handshake(
    attributes: &NicAttributes,
    config: &EndpointConfig,
    connid: Connid,
    user_recv_qp: Option<UserRecvQp>,
) -> Handshake {
    let NicAttributes {
        vendor_part_id,
        host_id,
        ..
    } = *attributes;
    let mut features = own_features(attributes, config);
    features.set(ExtraFeatures::USER_RECV_QP, user_recv_qp.is_some());
    Handshake {
        extra_info: features.into(),
        connid: Some(connid),
        host_id: (host_id != 0).then_some(host_id),
        // Stock libfabric since 1.20 reads it without a check that it is present.
        device_version: Some(vendor_part_id),
        user_recv_qp,
        ..Handshake::default()
    }
}

/// How a request identifies its sender. Stock libfabric asserts that raw address and connection id
/// are not both present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Identity {
    /// By the whole address: the peer may not know it, or requires headers of constant length.
    RawAddress,
    /// By the connection id: the peer supports it.
    Connid,
    /// By AHN and QPN alone: libfabric before 1.14 parses a connection id as data.
    Nothing,
}

/// How requests identify this endpoint to a peer with these features.
#[inline]
pub(crate) fn identity(features: Option<&PeerFeatures>) -> Identity {
    match features {
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
    /// The optional headers of a request from `address` (spec section 2.2).
    #[inline]
    pub(crate) fn options(self, address: RawAddress, cq_data: Option<u64>) -> ReqOptions {
        ReqOptions {
            raw_address: (self == Identity::RawAddress).then(|| RawAddressHeader::new(address)),
            cq_data,
            connid: (self == Identity::Connid).then(|| Connid::from(address.qkey)),
            ..ReqOptions::default()
        }
    }
}

/// The handshake with one peer.
#[derive(Default)]
pub(crate) struct HandshakeState {
    /// Our HANDSHAKE was sent, or is about to be.
    is_sent: bool,
    /// The peer's HANDSHAKE.
    features: Option<PeerFeatures>,
    /// A request was sent, so the peer's HANDSHAKE can be expected.
    request_sent: bool,
    /// The failure of the packet that requests the peer's HANDSHAKE.
    failure: Option<Failure>,
    waiting: HandshakeWaiters,
}

/// Operations that wait for a peer's HANDSHAKE.
#[derive(Default)]
pub(crate) struct HandshakeWaiters {
    /// Transfers whose data cannot be read. They wait for the HANDSHAKE, which shows whether the
    /// peer supports READ_NACK.
    pub(crate) refused_reads: Vec<InboundId>,
    /// Operations that may send CTSDATA. They wait for the HANDSHAKE, which shows whether CTSDATA
    /// may have a connection id.
    pub(crate) granted_data: Vec<OutboundId>,
}

impl HandshakeState {
    /// Returns whether the local HANDSHAKE must be sent, which is true once.
    #[inline]
    pub(crate) fn mark_sent(&mut self) -> bool {
        !core::mem::replace(&mut self.is_sent, true)
    }

    /// Returns whether the local HANDSHAKE was sent.
    #[inline]
    pub(crate) fn is_sent(&self) -> bool {
        self.is_sent
    }

    /// Records the loss of the local HANDSHAKE, so that another one answers the peer's next packet.
    pub(crate) fn mark_lost(&mut self) {
        self.is_sent = false;
    }

    /// The peer's features, once its HANDSHAKE has arrived.
    #[inline]
    pub(crate) fn features(&self) -> Option<&PeerFeatures> {
        self.features.as_ref()
    }

    /// Stores the peer's HANDSHAKE. Returns the operations that waited for it. A second HANDSHAKE
    /// does not replace the first, because the choice of operations was based on the first.
    pub(crate) fn receive(&mut self, features: PeerFeatures) -> HandshakeWaiters {
        self.features.get_or_insert(features);
        core::mem::take(&mut self.waiting)
    }

    /// The operations that wait for the peer's HANDSHAKE. `None` once it has arrived.
    pub(crate) fn waiting(&mut self) -> Option<&mut HandshakeWaiters> {
        self.features.is_none().then_some(&mut self.waiting)
    }

    /// Returns whether a packet must be sent to request the peer's HANDSHAKE.
    pub(crate) fn has_to_be_provoked(&self) -> bool {
        !self.request_sent && self.features.is_none()
    }

    /// Returns whether a HANDSHAKE request was sent that the peer has not answered.
    pub(crate) fn is_awaited(&self) -> bool {
        self.request_sent && self.features.is_none()
    }

    /// Records that a request was sent. The peer answers the first one with its HANDSHAKE.
    #[inline]
    pub(crate) fn request_sent(&mut self) {
        self.request_sent = true;
    }

    /// Records the loss of one request, or of all because the peer no longer exists. The requests
    /// so far may never be answered with a HANDSHAKE, so a new one is needed.
    pub(crate) fn request_lost(&mut self) {
        if self.features.is_none() {
            self.request_sent = false;
        }
    }

    /// Records that the packet that requests the HANDSHAKE was not delivered. The next operation
    /// that needs the HANDSHAKE fails instead of waiting.
    pub(crate) fn provocation_lost(&mut self, failure: Failure) {
        self.request_sent = false;
        self.failure = Some(failure);
    }

    /// Removes and returns the reason why the HANDSHAKE will not arrive.
    pub(crate) fn take_failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::{Errno, ProviderError};

    fn features(extra: ExtraFeatures) -> PeerFeatures {
        PeerFeatures {
            extra,
            device_version: None,
            user_recv_qp: None,
            peer_to_peer: true,
        }
    }

    #[test]
    fn requests_name_their_sender_once_as_requested() {
        use ExtraFeatures as E;
        for (extra, expected) in [
            (None, Identity::RawAddress),
            (Some(E::empty()), Identity::Nothing),
            (Some(E::CONNID_HEADER), Identity::Connid),
            (
                Some(E::CONNID_HEADER | E::CONSTANT_HEADER_LENGTH),
                Identity::RawAddress,
            ),
        ] {
            let features = extra.map(features);
            assert_eq!(identity(features.as_ref()), expected, "{extra:?}");
        }
    }

    #[test]
    fn announced_features_need_engine_and_device() {
        use ExtraFeatures as E;
        let engine = E::CONNID_HEADER
            | E::DELIVERY_COMPLETE
            | E::RUNTING_READ
            | E::READ_NACK
            | E::PEER_ERROR;
        let handshake = |caps, use_device_rdma, host_id| {
            let attributes = NicAttributes {
                caps,
                mtu: 8928,
                max_rdma_size: 0,
                send_queue_depth: 1,
                recv_queue_depth: 1,
                inline_size: 0,
                vendor_part_id: 0xefa1,
                host_id,
            };
            let config = EndpointConfig {
                use_device_rdma,
                ..EndpointConfig::default()
            };
            own_handshake(&attributes, &config, Connid(5), None)
        };
        let all = handshake(DeviceCaps::all(), true, 7);
        let rdma = E::RDMA_READ | E::RDMA_WRITE | E::UNSOLICITED_WRITE_RECV;
        assert_eq!(all.extra_info.features(), engine | rdma);
        assert_eq!((all.connid, all.host_id), (Some(Connid(5)), Some(7)));
        assert_eq!(all.device_version, Some(0xefa1));
        let without = handshake(DeviceCaps::all(), false, 0);
        assert_eq!(without.extra_info.features(), engine);
        assert_eq!(without.host_id, None, "0 says that there is none");
        let reads = handshake(DeviceCaps::RDMA_READ, true, 0);
        assert_eq!(reads.extra_info.features(), engine | E::RDMA_READ);
    }

    #[test]
    fn peers_reach_their_memory_unless_they_deny() {
        for (hmem_p2p, expected) in [(None, true), (Some(1), true), (Some(0), false)] {
            let handshake = Handshake {
                hmem_p2p,
                ..Handshake::default()
            };
            let features = PeerFeatures::from(&handshake);
            assert_eq!(features.peer_to_peer, expected, "{hmem_p2p:?}");
        }
    }

    #[test]
    fn our_handshake_is_sent_once() {
        let mut handshake = HandshakeState::default();
        assert!(handshake.mark_sent());
        assert!(!handshake.mark_sent());
    }

    #[test]
    fn the_first_handshake_counts_and_releases_operations() {
        let mut handshake = HandshakeState::default();
        let refused = InboundId::from_wire(4);
        handshake.waiting().unwrap().refused_reads.push(refused);
        let waited = handshake.receive(features(ExtraFeatures::READ_NACK));
        assert_eq!(waited.refused_reads, [refused]);
        assert!(handshake.waiting().is_none());
        let again = handshake.receive(features(ExtraFeatures::empty()));
        assert!(again.refused_reads.is_empty());
        let features = handshake.features().unwrap();
        assert!(features.extra.contains(ExtraFeatures::READ_NACK));
    }

    #[test]
    fn a_failed_handshake_request_is_repeated() {
        let mut handshake = HandshakeState::default();
        assert!(handshake.has_to_be_provoked());
        handshake.request_sent();
        assert!(!handshake.has_to_be_provoked());
        handshake.request_lost();
        assert!(handshake.has_to_be_provoked());
        handshake.request_sent();
        let failure = Failure::new(Errno::EIO, ProviderError::None);
        handshake.provocation_lost(failure);
        assert!(handshake.has_to_be_provoked());
        assert_eq!(handshake.take_failure(), Some(failure));
        assert_eq!(handshake.take_failure(), None);
        handshake.request_sent();
        handshake.receive(features(ExtraFeatures::empty()));
        // The HANDSHAKE has arrived, so the loss of the peer has no effect.
        handshake.request_lost();
        assert!(!handshake.has_to_be_provoked());
    }
}
