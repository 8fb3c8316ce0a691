//! What staged faults do to the answers that reach a device, and so to its send completions.

use std::time::Duration;

use efa_core::nic::Status;

use super::{Change, Staged, give_up_after, retransmit_after};
use crate::device::Device;
use crate::fault::{Event, Fate, Flow, Frame, PACKET_START, Stage, Withheld};
use crate::link::{LocalData, Token};
use crate::transport::memory;
use crate::transport::schedule::{Agenda, monotonic_now};

/// An answer, as it reaches the device: the request and its status.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) struct Outcome {
    pub(in crate::transport) token: Token,
    pub(in crate::transport) status: Status,
    /// Its completion is written twice.
    pub(in crate::transport) duplicate: bool,
}

/// What becomes of an answer when its time has come.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// It arrives, after it was lost so many times.
    Arrive(u32),
    /// It completes the request: faults have had their say.
    Complete,
}

/// Answers that faults keep or delay.
#[derive(Debug, Default)]
pub(in crate::transport) struct LateAnswers {
    held: Withheld<Outcome>,
    scheduled: Agenda<(Outcome, Then)>,
    /// Answers that may go now.
    free: Vec<Outcome>,
}

impl LateAnswers {
    /// Whether there are none.
    #[inline]
    pub(in crate::transport) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.scheduled.is_empty() && self.free.is_empty()
    }

    /// When the next one is due, in nanoseconds of the monotonic clock.
    pub(in crate::transport) fn next_due(&self) -> Option<u64> {
        self.scheduled.next_due()
    }

    /// Lets go what was released on the board.
    pub(in crate::transport) fn follow(&mut self, change: &Change, staged: &Staged) {
        for fault in &change.released {
            for outcome in self.held.release(*fault, usize::MAX) {
                staged.note_held(*fault, -1);
                self.free.push(outcome);
            }
        }
        let others = self.held.release_others(|fault| staged.has(fault));
        self.free.extend(others);
    }

    /// An answer arrives. Answers what completes now.
    pub(in crate::transport) fn arrive(
        &mut self,
        token: Token,
        status: Status,
        device: &Device,
        staged: &mut Staged,
    ) -> Option<Outcome> {
        let outcome = Outcome {
            token,
            status,
            duplicate: false,
        };
        self.judge(outcome, 0, device, staged)
    }

    /// Something whose time has come and that completes now.
    pub(in crate::transport) fn next(
        &mut self,
        device: &Device,
        staged: &mut Staged,
    ) -> Option<Outcome> {
        if let Some(outcome) = (!self.free.is_empty()).then(|| self.free.remove(0)) {
            return Some(outcome);
        }
        while let Some((outcome, then)) = self.scheduled.take_due(monotonic_now()) {
            match then {
                Then::Complete => return Some(outcome),
                Then::Arrive(attempt) => {
                    if let Some(outcome) = self.judge(outcome, attempt, device, staged) {
                        return Some(outcome);
                    }
                }
            }
        }
        None
    }

    fn judge(
        &mut self,
        mut outcome: Outcome,
        attempt: u32,
        device: &Device,
        staged: &mut Staged,
    ) -> Option<Outcome> {
        let is_from_wire = !matches!(
            outcome.status,
            Status::LocalUnreachableRemote | Status::LocalUnresponsiveRemote
        );
        let Some((to, header, data)) = device.request(outcome.token).filter(|_| is_from_wire)
        else {
            return Some(outcome);
        };
        let mut start = [0; PACKET_START];
        let mut length = (header.length as usize).min(PACKET_START);
        let is_readable =
            matches!(data, LocalData::Inline(_)) || device.local_memory(outcome.token).is_some();
        if !is_readable || !memory::copy_in(data, 0, &mut start[..length]) {
            length = 0;
        }
        let frame = Frame {
            stage: Stage::Answer,
            initiator: device.gid(),
            responder: to,
            header: &header,
            retransmissions: attempt,
            rnr_retry: false,
            status: Some(outcome.status),
            data: &start[..length],
        };
        let flow = Flow::from(&frame);
        match staged.decide(&Event::Frame(frame)) {
            None | Some((_, Fate::Fail(_) | Fate::Qpn(_))) => {}
            Some((fault, Fate::Hold { packets })) => {
                staged.note_held(fault, 1);
                self.held.keep(fault, flow, packets, outcome);
                return None;
            }
            Some((_, Fate::Delay(delay))) => {
                self.schedule(staged.draw(delay), outcome, Then::Complete);
                self.pass_by(flow, staged);
                return None;
            }
            Some((_, Fate::Drop)) => {
                match retransmit_after(attempt + 1) {
                    Some(wait) => self.schedule(wait, outcome, Then::Arrive(attempt + 1)),
                    None => self.give_up(super::RETRANSMIT_TIMEOUT, outcome),
                }
                return None;
            }
            Some((_, Fate::Lose)) => {
                self.give_up(give_up_after(), outcome);
                return None;
            }
            Some((_, Fate::Duplicate)) => outcome.duplicate = true,
            Some((_, Fate::Answer(status))) => outcome.status = status,
        }
        self.pass_by(flow, staged);
        Some(outcome)
    }

    fn schedule(&mut self, wait: Duration, outcome: Outcome, then: Then) {
        let now = monotonic_now();
        let due = now + wait.as_nanos() as u64;
        self.scheduled.enter(now, due, (outcome, then));
    }

    fn give_up(&mut self, wait: Duration, mut outcome: Outcome) {
        outcome.status = Status::LocalUnresponsiveRemote;
        self.schedule(wait, outcome, Then::Complete);
    }

    fn pass_by(&mut self, flow: Flow, staged: &Staged) {
        if self.held.is_empty() {
            return;
        }
        for (fault, outcome) in self.held.passed(flow) {
            staged.note_held(fault, -1);
            self.free.push(outcome);
        }
    }
}
