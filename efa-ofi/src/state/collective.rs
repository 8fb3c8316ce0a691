//! Collective operations in progress: their messages, and the computation between them.
//!
//! They are tagged messages of the endpoint with [`TAG`] set, a bit that is not available to the
//! application's tags, as its info states (`mem_tag_format`).
//!
//! A member whose operation fails notifies the others, and the operation of the group fails there
//! too. A member that waits for messages probes their senders from time to time: the device reports
//! a sender that has ended. Both use messages with the group's [notice tag](notice_tag).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use efa_core::endpoint::{
    CompletionFlags, Endpoint, EndpointError, EndpointId, Errno, ErrorEntry, Failure, IoVec,
    OperationFlags, PeerId, ProviderError, RecvArgs, SendArgs, SourceFilter, TagFilter, reduce,
};
use efa_core::nic::{LentNic, UserSlice};
use efa_core::wire::{AtomicDatatype, AtomicOp};
use efa_hw::HwDomain;

use crate::ffi::{FI_ADDR_UNSPEC, FI_COLLECTIVE, fi_cq_tagged_entry};
use crate::state::collective_messages::{CONTEXT, NOTICE, QUESTION, notice_tag};
use crate::state::domain::DomainState;
use crate::state::schedule::{Area, Piece, Schedule, Step};

/// The time that an operation waits for messages before it probes their senders. The time doubles
/// with each probe, at most [`MOST_DOUBLINGS`] times, because probes occupy room at a peer that
/// does not receive them.
const PATIENCE: Duration = Duration::from_secs(1);
const MOST_DOUBLINGS: u32 = 6;

/// A collective operation of one member.
pub(crate) struct Operation {
    endpoint: EndpointId,
    members: Arc<[PeerId]>,
    /// The same for all operations of a group.
    group: Arc<()>,
    /// The tag of all its messages.
    tag: u64,
    steps: VecDeque<Step>,
    /// Addresses of the application's memory.
    buffer: u64,
    result: u64,
    scratch: Vec<u8>,
    /// The datatype and operation that combine elements, if any.
    action: Option<(AtomicDatatype, AtomicOp)>,
    /// Messages that have not ended.
    outstanding: usize,
    /// The members whose messages are waited for.
    awaited: Vec<usize>,
    /// The time of the last probes, or the start of the wait; and the number of probes.
    probed_at: Instant,
    queries: u32,
    /// The number of this member.
    rank: usize,
    /// Whether the other members have been notified of a failure, or need not be.
    is_known: bool,
    failure: Option<(Failure, Option<PeerId>)>,
    end: Box<dyn CompletionAction>,
}

/// The action at the end of an operation.
pub(crate) trait CompletionAction: Send {
    /// Reports a success, or a failure and the peer whose message failed.
    fn report(&self, state: &mut DomainState, failure: Option<(Failure, Option<PeerId>)>);
}

/// An entry of a completion queue.
pub(crate) struct Completion {
    /// The queue, as a key of [`crate::state::tables::Tables::queues`].
    pub(crate) queue: Option<usize>,
    pub(crate) context: u64,
    /// A success is reported, not only a failure.
    pub(crate) success: bool,
}

impl CompletionAction for Completion {
    fn report(&self, state: &mut DomainState, failure: Option<(Failure, Option<PeerId>)>) {
        let queue = self
            .queue
            .and_then(|queue| state.tables.queues.get_mut(queue));
        let Some(completions) = queue else { return };
        if let Some((failure, peer)) = failure {
            let flags = CompletionFlags::empty();
            let entry = ErrorEntry::without_data(self.context, flags, peer, failure);
            completions.add_failure(entry);
        } else if self.success {
            let entry = fi_cq_tagged_entry {
                op_context: self.context as *mut _,
                flags: FI_COLLECTIVE,
                ..fi_cq_tagged_entry::default()
            };
            completions.push(entry, FI_ADDR_UNSPEC);
        }
        state.tables.may_be_full |= completions.is_full();
    }
}

/// The application's memory of an operation, and the function that combines its elements.
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    pub(crate) buffer: u64,
    pub(crate) result: u64,
    pub(crate) action: Option<(AtomicDatatype, AtomicOp)>,
}

impl Operation {
    /// An operation that has not started.
    pub(crate) fn new(
        endpoint: EndpointId,
        (members, group): (Arc<[PeerId]>, Arc<()>),
        tag: u64,
        schedule: Schedule,
        operands: Operands,
        end: impl CompletionAction + 'static,
    ) -> Operation {
        Operation {
            endpoint,
            members,
            group,
            tag,
            steps: schedule.steps.into(),
            buffer: operands.buffer,
            result: operands.result,
            scratch: vec![0; schedule.scratch],
            action: operands.action,
            outstanding: 0,
            awaited: Vec::new(),
            probed_at: Instant::now(),
            queries: 0,
            rank: schedule.rank,
            is_known: false,
            failure: None,
            end: Box::new(end),
        }
    }

    fn slice(&self, piece: Piece) -> UserSlice {
        let base = match piece.area {
            Area::Buffer => self.buffer,
            Area::Result => self.result,
            Area::Scratch => self.scratch.as_ptr().expose_provenance() as u64,
        };
        UserSlice::new(base.wrapping_add(piece.offset as u64), piece.length)
    }

    /// The bytes of a piece.
    ///
    /// # Safety
    /// The memory of the operation is valid, and nothing else uses the piece.
    unsafe fn bytes<'a>(&self, piece: Piece) -> &'a mut [u8] {
        let slice = self.slice(piece);
        if slice.length == 0 {
            return &mut [];
        }
        let start = std::ptr::with_exposed_provenance_mut(slice.address as usize);
        // SAFETY: by the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(start, slice.length) }
    }

    fn fail(&mut self, failure: Failure, peer: Option<PeerId>) {
        self.failure.get_or_insert((failure, peer));
        self.steps.clear();
    }

    /// Continues as far as possible now. Returns whether the operation has ended.
    fn advance(&mut self, engine: &mut Endpoint<LentNic<HwDomain>>, context: u64) -> bool {
        if let Some(peer) = self.failed_member(engine) {
            self.is_known = true;
            self.fail(plain(Errno::ECONNABORTED), Some(peer));
        }
        while let Some(step) = self.steps.front().copied() {
            let carried_out = match step {
                Step::Wait if self.outstanding > 0 => {
                    if !self.is_query_due() {
                        return false;
                    }
                    self.probe(engine, context);
                    continue;
                }
                Step::Wait => {
                    self.awaited.clear();
                    (self.probed_at, self.queries) = (Instant::now(), 0);
                    Ok(())
                }
                Step::Send { to, piece } => self.send(engine, to, piece, context),
                Step::Receive { from, piece } => self.receive(engine, from, piece, context),
                Step::Combine { into, with } => {
                    self.combine(into, with);
                    Ok(())
                }
                Step::Copy { from, to } => {
                    // SAFETY: the application's memory is the operation's until it has completed;
                    // operand and result may be the same.
                    unsafe {
                        let from = self.bytes(from).as_ptr();
                        let to = self.bytes(to);
                        std::ptr::copy(from, to.as_mut_ptr(), to.len());
                    }
                    Ok(())
                }
            };
            match carried_out {
                Ok(()) => _ = self.steps.pop_front(),
                Err(EndpointError::TryAgain) => return false,
                Err(EndpointError::Unreachable { failure, .. }) => self.fail(failure, None),
                Err(error) => self.fail(plain(error.errno()), None),
            }
        }
        if self.failure.is_some() {
            // Members that would send are not waited for.
            while engine.cancel_context(context) {}
        }
        self.outstanding == 0
    }

    fn send(
        &mut self,
        engine: &mut Endpoint<LentNic<HwDomain>>,
        to: usize,
        piece: Piece,
        context: u64,
    ) -> Result<(), EndpointError> {
        engine.send(SendArgs {
            tag: Some(self.tag),
            ..SendArgs::new(self.members[to], &[memory(self.slice(piece))], context)
        })?;
        self.outstanding += 1;
        Ok(())
    }

    fn receive(
        &mut self,
        engine: &mut Endpoint<LentNic<HwDomain>>,
        from: usize,
        piece: Piece,
        context: u64,
    ) -> Result<(), EndpointError> {
        engine.recv(RecvArgs {
            source: SourceFilter::Peer(self.members[from]),
            buffer: &[memory(self.slice(piece))],
            tag: Some(TagFilter::exact(self.tag)),
            flags: OperationFlags::COMPLETION,
            context,
        })?;
        self.outstanding += 1;
        self.awaited.push(from);
        Ok(())
    }

    fn is_query_due(&self) -> bool {
        self.until_question().is_zero()
    }

    /// The time until the next probe.
    fn until_question(&self) -> Duration {
        let patience = PATIENCE * (1 << self.queries.min(MOST_DOUBLINGS));
        patience.saturating_sub(self.probed_at.elapsed())
    }

    /// Probes the senders of the awaited messages. They do not answer: the device reports senders
    /// that have ended.
    fn probe(&mut self, engine: &mut Endpoint<LentNic<HwDomain>>, context: u64) {
        (self.probed_at, self.queries) = (Instant::now(), self.queries + 1);
        for index in 0..self.awaited.len() {
            let peer = self.members[self.awaited[index]];
            let sent = self.notify(engine, peer, &[], context | QUESTION);
            if let Err(EndpointError::Unreachable { failure, .. }) = sent {
                return self.fail(failure, Some(peer));
            }
        }
    }

    /// Notifies the other members that the operation has failed.
    fn notify_failure(&self, engine: &mut Endpoint<LentNic<HwDomain>>) {
        for (rank, peer) in self.members.iter().enumerate() {
            if rank != self.rank {
                // A peer that the notice does not reach detects the failure by a probe.
                let _ = self.notify(engine, *peer, &[1], NOTICE);
            }
        }
    }

    /// Sends a message that belongs to no operation: a failure if it has bytes, else a question.
    fn notify(
        &self,
        engine: &mut Endpoint<LentNic<HwDomain>>,
        peer: PeerId,
        message: &[u8],
        context: u64,
    ) -> Result<(), EndpointError> {
        let message = UserSlice::new(message.as_ptr().expose_provenance() as u64, message.len());
        engine.send(SendArgs {
            tag: Some(notice_tag(self.tag)),
            flags: OperationFlags::INJECT,
            ..SendArgs::new(peer, &[memory(message)], context)
        })
    }

    /// Receives the messages that belong to no operation. Returns a member that has reported a
    /// failure.
    fn failed_member(&self, engine: &mut Endpoint<LentNic<HwDomain>>) -> Option<PeerId> {
        let filter = TagFilter::exact(notice_tag(self.tag));
        while let Some((claim, found)) = engine.claim(SourceFilter::Any, Some(filter)) {
            let _ = engine.discard(claim);
            if found.length > 0 {
                return Some(found.source);
            }
        }
        None
    }

    fn combine(&self, into: Piece, with: Piece) {
        if let Some((datatype, operation)) = self.action {
            // SAFETY: both are pieces of the scratch memory, which do not overlap; the device has
            // written them, since messages were waited for.
            let (into, with) = unsafe { (self.bytes(into), self.bytes(with)) };
            reduce(datatype, operation, into, with);
        }
    }
}

fn memory(memory: UserSlice) -> IoVec {
    IoVec {
        memory,
        region: None,
    }
}

const fn plain(errno: Errno) -> Failure {
    Failure {
        errno,
        provider: ProviderError::None,
    }
}

impl DomainState {
    /// Starts a collective operation.
    pub(crate) fn start_collective(&mut self, operation: Operation) {
        let key = self.collectives.insert(operation);
        self.advance_collective(key);
        self.deliver();
    }

    /// Continues collective operations whose messages have ended, or could not be started for lack
    /// of room.
    #[cold]
    pub(crate) fn advance_collectives(&mut self) {
        for (context, result) in std::mem::take(&mut self.tables.collective) {
            let key = (context & !(CONTEXT | QUESTION)) as usize;
            let operation = self.collectives.get_mut(key);
            let Some(operation) = operation else { continue };
            if context & QUESTION == 0 {
                operation.outstanding -= 1;
            }
            // A probe may outlive its operation, and the key may belong to another one.
            let concerns = |peer: &PeerId| operation.members.contains(peer);
            if let Err((failure, peer)) = result
                && (context & QUESTION == 0 || peer.as_ref().is_some_and(concerns))
            {
                operation.fail(failure, peer);
            }
        }
        let keys: Vec<usize> = self.collectives.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.advance_collective(key);
        }
    }

    fn advance_collective(&mut self, key: usize) {
        let operation = &mut self.collectives[key];
        let Some(engine) = self.core.endpoint(operation.endpoint) else {
            return;
        };
        if operation.advance(engine, CONTEXT | key as u64) {
            let operation = self.collectives.remove(key);
            if operation.failure.is_some() && !operation.is_known {
                operation.notify_failure(engine);
            }
            operation.end.report(self, operation.failure);
        }
    }

    /// The time until the next probe of any collective operation. `None` without any.
    pub(crate) fn until_question(&self) -> Option<Duration> {
        let operations = self.collectives.iter();
        operations
            .map(|(_, operation)| operation.until_question())
            .min()
    }

    /// Gives up the operations of a group. Returns whether none is left: the device still reads
    /// memory of those whose messages are in flight.
    pub(crate) fn end_collectives(&mut self, group: &Arc<()>) -> bool {
        for (_, operation) in &mut self.collectives {
            if Arc::ptr_eq(&operation.group, group) {
                operation.is_known = true;
                operation.fail(plain(Errno::ECANCELED), None);
            }
        }
        // Cancels their receives.
        self.advance_collectives();
        self.deliver();
        Arc::strong_count(group) == 1
    }
}
