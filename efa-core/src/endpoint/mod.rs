//! The protocol engine: one RDM endpoint over one [`Nic`].
//!
//! An [`Endpoint`] does no I/O by itself and reads no clock. The application starts operations
//! ([`Endpoint::send`], [`Endpoint::recv`], ...). [`Endpoint::progress`] takes completions from the
//! device and the time from its caller, and posts packets. [`Endpoint::poll_completion`] and
//! [`Endpoint::poll_event`] return what happened. [`Endpoint::next_timeout`] returns when
//! `progress` has to be called even if the device reports nothing.
//!
//! # Map
//!
//! The endpoint is made of parts. Each part is a folder that owns its state and decides, and
//! returns what has to be done. `channel`, `subprotocols` and the files beside the folders carry
//! that out. Imports run one way: a folder uses only those above
//! it in this list, and none uses the files.
//!
//! | folder or file | contents |
//! |---|---|
//! | `base` | ids and the arenas behind them, lists by peer, hashing, random numbers, immediate data |
//! | `api` | what the application sees: arguments, completions, events, errors, settings, counters, time |
//! | `memory` | the application's memory in pieces, its registrations, copies between it and packets |
//! | `quota` | limits on what is done for peers at a time, and the operations that wait for room |
//! | `peers` | the address vector, the sender of a packet, the handshake with each peer |
//! | `posting` | the device, packets and requests in flight, received packets that wait, pending work, back-off, packet buffers |
//! | `receiving` | the order window of each peer; posted receives and their matching; messages that wait; transfers of incoming data, and their reports |
//! | `sending` | the choice of a subprotocol, the packets of an operation, its end |
//! | `one_sided` | memory that peers may access; carrying out atomics |
//! | `channel` | what operations in both directions need: the conversation with each peer, posting packets to it, packets that come back, its share of the quota, reports to the application |
//! | `subprotocols` | each kind of operation, on the side that is the source of data (`SendSide`) and on the side that is its destination (`ReceiveSide`); messages and atomics in order (`Turns`) |
//! | `dispatch`, `introduction`, `sent` | handling a received packet, also of an unknown sender, and the completion of a sent one |
//! | `requests` | requests of peers for memory |
//! | `user_receives` | receiving into the application's buffers, by a second queue pair |
//! | `pending_work` | work that waited |
//! | `open`, `addresses` | opening and closing; the address vector, and the end of a peer |
//! | `domain` | what several endpoints share, and the endpoints in it |
//!
//! # Guarantees
//!
//! * Each message is received once, in the order in which its sender sent it, as far as matching
//!   can tell: messages of one sender that a receive accepts are taken in that order
//!   (`FI_ORDER_SAS`). Without [`EndpointConfig::ordered`] they are taken as they arrive.
//! * An endpoint with a second queue pair ([`Endpoint::with_user_receives`]) receives into the
//!   application's buffers as the packets arrive, in any order.
//! * A send completes when the device reports that its packets arrived; with
//!   [`OperationFlags::DELIVERY_COMPLETE`], when the receiver has the data in its buffer.
//! * Memory of the application is not accessed after its operation has completed.
//! * Nothing that a peer sends makes the endpoint panic, affects other peers, or makes it keep more
//!   than [`EndpointConfig::held_bytes`] of packets. Where peers are not trusted,
//!   [`EndpointConfig::peer_held_bytes`] and [`EndpointConfig::peer_operations`] limit each of
//!   them.
//! * Operations of peers and operations of the application have limits of their own
//!   ([`EndpointConfig::remote_operations`], [`EndpointConfig::max_operations`]), so neither can
//!   exhaust the other's. Peers that ask for more than there is room for wait, and always leave
//!   room for another peer.

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
mod peers;
mod pending_work;
mod posting;
mod quota;
mod receiving;
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
pub use api::statistics::{Copied, Counter, Protocol, Statistics, Usage};
pub use api::time::Instant;
pub use base::ids::{ClaimId, EndpointId, PeerId, ReceiveId};
#[cfg(any(test, debug_assertions))]
#[doc(hidden)]
pub use base::steps::steps_in_walks;
pub use domain::Domain;
pub use subprotocols::atomics::{AtomicLimits, atomic_limits};

use crate::address::RawAddress;

use crate::nic::{self, Access, Completion, Domain as _, Nic, PolledNic, Region, UserSlice};

use channel::Channel;
use one_sided::{OneSided, Withdrawn};
use receiving::{Filter, Receiving};
use sending::Sending;
use subprotocols::atomics::AtomicTarget;
use subprotocols::turns::Turns;
use subprotocols::{ReceiveSide, SendSide};
use user_receives::UserReceives;

/// The queue pairs of a device.
type QueuePairOf<N> = <<N as Nic>::Domain as nic::Domain>::QueuePair;

/// One RDM endpoint.
pub struct Endpoint<N: Nic> {
    /// Of an endpoint that receives into the application's buffers. It goes before the channel,
    /// which has the domain that its queue pair uses.
    user_receives: Option<Box<UserReceives<QueuePairOf<N>>>>,
    channel: Channel<N>,
    sending: Sending,
    receiving: Receiving,
    one_sided: OneSided,
    /// Completions of the device, of one poll.
    batch: Vec<Completion>,
}

impl<N: PolledNic> Endpoint<N> {
    /// Makes all progress that is possible at time `now`: takes completions from the device (one
    /// poll of [`EndpointConfig::poll_batch`]), handles packets, and posts pending and resent ones.
    /// Returns the number of device completions taken. If that is the whole batch, there may be
    /// more.
    pub fn progress(&mut self, now: Instant) -> usize {
        self.channel.now = now;
        if self.channel.posting.is_deferring() {
            self.channel.posting.flush();
        }
        let mut taken = 0;
        if self.channel.reports.has_room() {
            let mut batch = core::mem::take(&mut self.batch);
            taken = self
                .channel
                .posting
                .poll(&mut batch, self.channel.config.poll_batch);
            for completion in &batch {
                self.on_completion(completion);
            }
            batch.clear();
            self.batch = batch;
            if taken == 0 {
                self.end_waits();
            }
        }
        self.finish_progress();
        taken
    }

    /// Registers memory, for use as [`IoVec::region`] and, if `access` allows it, by peers. Remote
    /// access that the device does not support is emulated.
    ///
    /// # Errors
    /// The device refuses.
    pub fn register(&mut self, memory: UserSlice, access: Access) -> Result<Region, EndpointError> {
        let nic = self.channel.posting.nic_mut();
        self.one_sided.exposed.register(&mut **nic, memory, access)
    }

    /// Ends a registration of [`Endpoint::register`]. No operation of the application may be using
    /// it. Writes and reads of peers that use it fail.
    ///
    /// # Errors
    /// The region is not registered.
    pub fn deregister(&mut self, region: Region) -> Result<(), EndpointError> {
        if let Some(gone) = self.one_sided.exposed.withdraw(region) {
            self.end_accesses(&gone);
        }
        Ok(self.channel.posting.nic_mut().deregister(region)?)
    }
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

    /// The device, for registrations and for whatever drives a simulated device. A caller that
    /// posts or polls on it loses packets of the endpoint.
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

    /// What the endpoint holds now.
    pub fn usage(&self) -> Usage {
        Usage {
            peers: self.channel.peers.addresses().len(),
            outbound: self.sending.len() + self.channel.posting.one_packet_operations(),
            inbound: self.receiving.len()
                + self.user_receives.as_ref().map_or(0, |user| user.len()),
            unexpected: self.receiving.unexpected.len(),
            held_packets: self.channel.posting.held_len(),
            packets: self.channel.posting.len(),
            assemblies: self.receiving.unexpected.assemblies_len(),
            claimed: self.receiving.unexpected.claims_len(),
            owed: self.channel.quota.answers(),
            waiting: self.channel.quota.waiting(),
        }
    }

    /// Starts to send a message.
    ///
    /// # Errors
    /// Nothing was sent and no completion follows; see [`EndpointError`].
    pub fn send(&mut self, args: SendArgs<'_>) -> Result<(), EndpointError> {
        self.batched(args.flags, |endpoint| {
            endpoint.send_side().start_send(&args)
        })
    }

    /// Starts to write a peer's memory. On completion the data has arrived at the peer or has left
    /// this side, depending on the subprotocol; with [`OperationFlags::DELIVERY_COMPLETE`] it is in
    /// the memory.
    ///
    /// # Errors
    /// Nothing was written and no completion follows. [`EndpointError::TryAgain`] until the peer's
    /// handshake has arrived.
    pub fn write(&mut self, args: WriteArgs<'_>) -> Result<(), EndpointError> {
        self.batched(args.flags, |endpoint| {
            endpoint.send_side().start_write(&args)
        })
    }

    /// Starts to read a peer's memory.
    ///
    /// # Errors
    /// Nothing was read and no completion follows. [`EndpointError::TryAgain`] until the peer's
    /// handshake has arrived.
    pub fn read(&mut self, args: ReadArgs<'_>) -> Result<(), EndpointError> {
        self.batched(args.flags, |endpoint| {
            endpoint.receive_side().start_read(&args)
        })
    }

    /// Starts an atomic operation on a peer's memory. Atomics take their turn among the messages to
    /// the peer.
    ///
    /// # Errors
    /// Nothing was sent and no completion follows; see [`EndpointError`].
    pub fn atomic(&mut self, args: AtomicArgs<'_>) -> Result<(), EndpointError> {
        self.batched(args.flags, |endpoint| match args.kind {
            AtomicKind::Write => endpoint.send_side().start_atomic_write(&args),
            AtomicKind::Fetch { result } | AtomicKind::Compare { result, .. } => {
                endpoint.receive_side().start_fetching_atomic(&args, result)
            }
        })
    }

    /// Posts a receive. If a matching message has already arrived, the receive completes at once,
    /// in the completion queue.
    ///
    /// # Errors
    /// Nothing was posted; see [`EndpointError`].
    pub fn recv(&mut self, args: RecvArgs<'_>) -> Result<ReceiveId, EndpointError> {
        if self.is_zero_copy() {
            return self.post_user_receive(&args);
        }
        self.receive_side().start_recv(&args)
    }

    /// Posts a buffer for several untagged messages.
    ///
    /// # Errors
    /// Nothing was posted; see [`EndpointError`].
    pub fn multi_recv(&mut self, args: MultiRecvArgs) -> Result<ReceiveId, EndpointError> {
        if self.is_zero_copy() {
            return Err(EndpointError::Unsupported(
                "multi-receive buffers of a zero-copy receiver",
            ));
        }
        self.receive_side().start_multi_recv(&args)
    }

    /// Returns the first message that a receive with these filters would take, and leaves it there
    /// (`FI_PEEK`). `tag` is `None` for untagged messages.
    pub fn peek(&mut self, source: SourceFilter, tag: Option<TagFilter>) -> Option<MessageInfo> {
        self.receiving.unexpected.peek(source, tag)
    }

    /// Returns the first message that a receive with these filters would take, and reserves it: no
    /// other receive takes it (`FI_PEEK` with `FI_CLAIM`). It must be received or discarded.
    pub fn claim(
        &mut self,
        source: SourceFilter,
        tag: Option<TagFilter>,
    ) -> Option<(ClaimId, MessageInfo)> {
        let unexpected = &mut self.receiving.unexpected;
        let info = unexpected.peek(source, tag)?;
        let id = unexpected.claim(tag.is_some(), &Filter::new(source, tag))?;
        Some((id, info))
    }

    /// Receives a claimed message (`FI_CLAIM`).
    ///
    /// # Errors
    /// The claim names no message, or there are too many operations.
    pub fn recv_claimed(&mut self, args: ClaimedRecvArgs<'_>) -> Result<ReceiveId, EndpointError> {
        self.receive_side().receive_claimed(&args)
    }

    /// Discards a claimed message (`FI_CLAIM` with `FI_DISCARD`). No completion follows.
    ///
    /// # Errors
    /// The claim names no message, or there are too many operations.
    pub fn discard(&mut self, claim: ClaimId) -> Result<(), EndpointError> {
        self.receive_side().discard_claimed(claim)
    }

    /// Cancels a receive that no message has matched yet. It completes with `FI_ECANCELED`. Returns
    /// whether there was such a receive. The device does not give receives of a zero-copy receiver
    /// back.
    pub fn cancel(&mut self, receive: ReceiveId) -> bool {
        self.receive_side()
            .withdraw_posted(receive, Failure::CANCELED)
    }

    /// Cancels the oldest receive that was posted with this context, as [`Endpoint::cancel`]. Takes
    /// time in proportion to the number of posted receives.
    pub fn cancel_context(&mut self, context: u64) -> bool {
        let found = self.receiving.posted.oldest_with_context(context);
        found.is_some_and(|id| self.cancel(id))
    }

    /// When `progress` has to be called even if no completion arrives. `None` if it need not be.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.channel.posting.next_backoff_end()
    }

    /// Takes the next completion, in the order in which operations ended.
    pub fn poll_completion(&mut self) -> Option<Result<CompletionEntry, ErrorEntry>> {
        self.channel.reports.next_completion()
    }

    /// Takes the next event, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.channel.reports.next_event()
    }

    /// Returns whether there is work that needs `progress`: packets in flight or pending, including
    /// those that the application does not know of (handshake, EOR, receipt, ...). An orderly end
    /// calls `progress` until this is false.
    pub fn has_packets_in_flight(&self) -> bool {
        self.channel.posting.is_busy() || !self.channel.gone.is_empty()
    }

    /// Starts an operation, which may be one of several (`FI_MORE`): the device is told of all of
    /// them at once.
    #[inline(always)]
    fn batched(
        &mut self,
        flags: OperationFlags,
        start: impl FnOnce(&mut Self) -> Result<(), EndpointError>,
    ) -> Result<(), EndpointError> {
        let more = flags.contains(OperationFlags::MORE);
        if more {
            self.channel.posting.begin_batch();
        }
        let started = start(self);
        if self.channel.posting.is_deferring() {
            self.channel.posting.end_batch(more);
        }
        started
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
    fn turns(&mut self) -> Turns<'_, N> {
        Turns {
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

    /// Posts what waits, as far as the device has room.
    #[inline]
    pub(crate) fn finish_progress(&mut self) {
        self.channel.end_backoffs();
        self.do_pending_work();
        self.channel.post_receives();
    }

    /// Ends the accesses of peers to a region that they may not use any more: after deregistration
    /// its memory may be used for something else.
    pub(crate) fn end_accesses(&mut self, gone: &Withdrawn) {
        if self.channel.quota.pending() == 0 {
            return;
        }
        let exposed = &self.one_sided.exposed;
        let writes = self
            .receiving
            .transfers
            .peers_writes(|target| exposed.loses(gone, target, Access::REMOTE_WRITE));
        let reads = self
            .sending
            .peers_reads(|source| exposed.loses(gone, source, Access::REMOTE_READ));
        let failure = Failure::new(Errno::EINVAL, ProviderError::RmaAddress);
        for id in writes {
            self.receive_side().fail_inbound(id, failure);
        }
        for id in reads {
            self.send_side().fail_outbound(id, failure);
        }
    }
}
