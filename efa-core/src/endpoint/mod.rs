//! The protocol engine: one RDM endpoint over one [`Nic`].
//!
//! An [`Endpoint`] does no I/O by itself and reads no clock. The application starts operations
//! ([`Endpoint::send`], [`Endpoint::recv`], ...). [`Endpoint::progress`] reads completions from the
//! device, gets the time from its caller, and posts packets. [`Endpoint::poll_completion`] and
//! [`Endpoint::poll_event`] return the results. [`Endpoint::next_timeout`] returns when `progress`
//! has to be called even if the device reports nothing.
//!
//! # Map
//!
//! The endpoint is made of parts. Each part is a folder that owns its state, makes decisions and
//! returns the actions that follow from them. `channel`, `subprotocols` and the files beside the
//! folders carry the actions out. Imports run one way: a folder uses only folders above it in this
//! list, and no folder uses the files.
//!
//! | folder or file | contents |
//! |---|---|
//! | `base` | ids and the arenas behind them, lists by peer, hashing, random numbers, immediate data |
//! | `api` | the application's interface: arguments, completions, events, errors, settings, counters, time |
//! | `memory` | the application's memory in pieces, its registrations, copies between it and packets |
//! | `quota` | limits on the requests of peers that are served at a time, and those that wait for room |
//! | `peers` | the address vector, the sender of a packet, the handshake with each peer |
//! | `posting` | the device, packets and requests in flight, received packets that wait, pending work, back-off, packet buffers |
//! | `receiving` | the order window of each peer; posted receives and their matching; messages that wait; transfers of incoming data, and their reports |
//! | `sending` | the choice of a subprotocol, the packets of an operation, its end |
//! | `one_sided` | memory that peers may access; carrying out atomics |
//! | `channel` | common parts of both directions: the conversation with each peer, posting packets to it, packets that the device returns, its share of the quota, reports to the application |
//! | `subprotocols` | each kind of operation, on the side that is the source of data (`SendSide`) and on the side that is its destination (`ReceiveSide`); messages and atomics in order (`OrderedDelivery`) |
//! | `dispatch`, `introduction`, `sent` | handling a received packet, also of an unknown sender, and the completion of a sent one |
//! | `requests` | requests of peers for memory |
//! | `user_receives` | receiving into the application's buffers, by a second queue pair |
//! | `progress`, `pending_work` | completions of the device; work that waited |
//! | `operations`, `registered` | the calls that start and cancel operations; registered memory |
//! | `open`, `addresses` | opening and closing; the address vector, and the end of a peer |
//! | `domain` | the state that several endpoints share, and the endpoints in it |
//!
//! # Guarantees
//!
//! * Each message is received once. Messages of one sender are matched in the order in which it
//!   sent them (`FI_ORDER_SAS`). Without [`EndpointConfig::ordered`] they are matched in the order
//!   of their arrival.
//! * An endpoint with a second queue pair ([`Endpoint::with_user_receives`]) receives into the
//!   application's buffers as the packets arrive, in any order.
//! * A send completes when the device reports that its packets arrived; with
//!   [`OperationFlags::DELIVERY_COMPLETE`], when the receiver has the data in its buffer.
//! * Memory of the application is not accessed after its operation has completed.
//! * No packet of a peer makes the endpoint panic, affects other peers, or makes the endpoint store
//!   more than [`EndpointConfig::deferred_bytes`] of packets. Where peers are not trusted,
//!   [`EndpointConfig::peer_deferred_bytes`] and [`EndpointConfig::peer_operations`] limit each of
//!   them.
//! * Operations of peers and operations of the application have separate limits
//!   ([`EndpointConfig::remote_operations`], [`EndpointConfig::max_operations`]), so neither can
//!   exhaust the other's. Peers that request more than the limit wait, and always leave room for
//!   another peer.

mod addresses;
mod api;
mod base;
mod channel;
mod dispatch;
mod domain;
mod introduction;
mod memory;
mod one_sided;
mod open;
mod operations;
mod peers;
mod pending_work;
mod posting;
mod progress;
mod quota;
mod receiving;
mod registered;
mod requests;
mod sending;
mod sent;
mod subprotocols;
mod user_receives;

pub use api::completion::{CompletionEntry, CompletionFlags, ErrorEntry, Event, PacketError};
pub use api::config::EndpointConfig;
pub use api::error::{EndpointError, Errno, Failure, ProviderError};
pub use api::operation::{
    AtomicArgs, AtomicKind, ClaimedRecvArgs, IOV_LIMIT, IoVec, MessageInfo, MultiRecvArgs,
    OperationFlags, ReadArgs, RecvArgs, RemoteIoVec, SendArgs, SourceFilter, TagFilter, WriteArgs,
};
pub use api::statistics::{CopiedBytes, Counter, Protocol, Statistics, Usage};
pub use api::time::Instant;
pub use base::ids::{ClaimId, EndpointId, PeerId, ReceiveId};
#[cfg(any(test, debug_assertions))]
#[doc(hidden)]
pub use base::steps::steps_in_walks;
pub use channel::MAX_REQUEST_HEADER;
pub use domain::Domain;
pub use one_sided::arithmetic::reduce;
pub use subprotocols::atomics::{AtomicLimits, atomic_limits};

use crate::address::RawAddress;
use crate::nic::{self, Completion, Nic};

use channel::Channel;
use one_sided::OneSided;
use receiving::Receiving;
use sending::Sending;
use subprotocols::atomics::AtomicTarget;
use subprotocols::turns::OrderedDelivery;
use subprotocols::{ReceiveSide, SendSide};
use user_receives::UserReceives;

/// The queue pairs of a device.
type QueuePairOf<N> = <<N as Nic>::Domain as nic::Domain>::QueuePair;

/// One RDM endpoint.
pub struct Endpoint<N: Nic> {
    /// Present if the endpoint receives into the application's buffers. The field precedes the
    /// channel, whose domain its queue pair uses, so that it is dropped first.
    user_receives: Option<Box<UserReceives<QueuePairOf<N>>>>,
    channel: Channel<N>,
    sending: Sending,
    receiving: Receiving,
    one_sided: OneSided,
    /// Completions of the device, of one poll.
    batch: Vec<Completion>,
}

impl<N: Nic> Endpoint<N> {
    /// The endpoint's raw address, for the address vectors of others.
    pub fn address(&self) -> RawAddress {
        self.channel.address
    }

    /// The settings.
    pub fn config(&self) -> &EndpointConfig {
        &self.channel.config
    }

    /// The device.
    pub fn nic(&self) -> &N {
        self.channel.posting.nic()
    }

    /// The device, for registrations and for the driver of a simulated device. If the caller posts
    /// or polls on it, the endpoint loses packets.
    pub fn nic_mut(&mut self) -> &mut N {
        self.channel.posting.nic_mut()
    }

    /// The largest length in bytes of a send with [`OperationFlags::INJECT`].
    pub fn inject_size(&self) -> usize {
        self.channel.sizes.inject
    }

    /// The largest length in bytes of an operand of an atomic.
    pub fn atomic_size(&self, kind: AtomicKind<'_>) -> usize {
        self.channel.sizes.atomic(kind)
    }

    /// Counters since the endpoint was opened.
    pub fn statistics(&self) -> &Statistics {
        &self.channel.reports.statistics
    }

    /// Objects that the endpoint has now.
    pub fn usage(&self) -> Usage {
        Usage {
            peers: self.channel.peers.addresses().len(),
            outbound: self.sending.len() + self.channel.posting.one_packet_operations(),
            inbound: self.receiving.len()
                + self.user_receives.as_ref().map_or(0, |user| user.len()),
            unexpected: self.receiving.unexpected.len(),
            deferred_packets: self.channel.posting.deferred_len(),
            packets: self.channel.posting.len(),
            assemblies: self.receiving.unexpected.assemblies_len(),
            claimed: self.receiving.unexpected.claims_len(),
            owed: self.channel.quota.answers(),
            waiting: self.channel.quota.waiting(),
        }
    }

    #[inline]
    fn send_side(&mut self) -> SendSide<'_, N> {
        SendSide {
            channel: &mut self.channel,
            sending: &mut self.sending,
            exposed: &self.one_sided.exposed,
        }
    }

    #[inline]
    fn receive_side(&mut self) -> ReceiveSide<'_, N> {
        ReceiveSide {
            channel: &mut self.channel,
            receiving: &mut self.receiving,
            exposed: &self.one_sided.exposed,
        }
    }

    #[inline(always)]
    fn turns(&mut self) -> OrderedDelivery<'_, N> {
        OrderedDelivery {
            channel: &mut self.channel,
            receiving: &mut self.receiving,
            one_sided: &mut self.one_sided,
        }
    }

    fn atomic_target(&mut self) -> AtomicTarget<'_, N> {
        AtomicTarget {
            channel: &mut self.channel,
            one_sided: &mut self.one_sided,
        }
    }
}
