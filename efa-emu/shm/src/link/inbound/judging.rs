//! The effects of staged faults and the network on arriving requests, and on their answers.
//!
//! While no fault is armed and the network is perfect, requests do not pass through this module.

use std::sync::Arc;
use std::time::Duration;

use efa_core::nic::Status;

use super::deferred::{CopiedRequest, DeferredRequest, FromCopy, OutcomeNotice};
use super::in_ring::{DeferredRecord, tap_data};
use super::state::{Inbound, RecordContext, RecordStep, ScheduledRecord};
use crate::link::inbound::transfers::FromRing;
use crate::link::outbound::PushError;
use crate::link::staged::RuleChange;
use crate::process::clock::monotonic_now;
use crate::transport::segment::Address;
use efa_device_model::fault::{Event, FaultId, Flow, Frame, PACKET_START, Stage, Trigger};
use efa_device_model::link::Operation;
use efa_device_model::network::{DeliveryOutcome, Disposition, Duplicated, Transmission};
use efa_lock_free::record::{Answer, Record, RecordKind};

/// Maximum number of requests that are deferred outside of their rings. Further ones stay in the
/// ring.
const MOST_COPIES: usize = 1 << 16;

impl Inbound {
    /// A request, or a part of one, arrives. `lost` as in [`RecordStep::Arrive`].
    pub(super) fn arrive(
        &mut self,
        mut later: DeferredRecord,
        lost: Option<u32>,
        work: &mut RecordContext<'_>,
    ) {
        let record = &later.incoming.record;
        // Only the first part is a frame. Data for reads of this device, and outcomes, are no
        // frames.
        let is_frame = match record.kind() {
            RecordKind::Data => record.offset() == 0,
            RecordKind::Direct | RecordKind::Pull => true,
            RecordKind::ReadData | RecordKind::Outcome | RecordKind::Pad => false,
        };
        if !is_frame || !work.staged.is_armed() {
            return self.handle(later, work);
        }
        let own = self.own;
        let Some(ring) = self.ring(&later) else {
            return;
        };
        let mut start = [0; PACKET_START];
        let header = record.header();
        let length = match header.operation {
            Operation::Send | Operation::RdmaWrite if record.kind() == RecordKind::Data => {
                (record.payload() as usize).min(PACKET_START)
            }
            _ => 0,
        };
        if let Some((memory, at)) =
            ring.consumer
                .payload(later.incoming.payload(), 0, length as u32)
        {
            memory.read(at, &mut start[..length]);
        }
        // A request is subject to the network of its initiator.
        let peer = Arc::clone(&ring.peer);
        let mut request = Transmission::first(Stage::Request, ring.from, own, &header);
        request.lost = lost.unwrap_or_else(|| match peer.network.delivery(&request) {
            DeliveryOutcome::Arrives { lost, .. } => lost,
            DeliveryOutcome::Fails { .. } | DeliveryOutcome::Vanishes => 0,
        });
        let frame = Frame {
            stage: Stage::Request,
            initiator: request.initiator,
            responder: request.responder,
            header: &header,
            lost: request.lost,
            status: None,
            data: &start[..length],
        };
        let flow = Flow::from(&frame);
        let verdict = work.staged.decide(&Event::Frame(frame));
        let disposition = Disposition::new(verdict.outcome, &request, &peer.network);
        match disposition {
            Disposition::Proceeds {
                status: Some(status),
                ..
            } => self.refuse_request(later, status, work),
            Disposition::Proceeds { twice, .. } => {
                self.twice = twice;
                self.handle(later, work);
                self.twice = Duplicated::Nothing;
            }
            Disposition::Late(delay) => self.schedule(delay, later, RecordStep::Handle),
            Disposition::Deferred { fault, packets } => {
                self.defer(fault, flow, packets, later, work)
            }
            Disposition::Lost(loss) => match peer.network.delivery_after(&request, loss) {
                DeliveryOutcome::Arrives { after, path, lost } => {
                    later.incoming.record = later.incoming.record.on_path(path);
                    self.schedule(after, later, RecordStep::Arrive(Some(lost)));
                }
                DeliveryOutcome::Fails { after } => {
                    let answer = Answer::Status(Status::LocalUnresponsiveRemote);
                    self.schedule(after, later, RecordStep::Answer(answer));
                }
                DeliveryOutcome::Vanishes => self.answer_now(&later, Answer::Status(Status::Ok)),
            },
        }
        if disposition.passes() {
            self.pass_by(flow, work);
        }
        let released = self.release(&verdict.triggers, work);
        work.staged.execute(verdict.triggers);
        work.staged.note_released(&released);
    }

    fn schedule(&mut self, wait: Duration, of: DeferredRecord, then: RecordStep) {
        self.scheduled
            .add(monotonic_now() + wait, ScheduledRecord { of, then });
    }

    /// Answers a request that does not reach the device.
    pub(super) fn refuse_request(
        &mut self,
        later: DeferredRecord,
        status: Status,
        work: &mut RecordContext<'_>,
    ) {
        if later.incoming.record.kind() == RecordKind::Data
            && let Some(ring) = self.ring(&later)
            && let Some(tap) = work.outbound.tap()
        {
            let from = ring.from;
            let transfer = FromRing::new(&ring.consumer, &later.incoming);
            tap_data(tap, from, &transfer, status);
        }
        self.answer(&later, Answer::Status(status));
    }

    fn defer(
        &mut self,
        fault: FaultId,
        flow: Flow,
        packets: Option<u32>,
        later: DeferredRecord,
        work: &mut RecordContext<'_>,
    ) {
        let record = later.incoming.record;
        let is_whole =
            record.kind() == RecordKind::Data && record.offset() == 0 && record.is_last();
        let deferred = if is_whole && self.deferred.len() < MOST_COPIES {
            let Some(ring) = self.ring(&later) else {
                return;
            };
            let mut data = vec![0; record.payload() as usize];
            if let Some((memory, at)) =
                ring.consumer
                    .payload(later.incoming.payload(), 0, record.payload())
            {
                memory.read(at, &mut data);
            }
            let copied = CopiedRequest {
                from: ring.peer.address(),
                number: later.incoming.number,
                record,
                data,
            };
            self.answer_now(&later, Answer::Deferred);
            DeferredRequest::Copied(copied)
        } else {
            DeferredRequest::InRing(later)
        };
        work.staged.note_held(fault, 1);
        self.deferred.defer(fault, flow, packets, deferred);
    }

    /// Continues requests that are deferred until later frames of this flow have passed.
    fn pass_by(&mut self, flow: Flow, work: &mut RecordContext<'_>) {
        if self.deferred.is_empty() {
            return;
        }
        for (fault, deferred) in self.deferred.passed(flow) {
            work.staged.note_held(fault, -1);
            self.let_go(deferred, work);
        }
    }

    /// Releases the deferred requests that an event selects, before the next frame arrives. The
    /// board notifies other processes. Returns the rules whose requests were released here.
    fn release(&mut self, triggers: &[Trigger], work: &mut RecordContext<'_>) -> Vec<FaultId> {
        let mut carried_out = Vec::new();
        let faults = triggers.iter().filter_map(|trigger| match trigger {
            Trigger::Release(faults) => Some(faults),
            Trigger::Kill(_) | Trigger::Remove(_) | Trigger::Restore(_) | Trigger::Queues(..) => {
                None
            }
        });
        for fault in faults.flatten() {
            let deferred = self.deferred.release(*fault, usize::MAX);
            if !deferred.is_empty() {
                carried_out.push(*fault);
            }
            for deferred in deferred {
                work.staged.note_held(*fault, -1);
                self.let_go(deferred, work);
            }
        }
        carried_out
    }

    /// Releases the deferred requests that the board orders to release.
    pub(crate) fn follow(&mut self, change: &RuleChange, work: &mut RecordContext<'_>) {
        for fault in &change.released {
            for deferred in self.deferred.release(*fault, usize::MAX) {
                work.staged.note_held(*fault, -1);
                self.let_go(deferred, work);
            }
        }
        for deferred in self.deferred.release_others(|fault| work.staged.has(fault)) {
            self.let_go(deferred, work);
        }
    }

    fn let_go(&mut self, deferred: DeferredRequest, work: &mut RecordContext<'_>) {
        match deferred {
            DeferredRequest::InRing(later) => self.handle(later, work),
            DeferredRequest::Copied(request) => {
                let status = serve_copy(&request, work);
                self.conclude(request.from, request.number, &request.record, status);
            }
        }
    }

    /// Reports the outcome of a request that has left its ring to the initiator, over the network.
    pub(super) fn conclude(&mut self, to: Address, number: u64, record: &Record, status: Status) {
        let (after, failure) = self.reply(to, record).unwrap_or_default();
        let outcome = OutcomeNotice {
            to,
            number,
            status: failure.unwrap_or(status),
        };
        self.outcomes.push_back((monotonic_now() + after, outcome));
    }

    /// Sends the outcomes of requests that have left their rings to their initiators.
    pub(super) fn send_outcomes(&mut self, work: &mut RecordContext<'_>) -> bool {
        let mut busy = false;
        let now = monotonic_now();
        for _ in 0..self.outcomes.len() {
            let Some((due, outcome)) = self.outcomes.pop_front() else {
                break;
            };
            let OutcomeNotice { to, number, status } = outcome;
            if due > now {
                self.outcomes.push_back((due, outcome));
                continue;
            }
            match work.outbound.push_outcome(to, number, status) {
                Ok(()) => busy = true,
                Err(PushError::Full) => self.outcomes.push_back((due, outcome)),
                // The initiator is dead.
                Err(PushError::Gone) => {}
            }
        }
        busy
    }

    /// The delay of an answer that leaves now, and if the answer is lost permanently, the status
    /// with which the initiator's network card completes the request. `None` if the answer arrives
    /// immediately.
    pub(super) fn reply(
        &self,
        from: Address,
        record: &Record,
    ) -> Option<(Duration, Option<Status>)> {
        let network = self.replies.as_ref()?;
        let answer = Transmission::first(Stage::Answer, from.gid, self.own, &record.header());
        match network.delivery(&answer) {
            DeliveryOutcome::Arrives { after, .. } => Some((after, None)),
            DeliveryOutcome::Fails { after } => {
                Some((after, Some(Status::LocalUnresponsiveRemote)))
            }
            // Datagrams have no answers.
            DeliveryOutcome::Vanishes => None,
        }
    }
}

fn serve_copy(request: &CopiedRequest, work: &mut RecordContext<'_>) -> Status {
    let header = request.record.header();
    let Address { gid: from, .. } = request.from;
    let mut transfer = FromCopy { request };
    let status = work.device.deliver(from, &header, &mut transfer);
    if let Some(tap) = work.outbound.tap() {
        let mut data: &[u8] = &request.data;
        tap.received(from, &request.record, &mut data);
        tap.answered(from, &request.record, status);
    }
    status
}
