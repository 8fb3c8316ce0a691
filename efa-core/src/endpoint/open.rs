//! Opening and closing an endpoint.

use crate::nic::{DeviceCaps, Domain, Nic, NicAttributes, PolledNic, QueuePair};
use crate::wire::MsgId;

use crate::endpoint::Endpoint;
use crate::endpoint::api::config::EndpointConfig;
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::reports::Reports;
use crate::endpoint::api::time::Instant;
use crate::endpoint::base::hash::SeededHasher;
use crate::endpoint::base::ids::{Id, InboundId, PeerId};
use crate::endpoint::channel::{Channel, MAX_REQUEST_HEADER, Sizes};
use crate::endpoint::one_sided::OneSided;
use crate::endpoint::peers::Peers;
use crate::endpoint::peers::handshake::own_handshake;
use crate::endpoint::posting::Posting;
use crate::endpoint::quota::Quota;
use crate::endpoint::receiving::Receiving;
use crate::endpoint::sending::choice::LocalCapabilities;
use crate::endpoint::sending::{HeaderSettings, Sending};
use crate::endpoint::user_receives::UserReceives;

/// Checks the settings of an endpoint on a queue pair with these attributes.
///
/// # Errors
/// The settings contradict each other or the device.
pub(crate) fn check(
    attributes: &NicAttributes,
    config: &EndpointConfig,
) -> Result<(), EndpointError> {
    if attributes.mtu <= MAX_REQUEST_HEADER {
        return Err(EndpointError::Unsupported(
            "an MTU that leaves no room for data behind the headers",
        ));
    }
    if config.reorder_window == 0 || config.reorder_window > 1 << 20 {
        return Err(EndpointError::OutOfRange {
            what: "reorder_window",
            value: u64::from(config.reorder_window),
            limit: 1 << 20,
        });
    }
    let operations = config
        .max_operations
        .saturating_add(config.remote_operations);
    // A message of one packet for a multi-receive buffer uses an id beyond both limits, while it is
    // handled.
    let ids = InboundId::MAX_SLOTS;
    if operations >= ids {
        return Err(EndpointError::OutOfRange {
            what: "max_operations and remote_operations together",
            value: operations as u64,
            limit: ids as u64 - 1,
        });
    }
    if config.remote_operations == 0 {
        return Err(EndpointError::OutOfRange {
            what: "remote_operations",
            value: 0,
            limit: ids as u64 - 1,
        });
    }
    Ok(())
}

impl<N: PolledNic> Endpoint<N> {
    /// Opens an endpoint on a queue pair and posts its receive buffers.
    ///
    /// # Errors
    /// The settings contradict each other or the device.
    pub fn new(nic: N, config: EndpointConfig) -> Result<Self, EndpointError> {
        check(nic.queue_pair().attributes(), &config)?;
        Ok(Self::build(nic, None, config))
    }

    /// Opens an endpoint that receives into the application's buffers, by a second queue pair,
    /// which uses the same completion queue and domain. Its HANDSHAKE requests messages without
    /// headers to that queue pair (extra request 7). Messages that it sends wait for the handshake
    /// of the peer, as with [`EndpointConfig::handshake_before_messages`].
    ///
    /// Receives need one piece of registered memory, and accept untagged messages of any sender.
    /// They cannot be cancelled. A message that is longer than its receive fails on both sides with
    /// `FI_EMSGSIZE`; messages with headers are refused
    /// ([`PacketError::MessageWithHeader`](crate::endpoint::PacketError::MessageWithHeader)).
    ///
    /// # Errors
    /// The settings contradict each other or the device.
    pub fn with_user_receives(
        nic: N,
        user: <N::Domain as Domain>::QueuePair,
        config: EndpointConfig,
    ) -> Result<Self, EndpointError> {
        check(nic.queue_pair().attributes(), &config)?;
        Ok(Self::build(nic, Some(user), config))
    }

    /// Closes the endpoint and returns the device, for the caller to close. Operations in flight
    /// end without a completion. The device still owns the memory and the buffers of requests that
    /// it has not completed.
    pub fn close(mut self) -> N {
        for ahn in self
            .channel
            .peers
            .addresses()
            .ids()
            .filter_map(|peer| self.channel.peers.addresses().ahn(peer))
        {
            // The queue pair is closing, so an error cannot be reported.
            let _ = self.channel.posting.nic_mut().destroy_address_handle(ahn);
        }
        self.deregister_all_own();
        let mut nic = self.channel.posting.into_nic();
        if let Some(user) = self.user_receives {
            user.into_queue_pair().close(&mut nic);
        }
        nic
    }
}

impl<N: Nic> Endpoint<N> {
    /// Builds an endpoint from settings that were checked.
    pub(crate) fn build(
        nic: N,
        user: Option<<N::Domain as Domain>::QueuePair>,
        config: EndpointConfig,
    ) -> Self {
        let user = user.map(|queue_pair| Box::new(UserReceives::new(queue_pair)));
        let attributes = nic.queue_pair().attributes();
        let mtu = attributes.mtu;
        let wanted_receives = config.recv_buffers.clamp(1, attributes.recv_queue_depth);
        let has = |caps| config.use_device_rdma && attributes.caps.contains(caps);
        let local = LocalCapabilities {
            rdma_read: has(DeviceCaps::RDMA_READ),
            rdma_write: has(DeviceCaps::RDMA_WRITE),
            unsolicited_write_recv: has(DeviceCaps::UNSOLICITED_WRITE_RECV),
            part_id: attributes.vendor_part_id,
            handshake_before_messages: config.handshake_before_messages || user.is_some(),
            max_medium_size: config.max_medium_size as u64,
            min_read_message_size: config.min_read_message_size as u64,
            min_read_write_size: config.min_read_write_size as u64,
        };
        let address = nic.address();
        let hasher = SeededHasher::new(config.seed ^ u64::from(address.qkey.0));
        let headers = HeaderSettings {
            mtu,
            credits: config.cts_window_packets,
        };
        let mut endpoint = Endpoint {
            receiving: Receiving::new(&config, hasher),
            sending: Sending::new(config.max_operations, headers),
            one_sided: OneSided::default(),
            batch: Vec::with_capacity(config.poll_batch),
            channel: Channel {
                address,
                handshake: own_handshake(
                    attributes,
                    &config,
                    address.qkey.into(),
                    user.as_ref().map(|user| user.announcement()),
                ),
                sizes: Sizes::new(attributes, &config),
                local,
                peers: Peers::new(hasher, MsgId(config.first_msg_id)),
                given_up: Vec::new(),
                gone: Vec::new(),
                quota: Quota::new(config.peer_operations, config.remote_operations),
                reports: Reports::new(config.max_events, config.completion_queue),
                now: Instant::START,
                posting: Posting::new(nic, &config, wanted_receives),
                config,
            },
            user_receives: user,
        };
        endpoint.channel.post_receives();
        endpoint
    }

    /// Returns the endpoint's registrations and packet buffers to a domain that stays open.
    pub(crate) fn leave_domain(&mut self) {
        let peers: Vec<PeerId> = self.channel.peers.addresses().ids().collect();
        for peer in peers {
            self.channel.forget_conversation(peer);
        }
        self.deregister_all_own();
        self.channel.posting.release_buffers();
    }

    /// Returns the device of an endpoint that is closed, and its second queue pair.
    pub(crate) fn into_nic(self) -> (N, Option<<N::Domain as Domain>::QueuePair>) {
        let user = self.user_receives.map(|user| user.into_queue_pair());
        (self.channel.posting.into_nic(), user)
    }

    /// Ends the registrations that the engine made for operations.
    fn deregister_all_own(&mut self) {
        for own_regions in self.sending.take_registrations() {
            self.channel.deregister_own(own_regions);
        }
        for own_regions in self.receiving.transfers.take_registrations() {
            self.channel.deregister_own(own_regions);
        }
    }
}
