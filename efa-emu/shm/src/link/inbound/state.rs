//! The receiving half of a device's link.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use efa_core::address::Gid;
use efa_core::nic::Status;
use efa_device_model::device::Device;
use efa_device_model::fault::Deferred;
use efa_device_model::network::{EventQueue, Network, Twice};

use super::deferred::{DeferredRequest, OutcomeNotice};
use super::in_ring::{InRing, Later};
use super::pulls::PullTable;
use crate::link::outbound::Outbound;
use crate::link::staged::Staged;
use crate::process::clock::monotonic_now;
use crate::transport::record::{Answer, RecordKind};
use crate::transport::segment::{SLOTS, Segment};

/// Something to be done at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScheduledRecord {
    pub(super) of: Later,
    pub(super) then: RecordStep,
}

/// The fate of a delayed record.
#[derive(Clone, Copy, Debug)]
pub(super) enum RecordStep {
    /// It arrives. `Some` if a fault made it go again: how often it was lost altogether.
    Arrive(Option<u32>),
    /// It is handled: all rules have been applied to it.
    Handle,
    /// Its answer leaves.
    Answer(Answer),
}

/// The parts that handling a record needs besides the receiving half.
pub(crate) struct Work<'a> {
    pub(crate) device: &'a mut Device,
    pub(crate) outbound: &'a mut Outbound,
    pub(crate) staged: &'a mut Staged,
}

impl Work<'_> {
    /// The same for a while: a copy for what is off a message's way, so that there is none in
    /// memory for what is on it.
    #[inline(always)]
    pub(super) fn lend(&mut self) -> Work<'_> {
        Work {
            device: self.device,
            outbound: self.outbound,
            staged: self.staged,
        }
    }
}

/// A copy between processes under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copying {
    pub(super) of: Later,
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
    /// Records whose time has not come.
    pub(super) scheduled: EventQueue<ScheduledRecord>,
    /// Requests that faults hold.
    pub(super) deferred: Deferred<DeferredRequest>,
    /// The outcomes of those that were copied, and of reads, with the times at which they leave.
    pub(super) outcomes: VecDeque<(Duration, OutcomeNotice)>,
    /// The network of answers; `None` if they arrive at once.
    pub(super) replies: Option<Network>,
    /// Records do not go straight to the device: faults are armed, or answers take time.
    pub(super) is_attentive: bool,
    /// The part of the current record that is duplicated.
    pub(super) twice: Twice,
    pub(super) copies: VecDeque<Copying>,
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
            twice: Twice::Nothing,
            rings: (0..SLOTS).map(|_| None).collect(),
            polled: Vec::new(),
            serials: 0,
            scheduled: EventQueue::default(),
            copies: VecDeque::new(),
            pulls: PullTable::default(),
        }
    }

    /// Takes notice of whether any fault is armed.
    pub(crate) fn attend(&mut self, is_armed: bool) {
        self.is_attentive = is_armed || self.replies.is_some();
    }

    /// Whether anything takes more than the turn in which it came.
    #[inline(always)]
    pub(super) fn has_unfinished(&self) -> bool {
        // Without a branch for each: hardly ever is there anything.
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

    /// Answers at once what the network has answers under way for: they have left this device, and
    /// nothing delays them any longer.
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
    pub(super) fn ring(&mut self, of: &Later) -> Option<&mut InRing> {
        self.rings[of.slot]
            .as_deref_mut()
            .filter(|ring| ring.serial == of.serial)
    }

    pub(super) fn answer_now(&mut self, of: &Later, answer: Answer) {
        if let Some(ring) = self.ring(of) {
            ring.answer(&of.incoming, answer);
            // The ring may not be polled for a while.
            ring.wake_answered();
        }
    }

    /// Answers a request, over the network. That a part of one came which is not the last is
    /// between the two links.
    #[inline]
    pub(super) fn answer(&mut self, of: &Later, answer: Answer) {
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
