//! Requests of peers on their way into this device.

mod judging;
mod kept;
mod pulls;
mod transfers;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use efa_core::address::Gid;
use efa_core::nic::Status;

use super::clock::{believable, monotonic_now};
use super::memory::{self, Window};
use super::outbound::{BulkName, Outbound, PullName};
use super::peer::Peer;
use super::record::{self, Answer, Kind, Record};
use super::ring::{Consumer, Incoming};
use super::segment::{Address, SLOTS, Segment, SlotContent};
use super::staged::Staged;
use super::tap::Tap;
use super::trouble::Trouble;
use efa_device_model::device::Device;
use efa_device_model::fault::Deferred;
use efa_device_model::link::{HostSegment, Operation};
use efa_device_model::network::{EventQueue, Network, Twice};
use kept::{Kept, Outcome};
#[cfg(feature = "fuzzing")]
pub(super) use pulls::MOST_READS;
use pulls::{Pull, PullTable};
use transfers::{BetweenProcesses, FromRing, IntoRing, Message, Moved};

/// Records of one ring that are handled before the next ring's turn.
const RECORDS_PER_TURN: usize = 32;

/// Rings that are polled without a doorbell even if nothing came for a while.
const ALWAYS_POLLED: usize = 4;

/// Polls without a record after which further rings go back to the doorbell.
const IDLE_POLLS: u32 = 1024;

/// Bytes that one copy between processes moves before others have their turn, and before the memory
/// is checked again.
const COPY: u32 = 1 << 20;

/// A ring from a peer.
struct InRing {
    consumer: Consumer,
    peer: Arc<Peer>,
    from: Gid,
    /// Tells this ring from an earlier one in the same slot.
    serial: u64,
    polled: bool,
    idle_polls: u32,
    /// The sender has answers that it was not certainly woken for.
    answered: bool,
    /// Reads of the sender under way that are no longer in the ring.
    reads: usize,
}

impl InRing {
    fn later(&self, slot: usize, incoming: Incoming) -> Later {
        Later {
            slot,
            serial: self.serial,
            incoming,
        }
    }

    /// Hands a record with data to the device.
    #[inline(always)]
    fn serve(
        &mut self,
        incoming: &Incoming,
        device: &mut Device,
        outbound: &mut Outbound,
    ) -> Status {
        if !incoming.record.is_message() {
            return self.serve_other(*incoming, device, outbound);
        }
        let mut transfer = Message {
            consumer: &self.consumer,
            incoming,
        };
        // Of a message it is known at once what it does not have.
        let header = incoming.record.message_header();
        let status = device.deliver(self.from, &header, &mut transfer);
        if outbound.is_tapped() {
            self.tap(*incoming, None, status, outbound);
        }
        status
    }

    /// As [`InRing::serve`], for what is no message. It has a copy of the record, so that a message's need
    /// not be in memory.
    #[cold]
    fn serve_other(
        &mut self,
        incoming: Incoming,
        device: &mut Device,
        outbound: &mut Outbound,
    ) -> Status {
        let mut transfer = FromRing {
            consumer: &self.consumer,
            incoming: &incoming,
            whole: None,
        };
        let status = device.deliver(self.from, &incoming.record.header(), &mut transfer);
        let whole = transfer.whole;
        if outbound.is_tapped() {
            self.tap(incoming, whole, status, outbound);
        }
        status
    }

    /// Hands the device a message that it has been handed. Its sender hears of the first one only.
    #[cold]
    fn serve_again(&mut self, incoming: &Incoming, device: &mut Device, outbound: &mut Outbound) {
        let mut transfer = FromRing {
            consumer: &self.consumer,
            incoming,
            whole: None,
        };
        device.deliver(self.from, &incoming.record.header(), &mut transfer);
        if let Some(tap) = outbound.tap() {
            tap_arrival(tap, self.from, &transfer);
        }
    }

    #[cold]
    #[inline(never)]
    fn tap(
        &self,
        incoming: Incoming,
        whole: Option<HostSegment>,
        status: Status,
        outbound: &mut Outbound,
    ) {
        let transfer = FromRing {
            consumer: &self.consumer,
            incoming: &incoming,
            whole,
        };
        if let Some(tap) = outbound.tap() {
            tap_data(tap, self.from, &transfer, status);
        }
    }

    /// Answers a record and wakes its sender if it is seen to sleep. One that falls asleep just now is
    /// woken by [`InRing::wake_answered`]: to see it, the processor has to wait until the answer is in
    /// its cache, and it should not when the message has just come that the application waits for.
    #[inline(always)]
    fn answer(&mut self, incoming: &Incoming, answer: Answer) {
        self.consumer.answer(incoming, answer);
        self.peer.segment.wake_sleeper();
        self.answered = true;
    }

    /// Wakes a sender that sleeps and has answers.
    #[inline(always)]
    fn wake_answered(&mut self) {
        if self.answered {
            self.answered = false;
            self.peer.segment.wake();
        }
    }
}

/// A record that is handled later: its ring may have gone by then.
#[derive(Clone, Copy, Debug)]
struct Later {
    slot: usize,
    serial: u64,
    incoming: Incoming,
}

/// Something to be done at a time.
#[derive(Clone, Copy, Debug)]
struct Task {
    of: Later,
    then: Then,
}

/// What becomes of a record when its time has come.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// It arrives. `Some` if a fault made it go again: how often it was lost altogether.
    Arrive(Option<u32>),
    /// It is handled: all rules have been applied to it.
    Handle,
    /// Its answer leaves.
    Answer(Answer),
}

/// What handling a record takes besides the receiving half itself.
pub(super) struct Work<'a> {
    pub(super) device: &'a mut Device,
    pub(super) outbound: &'a mut Outbound,
    pub(super) staged: &'a mut Staged,
}

impl Work<'_> {
    /// The same for a while: a copy for what is off a message's way, so that there is none in memory for
    /// what is on it.
    #[inline(always)]
    fn lend(&mut self) -> Work<'_> {
        Work {
            device: self.device,
            outbound: self.outbound,
            staged: self.staged,
        }
    }
}

/// A copy between processes under way.
#[derive(Clone, Copy, Debug)]
struct Copying {
    of: Later,
    /// Bytes copied so far.
    done: u32,
}

/// The receiving half of a device's link.
pub(super) struct Inbound {
    segment: Arc<Segment>,
    own: Gid,
    rings: Vec<Option<Box<InRing>>>,
    /// Slots whose rings are polled.
    polled: Vec<usize>,
    serials: u64,
    /// Records whose time has not come.
    scheduled: EventQueue<Task>,
    /// Requests that faults hold.
    kept: Deferred<Kept>,
    /// The outcomes of those that were copied, and of reads, with the times at which they leave.
    outcomes: VecDeque<(Duration, Outcome)>,
    /// What the network does to answers; `None` if they arrive at once.
    replies: Option<Network>,
    /// Records do not go straight to the device: faults are armed, or answers take time.
    is_attentive: bool,
    /// What comes twice of the record that is handled now.
    twice: Twice,
    copies: VecDeque<Copying>,
    pulls: PullTable,
}

impl Inbound {
    pub(super) fn new(segment: Arc<Segment>, replies: Option<Network>) -> Inbound {
        Inbound {
            own: segment.address().gid,
            segment,
            kept: Deferred::default(),
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
    pub(super) fn attend(&mut self, is_armed: bool) {
        self.is_attentive = is_armed || self.replies.is_some();
    }

    /// Handles what has come. Returns whether there was anything to do.
    #[inline(always)]
    pub(super) fn poll(&mut self, mut work: Work<'_>) -> bool {
        let mut busy = false;
        if self.segment.doorbell_rung() {
            busy = true;
            self.answer_doorbells(work.outbound);
        }
        // From the end: the ring may go, and its slot leaves the list.
        let mut position = self.polled.len();
        while position > 0 {
            position -= 1;
            if let Some(slot) = self.polled.get(position).copied() {
                busy |= self.drain(slot, work.lend());
            }
        }
        if self.has_unfinished() {
            busy |= self.go_on(&mut work.lend());
        }
        busy
    }

    /// Whether anything takes more than the turn in which it came.
    #[inline(always)]
    fn has_unfinished(&self) -> bool {
        // Without a branch for each: hardly ever is there anything.
        !(self.scheduled.is_empty()
            & self.copies.is_empty()
            & self.pulls.is_empty()
            & self.outcomes.is_empty())
    }

    #[cold]
    fn go_on(&mut self, work: &mut Work<'_>) -> bool {
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

    /// The time of the next task, on the monotonic clock.
    pub(super) fn next_due(&self) -> Option<Duration> {
        let outcome = self.outcomes.iter().map(|(due, _)| *due).min();
        self.scheduled.next_time().into_iter().chain(outcome).min()
    }

    /// Makes every sender ring the doorbell from now on. Returns whether nothing had come before that
    /// took effect.
    pub(super) fn prepare_to_sleep(&mut self) -> bool {
        for slot in &self.polled {
            self.segment.stop_polling(*slot);
        }
        let rings = &mut self.rings;
        self.polled.retain(|slot| {
            let Some(ring) = rings[*slot].as_mut() else {
                return false;
            };
            ring.polled = ring.consumer.has_record();
            match ring.polled {
                true => self.segment.start_polling(*slot),
                false => ring.wake_answered(),
            }
            ring.polled
        });
        self.polled.is_empty() && !self.segment.doorbell_rung()
    }

    /// Frees the slots of dead senders.
    pub(super) fn check_peers(&mut self) {
        for slot in 0..SLOTS {
            let is_over = self.rings[slot].as_ref().is_some_and(|ring| {
                // What a process sent before it was killed had left it.
                !ring.consumer.has_record()
                    && ring.consumer.unanswered() == 0
                    && !ring.peer.is_alive()
            });
            if is_over {
                tracing::info!(slot, "the process at the other end of a ring has ended");
                self.drop_ring(slot);
                self.segment.free(slot);
            }
        }
    }

    /// Answers at once what the network has answers under way for: they have left this device, and nobody
    /// holds them any longer.
    pub(super) fn close(&mut self, outbound: &mut Outbound) {
        while let Some((_, Task { of, then })) = self.scheduled.pop() {
            if let Then::Answer(answer) = then {
                self.answer_now(&of, answer);
            }
        }
        for (_, Outcome { to, number, status }) in self.outcomes.drain(..) {
            // For a full ring there is no later.
            let _ = outbound.push_outcome(to, number, status);
        }
    }

    #[cold]
    fn answer_doorbells(&mut self, outbound: &mut Outbound) {
        let segment = Arc::clone(&self.segment);
        let mut adopted = false;
        let is_full = segment.take_doorbells(|slot| {
            adopted |= self.look_at(slot, outbound);
        });
        if adopted || is_full {
            self.check_peers();
        }
        if is_full {
            self.free_abandoned_claims(outbound);
        }
    }

    /// Looks at a slot whose doorbell was rung. Returns whether it holds a new ring.
    fn look_at(&mut self, slot: usize, outbound: &mut Outbound) -> bool {
        match self.segment.inspect(slot) {
            SlotContent::Free | SlotContent::Pending { .. } => false,
            SlotContent::GivenUp => {
                self.drop_ring(slot);
                self.segment.free(slot);
                false
            }
            SlotContent::Nonsense => {
                self.refuse(slot, &"the slot's descriptor makes no sense");
                false
            }
            SlotContent::InUse { sender, capacity } => {
                let is_new = self.rings[slot].is_none();
                if is_new && !self.adopt(slot, sender, capacity, outbound) {
                    return false;
                }
                if let Some(ring) = &mut self.rings[slot]
                    && !ring.polled
                {
                    ring.polled = true;
                    ring.idle_polls = 0;
                    self.polled.push(slot);
                    // Records that were committed before are found by the poll that follows.
                    self.segment.start_polling(slot);
                }
                is_new
            }
        }
    }

    fn adopt(
        &mut self,
        slot: usize,
        sender: Address,
        capacity: usize,
        outbound: &mut Outbound,
    ) -> bool {
        let (peer, consumer) = match outbound.peers().adopt_ring(slot, sender, capacity) {
            Ok(Some(adopted)) => adopted,
            // The sender has died already.
            Ok(None) => {
                self.segment.free(slot);
                return false;
            }
            Err(error) => {
                self.refuse(slot, &error);
                return false;
            }
        };
        self.serials += 1;
        self.rings[slot] = Some(Box::new(InRing {
            consumer,
            from: sender.gid,
            peer,
            serial: self.serials,
            polled: false,
            idle_polls: 0,
            answered: false,
            reads: 0,
        }));
        true
    }

    fn refuse(&mut self, slot: usize, reason: &dyn std::fmt::Display) {
        Trouble::RefusedRing.say(format_args!("refusing what a process sends: {reason}"));
        self.segment.refuse(slot);
        if let Some(ring) = &self.rings[slot] {
            ring.peer.segment.wake();
        }
        self.drop_ring(slot);
    }

    fn drop_ring(&mut self, slot: usize) {
        self.rings[slot] = None;
        self.polled.retain(|polled| *polled != slot);
        self.scheduled.retain(|task| task.of.slot != slot);
        self.copies.retain(|copying| copying.of.slot != slot);
        self.pulls.retain(|pull| pull.of.slot != slot);
        self.kept.retain(|kept| match kept {
            Kept::InRing(later) => later.slot != slot,
            Kept::Copied(_) => true,
        });
    }

    /// Frees slots whose claimants died before or after they used them.
    fn free_abandoned_claims(&mut self, outbound: &mut Outbound) {
        let Ok(participants) = outbound.peers().fabric().participants() else {
            return;
        };
        for slot in 0..SLOTS {
            if let SlotContent::Pending { claim } = self.segment.inspect(slot)
                && !participants
                    .iter()
                    .any(|(gid, id)| Address { gid: *gid, id: *id }.claim() == claim)
            {
                self.drop_ring(slot);
                self.segment.free(slot);
            }
        }
    }

    /// Handles what has come in a ring. Returns whether there was anything.
    #[inline(always)]
    fn drain(&mut self, slot: usize, mut work: Work<'_>) -> bool {
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
                match ring.consumer.take() {
                    Ok(Some(incoming))
                        if incoming.record.is_message()
                            & (incoming.record.due() == 0)
                            & !self.is_attentive =>
                    {
                        any = true;
                        let status = ring.serve(&incoming, work.device, work.outbound);
                        ring.answer(&incoming, Answer::Status(status));
                        turn += 1;
                        if turn == RECORDS_PER_TURN {
                            return true;
                        }
                    }
                    other => break other,
                }
            };
            match taken {
                Ok(Some(incoming)) => {
                    any = true;
                    let later = ring.later(slot, incoming);
                    turn += self.take_other(later, &mut work.lend());
                }
                Ok(None) if any => {
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

    /// Takes a record that is no message, or that the network or faults may still do something to.
    /// Returns how many records it counts for.
    #[cold]
    fn take_other(&mut self, later: Later, work: &mut Work<'_>) -> usize {
        let due = later.incoming.record.due();
        if due != 0 || self.is_attentive {
            self.receive_in_time(later, work);
            return usize::from(due == 0);
        }
        self.handle(later, work);
        1
    }

    /// Takes a record that the network or faults may still do something to.
    fn receive_in_time(&mut self, later: Later, work: &mut Work<'_>) {
        let due = later.incoming.record.due();
        if due == 0 {
            return self.arrive(later, None, work);
        }
        // Even if its time has come: one behind it may be due earlier.
        let task = Task {
            of: later,
            then: Then::Arrive(None),
        };
        self.scheduled.add(believable(monotonic_now(), due), task);
    }

    /// Lets a ring go back to the doorbell if many are polled.
    #[cold]
    fn give_turn_up(&mut self, slot: usize) {
        if self.polled.len() <= ALWAYS_POLLED {
            return;
        }
        let Some(ring) = &mut self.rings[slot] else {
            return;
        };
        ring.wake_answered();
        self.segment.stop_polling(slot);
        if ring.consumer.has_record() {
            self.segment.start_polling(slot);
        } else {
            ring.polled = false;
            self.polled.retain(|polled| *polled != slot);
        }
    }

    fn do_due(&mut self, work: &mut Work<'_>) -> bool {
        let mut busy = false;
        let now = monotonic_now();
        while let Some(Task { of, then }) = self.scheduled.pop_due(now) {
            busy = true;
            match then {
                Then::Arrive(lost) => self.arrive(of, lost, work),
                Then::Handle => self.handle(of, work),
                Then::Answer(answer) => self.answer_now(&of, answer),
            }
        }
        busy
    }

    #[inline]
    fn ring(&mut self, of: &Later) -> Option<&mut InRing> {
        self.rings[of.slot]
            .as_deref_mut()
            .filter(|ring| ring.serial == of.serial)
    }

    fn answer_now(&mut self, of: &Later, answer: Answer) {
        if let Some(ring) = self.ring(of) {
            ring.answer(&of.incoming, answer);
            // Nobody may look at the ring for a while.
            ring.wake_answered();
        }
    }

    /// Answers a request, over the network. That a part of one came which is not the last is between
    /// the two links.
    #[inline]
    fn answer(&mut self, of: &Later, answer: Answer) {
        let record = &of.incoming.record;
        let is_part = record.kind() == Kind::Data && !record.is_last();
        if self.replies.is_some()
            && matches!(answer, Answer::Status(status) if !is_part || status != Status::Ok)
            && let Some(from) = self.ring(of).map(|ring| ring.peer.address())
            && let Some((after, failure)) = self.reply(from, record)
        {
            let then = Then::Answer(failure.map_or(answer, Answer::Status));
            let task = Task { of: *of, then };
            self.scheduled.add(monotonic_now() + after, task);
            return;
        }
        self.answer_now(of, answer);
    }

    /// Handles a record whose time has come.
    fn handle(&mut self, later: Later, work: &mut Work<'_>) {
        let record = &later.incoming.record;
        if record.not_ready() {
            return self.refuse_request(later, Status::RemoteRnr, work);
        }
        match record.kind() {
            Kind::Data => {
                let twice = self.twice;
                let Some(ring) = self.ring(&later) else {
                    return;
                };
                let incoming = &later.incoming;
                let outbound = &mut *work.outbound;
                let device = &mut *work.device;
                let status = match twice {
                    Twice::Completion => {
                        device.duplicating(|device| ring.serve(incoming, device, outbound))
                    }
                    Twice::Nothing | Twice::Packet => ring.serve(incoming, device, outbound),
                };
                if twice == Twice::Packet {
                    ring.serve_again(incoming, device, outbound);
                }
                self.answer(&later, Answer::Status(status));
            }
            Kind::Direct => self.copies.push_back(Copying { of: later, done: 0 }),
            Kind::Pull => self.begin_read(later),
            Kind::ReadData => self.take_read_data(later, work.device, work.outbound),
            Kind::Outcome => {
                if let Some(ring) = self.ring(&later) {
                    let from = ring.peer.address();
                    work.outbound.take_outcome(from, &later.incoming.record);
                }
                self.answer_now(&later, Answer::Status(Status::Ok));
            }
            // Rings skip the padding.
            Kind::Pad => {}
        }
    }

    /// Begins to serve a read whose data goes back through the rings. The request leaves its ring at once:
    /// two processes that read from each other would else wait for ever, when the data for the one's read
    /// finds the ring full behind the request of the other's, and the other way round.
    fn begin_read(&mut self, later: Later) {
        let leaves = match self.ring(&later) {
            Some(ring) if ring.reads < pulls::MOST_READS => {
                ring.reads += 1;
                true
            }
            _ => false,
        };
        if leaves {
            self.answer_now(&later, Answer::Deferred);
        }
        self.pulls.insert(Pull::new(later, leaves));
    }

    /// Tells the initiator of a read how it ended.
    fn end_read(&mut self, of: &Later, has_left: bool, status: Status) {
        if !has_left {
            return self.answer(of, Answer::Status(status));
        }
        let Some(ring) = self.ring(of) else {
            return;
        };
        ring.reads = ring.reads.saturating_sub(1);
        let to = ring.peer.address();
        self.conclude(to, of.incoming.number, &of.incoming.record, status);
    }

    /// Data for a read of this device's own.
    fn take_read_data(&mut self, later: Later, device: &Device, outbound: &Outbound) {
        let Some(ring) = self.ring(&later) else {
            return;
        };
        let record = &later.incoming.record;
        let segments = outbound
            .read_target(ring.peer.address(), record)
            .and_then(|token| device.local_memory(token));
        let status = match segments {
            None => Status::LocalInvalidLkey,
            Some(segments) => {
                let window = Window {
                    offset: record.offset(),
                    length: record.payload(),
                };
                if let Some((memory, at)) =
                    ring.consumer.payload(&later.incoming, 0, record.payload())
                {
                    memory::scatter(memory, at, segments, window);
                }
                Status::Ok
            }
        };
        self.answer_now(&later, Answer::Status(status));
    }

    /// Moves pieces of copies, each copy in its turn.
    fn copy_some(&mut self, device: &mut Device, outbound: &mut Outbound) -> bool {
        let mut budget = i64::from(COPY);
        while budget > 0
            && let Some(mut copying) = self.copies.pop_front()
        {
            let before = copying.done;
            match self.copy_piece(&mut copying, device, outbound) {
                Some(answer) => {
                    self.answer(&copying.of, answer);
                    budget -= i64::from(copying.of.incoming.record.request_length() - before);
                }
                None => {
                    budget = 0;
                    self.copies.push_back(copying);
                }
            }
            // What a copy costs besides its bytes.
            budget -= 4096;
        }
        true
    }

    /// One piece of a copy; the answer if it was the last.
    fn copy_piece(
        &mut self,
        copying: &mut Copying,
        device: &mut Device,
        outbound: &mut Outbound,
    ) -> Option<Answer> {
        // The copies of a ring go with it.
        let Some(ring) = self.ring(&copying.of) else {
            return Some(Answer::Withdrawn);
        };
        let incoming = &copying.of.incoming;
        let header = incoming.record.header();
        let mut bytes = [0; record::MAX_SEGMENTS * record::SEGMENT];
        let length = incoming.record.payload();
        let list = ring.consumer.payload(incoming, 0, length);
        let segments = list
            .and_then(|(memory, at)| {
                let bytes = bytes.get_mut(..length as usize)?;
                memory.read(at, bytes);
                record::segments_from_bytes(bytes, header.length).ok()
            })
            .filter(|_| header.remote.is_some());
        let Some((segments, count)) = segments else {
            return Some(Answer::Status(Status::RemoteBadAddress));
        };
        if !ring.consumer.begin_copy(incoming) {
            return Some(Answer::Withdrawn);
        }
        // After the claim: the initiator may take its memory back any time before, also by dying.
        let Some(pid) = ring.peer.process() else {
            ring.consumer.end_copy(incoming);
            return Some(Answer::Status(Status::RemoteAbort));
        };
        let window = Window {
            offset: copying.done,
            length: COPY.min(header.length - copying.done),
        };
        let mut transfer = BetweenProcesses {
            pid,
            theirs: &segments[..count],
            window,
            is_last: window.end() == header.length,
            outcome: Moved::Done,
            whole: None,
        };
        let from = ring.peer.address().gid;
        let status = device.deliver(from, &header, &mut transfer);
        ring.consumer.end_copy(incoming);
        let answer = match (transfer.outcome, status) {
            (Moved::Instead(answer), _) => answer,
            (Moved::Done, Status::Ok) if !transfer.is_last => {
                copying.done = window.end();
                return None;
            }
            (Moved::Done, status) => Answer::Status(status),
        };
        if let (Some(tap), Answer::Status(status)) = (outbound.tap(), answer) {
            tap_rdma(tap, from, &incoming.record, transfer.whole, status);
        }
        Some(answer)
    }

    /// Sends data for peers' reads, and ends those that are through.
    fn serve_pulls(&mut self, device: &mut Device, outbound: &mut Outbound) -> bool {
        let mut busy = false;
        while let Some((name, status)) = outbound.next_read_data() {
            busy = true;
            self.pulls.settle(name, status);
        }
        for name in self.pulls.names() {
            let Some(pull) = self.pulls.get_mut(name) else {
                continue;
            };
            let of = pull.of;
            let before = pull.sent;
            if !pull.is_over() {
                match self.ring(&of).map(|ring| ring.peer.address()) {
                    Some(from) => self.send_read_data(name, from, device, outbound),
                    None => {
                        self.pulls.remove(name);
                        continue;
                    }
                }
            }
            let Some(pull) = self.pulls.get_mut(name) else {
                continue;
            };
            busy |= pull.sent != before;
            if pull.is_over() && pull.in_flight == 0 {
                busy = true;
                let (has_left, status) = (pull.has_left, pull.failed.unwrap_or(Status::Ok));
                self.pulls.remove(name);
                self.end_read(&of, has_left, status);
            }
        }
        busy
    }

    /// Sends parts of one read's data until the ring is full or others should have their turn.
    fn send_read_data(
        &mut self,
        name: PullName,
        to: Address,
        device: &mut Device,
        outbound: &mut Outbound,
    ) {
        let Some(pull) = self.pulls.get_mut(name) else {
            return;
        };
        let record = &pull.of.incoming.record;
        let header = record.header();
        for _ in 0..pulls::PARTS_PER_TURN {
            if pull.is_over() {
                return;
            }
            let rest = header.length - pull.sent;
            let window = Window {
                offset: pull.sent,
                length: rest.min(pulls::PART),
            };
            let mut transfer = IntoRing {
                outbound,
                to,
                read: BulkName(record.offset()),
                pull: name,
                total: header.length,
                window,
                is_last: window.length == rest,
                whole: None,
                pushed: Ok(false),
            };
            let status = device.deliver(to.gid, &header, &mut transfer);
            let (is_last, whole, pushed) = (transfer.is_last, transfer.whole, transfer.pushed);
            if let Some(tap) = outbound.tap()
                && pushed.is_ok()
                && (is_last || status != Status::Ok)
            {
                tap_rdma(tap, to.gid, record, whole, status);
            }
            match (pushed, status) {
                (Err(super::outbound::PushError::Full), _) => return,
                (Err(super::outbound::PushError::Gone), _) => {
                    pull.failed = Some(Status::RemoteAbort);
                }
                (Ok(pushed), Status::Ok) => {
                    pull.sent = window.end();
                    pull.is_delivered = is_last;
                    pull.in_flight += u32::from(pushed);
                }
                (Ok(_), status) => pull.failed = Some(status),
            }
        }
    }
}

/// Records a request that came with its data, or with the last part of it, or that was refused.
fn tap_data(tap: &mut Tap, from: Gid, transfer: &FromRing<'_>, status: Status) {
    let record = &transfer.incoming.record;
    if record.operation() == Operation::RdmaWrite {
        if record.is_last() || status != Status::Ok {
            tap_rdma(tap, from, record, transfer.whole, status);
        }
        return;
    }
    tap_arrival(tap, from, transfer);
    tap.answered(from, record, status);
}

/// Records that a request came with its data.
fn tap_arrival(tap: &mut Tap, from: Gid, transfer: &FromRing<'_>) {
    let mut payload = |offset: u32, into: &mut [u8]| {
        let place = transfer
            .consumer
            .payload(transfer.incoming, offset, into.len() as u32);
        place.map(|(memory, at)| memory.read(at, into)).is_some()
    };
    tap.received(from, &transfer.incoming.record, &mut payload);
}

/// Records an RDMA request that is through. `whole` is this process's side of its data.
fn tap_rdma(tap: &mut Tap, from: Gid, record: &Record, whole: Option<HostSegment>, status: Status) {
    let mut none: &[u8] = &[];
    match (record.operation(), whole) {
        (Operation::RdmaRead, Some(whole)) if status == Status::Ok => {
            tap.received(from, record, &mut none);
            tap.read_data_sent(from, record, whole);
        }
        (Operation::RdmaWrite, Some(whole)) => tap.received_into(from, record, whole),
        _ => tap.received(from, record, &mut none),
    }
    tap.answered(from, record, status);
}
