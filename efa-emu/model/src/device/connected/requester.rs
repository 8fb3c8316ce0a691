//! The requester: makes packets from the work requests of a send queue, and handles their answers.
//!
//! Work requests are executed in order. Each uses one packet sequence number per packet, a read one
//! per packet of its answer. Unacknowledged packets are retransmitted from the first one that the
//! responder misses: after a NAK, an answer that reveals the loss of an earlier one, or a time-out.

use std::collections::VecDeque;
use std::time::Duration;

use super::attributes::ConnectionAttributes;
use super::buffers::BufferList;
use super::completion::{WcOperation, WcStatus};
use super::psn::Psn;

/// Most unacknowledged packets. The requester waits when it has reached them.
const WINDOW: i32 = 128;

/// In a long message, every this many packets one requests an acknowledgement.
const ACKNOWLEDGED: u32 = 16;

/// The most inline bytes of a work request.
pub const MAX_INLINE: usize = 128;

/// The peer's memory in a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemoteMemory {
    /// Address of the first byte.
    pub address: u64,
    /// The peer's key.
    pub key: u32,
}

/// The operation of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOperation {
    /// A message, optionally with immediate data.
    Send(Option<u32>),
    /// An RDMA write, optionally with immediate data.
    Write(RemoteMemory, Option<u32>),
    /// An RDMA read.
    Read(RemoteMemory),
    /// Replaces a word if it has a given value.
    CompareSwap {
        /// The word.
        remote: RemoteMemory,
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Adds to a word.
    FetchAdd {
        /// The word.
        remote: RemoteMemory,
        /// The addend.
        add: u64,
    },
}

impl SendOperation {
    /// Whether the answer contains data.
    pub(super) fn is_read_like(self) -> bool {
        !matches!(self, SendOperation::Send(_) | SendOperation::Write(..))
    }

    pub(super) fn is_atomic(self) -> bool {
        matches!(
            self,
            SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. }
        )
    }

    pub(super) fn completes_as(self) -> WcOperation {
        match self {
            SendOperation::Send(_) => WcOperation::Send,
            SendOperation::Write(..) => WcOperation::RdmaWrite,
            SendOperation::Read(_) => WcOperation::RdmaRead,
            SendOperation::CompareSwap { .. } => WcOperation::CompareSwap,
            SendOperation::FetchAdd { .. } => WcOperation::FetchAdd,
        }
    }
}

/// The local data of a work request.
#[derive(Clone, Debug)]
pub enum Payload {
    /// Registered memory.
    Buffers(BufferList),
    /// Bytes in the work request itself, at most [`MAX_INLINE`].
    Inline(Box<[u8]>),
}

impl Payload {
    /// Inline bytes of a work request. `None` if there are more than [`MAX_INLINE`].
    pub fn inline(data: &[u8]) -> Option<Payload> {
        (data.len() <= MAX_INLINE).then(|| Payload::Inline(data.into()))
    }

    /// Bytes of the data.
    #[inline]
    pub(super) fn length(&self) -> u64 {
        match self {
            Payload::Buffers(list) => list.length(),
            Payload::Inline(bytes) => bytes.len() as u64,
        }
    }
}

/// A work request of a send queue.
#[derive(Clone, Debug)]
pub struct SendWr {
    /// The program's id of the request.
    pub wr_id: u64,
    /// The operation.
    pub operation: SendOperation,
    /// The data to send, or the memory for the answer.
    pub payload: Payload,
    /// Whether success is reported.
    pub is_signaled: bool,
    /// Whether it waits for earlier reads and atomics.
    pub is_fenced: bool,
    /// Whether it requests a solicited event at the receiver.
    pub is_solicited: bool,
}

/// The purpose of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// The program posted it.
    Program,
    /// The device reads the data of a rendezvous into a tagged buffer.
    Rendezvous {
        /// The tag of the request.
        tag: u64,
        /// The sender's data in the header.
        data: u32,
    },
    /// The device notifies the sender of a rendezvous that its data was read.
    Finish,
}

/// A request in the queue.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) wr: SendWr,
    pub(super) purpose: Purpose,
    /// Bytes of data.
    pub(super) length: u32,
    /// Its first packet sequence number, once it is started.
    pub(super) first: Psn,
    /// The number of its sequence numbers.
    pub(super) packets: u32,
    /// The number of received packets of its answer, if the answer contains data.
    pub(super) answered: u32,
}

impl Request {
    fn last(&self) -> Psn {
        self.first.plus(self.packets - 1)
    }

    /// The number of packets of the request itself.
    fn sent_packets(&self) -> u32 {
        match self.wr.operation.is_read_like() {
            true => 1,
            false => self.packets,
        }
    }
}

/// The number of packets for `length` bytes.
#[inline]
pub(super) fn packets_of(length: u32, mtu: u32) -> u32 {
    // Division is slow, and most messages are short.
    match length <= mtu {
        true => 1,
        false => length.div_ceil(mtu),
    }
}

/// The remaining data of a request that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndedRequest {
    pub(super) wr_id: u64,
    pub(super) purpose: Purpose,
    pub(super) operation: WcOperation,
    pub(super) length: u32,
    pub(super) is_signaled: bool,
    pub(super) is_read_like: bool,
    pub(super) status: WcStatus,
}

/// The next packet of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    /// The request's index in the queue.
    pub(super) position: usize,
    pub(super) psn: Psn,
    /// The packet's index in the request.
    pub(super) index: u32,
    /// Whether it requests an acknowledgement.
    pub(super) wants_acknowledgement: bool,
    /// Whether it was sent before.
    pub(super) is_repeated: bool,
}

/// The reason why a requester does not send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StallReason {
    Nothing,
    /// A delay by an RNR NAK. It begins when the device next gets the time.
    Requested(Duration),
    Until(Duration),
}

/// The effect of a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tick {
    /// No action before this time.
    Later(Option<Duration>),
    /// There are packets to send now, and the next timer.
    Send(Option<Duration>),
    /// The responder does not respond.
    GivenUp,
}

/// The state of a send queue.
pub(super) struct Requester {
    queue: VecDeque<Request>,
    /// The number of queued requests that the program posted.
    posted: usize,
    /// The number of queued requests that have packet sequence numbers.
    started: usize,
    /// The index of the request whose packets are sent next, and how many of them were sent.
    next: usize,
    sent: u32,
    /// The first unused sequence number.
    end: Psn,
    /// The oldest unacknowledged sequence number.
    unacknowledged: Psn,
    /// The highest sequence number sent so far, plus 1.
    furthest: Psn,
    /// Outstanding requests whose answers contain data.
    reads: u32,
    retries: u8,
    rnr_retries: u8,
    /// Sending was rewound, and nothing was acknowledged since.
    is_rewound: bool,
    wait: StallReason,
    deadline: Option<Duration>,
    ended: VecDeque<EndedRequest>,
}

impl Requester {
    pub(super) fn new() -> Requester {
        Requester {
            queue: VecDeque::new(),
            posted: 0,
            started: 0,
            next: 0,
            sent: 0,
            end: Psn::default(),
            unacknowledged: Psn::default(),
            furthest: Psn::default(),
            reads: 0,
            retries: 0,
            rnr_retries: 0,
            is_rewound: false,
            wait: StallReason::Nothing,
            deadline: None,
            ended: VecDeque::new(),
        }
    }

    /// Sets the first sequence number.
    pub(super) fn begin(&mut self, psn: Psn) {
        (self.end, self.unacknowledged, self.furthest) = (psn, psn, psn);
    }

    /// The number of the program's unfinished requests.
    pub(super) fn posted(&self) -> usize {
        self.posted
    }

    /// A request of the queue.
    #[inline]
    pub(super) fn request(&self, position: usize) -> Option<&Request> {
        self.queue.get(position)
    }

    /// Queues a request of at most [`MAX_MESSAGE`](crate::limits::MAX_MESSAGE) bytes.
    #[inline]
    pub(super) fn push(&mut self, wr: SendWr, purpose: Purpose, mtu: u32) {
        let length = match wr.operation.is_atomic() {
            true => 8,
            false => wr.payload.length() as u32,
        };
        let packets = match wr.operation.is_atomic() {
            true => 1,
            false => packets_of(length, mtu),
        };
        self.posted += usize::from(purpose == Purpose::Program);
        self.queue.push_back(Request {
            wr,
            purpose,
            length,
            first: Psn::default(),
            packets,
            answered: 0,
        });
    }

    /// Whether there is a request that has ended.
    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// The next request that has ended.
    #[inline]
    pub(super) fn next_ended(&mut self) -> Option<EndedRequest> {
        self.ended.pop_front()
    }

    /// Whether all packets of all requests were sent, and none is to be sent again.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.next == self.queue.len()
    }

    /// Whether there is a packet to send.
    #[inline]
    pub(super) fn has_next(&self, of: &ConnectionAttributes, may_start: bool) -> bool {
        if self.wait != StallReason::Nothing {
            return false;
        }
        match self.next < self.started {
            true => self.queue.get(self.next).is_some_and(|request| {
                let psn = request.first.plus(self.next_index(request));
                psn.since(self.unacknowledged) < WINDOW
            }),
            false => may_start && self.can_start(of),
        }
    }

    /// The index of the next packet in the current request.
    fn next_index(&self, request: &Request) -> u32 {
        match request.wr.operation.is_read_like() {
            true => request.answered,
            false => self.sent,
        }
    }

    /// The next packet to send. After sending it, the caller must call [`Requester::sent`].
    #[inline]
    pub(super) fn next_packet(
        &mut self,
        of: &ConnectionAttributes,
        may_start: bool,
    ) -> Option<Outgoing> {
        if !self.has_next(of, may_start) {
            return None;
        }
        if self.next == self.started {
            self.start();
        }
        let request = self.queue.get(self.next)?;
        let index = self.next_index(request);
        let psn = request.first.plus(index);
        let is_last = index + 1 == request.packets;
        Some(Outgoing {
            position: self.next,
            psn,
            index,
            wants_acknowledgement: is_last || index % ACKNOWLEDGED == ACKNOWLEDGED - 1,
            is_repeated: psn.since(self.furthest) < 0,
        })
    }

    /// Whether there is a request that has no sequence numbers yet and may get some.
    #[inline]
    fn can_start(&self, of: &ConnectionAttributes) -> bool {
        self.queue.get(self.started).is_some_and(|request| {
            let is_read_like = request.wr.operation.is_read_like();
            let must_wait = (request.wr.is_fenced && self.reads > 0)
                || (is_read_like && self.reads >= u32::from(of.max_rd_atomic))
                || self.end.since(self.unacknowledged) >= WINDOW;
            !must_wait
        })
    }

    /// Assigns sequence numbers to the next request.
    fn start(&mut self) {
        if let Some(request) = self.queue.get_mut(self.started) {
            request.first = self.end;
            self.end = self.end.plus(request.packets);
            self.reads += u32::from(request.wr.operation.is_read_like());
            self.started += 1;
        }
    }

    /// Whether the first request that was not started can never be started: it is a read, and the
    /// queue pair permits none.
    #[inline]
    pub(super) fn is_stuck(&self, of: &ConnectionAttributes) -> bool {
        self.started == 0
            && of.max_rd_atomic == 0
            && (self.queue.front()).is_some_and(|request| request.wr.operation.is_read_like())
    }

    /// The packet that [`Requester::next_packet`] has returned was sent.
    #[inline]
    pub(super) fn sent(&mut self, packet: &Outgoing) {
        let Some(request) = self.queue.get(packet.position) else {
            return;
        };
        let numbers = match request.wr.operation.is_read_like() {
            true => request.packets - packet.index,
            false => 1,
        };
        let packets = request.sent_packets();
        let behind = packet.psn.plus(numbers);
        if behind.since(self.furthest) > 0 {
            self.furthest = behind;
        }
        self.sent += 1;
        if self.sent >= packets {
            self.next += 1;
            self.sent = 0;
        }
    }

    /// Whether an answer is outstanding.
    fn is_waiting(&self) -> bool {
        self.started > 0
    }

    /// Whether the number is sent and unacknowledged.
    fn is_expected(&self, psn: Psn) -> bool {
        psn.since(self.unacknowledged) >= 0 && psn.since(self.end) < 0
    }

    /// The responder has all packets up to and including this one.
    #[inline]
    pub(super) fn acknowledge(&mut self, psn: Psn) {
        if self.is_expected(psn) {
            self.advance(psn);
        }
    }

    #[inline(always)]
    fn advance(&mut self, psn: Psn) {
        while self.started > 0
            && let Some(front) = self.queue.front()
            && psn.since(front.last()) >= 0
        {
            if front.wr.operation.is_read_like() && front.answered < front.packets {
                // This acknowledgement reveals that a read's answer before it was lost.
                let missing = front.first.plus(front.answered);
                self.make_progress(missing);
                return self.rewind_once(missing);
            }
            self.end_front(WcStatus::Success);
        }
        let reached = match self.queue.front().filter(|_| self.started > 0) {
            // An acknowledgement of earlier packets does not cover the missing part of a read.
            Some(front) if front.wr.operation.is_read_like() => front.first.plus(front.answered),
            _ => psn.plus(1),
        };
        self.make_progress(reached);
    }

    #[inline]
    fn make_progress(&mut self, reached: Psn) {
        if reached.since(self.unacknowledged) <= 0 {
            return;
        }
        self.unacknowledged = reached;
        (self.retries, self.rnr_retries) = (0, 0);
        self.is_rewound = false;
        self.deadline = None;
        // Packets that were acknowledged meanwhile are not retransmitted.
        if self.next == 0
            && let Some(front) = self.queue.front().filter(|_| self.started > 0)
            && !front.wr.operation.is_read_like()
        {
            let there = reached.since(front.first).max(0) as u32;
            self.sent = self.sent.max(there);
            if self.sent >= front.packets {
                (self.next, self.sent) = (1, 0);
            }
        }
    }

    #[inline]
    pub(super) fn end_front(&mut self, status: WcStatus) {
        let Some(request) = self.queue.pop_front() else {
            return;
        };
        if self.started > 0 {
            self.started -= 1;
            self.reads -= u32::from(request.wr.operation.is_read_like());
        }
        match self.next {
            0 => self.sent = 0,
            _ => self.next -= 1,
        }
        self.posted -= usize::from(request.purpose == Purpose::Program);
        let wr = &request.wr;
        self.ended.push_back(EndedRequest {
            wr_id: wr.wr_id,
            purpose: request.purpose,
            operation: wr.operation.completes_as(),
            length: request.length,
            is_signaled: wr.is_signaled,
            is_read_like: wr.operation.is_read_like(),
            status,
        });
    }

    /// Retransmits from this number on.
    fn rewind(&mut self, psn: Psn) {
        self.is_rewound = true;
        let found = self.queue.iter().take(self.started).position(|request| {
            let offset = psn.since(request.first);
            offset >= 0 && (offset as u32) < request.packets
        });
        if let Some(index) = found {
            let request = &self.queue[index];
            self.next = index;
            self.sent = match request.wr.operation.is_read_like() {
                true => 0,
                false => psn.since(request.first) as u32,
            };
        }
    }

    fn rewind_once(&mut self, psn: Psn) {
        if !self.is_rewound {
            self.rewind(psn);
        }
    }

    /// Handles a NAK for a missing packet. Returns false if the retries are exhausted.
    #[must_use]
    pub(super) fn sequence_nak(&mut self, psn: Psn, of: &ConnectionAttributes) -> bool {
        if !self.is_expected(psn) {
            return true;
        }
        self.acknowledge_before(psn);
        if self.is_rewound {
            return true;
        }
        self.retry(of)
    }

    fn acknowledge_before(&mut self, psn: Psn) {
        if psn != self.unacknowledged {
            self.advance(psn.before());
        }
    }

    fn retry(&mut self, of: &ConnectionAttributes) -> bool {
        if self.retries >= of.retry_count {
            return false;
        }
        self.retries += 1;
        self.deadline = None;
        self.rewind(self.unacknowledged);
        true
    }

    /// Handles an RNR NAK with this delay. Returns false if the retries are exhausted.
    #[must_use]
    pub(super) fn rnr_nak(&mut self, psn: Psn, delay: Duration, of: &ConnectionAttributes) -> bool {
        if !self.is_expected(psn) || self.wait != StallReason::Nothing {
            return true;
        }
        self.acknowledge_before(psn);
        if of.rnr_retry != 7 {
            if self.rnr_retries >= of.rnr_retry {
                return false;
            }
            self.rnr_retries += 1;
        }
        // The peer responds, so losses during a long RNR wait must not add up.
        self.retries = 0;
        self.rewind(psn);
        self.wait = StallReason::Requested(delay);
        self.deadline = None;
        true
    }

    /// Handles a NAK that refuses this packet. Returns whether the packet is unacknowledged.
    pub(super) fn error_nak(&mut self, psn: Psn, status: WcStatus) -> bool {
        if !self.is_expected(psn) {
            return false;
        }
        self.acknowledge_before(psn);
        self.end_front(status);
        true
    }

    /// Fails a request whose local memory is not registered any more, and flushes the requests
    /// before it.
    pub(super) fn fail_at(&mut self, position: usize, status: WcStatus) {
        for _ in 0..position {
            self.end_front(WcStatus::Flushed);
        }
        self.end_front(status);
    }

    /// Whether an RNR NAK was received whose delay begins at the next known time.
    #[inline]
    pub(super) fn needs_rnr_time(&self) -> bool {
        matches!(self.wait, StallReason::Requested(_))
    }

    /// The read or atomic whose answer continues with this number. `None` if there is none; a
    /// number after the expected one causes a retransmission.
    pub(super) fn awaited(&mut self, psn: Psn) -> Option<&Request> {
        if !self.is_expected(psn) {
            return None;
        }
        // The requests before it were executed.
        let position = self.queue.iter().take(self.started).position(|request| {
            request.wr.operation.is_read_like() && request.answered < request.packets
        })?;
        let request = &self.queue[position];
        let next = request.first.plus(request.answered);
        if psn != next {
            if psn.since(next) > 0 {
                self.rewind_once(next);
            }
            return None;
        }
        for _ in 0..position {
            self.end_front(WcStatus::Success);
        }
        self.queue.front()
    }

    /// Counts the packet of the answer for which [`Requester::awaited`] has returned the request.
    pub(super) fn take_answer(&mut self) {
        let Some(front) = self.queue.front_mut() else {
            return;
        };
        front.answered += 1;
        let (reached, is_whole) = (
            front.first.plus(front.answered),
            front.answered == front.packets,
        );
        if is_whole {
            self.end_front(WcStatus::Success);
        }
        self.make_progress(reached);
    }

    /// Flushes all requests, in order.
    pub(super) fn flush(&mut self) {
        while !self.queue.is_empty() {
            self.end_front(WcStatus::Flushed);
        }
        self.wait = StallReason::Nothing;
        self.deadline = None;
    }

    /// Whether the time is needed to limit the wait for an answer.
    #[inline]
    pub(super) fn needs_time(&self, timeout: Option<Duration>) -> bool {
        match self.wait {
            StallReason::Requested(_) | StallReason::Until(_) => false,
            StallReason::Nothing => {
                timeout.is_some() && self.is_waiting() && self.deadline.is_none()
            }
        }
    }

    /// Handles a timer. The acknowledgement time-out starts when the link has no packet in transit.
    /// Until then the peer cannot answer: its device may be a process that waits for a processor
    /// longer than any real device would.
    pub(super) fn tick(
        &mut self,
        now: Duration,
        timeout: Option<Duration>,
        of: &ConnectionAttributes,
        is_carried: bool,
    ) -> Tick {
        match self.wait {
            StallReason::Requested(delay) => {
                self.wait = StallReason::Until(now + delay);
                return Tick::Later(Some(now + delay));
            }
            StallReason::Until(at) if now < at => return Tick::Later(Some(at)),
            StallReason::Until(_) => {
                self.wait = StallReason::Nothing;
                let deadline = timeout.map(|timeout| now + timeout);
                self.deadline = deadline;
                return Tick::Send(deadline);
            }
            StallReason::Nothing => {}
        }
        let Some(timeout) = timeout.filter(|_| self.is_waiting() && !is_carried) else {
            self.deadline = None;
            return Tick::Later(None);
        };
        match self.deadline {
            Some(at) if now >= at => match self.retry(of) {
                true => {
                    self.deadline = Some(now + timeout);
                    Tick::Send(self.deadline)
                }
                false => Tick::GivenUp,
            },
            Some(at) => Tick::Later(Some(at)),
            None => {
                self.deadline = Some(now + timeout);
                Tick::Later(self.deadline)
            }
        }
    }
}
