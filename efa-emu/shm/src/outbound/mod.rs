//! Requests on their way from this device to its peers, and the answers to them.

mod bulk;
pub(super) mod routes;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use efa_core::address::{Gid, Qkey, Qpn};
use efa_core::nic::Status;

use bulk::{Bulk, Stage};
use efa_capture::{Direction, Moment};
use efa_device_model::device::Device;
use efa_device_model::fault;
use efa_device_model::link::{
    HostSegment, Link, LinkBusy, LocalData, Operation, RemoteRange, RequestHeader, Token,
};
use efa_device_model::network::{EventQueue, Network, Transmission};
use routes::{NoRoute, OutgoingRing, Routes};

pub(super) use bulk::{BulkName, BulkTable};

use super::clock::monotonic_now;
use super::config::{HostConfig, RdmaPath};
use super::departure::{Departure, Passage, depart};
use super::files::{CaptureFiles, Requested};
use super::memory::{self, Window};
use super::peer::{Peer, Peers};
use super::record::{self, Answer, Kind, Record};
use super::ring::{Full, Position, Producer};
use super::segment::Address;
use super::shared::SharedMemory;
use super::tap::{Tap, now};

/// Longest RDMA write that travels in one record like a send. Beyond, one copy by the target costs
/// less than two through the ring.
const SHORT_WRITE: u32 = 8 << 10;

/// Bytes of data in one part of an RDMA request whose data goes through the rings. A ring of the
/// smallest size holds three.
const PART: u32 = 16 << 10;

/// Parts of one request that are sent before the next request's turn.
const PARTS_PER_TURN: u32 = 8;

/// What a record without an answer stands for.
#[derive(Clone, Copy, Debug)]
enum Pending {
    /// A whole request.
    Request(Token),
    /// A datagram: it completed when it left.
    Datagram,
    /// A bulk request, or a part of one.
    Bulk(BulkName),
    /// Data for a read by the peer.
    ReadData(PullName),
    /// The outcome of a request of the peer.
    Outcome,
}

/// Names an RDMA read that this device serves through the rings.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct PullName(pub(super) u64);

/// A ring to a peer.
struct OutRing {
    producer: Producer<Pending>,
    peer: Arc<Peer>,
    /// The target has said that it cannot copy by itself.
    rings_only: bool,
    /// The ring is in the list of those that wait for answers.
    listed: bool,
    /// Some answer came since the last look at the peer's life.
    progressed: bool,
    /// Requests whose outcomes come in records of their own.
    deferred: usize,
}

impl OutgoingRing for OutRing {
    type Token = Pending;

    fn new(producer: Producer<Pending>, peer: Arc<Peer>) -> OutRing {
        OutRing {
            producer,
            peer,
            rings_only: false,
            listed: false,
            progressed: false,
            deferred: 0,
        }
    }
}

/// Why data for a peer's read could not be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PushError {
    /// Later.
    Full,
    /// Never.
    Gone,
}

/// The sending half of a device's link.
pub(super) struct Outbound {
    routes: Routes,
    rings: slab::Slab<OutRing>,
    /// Rings with records that are not answered.
    waiting: Vec<usize>,
    own: Gid,
    network: Network,
    /// The network does anything at all to requests.
    shapes: bool,
    rdma: RdmaPath,
    bulks: BulkTable,
    /// Requests that their receivers keep, and reads that they serve, by ring and number of the record.
    deferred: HashMap<(usize, u64), Pending>,
    /// Bulk requests that have something to send.
    working: VecDeque<BulkName>,
    /// Requests with their outcome, to be handed to the device.
    completed: VecDeque<(Token, Status)>,
    /// Answers to data for peers' reads.
    read_data: Vec<(PullName, Status)>,
    /// Answers that were taken and have to be looked at more closely: empty between calls.
    others: Vec<(u64, Pending, Answer)>,
    /// Requests that the network loses until they are given up.
    failing: EventQueue<Token>,
    tap: Option<Box<Tap>>,
}

impl Outbound {
    pub(super) fn new(config: &HostConfig, peers: Peers, nobody: Status) -> Outbound {
        let own = peers.own_address();
        let network = config.network.network();
        Outbound {
            own: own.gid,
            shapes: !network.config.is_perfect(),
            network,
            rdma: config.rdma,
            routes: Routes::new(peers, config.ring_bytes, nobody),
            rings: slab::Slab::new(),
            waiting: Vec::new(),
            bulks: BulkTable::default(),
            deferred: HashMap::new(),
            working: VecDeque::new(),
            completed: VecDeque::new(),
            read_data: Vec::new(),
            others: Vec::new(),
            failing: EventQueue::default(),
            tap: None,
        }
    }

    /// Whether outcomes wait for [`Outbound::next_completed`].
    #[inline(always)]
    pub(super) fn has_completed(&self) -> bool {
        !(self.completed.is_empty() & self.failing.is_empty())
    }

    /// Whether there is a capture.
    #[inline(always)]
    pub(super) fn is_tapped(&self) -> bool {
        self.tap.is_some()
    }

    /// The capture of the device, if there is one.
    #[inline]
    pub(super) fn tap(&mut self) -> Option<&mut Tap> {
        self.tap.as_deref_mut()
    }

    /// Records into exactly these captures from now on.
    pub(super) fn record(&mut self, requested: &Requested, mtu: u32) {
        let own = self.routes.peers().own_address().gid;
        let mut tap = self.tap.take().unwrap_or_else(|| {
            let files = CaptureFiles::default();
            Box::new(Tap::new(files, own, mtu))
        });
        tap.files().follow(requested);
        if tap.files().is_empty() {
            tap.close();
        } else {
            self.tap = Some(tap);
        }
    }

    /// The peers that this device knows.
    pub(super) fn peers(&mut self) -> &mut Peers {
        self.routes.peers()
    }

    /// Whether any record is without an answer.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.deferred.is_empty()
    }

    /// Whether records in rings are without answers.
    #[inline(always)]
    pub(super) fn has_unanswered(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether there is anything to send or to tell the device without an answer of a peer.
    #[inline(always)]
    pub(super) fn has_work(&self) -> bool {
        !self.working.is_empty() | self.has_completed()
    }

    /// Takes the answers that have come, and gives the outcomes of requests to the device. Those that start
    /// a timer wait for [`Outbound::next_completed`]. Returns whether there were any answers.
    #[inline(always)]
    pub(super) fn reap(&mut self, device: &mut Device) -> bool {
        self.take_answers(|token, status| {
            // Only this status starts a timer.
            let is_timed = status == Status::RemoteRnr;
            if !is_timed {
                device.complete(Duration::ZERO, token, status);
            }
            !is_timed
        })
    }

    /// As [`Outbound::reap`], when somebody else is to see all outcomes first: all wait for
    /// [`Outbound::next_completed`].
    #[cold]
    pub(super) fn reap_aside(&mut self) -> bool {
        self.take_answers(|_, _| false)
    }

    /// Takes the answers that have come. Outcomes of requests that `complete` does not take wait for
    /// [`Outbound::next_completed`].
    #[inline(always)]
    fn take_answers(&mut self, mut complete: impl FnMut(Token, Status) -> bool) -> bool {
        let mut any = false;
        let mut position = 0;
        while let Some(index) = self.waiting.get(position).copied() {
            let ring = &mut self.rings[index];
            let before = ring.producer.waiting();
            ring.producer.reap(|pending, number, answer| {
                if let Pending::Request(token) = pending
                    && let Answer::Status(status) = answer
                {
                    if !complete(token, status) {
                        self.completed.push_back((token, status));
                    }
                } else {
                    self.others.push((number, pending, answer));
                }
            });
            if ring.producer.waiting() != before {
                any = true;
                ring.progressed = true;
            }
            ring.listed = ring.producer.waiting() > 0;
            if ring.listed {
                position += 1;
            } else {
                self.waiting.swap_remove(position);
            }
            if !self.others.is_empty() {
                self.take_others(index);
            }
        }
        any
    }

    /// Takes the answers of a ring that are no plain outcomes of requests.
    #[cold]
    fn take_others(&mut self, index: usize) {
        let mut others = std::mem::take(&mut self.others);
        for (number, pending, answer) in others.drain(..) {
            match pending {
                _ if answer == Answer::Deferred => {
                    if let Some(ring) = self.rings.get_mut(index) {
                        ring.deferred += 1;
                    }
                    self.deferred.insert((index, number), pending);
                }
                Pending::Request(token) => {
                    self.completed.push_back((token, status_of(answer)));
                }
                Pending::ReadData(pull) => self.read_data.push((pull, status_of(answer))),
                Pending::Outcome | Pending::Datagram => {}
                Pending::Bulk(name) => {
                    if answer == Answer::UseRings
                        && let Some(ring) = self.rings.get_mut(index)
                    {
                        ring.rings_only = true;
                    }
                    settle(
                        &mut self.bulks,
                        &mut self.working,
                        &mut self.completed,
                        name,
                        answer,
                    );
                }
            }
        }
        // Its memory is used again.
        self.others = others;
    }

    /// The next request with an outcome, to be handed to the device.
    #[inline]
    pub(super) fn next_completed(&mut self) -> Option<(Token, Status)> {
        self.completed.pop_front().or_else(|| self.next_failed())
    }

    /// The next request that is given up now.
    #[inline]
    fn next_failed(&mut self) -> Option<(Token, Status)> {
        if self.failing.is_empty() {
            return None;
        }
        let token = self.failing.pop_due(monotonic_now())?;
        tracing::debug!("request given up: each attempt was lost");
        Some((token, Status::LocalUnresponsiveRemote))
    }

    /// When the next request is given up, on the monotonic clock.
    #[inline]
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.failing.next_time()
    }

    /// What the network does to the answers of a queue pair. Of one that is gone, nothing is known
    /// any more, and this device's own network stands for it.
    pub(super) fn network_of(&mut self, gid: Gid, qpn: Qpn) -> Network {
        match self.routes.find(gid, qpn, &mut self.rings) {
            Ok(ring) => self.rings[ring].peer.network.clone(),
            Err(_) => self.network.clone(),
        }
    }

    /// The next answer to data for a peer's read.
    #[inline]
    pub(super) fn next_read_data(&mut self) -> Option<(PullName, Status)> {
        self.read_data.pop()
    }

    /// Sends what is left to send of bulk requests. Returns whether anything was sent.
    #[inline(always)]
    pub(super) fn advance(&mut self, device: &Device) -> bool {
        !self.working.is_empty() && self.advance_working(device)
    }

    #[cold]
    fn advance_working(&mut self, device: &Device) -> bool {
        let mut any = false;
        for _ in 0..self.working.len() {
            let Some(name) = self.working.pop_front() else {
                break;
            };
            match self.step(name, device) {
                Step::Sent => {
                    any = true;
                    self.working.push_back(name);
                }
                Step::Blocked => self.working.push_back(name),
                Step::Finished => any = true,
            }
        }
        any
    }

    fn step(&mut self, name: BulkName, device: &Device) -> Step {
        let Some(bulk) = self.bulks.get_mut(name) else {
            return Step::Finished;
        };
        let Some(ring) = self.rings.get_mut(bulk.ring) else {
            return Step::Finished;
        };
        match &mut bulk.stage {
            Stage::Direct(_) | Stage::TakenBack | Stage::Read => Step::Finished,
            Stage::ReadUnsent => {
                let record = Record::request(Kind::Pull, &bulk.header, 0, bulk.passage).at(name.0);
                match ring.producer.push(&record, Pending::Bulk(name), |_, _| {}) {
                    Ok(_) => {
                        bulk.stage = Stage::Read;
                        list(&mut self.waiting, ring, bulk.ring);
                        Step::Finished
                    }
                    Err(Full) => Step::Blocked,
                }
            }
            Stage::Write {
                next,
                in_flight,
                failed,
            } => {
                let mut sent = Step::Blocked;
                for _ in 0..PARTS_PER_TURN {
                    let rest = bulk.header.length - *next;
                    if failed.is_some() || rest == 0 {
                        return Step::Finished;
                    }
                    let is_last = rest <= PART;
                    if is_last && *in_flight > 0 {
                        break;
                    }
                    // The memory may have been deregistered since the last part.
                    let Some(segments) = device.local_memory(bulk.token) else {
                        *failed = Some(Status::LocalInvalidLkey);
                        if *in_flight == 0 {
                            let token = bulk.token;
                            self.bulks.remove(name);
                            self.completed.push_back((token, Status::LocalInvalidLkey));
                        }
                        return Step::Finished;
                    };
                    let window = Window {
                        offset: *next,
                        length: rest.min(PART),
                    };
                    let mut record =
                        Record::request(Kind::Data, &bulk.header, window.length, bulk.passage);
                    record = record.at(window.offset);
                    if !is_last {
                        record = record.not_last();
                    }
                    let pushed = ring
                        .producer
                        .push(&record, Pending::Bulk(name), |memory, at| {
                            memory::gather_part(memory, at, segments, window);
                        });
                    if pushed.is_err() {
                        break;
                    }
                    *next += window.length;
                    *in_flight += 1;
                    sent = Step::Sent;
                    list(&mut self.waiting, ring, bulk.ring);
                }
                sent
            }
        }
    }

    /// The request behind a peer's data for a read: what the device knows it by. `None` if the
    /// read is not from `from`, or if the part lies outside of it.
    pub(super) fn read_target(&self, from: Address, record: &Record) -> Option<Token> {
        let bulk = self.bulks.get(BulkName(record.sequence()))?;
        let end = record.offset().checked_add(record.payload())?;
        let is_its = matches!(bulk.stage, Stage::Read)
            && self.rings.get(bulk.ring)?.peer.address() == from
            && end <= bulk.header.length;
        is_its.then_some(bulk.token)
    }

    /// Sends data for a peer's read: the bytes of `window`, which `fill` writes.
    pub(super) fn push_read_data(
        &mut self,
        to: Address,
        read: BulkName,
        total: u32,
        window: Window,
        pull: PullName,
        fill: impl FnOnce(&SharedMemory, usize),
    ) -> Result<(), PushError> {
        let index = match self.routes.ring_to(to, &mut self.rings) {
            Ok(index) => index,
            Err(NoRoute::Busy) => return Err(PushError::Full),
            Err(NoRoute::Failed(_)) => return Err(PushError::Gone),
        };
        let header = RequestHeader {
            operation: Operation::RdmaRead,
            source_qpn: Qpn(0),
            destination_qpn: Qpn(0),
            qkey: Qkey(0),
            sequence: read.0,
            retries: 0,
            immediate: None,
            remote: Some(RemoteRange { address: 0, key: 0 }),
            length: total,
        };
        let record = Record::whole(Kind::ReadData, &header, window.length).at(window.offset);
        let ring = &mut self.rings[index];
        ring.producer
            .push(&record, Pending::ReadData(pull), fill)
            .map_err(|Full| PushError::Full)?;
        list(&mut self.waiting, ring, index);
        Ok(())
    }

    /// Tells the initiator of a kept request its outcome.
    pub(super) fn push_outcome(
        &mut self,
        to: Address,
        number: u64,
        status: Status,
    ) -> Result<(), PushError> {
        let index = match self.routes.ring_to(to, &mut self.rings) {
            Ok(index) => index,
            Err(NoRoute::Busy) => return Err(PushError::Full),
            Err(NoRoute::Failed(_)) => return Err(PushError::Gone),
        };
        let ring = &mut self.rings[index];
        let record = Record::outcome(number, status);
        ring.producer
            .push(&record, Pending::Outcome, |_, _| {})
            .map_err(|Full| PushError::Full)?;
        list(&mut self.waiting, ring, index);
        Ok(())
    }

    /// The outcome of a request that a peer has kept. Outcomes of other requests are ignored.
    pub(super) fn take_outcome(&mut self, from: Address, record: &Record) {
        let Some(index) = self.routes.known_ring(from) else {
            return;
        };
        let number = u64::from(record.sequence()) | u64::from(record.offset()) << 32;
        let mut pending = self.deferred.remove(&(index, number));
        if pending.is_none() {
            // The peer said that it keeps the request before it sent the outcome, but that may not
            // have been looked at.
            self.reap_aside();
            pending = self.deferred.remove(&(index, number));
        }
        let Some(pending) = pending else {
            return;
        };
        if let Some(ring) = self.rings.get_mut(index) {
            ring.deferred = ring.deferred.saturating_sub(1);
        }
        let code = record.header().immediate.unwrap_or(u32::MAX);
        let code = u8::try_from(code).unwrap_or(u8::MAX);
        let status = Status::from_code(code).unwrap_or(Status::RemoteBadStatus);
        match pending {
            Pending::Request(token) => self.completed.push_back((token, status)),
            Pending::Bulk(name) => settle(
                &mut self.bulks,
                &mut self.working,
                &mut self.completed,
                name,
                Answer::Status(status),
            ),
            // These are never kept.
            Pending::ReadData(_) | Pending::Outcome => {}
            // It completed when it left.
            Pending::Datagram => {}
        }
    }

    /// Takes the memory of requests back from targets that copy from or to it by themselves: of the
    /// chosen ones, and of those whose memory the device no longer vouches for. When this returns `Some`,
    /// no target touches that memory any more. `None` if one is copying right now; then the requests go
    /// on as they were.
    pub(super) fn try_take_back(
        &mut self,
        device: &Device,
        chosen: impl Fn(Token, &RequestHeader) -> bool,
    ) -> Option<TakenBack> {
        let mut taken = TakenBack::default();
        for (name, bulk) in self.bulks.iter() {
            let Stage::Direct(position) = bulk.stage else {
                continue;
            };
            if !chosen(bulk.token, &bulk.header) && device.local_memory(bulk.token).is_some() {
                continue;
            }
            let ring = &self.rings[bulk.ring];
            if !ring.producer.try_withdraw(position) && ring.peer.is_alive() {
                self.give_back(taken);
                return None;
            }
            taken.0.push((name, position));
        }
        Some(taken)
    }

    /// Lets targets have again what was taken back from them.
    pub(super) fn give_back(&self, taken: TakenBack) {
        for (name, position) in taken.0 {
            if let Some(bulk) = self.bulks.get(name) {
                self.rings[bulk.ring].producer.reopen(position);
            }
        }
    }

    /// Ends the requests whose memory was taken back, when their answers come.
    pub(super) fn keep_back(&mut self, taken: TakenBack) {
        for (name, _) in taken.0 {
            if let Some(bulk) = self.bulks.get_mut(name) {
                bulk.stage = Stage::TakenBack;
            }
        }
    }

    /// Looks for rings whose receiver is dead or refuses them: only among those where answers are waited for and none came
    /// since the last look; and among all of them if any were added since then, so that those of the dead do not
    /// add up.
    pub(super) fn find_dead(&mut self) -> DeadRings {
        let all = std::mem::take(&mut self.routes.has_grown);
        let mut rings = Vec::new();
        for (index, ring) in &mut self.rings {
            let progressed = std::mem::take(&mut ring.progressed);
            if (all || ring.deferred > 0 || (ring.listed && !progressed))
                && (ring.producer.is_refused() || !ring.peer.is_alive())
            {
                rings.push(index);
            }
        }
        DeadRings { rings, all }
    }

    /// Gives these rings up, and ends the requests in them. If all were looked at, gives up the tables of hosts that are gone,
    /// too.
    pub(super) fn abandon_dead(&mut self, dead: DeadRings) {
        for index in dead.rings {
            self.abandon(index);
        }
        if dead.all {
            self.routes.forget_gone_hosts();
        }
    }

    fn abandon(&mut self, index: usize) {
        // A process that is gone has no queue pairs: the answer that its host's device would give.
        let gone = self.routes.nobody();
        self.waiting.retain(|other| *other != index);
        let ring = self.rings.remove(index);
        self.routes.forget_ring(ring.peer.address());
        let Outbound {
            completed,
            read_data,
            deferred,
            others,
            ..
        } = self;
        let kept = deferred.extract_if(|(ring, _), _| *ring == index);
        let mut kept: Vec<_> = kept
            .map(|((_, number), pending)| (number, pending))
            .collect();
        kept.sort_unstable_by_key(|(number, _)| *number);
        let mut fail = |pending| match pending {
            Pending::Request(token) => completed.push_back((token, gone)),
            Pending::ReadData(pull) => read_data.push((pull, gone)),
            // Below, once per request and not once per part.
            Pending::Bulk(_) | Pending::Outcome | Pending::Datagram => {}
        };
        kept.into_iter().for_each(|(_, pending)| fail(pending));
        ring.producer
            .abandon(|pending, number, answer| match answer {
                // Nobody is left to send what was announced.
                None | Some(Answer::Deferred) => fail(pending),
                Some(answer) => others.push((number, pending, answer)),
            });
        self.take_others(index);
        let Outbound {
            bulks, completed, ..
        } = self;
        let lost: Vec<_> = bulks
            .iter()
            .filter(|(_, bulk)| bulk.ring == index)
            .map(|(name, _)| name)
            .collect();
        for name in lost {
            if let Some(bulk) = bulks.remove(name) {
                completed.push_back((bulk.token, gone));
            }
        }
    }

    /// Leaves all rings. What is still in them has left this device and arrives: those peers find the
    /// sender gone when they have taken it, as after the end of a process.
    pub(super) fn close(&mut self) {
        for ring in self.rings.drain() {
            if ring.producer.is_settled() {
                ring.producer.abandon(|_, _, _| {});
            }
        }
        if let Some(tap) = self.tap.take() {
            tap.close();
        }
    }
}

/// Rings whose receivers are dead or refuse them, by their places among the rings, which stay theirs until they are given up.
#[must_use]
pub(super) struct DeadRings {
    rings: Vec<usize>,
    /// Whether all rings were looked at.
    all: bool,
}

impl DeadRings {
    pub(super) fn is_empty(&self) -> bool {
        self.rings.is_empty()
    }
}

/// Requests whose memory was taken back from their targets: to be kept ([`Outbound::keep_back`]) or
/// given to them again ([`Outbound::give_back`]).
#[derive(Debug, Default)]
#[must_use]
pub(super) struct TakenBack(Vec<(BulkName, Position)>);

/// What sending more of a bulk request came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Sent,
    Blocked,
    /// Nothing is left to send.
    Finished,
}

impl Record {
    /// A record that brings a request of this device, as the network model lets it pass.
    fn request(kind: Kind, header: &RequestHeader, payload: u32, passage: Passage) -> Record {
        let record = Record::whole(kind, header, payload)
            .on_path(passage.path)
            .due_at(passage.due);
        match passage.not_ready {
            true => record.to_be_refused(),
            false => record,
        }
    }
}

#[inline]
fn list(waiting: &mut Vec<usize>, ring: &mut OutRing, index: usize) {
    if !ring.listed {
        ring.listed = true;
        ring.progressed = true;
        waiting.push(index);
    }
}

/// The device's status for an answer to a record that carries a whole request, or data for a read.
fn status_of(answer: Answer) -> Status {
    match answer {
        Answer::Status(status) => status,
        // Nobody is asked for these answers.
        Answer::UseRings | Answer::Withdrawn | Answer::Deferred => Status::RemoteBadStatus,
    }
}

/// Applies an answer to a bulk request.
fn settle(
    bulks: &mut BulkTable,
    working: &mut VecDeque<BulkName>,
    completed: &mut VecDeque<(Token, Status)>,
    name: BulkName,
    answer: Answer,
) {
    let Some(bulk) = bulks.get_mut(name) else {
        return;
    };
    let outcome = match (&mut bulk.stage, answer) {
        // One that says that the memory was withdrawn saw it while it was, for a moment.
        (Stage::Direct(_), Answer::UseRings | Answer::Withdrawn) => {
            bulk.stage = Stage::through_rings(bulk.header.operation);
            working.push_back(name);
            return;
        }
        // The device has given the request up, or else it fails.
        (Stage::TakenBack, Answer::UseRings | Answer::Withdrawn) => Status::LocalInvalidLkey,
        (
            Stage::Write {
                next,
                in_flight,
                failed,
            },
            answer,
        ) => {
            *in_flight = in_flight.saturating_sub(1);
            let status = status_of(answer);
            if status != Status::Ok {
                failed.get_or_insert(status);
            }
            let is_over = failed.is_some() || *next == bulk.header.length;
            if *in_flight > 0 || !is_over {
                return;
            }
            failed.unwrap_or(Status::Ok)
        }
        (_, answer) => status_of(answer),
    };
    if let Some(bulk) = bulks.remove(name) {
        completed.push_back((bulk.token, outcome));
    }
}

/// The time at which a request is about to leave, if a capture wants to know. Afterwards it is too
/// late: the answer may be there before this process runs again.
#[inline]
fn leaving(tap: Option<&Tap>) -> Option<Moment> {
    tap.map(|_| now(Direction::Outbound))
}

impl Link for Outbound {
    #[inline(always)]
    fn try_send(
        &mut self,
        to: Gid,
        token: Token,
        header: &RequestHeader,
        data: LocalData<'_>,
    ) -> Result<(), LinkBusy> {
        let index = match self
            .routes
            .find(to, header.destination_qpn, &mut self.rings)
        {
            Ok(index) => index,
            Err(NoRoute::Busy) => return Err(LinkBusy),
            Err(NoRoute::Failed(status)) => {
                self.completed.push_back((token, status));
                return Ok(());
            }
        };
        // What is off the path of a message gets a copy of the header, so that here the header need not be
        // in memory.
        if header.operation != Operation::Send || self.shapes || self.is_tapped() {
            return self.send_other(index, to, token, *header, data);
        }
        let record = Record::whole(Kind::Data, header, header.length);
        self.send_whole(index, token, &record, Pending::Request(token), data)
    }
}

impl Outbound {
    /// Sends a record with all data of a request.
    #[inline(always)]
    fn send_whole(
        &mut self,
        index: usize,
        token: Token,
        record: &Record,
        pending: Pending,
        data: LocalData<'_>,
    ) -> Result<(), LinkBusy> {
        let ring = &mut self.rings[index];
        let pushed = ring.producer.push(record, pending, |memory, at| {
            memory::gather(memory, at, data);
        });
        if pushed.is_err() {
            return self.cannot_send(index, token, record.length());
        }
        list(&mut self.waiting, ring, index);
        Ok(())
    }

    /// A ring has no room for a record of this length: now, or never.
    #[cold]
    fn cannot_send(&mut self, index: usize, token: Token, length: usize) -> Result<(), LinkBusy> {
        // An empty ring has room for half of its capacity wherever its end is.
        if 2 * length <= self.rings[index].producer.capacity() {
            return Err(LinkBusy);
        }
        self.completed.push_back((token, Status::RemoteBadLength));
        Ok(())
    }

    /// Sends a request that is no message, or that the network or a capture takes notice of.
    #[cold]
    fn send_other(
        &mut self,
        index: usize,
        to: Gid,
        token: Token,
        header: RequestHeader,
        data: LocalData<'_>,
    ) -> Result<(), LinkBusy> {
        let mut passage = Passage::default();
        if self.shapes {
            let stage = fault::Stage::Request;
            let request = Transmission::first(stage, self.own, to, &header);
            passage = match depart(&self.network, &request) {
                Departure::Leaves(passage) => passage,
                lost => {
                    self.lose(lost, to, token, header, data);
                    return Ok(());
                }
            };
        }
        let is_datagram = header.operation == Operation::Datagram;
        let in_one_record = match header.operation {
            Operation::Send | Operation::Datagram => true,
            Operation::RdmaWrite => {
                header.length <= SHORT_WRITE || matches!(data, LocalData::Inline(_))
            }
            Operation::RdmaRead => false,
        };
        if !in_one_record {
            return self.send_bulk(index, to, token, header, passage, data);
        }
        let record = Record::request(Kind::Data, &header, header.length, passage);
        let pending = match is_datagram {
            true => Pending::Datagram,
            false => Pending::Request(token),
        };
        let leaves = leaving(self.tap.as_deref());
        self.send_whole(index, token, &record, pending, data)?;
        if let Some(moment) = leaves {
            self.tap_sent(moment, to, token, record, data);
        }
        if is_datagram {
            self.completed.push_back((token, Status::Ok));
        }
        Ok(())
    }

    /// A request that never arrives leaves.
    #[cold]
    fn lose(
        &mut self,
        departure: Departure,
        to: Gid,
        token: Token,
        header: RequestHeader,
        data: LocalData<'_>,
    ) {
        if let Some(moment) = leaving(self.tap.as_deref()) {
            let record = Record::whole(Kind::Data, &header, header.length);
            self.tap_sent(moment, to, token, record, data);
        }
        match departure {
            Departure::Fails(at) => self.failing.add(at, token),
            Departure::Vanishes | Departure::Leaves(_) => {
                self.completed.push_back((token, Status::Ok));
            }
        }
    }

    #[cold]
    fn tap_sent(
        &mut self,
        moment: Moment,
        to: Gid,
        token: Token,
        record: Record,
        data: LocalData<'_>,
    ) {
        if let Some(tap) = &mut self.tap {
            tap.sent(moment, to, token, &record, data);
        }
    }

    /// Sends an RDMA request that takes more than one step.
    #[cold]
    fn send_bulk(
        &mut self,
        index: usize,
        to: Gid,
        token: Token,
        header: RequestHeader,
        passage: Passage,
        data: LocalData<'_>,
    ) -> Result<(), LinkBusy> {
        let own = self.routes.peers().own_address();
        let ring = &mut self.rings[index];
        if self.bulks.is_full() {
            return Err(LinkBusy);
        }
        // The data of a read comes through the ring back. To itself, a device has one ring for both ways, in which the
        // data would wait behind the request for room, and the request for the data.
        let is_to_itself = ring.peer.address() == own;
        let segments: &[HostSegment] = match data {
            LocalData::Segments(segments) => segments,
            LocalData::Inline(_) => &[],
        };
        let (list_bytes, length) = record::segments_to_bytes(segments);
        let record = Record::request(Kind::Direct, &header, length as u32, passage);
        let name = self.bulks.insert(Bulk {
            token,
            header,
            ring: index,
            passage,
            stage: Stage::through_rings(header.operation),
        });
        let leaves = leaving(self.tap.as_deref());
        let through_rings = !is_to_itself && (self.rdma == RdmaPath::Rings || ring.rings_only)
            || segments.len() > record::MAX_SEGMENTS;
        if through_rings {
            self.working.push_back(name);
        } else {
            let pushed = ring
                .producer
                .push(&record, Pending::Bulk(name), |memory, at| {
                    memory.write(at, &list_bytes[..length]);
                });
            let Ok(position) = pushed else {
                self.bulks.remove(name);
                return Err(LinkBusy);
            };
            if let Some(bulk) = self.bulks.get_mut(name) {
                bulk.stage = Stage::Direct(position);
            }
            list(&mut self.waiting, ring, index);
        }
        if let Some(moment) = leaves {
            self.tap_sent(moment, to, token, record, data);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an answer makes of a request that was at `stage`.
    fn settled(
        stage: impl FnOnce(Position) -> Stage,
        answer: Answer,
    ) -> (Option<Stage>, Option<Status>) {
        let header = RequestHeader {
            operation: Operation::RdmaWrite,
            source_qpn: Qpn(2),
            destination_qpn: Qpn(3),
            qkey: Qkey(4),
            sequence: 0,
            retries: 0,
            immediate: None,
            remote: Some(RemoteRange { address: 0, key: 0 }),
            length: 1 << 20,
        };
        let mut bulks = BulkTable::default();
        let name = bulks.insert(Bulk {
            token: Token(1),
            header,
            ring: 0,
            passage: Passage::default(),
            stage: stage(Position::default()),
        });
        let (mut working, mut completed) = Default::default();
        settle(&mut bulks, &mut working, &mut completed, name, answer);
        assert_eq!(working.contains(&name), bulks.get(name).is_some());
        let stage = bulks.get(name).map(|bulk| bulk.stage);
        (stage, completed.pop_front().map(|(_, status)| status))
    }

    #[test]
    fn a_withdrawal_that_was_taken_back_does_not_end_the_request() {
        let (stage, status) = settled(Stage::Direct, Answer::Withdrawn);
        assert!(
            matches!(stage, Some(Stage::Write { next: 0, .. })),
            "{stage:?}"
        );
        assert_eq!(status, None);
    }

    #[test]
    fn a_request_whose_memory_was_taken_back_ends_as_the_target_found_it() {
        let taken = |answer| {
            let (stage, status) = settled(|_| Stage::TakenBack, answer);
            assert!(stage.is_none(), "{stage:?}");
            status
        };
        let lost = Some(Status::LocalInvalidLkey);
        assert_eq!(taken(Answer::Withdrawn), lost);
        assert_eq!(taken(Answer::UseRings), lost);
        assert_eq!(taken(Answer::Status(Status::Ok)), Some(Status::Ok));
    }
}
