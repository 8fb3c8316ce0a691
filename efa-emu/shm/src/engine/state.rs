//! The device and its link, and one turn of work on them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use efa_core::address::{Gid, Qpn};
use efa_core::nic::Status;

use super::direct::{DirectQueues, FEW_POLLS};
use super::faults::Access;
use super::polling_policy::{IdleAction, PollingPolicy, ProcessorSample, SHORTEST_SLEEP};
use crate::error::FabricError;
use crate::fabric::capture_files::CaptureRequests;
use crate::fabric::host::Host;
use crate::identity::config::HostConfig;
use crate::identity::statistics::Publisher;
use crate::link::inbound::{Inbound, RecordContext};
use crate::link::memory;
use crate::link::outbound::{Outbound, WithdrawnRequests};
use crate::link::peer::Peers;
use crate::link::staged::{self, LateAnswer, LateAnswers, StagedRules};
use crate::process::clock::monotonic_now;
use crate::transport::segment::{Address, Segment};
use efa_device_model::device::{CqId, Device, DeviceEvent, Error, QueueError, QueueKind};
use efa_device_model::fault::{AdminCommand, EventOutcome};
use efa_device_model::link::{RequestHeader, Token};
use efa_lock_free::qpn::QpnChoice;

/// Called with every event of the device. It runs while the engine is locked: it
/// may write to a pipe or set a flag, and must not call the engine.
pub type EventHandler = Box<dyn FnMut(DeviceEvent) + Send>;

/// The shortest time between two checks of the life of peers, while something is expected of them.
pub(super) const CHECK_PEERS: Duration = Duration::from_millis(5);

/// Delay before a retry after a peer had no free slot.
const RETRY_BUSY: Duration = Duration::from_millis(1);

/// The thread that has announced that it sleeps until an event for the device. There is at most
/// one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sleeper {
    Nobody,
    Worker,
    /// A poll of the application.
    Poll,
}

/// The way in which the device detects doorbells that are written without a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doorbells {
    /// It is woken.
    Protected,
    /// It has to poll them.
    Open,
    /// A doorbell was rung, and has just been served.
    Rung,
}

/// The outcome of a command of an admin queue, which a device at PCI level has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandOutcome {
    /// It is carried out.
    Served,
    /// It fails with this error number.
    Fails(i32),
    /// It is carried out, and completes after this time.
    Late(Duration),
    /// It is neither carried out nor completed.
    Lost,
}

/// The device and its link, behind the engine's lock.
pub(super) struct EngineState {
    device: Device,
    inbound: Inbound,
    outbound: Outbound,
    qpns: QpnChoice,
    events: Option<EventHandler>,
    pub(super) started: Instant,
    /// Queues whose doorbells are not announced by calls.
    watched: usize,
    /// Clients that make no calls, if there are any and the system reports their accesses.
    direct: Option<DirectQueues>,
    /// The count of arrivals for such clients at the last check.
    arrivals: u64,
    captures: CaptureRequests,
    staged: StagedRules,
    late_answers: LateAnswers,
    publisher: Publisher,
    pub(super) polling: PollingPolicy,
    pub(super) sleeper: Sleeper,
    /// The last turn did not look for answers.
    answers_wait: bool,
}

impl EngineState {
    pub(super) fn new(
        device: Device,
        host: &Host,
        segment: Arc<Segment>,
        config: &HostConfig,
    ) -> Result<EngineState, FabricError> {
        let peers = Peers::new(host.fabric().clone(), Arc::clone(&segment));
        let Address { id, .. } = host.address();
        let seed = config.network.seed ^ u64::from(id.0) << 32;
        segment.declare_network(&config.network);
        let replies = config.network.network(host.fabric().inverted_gid_bits());
        let replies = (!replies.config.is_immediate()).then_some(replies);
        let nobody = device.profile().statuses.unknown_queue_pair;
        let polling = PollingPolicy::new(device.profile().connected);
        let mut state = EngineState {
            device,
            inbound: Inbound::new(segment, replies),
            outbound: Outbound::new(config, peers, nobody),
            qpns: QpnChoice::new(config.network.qpn_reuse, seed),
            events: None,
            started: Instant::now(),
            watched: 0,
            direct: None,
            arrivals: 0,
            captures: CaptureRequests::new(host.directory(), id, config.run()),
            staged: StagedRules::new(host.fabric())?,
            late_answers: LateAnswers::default(),
            publisher: Publisher::new(Arc::clone(host.table())),
            polling,
            sleeper: Sleeper::Nobody,
            answers_wait: false,
        };
        state.look_for_faults();
        Ok(state)
    }

    pub(super) fn device(&mut self) -> &mut Device {
        &mut self.device
    }

    pub(super) fn qpn_choice(&mut self) -> &mut QpnChoice {
        &mut self.qpns
    }

    pub(super) fn set_event_handler(&mut self, handler: Option<EventHandler>) {
        self.events = handler;
    }

    pub(super) fn watch_qp(&mut self, qpn: Qpn, watched: bool) -> Result<(), Error> {
        self.device.watch_qp(qpn, watched)?;
        self.count_watched(watched);
        Ok(())
    }

    /// Begins to serve clients that make no calls, unless that has begun.
    pub(super) fn begin_direct(&mut self, begin: impl FnOnce() -> Option<DirectQueues>) {
        if self.direct.is_none() {
            self.direct = begin();
        }
    }

    /// Ends direct access. The caller must drop the result without the engine's lock.
    pub(super) fn take_direct(&mut self) -> Option<DirectQueues> {
        self.direct.take()
    }

    /// Has the direct doorbell of a queue pair wake the device, or no more.
    pub(super) fn attend_doorbell(&mut self, qpn: Qpn, watched: bool) {
        if let Some(direct) = &mut self.direct {
            direct.remove_doorbell(qpn);
            if watched && let Some(ring) = self.device.send_ring(qpn) {
                direct.add_doorbell(qpn, ring);
            }
        }
    }

    /// Lets direct polls of a completion queue wait, or no more.
    pub(super) fn attend_queue(&mut self, cq: CqId, watched: bool) {
        if let Some(direct) = &mut self.direct {
            direct.remove_queue(cq);
            if watched && let Some(ring) = self.device.completion_ring(cq) {
                direct.add_queue(cq, ring);
            }
        }
    }

    /// Answers an access of a client that makes no calls, which waits. Returns whether it is a
    /// store that is to be let through afterwards.
    pub(super) fn answer(&mut self, access: Access) -> bool {
        let now = Instant::now();
        let rung = self.direct.as_mut().and_then(|each| each.take_ring(access));
        if let Some(qpn) = rung {
            self.device.find_written_entries(qpn);
            self.pass_aside();
        }
        let EngineState {
            direct: Some(direct),
            device,
            polling,
            ..
        } = self
        else {
            return false;
        };
        let next = |cq| device.next_completion(cq);
        match rung {
            Some(_) => {
                if polling.is_contended(now, || direct.was_delayed(access.thread, now)) {
                    direct.hide(next);
                }
            }
            None => {
                direct.take_poll(access, now, next);
                // A client that polls has rung the doorbell.
                direct.protect();
            }
        }
        rung.is_some()
    }

    /// Serves clients that make no calls. `is_time` is set if no client has accessed a page since
    /// the last check. Returns the time of the next call, unless an access happens before.
    pub(super) fn tend_direct(&mut self, is_time: bool) -> Option<Duration> {
        let now = Instant::now();
        let direct = self.direct.as_mut()?;
        match direct.remaining_wait(now) {
            Some(Duration::ZERO) => {
                direct.end_wait();
                return Some(FEW_POLLS);
            }
            Some(rest) => return Some(rest),
            // The client that was just released has not run yet.
            None if !is_time => return Some(SHORTEST_SLEEP),
            None => {}
        }
        let is_protected = self.protect_doorbells() == Doorbells::Protected;
        let EngineState {
            direct: Some(direct),
            device,
            polling,
            ..
        } = self
        else {
            return None;
        };
        if !direct.is_hiding() && polling.is_contended(now, || false) {
            direct.hide(|cq| device.next_completion(cq));
        }
        (!is_protected).then_some(SHORTEST_SLEEP)
    }

    /// Continues direct polls if there are entries that they wait for.
    fn show_arrivals(&mut self) {
        let counters = self.device.counters();
        let arrivals = counters.recv_wrs + counters.rdma_read_wrs + counters.rdma_write_wrs;
        if std::mem::replace(&mut self.arrivals, arrivals) != arrivals
            && let Some(direct) = &mut self.direct
            && direct.is_hiding()
        {
            direct.show_arrival();
        }
    }

    /// Has direct doorbells wake the device from now on.
    pub(super) fn protect_doorbells(&mut self) -> Doorbells {
        let is_protected = match &mut self.direct {
            Some(direct) => direct.protect(),
            None => false,
        };
        if self.device.read_watched_doorbells() {
            self.send();
            return Doorbells::Rung;
        }
        match is_protected {
            true => Doorbells::Protected,
            false => Doorbells::Open,
        }
    }

    /// Lets the engine itself write direct doorbells, which has locked the state that answers need.
    pub(super) fn open_doorbells(&mut self) {
        if let Some(direct) = &mut self.direct {
            direct.open();
        }
    }

    pub(super) fn watch_cq(&mut self, cq: CqId, watched: bool) -> Result<(), Error> {
        self.device.watch_cq(cq, watched)?;
        self.count_watched(watched);
        Ok(())
    }

    fn count_watched(&mut self, watched: bool) {
        self.watched = if watched {
            self.watched + 1
        } else {
            self.watched.saturating_sub(1)
        };
    }

    /// Whether doorbells must be polled because their writes are not announced.
    pub(super) fn is_watching(&self) -> bool {
        self.watched > 0
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// One turn: receives and sends all possible requests. Returns whether there was any work.
    #[inline(always)]
    pub(super) fn pass(&mut self) -> bool {
        if self.watched > 0 {
            self.device.read_watched_doorbells();
        }
        self.look_for_faults();
        if self.publisher.is_requested() {
            self.publish();
        }
        let mut busy = self.inbound.poll(RecordContext {
            device: &mut self.device,
            outbound: &mut self.outbound,
            staged: &mut self.staged,
        });
        // The application may be waiting for the received packets, so they are delivered
        // immediately. Answers to its requests follow with its next poll.
        self.answers_wait = busy && !self.answers_wait;
        if self.answers_wait {
            self.raise_events();
            return true;
        }
        busy |= self.reap();
        busy |= self.send();
        if !busy {
            self.device.look_ahead(memory::fetch_near);
        }
        busy
    }

    /// As [`EngineState::pass`], for callers off the data path.
    #[inline(never)]
    pub(super) fn pass_aside(&mut self) -> bool {
        let busy = self.pass();
        if self.direct.is_some() {
            self.show_arrivals();
        }
        busy
    }

    /// Processes the answers of peers. Returns whether there were any.
    #[inline(always)]
    fn reap(&mut self) -> bool {
        if !self.outbound.has_unanswered() {
            return false;
        }
        // Faults and captures process each outcome before the device does.
        let is_plain =
            !(self.staged.is_armed() | self.outbound.is_tapped()) && self.late_answers.is_empty();
        match is_plain {
            true => self.outbound.reap(&mut self.device),
            false => self.outbound.reap_aside(),
        }
    }

    /// Sends from a queue pair whose doorbell was written, and all other queued packets.
    #[inline(always)]
    pub(super) fn serve_send_doorbell(&mut self, qpn: Qpn) -> Result<(), Error> {
        self.device.serve_send_doorbell(qpn, &mut self.outbound)?;
        self.send();
        Ok(())
    }

    /// Sends all possible requests, and raises the events that are due.
    #[inline(always)]
    pub(super) fn send(&mut self) -> bool {
        let has_work = self.device.has_unsent()
            | self.device.next_timeout().is_some()
            | self.outbound.has_work()
            | !self.late_answers.is_empty();
        let busy = has_work && self.send_now();
        self.raise_events();
        busy
    }

    #[inline(never)]
    fn send_now(&mut self) -> bool {
        let mut busy = false;
        let has_timers = self.device.next_timeout().is_some();
        if has_timers || self.device.has_unsent() {
            // Only timers need the time.
            let now = if has_timers {
                self.now()
            } else {
                Duration::ZERO
            };
            busy |= self.device.transmit(now, &mut self.outbound) > 0;
        }
        busy |= self.outbound.advance(&self.device);
        if self.outbound.has_completed() || !self.late_answers.is_empty() {
            busy |= self.complete();
        }
        busy
    }

    /// Adds the device's counts to the host's statistics, and checks for staged changes of the
    /// device: errors of its queues, or its removal.
    #[cold]
    pub(super) fn publish(&mut self) {
        self.publisher.publish(&self.device);
        for error in self.publisher.new_errors() {
            self.stage(error);
        }
        if self.publisher.is_removed() && self.device.check_present().is_ok() {
            self.remove();
        }
        // Requests that are posted later fail too, in the next turn.
        if self.publisher.is_removed() || self.device.has_broken() {
            self.device.flush_failed();
            self.publisher.look_again();
        }
    }

    fn stage(&mut self, error: QueueError) {
        // The same as for a removal. A failure of completion queues withdraws no memory from a
        // peer.
        let taken = match error.kind {
            QueueKind::QueuePair => self
                .try_take_back(|_, _, header| error.qpn.is_none_or(|qpn| qpn == header.source_qpn)),
            QueueKind::CompletionQueue => None,
        };
        self.device.stage(error);
        if let Some(taken) = taken {
            self.settle_taken(taken, true);
        }
        self.raise_events();
    }

    /// Removes the device: its outstanding requests fail.
    fn remove(&mut self) {
        // This must not wait for a peer that has stopped in the middle of a copy. The call that
        // ends the registration waits for it.
        let taken = self.try_take_back(|_, _, _| true);
        self.device.remove();
        if let Some(taken) = taken {
            self.settle_taken(taken, true);
        }
        self.raise_events();
    }

    /// Detects faults that were armed, disarmed or released.
    #[inline]
    pub(super) fn look_for_faults(&mut self) {
        if let Some(change) = self.staged.look() {
            self.follow(&change);
        }
    }

    #[cold]
    fn follow(&mut self, change: &staged::RuleChange) {
        self.inbound.attend(self.staged.is_armed());
        self.inbound.follow(
            change,
            &mut RecordContext {
                device: &mut self.device,
                outbound: &mut self.outbound,
                staged: &mut self.staged,
            },
        );
        self.late_answers.follow(change, &self.staged);
        let port = self.staged.port(self.device.gid());
        self.device.set_port(port);
        self.raise_events();
    }

    pub(super) fn staged(&mut self) -> &mut StagedRules {
        &mut self.staged
    }

    /// The effect of rules on a command of the admin queue; `number` counts the earlier commands.
    pub(super) fn command_outcome(
        &mut self,
        host: Gid,
        command: AdminCommand,
        number: u64,
    ) -> CommandOutcome {
        match self.staged.command_outcome(host, command) {
            Some(EventOutcome::Fail(errno)) => CommandOutcome::Fails(errno),
            Some(EventOutcome::Delay(delay)) => {
                CommandOutcome::Late(self.outbound.command_delay(number, delay))
            }
            Some(EventOutcome::Lose) => CommandOutcome::Lost,
            _ => CommandOutcome::Served,
        }
    }

    /// Passes to the device the outcomes that were not passed to it immediately.
    #[cold]
    fn complete(&mut self) -> bool {
        if self.staged.is_armed() || !self.late_answers.is_empty() {
            return self.complete_with_faults();
        }
        let mut busy = false;
        while let Some((token, status)) = self.outbound.next_completed(&mut self.device) {
            busy = true;
            self.complete_one(token, status);
        }
        busy
    }

    #[cold]
    fn complete_with_faults(&mut self) -> bool {
        let mut busy = false;
        loop {
            let EngineState {
                device,
                outbound,
                staged,
                late_answers,
                ..
            } = self;
            let outcome = match outbound.next_completed(device) {
                Some((token, status)) => {
                    busy = true;
                    late_answers.arrive(token, status, device, outbound, staged)
                }
                None => match late_answers.next(device, outbound, staged) {
                    None => return busy,
                    due => due,
                },
            };
            let Some(outcome) = outcome else { continue };
            busy = true;
            let LateAnswer {
                token,
                status,
                duplicate,
            } = outcome;
            if duplicate {
                let before = self.device.completion_counters();
                self.complete_one(token, status);
                self.device.repeat_completions(&before);
            } else {
                self.complete_one(token, status);
            }
        }
    }

    #[inline]
    fn complete_one(&mut self, token: Token, status: Status) {
        if self.outbound.tap().is_some() {
            self.tap_completed(token, status);
        }
        // Only this status starts a timer.
        let now = match status {
            Status::RemoteRnr => self.started.elapsed(),
            _ => Duration::ZERO,
        };
        self.device.complete(now, token, status);
    }

    #[cold]
    fn tap_completed(&mut self, token: Token, status: Status) {
        if let Some(tap) = self.outbound.tap() {
            tap.completed(token, status, self.device.local_memory(token));
        }
    }

    #[inline]
    pub(super) fn raise_events(&mut self) {
        if self.device.has_events() {
            self.handle_events();
        }
    }

    #[cold]
    fn handle_events(&mut self) {
        for event in self.device.take_events() {
            if let DeviceEvent::QpFatal(_) = event {
                self.publisher.look_again();
            }
            if let Some(handler) = &mut self.events {
                handler(event);
            }
        }
    }

    /// See [`Outbound::try_take_back`].
    pub(super) fn try_take_back(
        &mut self,
        chosen: impl Fn(&Device, Token, &RequestHeader) -> bool,
    ) -> Option<WithdrawnRequests> {
        let EngineState {
            device, outbound, ..
        } = self;
        outbound.try_take_back(device, |token, header| chosen(device, token, header))
    }

    /// Ends the requests whose memory was withdrawn, or continues them.
    pub(super) fn settle_taken(&mut self, taken: WithdrawnRequests, ended: bool) {
        match ended {
            true => self.outbound.keep_back(taken),
            false => self.outbound.give_back(taken),
        }
    }

    /// Begins and ends captures when the requested files change.
    pub(super) fn check_captures(&mut self) {
        if let Some(requested) = self.captures.look() {
            self.outbound.record(&requested, self.device.profile().mtu);
            self.captures.answer(&requested);
        }
    }

    /// Checks for dead peers, and for requested captures.
    pub(super) fn check_peers(&mut self) -> bool {
        self.check_captures();
        let dead = self.outbound.find_dead();
        let is_busy = !dead.is_empty();
        if is_busy {
            // Records that dead processes sent before their end are still valid, such as announced
            // outcomes.
            self.pass_aside();
        }
        self.outbound.abandon_dead(dead);
        is_busy && self.pass_aside()
    }

    /// Makes senders ring the doorbell from now on. Returns whether no record arrived before that
    /// took effect.
    pub(super) fn prepare_to_sleep(&mut self) -> bool {
        self.inbound.prepare_to_sleep() && !self.pass_aside()
    }

    /// Whether the application's polls were empty long enough that they should yield.
    #[inline]
    pub(super) fn must_stop_polling(&mut self) -> bool {
        let counters = self.device.counters();
        self.polling.is_over(
            counters.recv_wrs
                + counters.send_wrs
                + counters.rdma_read_wrs
                + counters.rdma_write_wrs,
        )
    }

    /// The way in which an empty poll yields, and the time until which others are assumed to need
    /// the processors.
    pub(super) fn next_idle_action(&mut self) -> (IdleAction, Option<Instant>) {
        let has_bridges = self.outbound.peers().has_bridges();
        let rest = self
            .polling
            .next_idle_action(has_bridges, ProcessorSample::take);
        let contended_until = match self.device.awaits_event() {
            true => None,
            false => self.polling.contended_until(),
        };
        (rest, contended_until)
    }

    /// Whether work is due at a certain time without a wake-up.
    #[inline]
    pub(super) fn has_deadlines(&self) -> bool {
        self.outbound.is_waiting()
            || self.outbound.next_due().is_some()
            || self.device.next_timeout().is_some()
            || self.device.has_unsent()
            || self.inbound.next_due().is_some()
            || self.staged.is_armed()
            || !self.late_answers.is_empty()
    }

    /// The time, since the start, of the next work without a wake-up.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let now = self.now();
        let first = self.inbound.next_due().into_iter();
        let due = first
            .chain(self.outbound.next_due())
            .chain(self.late_answers.next_due())
            .min()
            .map(|due| now + due.saturating_sub(monotonic_now()));
        let alive = self.outbound.is_waiting().then(|| now + CHECK_PEERS);
        let busy = self.device.has_unsent().then(|| now + RETRY_BUSY);
        let faults = self.staged.is_armed().then(|| now + staged::POLL_INTERVAL);
        [due, alive, busy, faults, self.device.next_timeout()]
            .into_iter()
            .flatten()
            .min()
    }

    /// The last step: peers detect that the device is closed.
    pub(super) fn close(&mut self) {
        self.publish();
        self.inbound.close(&mut self.outbound);
        self.outbound.close();
    }
}
