//! The calls that start and cancel operations.

use crate::nic::Nic;

use crate::endpoint::Endpoint;
use crate::endpoint::api::completion::ErrorEntry;
use crate::endpoint::api::error::{EndpointError, Failure};
use crate::endpoint::api::operation::{
    AtomicArgs, AtomicKind, ClaimedRecvArgs, MessageInfo, MultiRecvArgs, OperationFlags, ReadArgs,
    RecvArgs, SendArgs, SourceFilter, TagFilter, WriteArgs,
};
use crate::endpoint::base::ids::{ClaimId, PeerId, ReceiveId};
use crate::endpoint::receiving::Filter;

impl<N: Nic> Endpoint<N> {
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

    /// Posts a receive. If a matching message has already arrived, the receive completes
    /// immediately, in the completion queue.
    ///
    /// # Errors
    /// Nothing was posted; see [`EndpointError`].
    #[inline(always)]
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

    /// Returns the first message that a receive with these filters would match, without removing it
    /// (`FI_PEEK`). `tag` is `None` for untagged messages.
    pub fn peek(&mut self, source: SourceFilter, tag: Option<TagFilter>) -> Option<MessageInfo> {
        self.receiving.unexpected.peek(source, tag)
    }

    /// Returns the first message that a receive with these filters would match, and reserves it, so
    /// that no other receive matches it (`FI_PEEK` with `FI_CLAIM`). It must be received or
    /// discarded.
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

    /// Returns whether operations on a peer's memory cannot start, because its HANDSHAKE was
    /// requested but has not arrived.
    pub fn awaits_handshake(&self, peer: PeerId) -> bool {
        let state = self.channel.peers.state(peer);
        state.is_some_and(|state| state.handshake.is_awaited())
    }

    /// Reports and counts the failure of an operation that the caller had deferred, after the
    /// completions so far.
    pub fn report_failure(&mut self, entry: ErrorEntry) {
        self.channel.reports.failed(entry);
    }

    /// Cancels a receive that no message has matched yet. It completes with `FI_ECANCELED`. Returns
    /// whether the receive existed. The receives of a zero-copy receiver cannot be cancelled,
    /// because the device does not return them.
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

    /// Starts an operation that may be part of a batch (`FI_MORE`). One doorbell covers the whole
    /// batch.
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
}
