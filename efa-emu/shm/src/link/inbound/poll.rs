//! Reads records from the rings, each at its time.

use efa_core::nic::Status;
use efa_device_model::network::Duplicated;

use super::in_ring::DeferredRecord;
use super::state::{CopyInProgress, Inbound, RecordContext, RecordStep, ScheduledRecord};
use crate::process::clock::{believable, monotonic_now};
use efa_lock_free::record::{Answer, RecordKind};

/// Most records of one ring that are handled in one turn.
const RECORDS_PER_TURN: usize = 32;

/// Polls without a record after which additional rings return to doorbells.
const IDLE_POLLS: u32 = 1024;

impl Inbound {
    /// Handles new records. Returns whether there was any work.
    #[inline(always)]
    pub(crate) fn poll(&mut self, mut work: RecordContext<'_>) -> bool {
        let mut busy = false;
        if self.segment.doorbell_rung() {
            busy = true;
            self.answer_doorbells(work.outbound);
        }
        // Backwards, because a ring may be dropped, and its slot leaves the list.
        let mut position = self.polled.len();
        while position > 0 {
            position -= 1;
            if let Some(slot) = self.polled.get(position).copied() {
                busy |= self.drain(slot, work.lend());
            }
        }
        if self.has_unfinished() {
            busy |= self.continue_unfinished(&mut work.lend());
        }
        busy
    }

    #[cold]
    fn continue_unfinished(&mut self, work: &mut RecordContext<'_>) -> bool {
        let mut busy = false;
        if !self.scheduled.is_empty() {
            busy |= self.do_due(work);
        }
        if !self.copies.is_empty() {
            busy |= self.copy_some(work.device, work.outbound);
        }
        if !self.pulls.is_empty() {
            busy |= self.serve_pulls(work.device, work.outbound);
        }
        if !self.outcomes.is_empty() {
            busy |= self.send_outcomes(work);
        }
        busy
    }

    /// Handles the new records of a ring. Returns whether there were any.
    ///
    /// A rule applies to every record that is sent after the rule was armed. A turn can be
    /// suspended after it has read the rules, so a record is only taken if they are still the same.
    /// Otherwise it stays in the ring for the next turn.
    #[inline(always)]
    pub(super) fn drain(&mut self, slot: usize, mut work: RecordContext<'_>) -> bool {
        let mut any = false;
        let mut turn = 0;
        while turn < RECORDS_PER_TURN {
            let Some(ring) = self.rings[slot].as_deref_mut() else {
                return true;
            };
            if !any {
                ring.wake_answered();
            }
            let taken = loop {
                match ring.consumer.take_if(|| work.staged.is_current()) {
                    Ok(Some(incoming))
                        if incoming.record.is_message()
                            & (incoming.record.due() == 0)
                            & !self.is_attentive =>
                    {
                        any = true;
                        let answer = ring.serve_message(&incoming, work.device, work.outbound);
                        ring.answer(&incoming, answer);
                        turn += 1;
                        if turn == RECORDS_PER_TURN {
                            return true;
                        }
                    }
                    other => break other,
                }
            };
            match taken {
                Ok(Some(incoming)) if incoming.record.is_packet() & !self.is_attentive => {
                    any = true;
                    turn += 1;
                    let answer = ring.serve_other(&incoming, work.device, work.outbound);
                    ring.answer(&incoming, answer);
                }
                Ok(Some(incoming)) => {
                    any = true;
                    let later = ring.later(slot, incoming);
                    turn += self.take_other(later, &mut work.lend());
                }
                Ok(None) if any || !work.staged.is_current() => {
                    ring.idle_polls = 0;
                    return true;
                }
                Ok(None) => {
                    ring.idle_polls = ring.idle_polls.wrapping_add(1);
                    if ring.idle_polls >= IDLE_POLLS {
                        ring.idle_polls = 0;
                        self.give_turn_up(slot);
                    }
                    return false;
                }
                Err(error) => {
                    self.refuse(slot, &error);
                    return true;
                }
            }
        }
        true
    }

    /// Handles a record other than a message, or one that the network or faults may still affect.
    /// Returns the number of records that it counts for.
    #[cold]
    fn take_other(&mut self, later: DeferredRecord, work: &mut RecordContext<'_>) -> usize {
        let due = later.incoming.record.due();
        if due != 0 || self.is_attentive {
            self.receive_in_time(later, work);
            return usize::from(due == 0);
        }
        self.handle(later, work);
        1
    }

    /// Handles a record that the network or faults may still affect.
    fn receive_in_time(&mut self, mut later: DeferredRecord, work: &mut RecordContext<'_>) {
        // The device must send acknowledgements as packets, so that the network and the faults
        // apply to them.
        later.incoming.record = later.incoming.record.acknowledged(false);
        let due = later.incoming.record.due();
        if due == 0 {
            return self.arrive(later, None, work);
        }
        // Scheduled even if it is already due, because a later record may be due earlier.
        let task = ScheduledRecord {
            of: later,
            then: RecordStep::Arrive(None),
        };
        self.scheduled.add(believable(monotonic_now(), due), task);
    }

    fn do_due(&mut self, work: &mut RecordContext<'_>) -> bool {
        let mut busy = false;
        let now = monotonic_now();
        while let Some(ScheduledRecord { of, then }) = self.scheduled.pop_due(now) {
            busy = true;
            match then {
                RecordStep::Arrive(lost) => self.arrive(of, lost, work),
                RecordStep::Handle => self.handle(of, work),
                RecordStep::Answer(answer) => self.answer_now(&of, answer),
            }
        }
        busy
    }

    /// Handles a record that is due.
    pub(super) fn handle(&mut self, later: DeferredRecord, work: &mut RecordContext<'_>) {
        let record = &later.incoming.record;
        if record.is_rnr() {
            return self.refuse_request(later, Status::RemoteRnr, work);
        }
        match record.kind() {
            RecordKind::Data => {
                let twice = self.twice;
                let Some(ring) = self.ring(&later) else {
                    return;
                };
                let incoming = &later.incoming;
                let outbound = &mut *work.outbound;
                let device = &mut *work.device;
                let answer = match twice {
                    Duplicated::Completion => {
                        device.duplicating(|device| ring.serve(incoming, device, outbound))
                    }
                    Duplicated::Nothing | Duplicated::Packet => {
                        ring.serve(incoming, device, outbound)
                    }
                };
                if twice == Duplicated::Packet {
                    ring.serve_again(incoming, device, outbound);
                }
                self.answer(&later, answer);
            }
            RecordKind::Direct => self.copies.push_back(CopyInProgress { of: later, done: 0 }),
            RecordKind::Pull => self.begin_read(later),
            RecordKind::ReadData => self.take_read_data(later, work.device, work.outbound),
            RecordKind::Outcome => {
                if let Some(ring) = self.ring(&later) {
                    let from = ring.peer.address();
                    work.outbound.take_outcome(from, &later.incoming.record);
                }
                self.answer_now(&later, Answer::Status(Status::Ok));
            }
            // Rings skip the padding.
            RecordKind::Pad => {}
        }
    }
}
