//! What the application's threads and the engine's thread share, and one turn of work on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use efa_core::address::Qpn;
use efa_core::nic::Status;

use super::direct::{Direct, FEW_POLLS};
use super::faults::Access;
use super::patience::{Look, NAP, Patience, Rest};
use crate::error::FabricError;
use crate::fabric::capture_files::CaptureRequests;
use crate::fabric::host::Host;
use crate::identity::config::HostConfig;
use crate::identity::qpn::QpnChoice;
use crate::identity::statistics::Publisher;
use crate::link::inbound::{Inbound, Work};
use crate::link::memory;
use crate::link::outbound::{Outbound, TakenBack};
use crate::link::peer::Peers;
use crate::link::staged::{self, LateAnswer, LateAnswers, Staged};
use crate::process::clock::monotonic_now;
use crate::process::fork::HomeProcess;
use crate::process::mutex::{Guard, Mutex};
use crate::process::shared::futex;
use crate::transport::segment::{Address, Segment};
use efa_device_model::device::{CqId, Device, DeviceEvent, Error, QueueError, QueueKind};
use efa_device_model::link::{RequestHeader, Token};

/// Called with every event of the device. It runs while the engine is locked: it
/// may write to a pipe or set a flag, and must not call the engine.
pub type EventHandler = Box<dyn FnMut(DeviceEvent) + Send>;

/// How often the life of peers is looked at, at most, while something is expected of them.
pub(super) const CHECK_PEERS: Duration = Duration::from_millis(5);

/// How soon to try again what a peer without a free slot refused.
const RETRY_BUSY: Duration = Duration::from_millis(1);

/// No time at all.
const NEVER: u64 = u64::MAX;

/// One opened device, as its threads share it.
pub(super) struct Shared {
    pub(super) home: HomeProcess,
    pub(super) host: Host,
    pub(super) segment: Arc<Segment>,
    state: Mutex<State>,
    started: Instant,
    /// Counts the application's polls, so that the worker sees whether there are any.
    polls: AtomicU32,
    stop: AtomicBool,
    /// When the sleeping worker wakes by itself, in nanoseconds since `started`.
    worker_wakes_at: AtomicU64,
    /// Changes when the worker is to end its nap.
    naps: AtomicU32,
    /// The application has polled in vain for so long that its polls are to call [`Shared::rest`].
    rest_is_due: AtomicBool,
    /// Until when others are assumed to want the processors, in nanoseconds since `started`.
    crowded_until: AtomicU64,
}

/// The thread that has announced that it sleeps until something comes for the device. There is one
/// at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sleeper {
    Nobody,
    Worker,
    /// A poll of the application.
    Poll,
}

/// How the device learns that doorbells are rung without a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doorbells {
    /// It is woken.
    Protected,
    /// It has to look.
    Open,
    /// One was rung, and served, just now.
    Rung,
}

impl Shared {
    pub(super) fn new(
        home: HomeProcess,
        host: Host,
        segment: Arc<Segment>,
        state: State,
    ) -> Shared {
        Shared {
            home,
            host,
            segment,
            started: state.started,
            state: Mutex::new(state),
            polls: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            worker_wakes_at: AtomicU64::new(NEVER),
            naps: AtomicU32::new(0),
            rest_is_due: AtomicBool::new(false),
            crowded_until: AtomicU64::new(0),
        }
    }

    pub(super) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    #[inline(always)]
    pub(super) fn lock(&self) -> Result<Guard<'_, State>, FabricError> {
        if !self.home.is_current() {
            return Err(FabricError::Forked);
        }
        Ok(self.state.lock())
    }

    #[inline(always)]
    pub(super) fn try_lock(&self) -> Option<Guard<'_, State>> {
        self.state.try_lock()
    }

    #[inline]
    pub(super) fn note_poll(&self) {
        // Not an atomic increment: polls that get lost among many do not matter.
        let polls = self.polls.load(Ordering::Relaxed);
        self.polls.store(polls.wrapping_add(1), Ordering::Relaxed);
    }

    pub(super) fn polls(&self) -> u32 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Has the worker end. The worker looks at `stop` after it has announced its sleep or read
    /// `naps`; here both are changed after `stop`, by atomic operations that also read. So the
    /// worker finds `stop` set, or is woken.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.interrupt();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Wakes the thread that sleeps for the device, and the worker from its nap.
    pub(super) fn interrupt(&self) {
        self.naps.fetch_add(1, Ordering::Release);
        futex::wake(&self.naps);
        self.segment.interrupt();
    }

    /// Lets the worker sleep for a time, or until it is interrupted. Peers do not wake it. An
    /// interruption that comes while `time` is asked counts already: what it was about may have
    /// decided the time.
    pub(super) fn nap(&self, time: impl FnOnce() -> Duration) {
        let naps = self.naps.load(Ordering::Acquire);
        let time = time();
        if !self.is_stopped() {
            futex::wait(&self.naps, naps, Some(time));
        }
    }

    /// Takes back that the calling thread sleeps, and locks the state.
    pub(super) fn wake_up(&self) -> Guard<'_, State> {
        let mut state = self.state.lock();
        state.sleeper = Sleeper::Nobody;
        self.segment.stay_awake();
        state
    }

    /// Counts a poll in vain.
    #[inline]
    pub(super) fn note_poll_in_vain(&self, state: &mut State) {
        if state.is_patience_over() {
            self.rest_is_due.store(true, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn should_rest(&self) -> bool {
        self.rest_is_due.load(Ordering::Relaxed)
    }

    /// Whether the application's polls have found that others want its processor. Not while it asks
    /// for an event: then it is about to sleep, and a poll that comes before that is no sign that
    /// it goes on polling.
    pub(super) fn is_crowded(&self) -> bool {
        let until = Duration::from_nanos(self.crowded_until.load(Ordering::Relaxed));
        self.uptime() < until
    }

    /// The application asks for an event. So it is going to sleep, and the worker has to notice
    /// that soon.
    pub(super) fn leave_crowd(&self) {
        if self.crowded_until.swap(0, Ordering::Relaxed) != 0 {
            self.interrupt();
        }
    }

    /// See [`Engine::rest`](super::Engine::rest).
    pub(super) fn rest(&self) {
        let Some(mut state) = self.try_lock() else {
            return;
        };
        self.rest_is_due.store(false, Ordering::Relaxed);
        let has_bridges = state.outbound.peers().has_bridges();
        let rest = state.patience.next_rest(has_bridges, Look::take);
        let crowded_until = match state.device.awaits_event() {
            true => None,
            false => state.patience.crowded_until(),
        };
        let crowded_until =
            crowded_until.map_or(0, |until| (until - self.started).as_nanos() as u64);
        self.crowded_until.store(crowded_until, Ordering::Relaxed);
        let longest = match rest {
            Rest::Nothing => return,
            Rest::GiveWay => {
                drop(state);
                return std::thread::yield_now();
            }
            Rest::Nap(longest) => longest,
        };
        match state.sleeper {
            Sleeper::Nobody => {
                self.segment.fall_asleep();
                if !state.prepare_to_sleep() {
                    self.segment.stay_awake();
                    return;
                }
                let due = state.next_deadline();
                let time = due.map_or(longest, |due| due.saturating_sub(self.uptime()));
                state.sleeper = Sleeper::Poll;
                drop(state);
                self.segment.sleep(Some(time.min(longest)));
                self.wake_up().patience.napped(Instant::now());
            }
            // It has not noticed yet that there are polls again.
            Sleeper::Worker => {
                drop(state);
                self.interrupt();
            }
            // Another thread's: what wakes that wakes this one.
            Sleeper::Poll => {
                drop(state);
                self.segment.sleep(Some(longest));
            }
        }
    }

    /// Notes until when the worker is going to sleep, at most for `pause`, and returns for how long
    /// that is. The caller has locked the state.
    pub(super) fn plan_sleep(&self, state: &State, pause: Option<Duration>) -> Option<Duration> {
        let pause = pause.map(|pause| self.uptime() + pause);
        let wake_at = state.next_deadline().into_iter().chain(pause).min();
        let nanos = wake_at.map_or(NEVER, |time| time.as_nanos() as u64);
        self.worker_wakes_at.store(nanos, Ordering::Relaxed);
        wake_at.map(|time| time.saturating_sub(self.uptime()))
    }

    /// Wakes the worker if it would sleep past something that the application's call has just made
    /// necessary. The caller has locked the state.
    #[inline]
    pub(super) fn keep_worker_in_time(&self, state: &State) {
        if self.segment.is_asleep() && state.has_deadlines() {
            self.shorten_sleep(state);
        }
    }

    #[cold]
    fn shorten_sleep(&self, state: &State) {
        let wakes_at = self.worker_wakes_at.load(Ordering::Relaxed);
        let needed = state.next_deadline().map(|time| time.as_nanos() as u64);
        if needed.is_some_and(|needed| needed < wakes_at) {
            self.interrupt();
        }
    }
}

/// The device and its link, behind the engine's lock.
pub(super) struct State {
    device: Device,
    inbound: Inbound,
    outbound: Outbound,
    qpns: QpnChoice,
    events: Option<EventHandler>,
    started: Instant,
    /// Queues whose doorbells are not announced by calls.
    watched: usize,
    /// Clients that make no calls, if there are any and the system tells what they do.
    direct: Option<Direct>,
    /// What had come for such clients at the last look.
    arrivals: u64,
    captures: CaptureRequests,
    staged: Staged,
    late_answers: LateAnswers,
    publisher: Publisher,
    patience: Patience,
    pub(super) sleeper: Sleeper,
    /// The last turn did not look for answers.
    answers_wait: bool,
}

impl State {
    pub(super) fn new(
        device: Device,
        host: &Host,
        segment: Arc<Segment>,
        config: &HostConfig,
    ) -> Result<State, FabricError> {
        let peers = Peers::new(host.fabric().clone(), Arc::clone(&segment));
        let Address { id, .. } = host.address();
        let seed = config.network.seed ^ u64::from(id.0) << 32;
        segment.declare_network(&config.network);
        let replies = config.network.network();
        let replies = (!replies.config.is_immediate()).then_some(replies);
        let nobody = device.profile().statuses.unknown_queue_pair;
        let mut state = State {
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
            staged: Staged::new(host.fabric())?,
            late_answers: LateAnswers::default(),
            publisher: Publisher::new(Arc::clone(host.table())),
            patience: Patience::new(),
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
    pub(super) fn begin_direct(&mut self, begin: impl FnOnce() -> Option<Direct>) {
        if self.direct.is_none() {
            self.direct = begin();
        }
    }

    /// Ends that. What is returned has to be dropped without the engine's lock.
    pub(super) fn take_direct(&mut self) -> Option<Direct> {
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
        let State {
            direct: Some(direct),
            device,
            patience,
            ..
        } = self
        else {
            return false;
        };
        let next = |cq| device.next_completion(cq);
        match rung {
            Some(_) => {
                if patience.is_crowded(now, || direct.was_delayed(access.thread, now)) {
                    direct.hide(next);
                }
            }
            None => {
                direct.take_poll(access, now, next);
                // Whoever polls has rung.
                direct.protect();
            }
        }
        rung.is_some()
    }

    /// Does what is due for clients that make no calls; `is_time` says that none has accessed
    /// anything since that was last asked. Returns when to do it again, unless one does.
    pub(super) fn tend_direct(&mut self, is_time: bool) -> Option<Duration> {
        let now = Instant::now();
        let direct = self.direct.as_mut()?;
        match direct.rest_of_nap(now) {
            Some(Duration::ZERO) => {
                direct.end_nap();
                return Some(FEW_POLLS);
            }
            Some(rest) => return Some(rest),
            // Whoever was just let go on has not done so yet.
            None if !is_time => return Some(NAP),
            None => {}
        }
        let is_protected = self.protect_doorbells() == Doorbells::Protected;
        let State {
            direct: Some(direct),
            device,
            patience,
            ..
        } = self
        else {
            return None;
        };
        if !direct.is_hiding() && patience.is_crowded(now, || false) {
            direct.hide(|cq| device.next_completion(cq));
        }
        (!is_protected).then_some(NAP)
    }

    /// Lets direct polls go on if there is something that they wait for.
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

    /// Whether doorbells have to be looked at without being told.
    pub(super) fn is_watching(&self) -> bool {
        self.watched > 0
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// One turn: takes what has come, sends what can be sent. Returns whether there was anything.
    #[inline(always)]
    pub(super) fn pass(&mut self) -> bool {
        if self.watched > 0 {
            self.device.read_watched_doorbells();
        }
        self.look_for_faults();
        if self.publisher.is_asked() {
            self.publish();
        }
        let mut busy = self.inbound.poll(Work {
            device: &mut self.device,
            outbound: &mut self.outbound,
            staged: &mut self.staged,
        });
        // What came in may be what the application waits for. It gets that at once; answers to its
        // own requests follow with its next poll.
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

    /// As [`State::pass`], for callers off the data path.
    #[inline(never)]
    pub(super) fn pass_aside(&mut self) -> bool {
        let busy = self.pass();
        if self.direct.is_some() {
            self.show_arrivals();
        }
        busy
    }

    /// Takes the answers of peers. Returns whether there were any.
    #[inline(always)]
    fn reap(&mut self) -> bool {
        if !self.outbound.has_unanswered() {
            return false;
        }
        // Faults and captures see each outcome before the device does.
        let is_plain =
            !(self.staged.is_armed() | self.outbound.is_tapped()) && self.late_answers.is_empty();
        match is_plain {
            true => self.outbound.reap(&mut self.device),
            false => self.outbound.reap_aside(),
        }
    }

    /// Sends what can be sent, and raises the events that are due.
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
            // The time matters only to timers.
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

    /// Adds what the device has counted to the host's statistics, and learns what was done to the
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
        // Also what is posted later ends, with the next turn.
        if self.publisher.is_removed() || self.device.has_broken() {
            self.device.flush_failed();
            self.publisher.look_again();
        }
    }

    fn stage(&mut self, error: QueueError) {
        // As for a removal. Completion queues take nothing from a peer.
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

    /// The device is gone: what was asked of it fails.
    fn remove(&mut self) {
        // A peer that has stopped in the middle of a copy cannot be waited for here. Whoever ends
        // the registration waits for it.
        let taken = self.try_take_back(|_, _, _| true);
        self.device.remove();
        if let Some(taken) = taken {
            self.settle_taken(taken, true);
        }
        self.raise_events();
    }

    /// Takes notice of faults that were armed, disarmed or released.
    #[inline]
    pub(super) fn look_for_faults(&mut self) {
        if let Some(change) = self.staged.look() {
            self.follow(&change);
        }
    }

    #[cold]
    fn follow(&mut self, change: &staged::Change) {
        self.inbound.attend(self.staged.is_armed());
        self.inbound.follow(
            change,
            &mut Work {
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

    /// The rules that are armed.
    pub(super) fn staged(&mut self) -> &mut Staged {
        &mut self.staged
    }

    /// Hands the outcomes to the device that did not go there at once.
    #[cold]
    fn complete(&mut self) -> bool {
        if self.staged.is_armed() || !self.late_answers.is_empty() {
            return self.complete_with_faults();
        }
        let mut busy = false;
        while let Some((token, status)) = self.outbound.next_completed() {
            busy = true;
            self.complete_one(token, status);
        }
        busy
    }

    #[cold]
    fn complete_with_faults(&mut self) -> bool {
        let mut busy = false;
        loop {
            let State {
                device,
                outbound,
                staged,
                late_answers,
                ..
            } = self;
            let outcome = match outbound.next_completed() {
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
            self.tell_events();
        }
    }

    #[cold]
    fn tell_events(&mut self) {
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
    ) -> Option<TakenBack> {
        let State {
            device, outbound, ..
        } = self;
        outbound.try_take_back(device, |token, header| chosen(device, token, header))
    }

    /// Ends the requests whose memory was taken back, or lets them go on.
    pub(super) fn settle_taken(&mut self, taken: TakenBack, ended: bool) {
        match ended {
            true => self.outbound.keep_back(taken),
            false => self.outbound.give_back(taken),
        }
    }

    /// Begins and ends captures when the files that are asked for change.
    pub(super) fn check_captures(&mut self) {
        if let Some(requested) = self.captures.look() {
            self.outbound.record(&requested, self.device.profile().mtu);
            self.captures.answer(&requested);
        }
    }

    /// Looks after peers that may have died, and for captures that are asked for.
    pub(super) fn check_peers(&mut self) -> bool {
        self.check_captures();
        let dead = self.outbound.find_dead();
        let is_busy = !dead.is_empty();
        if is_busy {
            // What the dead sent before their end has left them: outcomes that they had announced,
            // for one.
            self.pass_aside();
        }
        self.outbound.abandon_dead(dead);
        is_busy && self.pass_aside()
    }

    /// Makes senders ring the doorbell from now on. Returns whether nothing had come before that
    /// took effect.
    pub(super) fn prepare_to_sleep(&mut self) -> bool {
        self.inbound.prepare_to_sleep() && !self.pass_aside()
    }

    /// Whether the application's polls have found nothing for so long that they should make room
    /// for others.
    #[inline]
    pub(super) fn is_patience_over(&mut self) -> bool {
        let counters = self.device.counters();
        self.patience.is_over(
            counters.recv_wrs
                + counters.send_wrs
                + counters.rdma_read_wrs
                + counters.rdma_write_wrs,
        )
    }

    /// Whether anything has to be done at some time without being woken for it.
    #[inline]
    fn has_deadlines(&self) -> bool {
        self.outbound.is_waiting()
            || self.outbound.next_due().is_some()
            || self.device.next_timeout().is_some()
            || self.device.has_unsent()
            || self.inbound.next_due().is_some()
            || self.staged.is_armed()
            || !self.late_answers.is_empty()
    }

    /// The time, since the start, at which something has to be done without being woken for it.
    fn next_deadline(&self) -> Option<Duration> {
        let now = self.now();
        let first = self.inbound.next_due().into_iter();
        let due = first
            .chain(self.outbound.next_due())
            .chain(self.late_answers.next_due())
            .min()
            .map(|due| now + due.saturating_sub(monotonic_now()));
        let alive = self.outbound.is_waiting().then(|| now + CHECK_PEERS);
        let busy = self.device.has_unsent().then(|| now + RETRY_BUSY);
        let faults = self.staged.is_armed().then(|| now + staged::LOOK);
        [due, alive, busy, faults, self.device.next_timeout()]
            .into_iter()
            .flatten()
            .min()
    }

    /// The last step: peers see the device go.
    pub(super) fn close(&mut self) {
        self.publish();
        self.inbound.close(&mut self.outbound);
        self.outbound.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engine;
    use crate::fabric::directory::Fabric;
    use efa_device_model::device::queue::{CqDoorbell, RequestIdSize};
    use efa_device_model::profile::Profile;

    fn open_engine(root: &tempfile::TempDir) -> Engine {
        let fabric = Fabric::open_below(root.path(), "crowd").unwrap();
        let config = HostConfig::new("crowd", "alpha");
        let profile = Profile::named(&config.profile).unwrap();
        Engine::open_in(&fabric, &config, profile).unwrap()
    }

    /// Makes a completion queue whose doorbell asks for an event; the device has not looked at it
    /// yet.
    fn create_cq(engine: &Engine) -> CqId {
        let created = engine
            .with_device(|device| device.create_cq(16, RequestIdSize::Bits16))
            .unwrap();
        let (cq, ring) = created.unwrap();
        let request = CqDoorbell {
            consumer: 0,
            sequence: 0,
            arm: true,
        };
        ring.doorbell().write(request.to_bits());
        cq
    }

    /// A poll in vain that has to rest.
    fn rest(engine: &Engine) {
        while !engine.should_rest() {
            engine.progress();
        }
        // Does nothing as long as the device's thread has the lock.
        while engine.should_rest() {
            engine.rest();
        }
    }

    #[test]
    fn waiting_for_an_event_differs_from_being_preempted() {
        let root = tempfile::tempdir().unwrap();
        let engine = open_engine(&root);
        let cq = create_cq(&engine);
        let shared = &engine.shared;
        assert!(!shared.is_crowded());
        shared.crowded_until.store(NEVER, Ordering::Relaxed);
        let naps = shared.naps.load(Ordering::Relaxed);
        assert!(shared.is_crowded());
        engine.arm_cq(cq).unwrap();
        assert!(!shared.is_crowded());
        assert_ne!(
            shared.naps.load(Ordering::Relaxed),
            naps,
            "the worker's nap ends"
        );
    }

    #[test]
    fn a_last_poll_before_waiting_differs_too() {
        let root = tempfile::tempdir().unwrap();
        let engine = open_engine(&root);
        let cq = create_cq(&engine);
        let shared = &engine.shared;
        let crowd = || shared.lock().unwrap().patience.believe_in_a_crowd();
        crowd();
        rest(&engine);
        assert!(shared.is_crowded());
        engine.arm_cq(cq).unwrap();
        crowd();
        rest(&engine);
        assert!(!shared.is_crowded());
    }

    #[test]
    fn interruptions_end_a_nap_that_is_just_starting() {
        let root = tempfile::tempdir().unwrap();
        let engine = open_engine(&root);
        let shared = &engine.shared;
        shared.nap(|| {
            shared.interrupt();
            Duration::from_secs(3600)
        });
    }
}
