//! The effects of staged faults on answers that reach a device, and so on its send completions.

use std::time::Duration;

use efa_core::nic::Status;

use super::{RuleChange, StagedRules};
use crate::link::memory;
use crate::link::outbound::Outbound;
use crate::process::clock::monotonic_now;
use efa_device_model::device::Device;
use efa_device_model::fault::{Deferred, Event, Flow, Frame, PACKET_START, Stage};
use efa_device_model::link::{LocalData, Token};
use efa_device_model::network::{
    DeliveryOutcome, Disposition, Duplicated, EventQueue, Transmission,
};

/// An answer, as it reaches the device: the request and its status.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LateAnswer {
    pub(crate) token: Token,
    pub(crate) status: Status,
    /// Its completion is written twice.
    pub(crate) duplicate: bool,
}

/// The outcome of a delayed answer.
#[derive(Clone, Copy, Debug)]
enum AnswerStep {
    /// It arrives after a retransmission by a fault: the number of losses in total.
    Arrive(u32),
    /// It completes the request: all rules have been applied.
    Complete,
}

/// Answers that faults defer or delay.
#[derive(Debug, Default)]
pub(crate) struct LateAnswers {
    deferred: Deferred<LateAnswer>,
    scheduled: EventQueue<(LateAnswer, AnswerStep)>,
    /// Answers that may go now.
    free: Vec<LateAnswer>,
}

impl LateAnswers {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // Without a branch for each: there is hardly ever any.
        self.deferred.is_empty() & self.scheduled.is_empty() & self.free.is_empty()
    }

    /// The time at which the next one is due, on the monotonic clock.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.scheduled.next_time()
    }

    /// Releases the held answers whose release was ordered on the board.
    pub(crate) fn follow(&mut self, change: &RuleChange, staged: &StagedRules) {
        for fault in &change.released {
            for outcome in self.deferred.release(*fault, usize::MAX) {
                staged.note_held(*fault, -1);
                self.free.push(outcome);
            }
        }
        let others = self.deferred.release_others(|fault| staged.has(fault));
        self.free.extend(others);
    }

    /// An answer arrives. Returns the requests that complete now.
    pub(crate) fn arrive(
        &mut self,
        token: Token,
        status: Status,
        device: &Device,
        outbound: &mut Outbound,
        staged: &mut StagedRules,
    ) -> Option<LateAnswer> {
        let outcome = LateAnswer {
            token,
            status,
            duplicate: false,
        };
        self.judge(outcome, None, device, outbound, staged)
    }

    /// The next outcome that is due and completes now.
    pub(crate) fn next(
        &mut self,
        device: &Device,
        outbound: &mut Outbound,
        staged: &mut StagedRules,
    ) -> Option<LateAnswer> {
        if let Some(outcome) = (!self.free.is_empty()).then(|| self.free.remove(0)) {
            return Some(outcome);
        }
        while let Some((outcome, then)) = self.scheduled.pop_due(monotonic_now()) {
            match then {
                AnswerStep::Complete => return Some(outcome),
                AnswerStep::Arrive(lost) => {
                    let outcome = self.judge(outcome, Some(lost), device, outbound, staged);
                    if outcome.is_some() {
                        return outcome;
                    }
                }
            }
        }
        None
    }

    /// Applies the rules to an arriving answer. Returns the requests that complete now.
    fn judge(
        &mut self,
        mut outcome: LateAnswer,
        lost: Option<u32>,
        device: &Device,
        outbound: &mut Outbound,
        staged: &mut StagedRules,
    ) -> Option<LateAnswer> {
        let is_from_wire = !matches!(
            outcome.status,
            Status::LocalUnreachableRemote | Status::LocalUnresponsiveRemote
        );
        let request = device.request(outcome.token).filter(|(_, header, _)| {
            // Datagrams are not answered.
            is_from_wire && !header.operation.is_unanswered()
        });
        let Some((to, header, data)) = request else {
            return Some(outcome);
        };
        let mut start = [0; PACKET_START];
        let mut length = (header.length as usize).min(PACKET_START);
        let is_readable =
            matches!(data, LocalData::Inline(_)) || device.local_memory(outcome.token).is_some();
        if !is_readable || !memory::copy_in(data, 0, &mut start[..length]) {
            length = 0;
        }
        let network = outbound.network_of(to, header.destination_qpn);
        let mut answer = Transmission::first(Stage::Answer, device.gid(), to, &header);
        answer.lost = lost.unwrap_or_else(|| match network.delivery(&answer) {
            DeliveryOutcome::Arrives { lost, .. } => lost,
            DeliveryOutcome::Fails { .. } | DeliveryOutcome::Vanishes => 0,
        });
        let frame = Frame {
            stage: Stage::Answer,
            initiator: answer.initiator,
            responder: answer.responder,
            header: &header,
            lost: answer.lost,
            status: Some(outcome.status),
            data: &start[..length],
        };
        let flow = Flow::from(&frame);
        let verdict = staged.decide(&Event::Frame(frame));
        let disposition = Disposition::new(verdict.outcome, &answer, &network);
        match disposition {
            Disposition::Proceeds { twice, status } => {
                outcome.duplicate = twice == Duplicated::Completion;
                outcome.status = status.unwrap_or(outcome.status);
            }
            Disposition::Late(delay) => self.schedule(delay, outcome, AnswerStep::Complete),
            Disposition::Deferred { fault, packets } => {
                staged.note_held(fault, 1);
                self.deferred.defer(fault, flow, packets, outcome);
            }
            Disposition::Lost(loss) => match network.delivery_after(&answer, loss) {
                DeliveryOutcome::Arrives { after, lost, .. } => {
                    self.schedule(after, outcome, AnswerStep::Arrive(lost));
                }
                DeliveryOutcome::Fails { after } => {
                    outcome.status = Status::LocalUnresponsiveRemote;
                    self.schedule(after, outcome, AnswerStep::Complete);
                }
                DeliveryOutcome::Vanishes => {}
            },
        }
        if disposition.passes() {
            self.pass_by(flow, staged);
        }
        staged.execute(verdict.triggers);
        matches!(disposition, Disposition::Proceeds { .. }).then_some(outcome)
    }

    fn schedule(&mut self, wait: Duration, outcome: LateAnswer, then: AnswerStep) {
        self.scheduled.add(monotonic_now() + wait, (outcome, then));
    }

    fn pass_by(&mut self, flow: Flow, staged: &StagedRules) {
        if self.deferred.is_empty() {
            return;
        }
        for (fault, outcome) in self.deferred.passed(flow) {
            staged.note_held(fault, -1);
            self.free.push(outcome);
        }
    }
}
