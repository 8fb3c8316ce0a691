//! Receiving into the application's buffers, without a copy (zero-copy receive).
//!
//! Such an endpoint has a second queue pair. Each receive of the application is posted there
//! immediately. The HANDSHAKE names that queue pair (extra request 7, which the spec does not list;
//! stock libfabric 1.22 to 2.5), and peers that support the request send messages there without a
//! header. No matching is needed: the device writes the data directly to its destination. In return
//! the endpoint supports neither tags nor directed, multiple or cancelled receives, a message is
//! limited to one packet, and messages with a header are refused: a receive that is posted to the
//! device cannot be withdrawn for them.

use crate::endpoint::Endpoint;
use crate::endpoint::api::completion::{CompletionEntry, ErrorEntry, PacketError};
use crate::endpoint::api::error::{EndpointError, Failure};
use crate::endpoint::api::operation::{OperationFlags, RecvArgs, SourceFilter};
use crate::endpoint::base::ids::{Arena, PeerId, ReceiveId};
use crate::endpoint::base::immediate;
use crate::endpoint::posting::Work;
use crate::endpoint::receiving::receive_flags;
use crate::nic::{Nic, NicError, QueuePair, Source, Status};
use crate::wire::{PacketType, UserRecvQp};

/// The second queue pair, and the receives that it has.
pub(crate) struct UserReceives<Q> {
    queue_pair: Q,
    posted: Arena<UserReceive, ReceiveId>,
}

/// A receive that the device has.
struct UserReceive {
    context: u64,
    report_success: bool,
}

impl<Q: QueuePair> UserReceives<Q> {
    pub(crate) fn new(queue_pair: Q) -> Self {
        UserReceives {
            queue_pair,
            posted: Arena::new(usize::MAX),
        }
    }

    /// The HANDSHAKE field that announces the queue pair to peers.
    pub(crate) fn announcement(&self) -> UserRecvQp {
        let address = self.queue_pair.address();
        UserRecvQp {
            qpn: address.qpn.0.into(),
            qkey: address.qkey,
        }
    }

    /// The queue pair.
    pub(crate) fn queue_pair(&self) -> &Q {
        &self.queue_pair
    }

    pub(crate) fn into_queue_pair(self) -> Q {
        self.queue_pair
    }

    /// The number of receives that the device has.
    pub(crate) fn len(&self) -> usize {
        self.posted.len()
    }

    /// Hands a receive to the device.
    fn post(
        &mut self,
        domain: &mut Q::Domain,
        args: &RecvArgs<'_>,
    ) -> Result<ReceiveId, EndpointError> {
        if args.tag.is_some() || args.source != SourceFilter::Any {
            return Err(EndpointError::Unsupported(
                "tagged and directed receives of a zero-copy receiver",
            ));
        }
        let [piece] = args.buffer else {
            return Err(EndpointError::OutOfRange {
                what: "number of buffer pieces of a zero-copy receiver",
                value: args.buffer.len() as u64,
                limit: 1,
            });
        };
        let Some(region) = piece.region else {
            let what = "memory without a registration, for a zero-copy receiver:";
            return Err(EndpointError::Nic(NicError::invalid(
                what,
                piece.memory.address,
            )));
        };
        let place = self.posted.vacant().ok_or(EndpointError::TryAgain)?;
        let context = u64::from(place.id.to_wire());
        let (memory, key) = (piece.memory, region.local_key);
        self.queue_pair
            .post_user_recv(domain, memory, key, context)?;
        Ok(place.fill(UserReceive {
            context: args.context,
            report_success: args.flags.contains(OperationFlags::COMPLETION),
        }))
    }
}

impl<N: Nic> Endpoint<N> {
    /// Returns whether the endpoint receives into the application's buffers.
    #[inline]
    pub(crate) fn is_zero_copy(&self) -> bool {
        self.user_receives.is_some()
    }

    /// Posts a receive to the second queue pair.
    ///
    /// # Errors
    /// [`EndpointError::Unsupported`] without a second queue pair, and for arguments that such an
    /// endpoint cannot handle; [`EndpointError::TryAgain`] if the device has no room.
    pub(crate) fn post_user_receive(
        &mut self,
        args: &RecvArgs<'_>,
    ) -> Result<ReceiveId, EndpointError> {
        let user = self
            .user_receives
            .as_mut()
            .ok_or(EndpointError::Unsupported("zero-copy receive"))?;
        let domain: &mut N::Domain = self.channel.posting.nic_mut();
        user.post(domain, args)
    }

    /// Handles a message that the device has written to the application's buffer, or a receive that
    /// it returns with an error.
    pub(crate) fn on_user_receive(
        &mut self,
        context: u64,
        status: Status,
        length: usize,
        source: &Source,
        data: Option<u32>,
    ) {
        let id = ReceiveId::from_wire(context as u32);
        let user = self.user_receives.as_mut();
        let Some(receive) = user.and_then(|user| user.posted.remove(id)) else {
            self.channel.reports.statistics.stray_completions += 1;
            return;
        };
        let cq_data = data.map(immediate::to_cq_data);
        let flags = receive_flags(false, cq_data);
        if status != Status::Ok {
            let (context, failure) = (receive.context, Failure::from(status));
            let entry = ErrorEntry::without_data(context, flags, None, failure);
            return self.channel.reports.failed(entry);
        }
        self.channel.reports.statistics.packets_received += 1;
        let peer = self.heard_from(source);
        if !receive.report_success {
            return self.channel.reports.succeeded_silently(flags);
        }
        self.channel.reports.succeeded(CompletionEntry {
            context: receive.context,
            flags,
            length: length as u64,
            data: cq_data.unwrap_or(0),
            tag: 0,
            source: peer,
            buffer: 0,
        });
    }

    /// The sender of a message without a header; `None` if its address was removed since the local
    /// HANDSHAKE was sent.
    fn heard_from(&mut self, source: &Source) -> Option<PeerId> {
        // The completion contains no connection id.
        let peer = self.channel.peers.addresses().identify(source, None)?;
        if let Some(state) = self.channel.peers.state_mut(peer) {
            state.heard = true;
            if state.handshake.mark_sent() {
                self.channel.posting.queue(Work::Handshake(peer));
            }
        }
        Some(peer).filter(|peer| !self.channel.peers.addresses().is_removed(*peer))
    }

    /// Refuses a message with a header.
    #[cold]
    pub(crate) fn refuse_header(&mut self, peer: PeerId, packet_type: PacketType) {
        let reason = PacketError::MessageWithHeader;
        self.channel
            .reports
            .refuse(Some(peer), packet_type.code(), reason);
    }
}
