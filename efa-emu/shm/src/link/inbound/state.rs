//! The receiving half of a device's link.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use efa_core::address::Gid;
use efa_core::nic::Status;
use efa_device_model::device::Device;
use efa_device_model::fault::Deferred;
use efa_device_model::network::{Duplicated, EventQueue, Network};

use super::deferred::{DeferredRequest, OutcomeNotice};
use super::in_ring::{DeferredRecord, InRing};
use super::pulls::PullTable;
use crate::link::outbound::Outbound;
use crate::link::staged::StagedRules;
use crate::process::clock::monotonic_now;
use crate::transport::segment::{SLOTS, Segment};
use efa_lock_free::record::{Answer, RecordKind};

/// A scheduled step.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScheduledRecord {
    pub(super) of: DeferredRecord,
    pub(super) then: RecordStep,
}

/// The next step of a delayed record.
#[derive(Clone, Copy, Debug)]
pub(super) enum RecordStep {
    /// It arrives. `Some` for a retransmission by a fault: the number of losses in total.
    Arrive(Option<u32>),
    /// It is handled: all rules have been applied.
    Handle,
    /// Its answer is sent.
    Answer(Answer),
}

/// The parts of the device that the receiving half needs to handle a record.
pub(crate) struct RecordContext<'a> {
    pub(crate) device: &'a mut Device,
    pub(crate) outbound: &'a mut Outbound,
    pub(crate) staged: &'a mut StagedRules,
}

impl RecordContext<'_> {
    /// A copy of the references for cold paths, so that the optimiser keeps the original in
    /// registers on the hot path.
    #[inline(always)]
    pub(super) fn lend(&mut self) -> RecordContext<'_> {
        RecordContext {
            device: self.device,
            outbound: self.outbound,
            staged: self.staged,
        }
    }
}

/// A copy between processes in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyInProgress {
    pub(super) of: DeferredRecord,
    /// Bytes copied so far.
    pub(super) done: u32,
}

/// The receiving half of a device's link.
pub(crate) struct Inbound {
    pub(super) segment: Arc<Segment>,
    pub(super) own: Gid,
    pub(super) rings: Vec<Option<Box<InRing>>>,
    /// Slots whose rings are polled.
    pub(super) polled: Vec<usize>,
    pub(super) serials: u64,
    /// Records that are not yet due.
    pub(super) scheduled: EventQueue<ScheduledRecord>,
    /// Requests that faults defer.
    pub(super) deferred: Deferred<DeferredRequest>,
    /// The outcomes of copied requests and of reads, with their departure times.
    pub(super) outcomes: VecDeque<(Duration, OutcomeNotice)>,
    /// The network model for answers; `None` if they arrive immediately.
    pub(super) replies: Option<Network>,
    /// Records do not go straight to the device: faults are armed, or answers are delayed.
    pub(super) is_attentive: bool,
    /// The duplicated part of the current record.
    pub(super) twice: Duplicated,
    pub(super) copies: VecDeque<CopyInProgress>,
    pub(super) pulls: PullTable,
}

impl Inbound {
    pub(crate) fn new(segment: Arc<Segment>, replies: Option<Network>) -> Inbound {
        Inbound {
            own: segment.address().gid,
            segment,
            deferred: Deferred::default(),
            outcomes: VecDeque::new(),
            is_attentive: replies.is_some(),
            replies,
            twice: Duplicated::Nothing,
            rings: (0..SLOTS).map(|_| None).collect(),
            polled: Vec::new(),
            serials: 0,
            scheduled: EventQueue::default(),
            copies: VecDeque::new(),
            pulls: PullTable::default(),
        }
    }

    /// Notes whether any fault is armed.
    pub(crate) fn attend(&mut self, is_armed: bool) {
        self.is_attentive = is_armed || self.replies.is_some();
    }

    /// Whether any work needs longer than the current turn.
    #[inline(always)]
    pub(super) fn has_unfinished(&self) -> bool {
        // Non-short-circuit, without branches: there is hardly ever any.
        !(self.scheduled.is_empty()
            & self.copies.is_empty()
            & self.pulls.is_empty()
            & self.outcomes.is_empty())
    }

    /// The time of the next task, on the monotonic clock.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        let outcome = self.outcomes.iter().map(|(due, _)| *due).min();
        self.scheduled.next_time().into_iter().chain(outcome).min()
    }

    /// Sends all delayed answers immediately: on the emulated network they have already left this
    /// device, which is closing.
    pub(crate) fn close(&mut self, outbound: &mut Outbound) {
        while let Some((_, ScheduledRecord { of, then })) = self.scheduled.pop() {
            if let RecordStep::Answer(answer) = then {
                self.answer_now(&of, answer);
            }
        }
        for (_, OutcomeNotice { to, number, status }) in self.outcomes.drain(..) {
            // Outcomes that do not fit are dropped: this is the last turn.
            let _ = outbound.push_outcome(to, number, status);
        }
    }

    #[inline]
    pub(super) fn ring(&mut self, of: &DeferredRecord) -> Option<&mut InRing> {
        self.rings[of.slot]
            .as_deref_mut()
            .filter(|ring| ring.serial == of.serial)
    }

    pub(super) fn answer_now(&mut self, of: &DeferredRecord, answer: Answer) {
        if let Some(ring) = self.ring(of) {
            ring.answer(&of.incoming, answer);
            // The ring may not be polled for a while.
            ring.wake_answered();
        }
    }

    /// Answers a request, over the network. Answers to parts other than the last are internal to
    /// the two links, and not delayed.
    #[inline]
    pub(super) fn answer(&mut self, of: &DeferredRecord, answer: Answer) {
        let record = &of.incoming.record;
        let is_part = record.kind() == RecordKind::Data && !record.is_last();
        if self.replies.is_some()
            && matches!(answer, Answer::Status(status) if !is_part || status != Status::Ok)
            && let Some(from) = self.ring(of).map(|ring| ring.peer.address())
            && let Some((after, failure)) = self.reply(from, record)
        {
            let then = RecordStep::Answer(failure.map_or(answer, Answer::Status));
            let task = ScheduledRecord { of: *of, then };
            self.scheduled.add(monotonic_now() + after, task);
            return;
        }
        self.answer_now(of, answer);
    }
}
