//! Senders that are not in the address vector, and the address information in their packets.

use crate::address::RawAddress;
use crate::endpoint::api::completion::PacketError;
use crate::endpoint::base::ids::PeerId;
use crate::nic::{Nic, Source};
use crate::wire::PacketType;

use super::Channel;

/// The address in a packet of a sender that is not in the address vector.
pub(crate) struct UnknownSender {
    pub(crate) packet_type: PacketType,
    pub(crate) raw_address: Option<RawAddress>,
}

/// The sender of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SenderLookup {
    /// A peer of the address vector.
    Peer(PeerId),
    /// A new peer, with this address.
    New(RawAddress),
    /// Unknown: the packet must be dropped.
    Unknown,
}

impl<N: Nic> Channel<N> {
    /// Identifies the sender of a packet from its contents. A packet whose sender contradicts the
    /// device's is reported.
    pub(crate) fn introduced(
        &mut self,
        source: &Source,
        introduction: &UnknownSender,
    ) -> SenderLookup {
        let Some(address) = introduction.raw_address else {
            self.reports.statistics.unknown_senders += 1;
            tracing::debug!(
                qpn = %source.qpn,
                ahn = source.ahn.map(|ahn| ahn.0),
                packet_type = %introduction.packet_type,
                reason = "the sender is not in the address vector, and the packet has no raw address",
                "packet dropped"
            );
            return SenderLookup::Unknown;
        };
        let addresses = self.peers.addresses();
        if !addresses.is_plausible(source, &address) {
            let packet_type = introduction.packet_type.code();
            self.reports
                .refuse(None, packet_type, PacketError::ForeignAddress);
            return SenderLookup::Unknown;
        }
        match addresses.find(&address) {
            Some(peer) => SenderLookup::Peer(peer),
            None => SenderLookup::New(address),
        }
    }

    /// Returns whether no other peer can introduce itself before one is forgotten.
    pub(crate) fn is_full_of_introduced(&self) -> bool {
        self.peers.addresses().implicit_len() >= self.config.max_implicit_peers
    }

    /// Adds a peer that introduced itself to the address vector. `None` if the device has no room.
    pub(crate) fn add_introduced(&mut self, address: RawAddress) -> Option<PeerId> {
        let nic = self.posting.nic_mut();
        let added = self
            .peers
            .addresses_mut()
            .add(&mut **nic, address, false)
            .ok();
        match added {
            Some(peer) => tracing::info!(%peer, %address, "peer introduced itself"),
            None => {
                self.reports.statistics.unknown_senders += 1;
                let reason = "the device has no room for another address handle";
                tracing::debug!(%address, reason, "packet dropped");
            }
        }
        added
    }

    /// Refuses a packet whose sender cannot be added, because too many peers introduced themselves.
    pub(crate) fn refuse_introduced(&mut self, packet_type: PacketType) {
        self.reports.statistics.unknown_senders += 1;
        self.reports
            .refuse(None, packet_type.code(), PacketError::TooManyPeers);
    }
}
