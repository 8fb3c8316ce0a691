//! What staged faults and the network do to requests that arrive, and to their answers.
//!
//! Nothing of this is on the way of a request while no fault is armed and the network is perfect.

use efa_core::nic::Status;

use super::kept::{CopiedRequest, FromCopy, Kept, Outcome};
use super::{Inbound, Later, Task, Then, Work, tap_data};
use crate::fault::{Event, Fate, FaultId, Flow, Frame, PACKET_START, Stage};
use crate::link::{Operation, RequestHeader};
use crate::transport::inbound::transfers::FromRing;
use crate::transport::outbound::PushError;
use crate::transport::record::{Answer, Kind, Record};
use crate::transport::schedule::{Packet, monotonic_now};
use crate::transport::segment::Address;
use crate::transport::staged::{self, Change};

/// Requests that may be kept outside of their rings. Beyond, they keep their place.
const MOST_COPIES: usize = 1 << 16;

impl Inbound {
    /// A request, or a part of one, arrives for the `attempt`-th time, counting from 0.
    pub(super) fn arrive(&mut self, later: Later, attempt: u32, work: &mut Work<'_>) {
        let record = &later.incoming.record;
        // The first part stands for the request; data for our own reads and notices are no frames.
        let is_frame = match record.kind {
            Kind::Data => record.offset == 0,
            Kind::Direct | Kind::Pull => true,
            Kind::ReadData | Kind::Outcome | Kind::Pad => false,
        };
        if !is_frame || !work.staged.is_armed() {
            return self.handle(later, work);
        }
        let Some(ring) = self.ring(&later) else {
            return;
        };
        let mut start = [0; PACKET_START];
        let length = match record.header.operation {
            Operation::Send | Operation::RdmaWrite if record.kind == Kind::Data => {
                (record.payload as usize).min(PACKET_START)
            }
            _ => 0,
        };
        if let Some((memory, at)) = ring.consumer.payload(&later.incoming, 0, length as u32) {
            memory.read(at, &mut start[..length]);
        }
        let frame = Frame {
            stage: Stage::Request,
            initiator: ring.from,
            responder: self.own,
            header: &record.header,
            retransmissions: attempt,
            rnr_retry: record.retry,
            status: None,
            data: &start[..length],
        };
        let flow = Flow::from(&frame);
        let is_datagram = record.header.operation == Operation::Datagram;
        match work.staged.decide(&Event::Frame(frame)) {
            None | Some((_, Fate::Fail(_) | Fate::Qpn(_))) => self.handle(later, work),
            Some((_, Fate::Duplicate)) => {
                self.duplicate = true;
                self.handle(later, work);
                self.duplicate = false;
            }
            Some((fault, Fate::Hold { packets })) => {
                return self.keep(fault, flow, packets, later, work);
            }
            Some((_, Fate::Delay(delay))) => {
                let delay = work.staged.draw(delay);
                self.schedule(delay, later, Then::Handle);
            }
            // Nobody sends a datagram again, and its sender does not care.
            Some((_, Fate::Drop | Fate::Lose | Fate::Answer(_))) if is_datagram => {
                return self.answer(&later, Answer::Status(Status::Ok));
            }
            Some((_, Fate::Drop)) => {
                return match staged::retransmit_after(attempt + 1) {
                    Some(wait) => self.schedule(wait, later, Then::Arrive(attempt + 1)),
                    None => self.give_up(later, staged::RETRANSMIT_TIMEOUT),
                };
            }
            Some((_, Fate::Lose)) => return self.give_up(later, staged::give_up_after()),
            Some((_, Fate::Answer(status))) => self.refuse_request(later, status, work),
        }
        self.pass_by(flow, work);
    }

    fn schedule(&mut self, wait: std::time::Duration, of: Later, then: Then) {
        let now = monotonic_now();
        let due = now + wait.as_nanos() as u64;
        self.scheduled.enter(now, due, Task { of, then });
    }

    /// The reliability layer notices after `wait` that nobody answers.
    fn give_up(&mut self, later: Later, wait: std::time::Duration) {
        let answer = Answer::Status(Status::LocalUnresponsiveRemote);
        self.schedule(wait, later, Then::Answer(answer));
    }

    /// Answers a request that the device does not get to see.
    pub(super) fn refuse_request(&mut self, later: Later, status: Status, work: &mut Work<'_>) {
        if later.incoming.record.kind == Kind::Data
            && let Some(ring) = self.ring(&later)
            && let Some(tap) = work.outbound.tap()
        {
            let from = ring.from;
            let transfer = FromRing {
                consumer: &ring.consumer,
                incoming: &later.incoming,
                whole: None,
            };
            tap_data(tap, from, &transfer, status);
        }
        self.answer(&later, Answer::Status(status));
    }

    fn keep(
        &mut self,
        fault: FaultId,
        flow: Flow,
        packets: Option<u32>,
        later: Later,
        work: &mut Work<'_>,
    ) {
        let record = later.incoming.record;
        let is_whole = record.kind == Kind::Data && record.offset == 0 && record.last;
        let kept = if is_whole && self.kept.len() < MOST_COPIES {
            let Some(ring) = self.ring(&later) else {
                return;
            };
            let mut data = vec![0; record.payload as usize];
            if let Some((memory, at)) = ring.consumer.payload(&later.incoming, 0, record.payload) {
                memory.read(at, &mut data);
            }
            let copied = CopiedRequest {
                from: ring.peer.address(),
                number: later.incoming.number,
                record,
                data,
            };
            self.answer_now(&later, Answer::Deferred);
            Kept::Copied(copied)
        } else {
            Kept::InRing(later)
        };
        work.staged.note_held(fault, 1);
        self.kept.keep(fault, flow, packets, kept);
    }

    /// Lets go what waited for later frames of this flow.
    fn pass_by(&mut self, flow: Flow, work: &mut Work<'_>) {
        if self.kept.is_empty() {
            return;
        }
        for (fault, kept) in self.kept.passed(flow) {
            work.staged.note_held(fault, -1);
            self.let_go(kept, work);
        }
    }

    /// Lets go what was released on the board.
    pub(in crate::transport) fn follow(&mut self, change: &Change, work: &mut Work<'_>) {
        for fault in &change.released {
            for kept in self.kept.release(*fault, usize::MAX) {
                work.staged.note_held(*fault, -1);
                self.let_go(kept, work);
            }
        }
        for kept in self.kept.release_others(|fault| work.staged.has(fault)) {
            self.let_go(kept, work);
        }
    }

    fn let_go(&mut self, kept: Kept, work: &mut Work<'_>) {
        match kept {
            Kept::InRing(later) => self.handle(later, work),
            Kept::Copied(request) => {
                let status = serve_copy(&request, work);
                let outcome = Outcome {
                    to: request.from,
                    number: request.number,
                    status,
                };
                let due = self.reply_due(request.from, &request.record);
                self.outcomes.push_back((due.unwrap_or(0), outcome));
            }
        }
    }

    /// Tells initiators what became of their copied requests.
    pub(super) fn send_outcomes(&mut self, work: &mut Work<'_>) -> bool {
        let mut busy = false;
        let now = monotonic_now();
        for _ in 0..self.outcomes.len() {
            let Some((due, outcome)) = self.outcomes.pop_front() else {
                break;
            };
            let Outcome { to, number, status } = outcome;
            if due > now {
                self.outcomes.push_back((due, outcome));
                continue;
            }
            match work.outbound.push_outcome(to, number, status) {
                Ok(()) => busy = true,
                Err(PushError::Full) => self.outcomes.push_back((due, outcome)),
                // The initiator is gone.
                Err(PushError::Gone) => {}
            }
        }
        busy
    }

    /// When the network lets the answer to a request arrive that leaves now; `None` if at once.
    pub(super) fn reply_due(&self, from: Address, record: &Record) -> Option<u64> {
        let now = monotonic_now();
        let packet = Packet::reply(from.gid, record);
        let due = self.replies.as_ref()?.pass(now, &packet).due;
        (due > now).then_some(due)
    }
}

fn serve_copy(request: &CopiedRequest, work: &mut Work<'_>) -> Status {
    let header: &RequestHeader = &request.record.header;
    let Address { gid: from, .. } = request.from;
    let mut transfer = FromCopy { request };
    let status = work.device.deliver(from, header, &mut transfer);
    if let Some(tap) = work.outbound.tap() {
        let mut data: &[u8] = &request.data;
        tap.received(from, &request.record, &mut data);
        tap.answered(from, &request.record, status);
    }
    status
}
