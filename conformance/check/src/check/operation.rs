//! Operations that an answer ends.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use efa_wire::{PacketType, RmaIovs};
use foldhash::HashMap;

use super::runs::ByteRanges;

/// Operations that are over but still known, so that a second answer is recognised as one.
const MOST_OVER: usize = 1024;

/// Names an operation of a conversation. The ids in packets may be assigned to other operations
/// while it is in progress. Later operations have greater names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct OpId {
    /// The number of operations that had begun before it, plus one.
    number: NonZeroU64,
    slot: u32,
}

/// One of the two endpoints of a conversation.
pub(super) type End = usize;

/// Kind of the operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OperationKind {
    /// Data that its sender pushes: messages and writes.
    Push,
    /// A message or write whose receiver reads it by RDMA.
    LongRead,
    /// A read that is answered with data.
    Read,
    /// An atomic that is answered with data.
    Fetch,
}

/// Memory that the peer may read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    address: u64,
    length: u64,
    key: u32,
}

impl Region {
    fn contains(&self, address: u64, length: u64, key: u32) -> bool {
        // Devices use 32 bits of the key.
        key == self.key
            && address >= self.address
            && address - self.address <= self.length
            && length <= self.length - (address - self.address)
    }

    fn overlaps(&self, other: &Region) -> bool {
        self.key == other.key
            && self.address < other.address.saturating_add(other.length)
            && other.address < self.address.saturating_add(self.length)
    }
}

/// The later answers that prove that an answer is overdue, because the target handles requests in
/// this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AnswerOrder {
    /// Everything that arrived later.
    Arrival,
    /// Receives that match the same messages: those with this tag and a later msg_id.
    Match(Option<u64>, u32),
    /// Atomics with a later msg_id.
    Atomic(u32),
}

/// An answer that is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct DueAnswer {
    /// The end that has to send it.
    pub(super) from: End,
    pub(super) turn: AnswerOrder,
    /// Its place among all that were due in the conversation.
    pub(super) serial: u64,
    /// The packet that made it due, and its type.
    pub(super) packet: u64,
    pub(super) packet_type: PacketType,
    /// The type of the packet that is due.
    pub(super) answer: PacketType,
    /// The time after which it waits for no more packets, if known.
    pub(super) ripe: Option<u64>,
}

/// An operation.
#[derive(Debug)]
pub(super) struct Operation {
    /// The packet that began it, and its type.
    pub(super) request: u64,
    pub(super) packet_type: PacketType,
    pub(super) kind: OperationKind,
    /// Whether its request is judged in this conversation, see `FrameContext`.
    pub(super) is_judged: bool,
    /// Sender of the data.
    pub(super) source: End,
    pub(super) length: u64,
    /// The bytes that were sent.
    pub(super) runs: ByteRanges,
    /// Bytes that may be sent: in requests, and by each window.
    pub(super) granted: u64,
    /// The time at which the last window was opened, and the number of bytes that had been sent
    /// before.
    pub(super) window: Option<(u64, u64)>,
    /// Bytes that travel in requests.
    pub(super) in_requests: u64,
    pub(super) recv_id: Option<u32>,
    pub(super) turn: AnswerOrder,
    pub(super) is_message: bool,
    pub(super) msg_id: Option<u32>,
    pub(super) delivery_complete: bool,
    /// A read or atomic that has not been answered.
    pub(super) awaits_answer: bool,
    /// Whether it is short enough that its answer contains all data.
    pub(super) is_short: bool,
    pub(super) acknowledged: Option<u64>,
    pub(super) nacked: Option<u64>,
    pub(super) is_done: bool,
    /// A device refused one of its packets permanently.
    pub(super) has_failed: bool,
    /// Whether its request is of a type whose data the receiver reads, and the memory that it
    /// offers.
    pub(super) is_to_be_read: bool,
    pub(super) regions: Vec<Region>,
    /// The keys of the target's memory.
    pub(super) keys: Vec<u64>,
    /// How far into the memory the first RDMA read began.
    pub(super) read_from: Option<u64>,
    pub(super) reads_begun: u64,
    pub(super) reads_under_way: u64,
    /// Bytes that were read.
    pub(super) bytes_read: u64,
    /// The memory of another operation overlaps, so that reads cannot be attributed.
    pub(super) shares_memory: bool,
    pub(super) due: Option<DueAnswer>,
}

impl Operation {
    fn new(
        request: u64,
        packet_type: PacketType,
        kind: OperationKind,
        source: End,
        length: u64,
    ) -> Operation {
        Operation {
            request,
            packet_type,
            kind,
            is_judged: false,
            source,
            length,
            runs: ByteRanges::default(),
            granted: 0,
            window: None,
            in_requests: 0,
            recv_id: None,
            turn: AnswerOrder::Arrival,
            is_message: false,
            msg_id: None,
            delivery_complete: false,
            awaits_answer: false,
            is_short: false,
            acknowledged: None,
            nacked: None,
            is_done: false,
            has_failed: false,
            is_to_be_read: false,
            regions: Vec::new(),
            keys: Vec::new(),
            read_from: None,
            reads_begun: 0,
            reads_under_way: 0,
            bytes_read: 0,
            shares_memory: false,
            due: None,
        }
    }

    pub(super) fn sent(&self) -> u64 {
        self.runs.total()
    }

    pub(super) fn is_sent(&self) -> bool {
        self.sent() >= self.length
    }

    /// How far into its memory a place is.
    pub(super) fn offset_of(&self, address: u64, key: u32) -> Option<u64> {
        let mut before: u64 = 0;
        for region in &self.regions {
            if region.contains(address, 0, key) {
                return before.checked_add(address - region.address);
            }
            before = before.saturating_add(region.length);
        }
        None
    }

    /// Whether its `send_id` still refers to it, from the view of the endpoint that assigned it.
    pub(super) fn holds_send_id(&self) -> bool {
        if self.has_failed || self.acknowledged.is_some() || self.nacked.is_some() {
            return false;
        }
        match self.kind {
            OperationKind::LongRead => self.in_requests < self.length,
            OperationKind::Push => self.delivery_complete || !self.is_sent(),
            OperationKind::Read => !self.is_sent(),
            OperationKind::Fetch => false,
        }
    }

    /// Whether its `recv_id` still refers to it, from the view of the endpoint that assigned it.
    pub(super) fn holds_recv_id(&self) -> bool {
        let waits_for_data = match self.kind {
            OperationKind::Fetch => self.awaits_answer,
            OperationKind::Push | OperationKind::Read | OperationKind::LongRead => !self.is_sent(),
        };
        waits_for_data && !self.has_failed && !self.is_done
    }
}

/// The regions of an iov.
pub(super) fn regions(iovs: RmaIovs) -> Vec<Region> {
    let regions = iovs.as_slice().iter().map(|iov| Region {
        address: iov.addr(),
        length: iov.len(),
        key: iov.key() as u32,
    });
    regions.collect()
}

/// The operations of a conversation.
#[derive(Debug, Default)]
pub(super) struct Operations {
    slots: Vec<Option<(OpId, Operation)>>,
    /// Slots without an operation.
    free: Vec<u32>,
    begun: u64,
    /// The operations that have ended, with the number of frames of the capture at their end.
    over: VecDeque<(OpId, u64)>,
}

impl Operations {
    /// Begins an operation, whose other fields are set in place.
    pub(super) fn begin(
        &mut self,
        request: u64,
        packet_type: PacketType,
        kind: OperationKind,
        source: End,
        length: u64,
    ) -> (OpId, &mut Operation) {
        let operation = Operation::new(request, packet_type, kind, source, length);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        let id = OpId {
            number: NonZeroU64::MIN.saturating_add(self.begun),
            slot,
        };
        self.begun += 1;
        let (_, operation) = self.slots[slot as usize].insert((id, operation));
        (id, operation)
    }

    pub(super) fn get(&self, id: OpId) -> Option<&Operation> {
        let (known, operation) = self.slots.get(id.slot as usize)?.as_ref()?;
        (*known == id).then_some(operation)
    }

    /// The newest operation for which a predicate is true.
    pub(super) fn find(&self, is_it: impl Fn(&Operation) -> bool) -> Option<OpId> {
        let found = self.slots.iter().flatten();
        let found = found.filter(|(_, operation)| is_it(operation));
        found.map(|(id, _)| *id).max()
    }

    pub(super) fn get_mut(&mut self, id: OpId) -> Option<&mut Operation> {
        let (known, operation) = self.slots.get_mut(id.slot as usize)?.as_mut()?;
        (*known == id).then_some(operation)
    }

    fn remove(&mut self, id: OpId) {
        if self.get(id).is_some() {
            self.slots[id.slot as usize] = None;
            self.free.push(id.slot);
        }
    }

    /// Ends an operation at a frame. It is kept for a while, so that a second answer is recognised.
    pub(super) fn over(&mut self, id: OpId, at: u64) {
        self.over.push_back((id, at));
        if self.over.len() > MOST_OVER
            && let Some((oldest, _)) = self.over.pop_front()
        {
            self.remove(oldest);
        }
    }

    /// Forgets operations that were over before a frame. Returns how many are left that are over.
    pub(super) fn forget_before(&mut self, at: u64) -> usize {
        while let Some(&(oldest, ended)) = self.over.front()
            && ended < at
        {
            self.over.pop_front();
            self.remove(oldest);
        }
        while self.slots.pop_if(|slot| slot.is_none()).is_some() {}
        self.free.retain(|slot| (*slot as usize) < self.slots.len());
        // The same number of operations is added before they are forgotten the next time.
        self.slots.shrink_to(3 * self.slots.len());
        self.free.shrink_to(3 * self.free.len());
        self.over.shrink_to(3 * self.over.len());
        self.over.len()
    }

    /// Marks operations of one source whose memory overlaps with that of a new one.
    pub(super) fn share_memory(&mut self, id: OpId, others: &[OpId]) {
        let Some(new) = self.get(id).map(|new| new.regions.clone()) else {
            return;
        };
        let mut is_shared = false;
        for other in others.iter().filter(|other| **other != id) {
            let Some(other) = self.get_mut(*other) else {
                continue;
            };
            let overlaps = other
                .regions
                .iter()
                .any(|a| new.iter().any(|b| a.overlaps(b)));
            other.shares_memory |= overlaps;
            is_shared |= overlaps;
        }
        if let Some(new) = self.get_mut(id) {
            new.shares_memory |= is_shared;
        }
    }

    /// The operation of `candidates` whose memory an RDMA read is about, the latest first.
    pub(super) fn read_by(
        &self,
        candidates: &[OpId],
        address: u64,
        length: u64,
        key: u32,
    ) -> Option<OpId> {
        let is_of = |id: &&OpId| {
            self.get(**id).is_some_and(|operation| {
                let mut regions = operation.regions.iter();
                regions.any(|region| region.contains(address, length, key))
            })
        };
        candidates.iter().rev().find(is_of).copied()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Operation> {
        self.slots.iter().flatten().map(|(_, operation)| operation)
    }
}

/// Operations by the ids that one endpoint assigned to them.
#[derive(Debug, Default)]
pub(super) struct OperationNames(HashMap<u32, OpId>);

impl OperationNames {
    /// The last operation with an id.
    pub(super) fn get(&self, id: u32) -> Option<OpId> {
        self.0.get(&id).copied()
    }

    /// Assigns an id to an operation. Returns the previous operation with that id.
    pub(super) fn insert(&mut self, id: u32, operation: OpId) -> Option<OpId> {
        self.0.insert(id, operation)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets the ids of operations that are not known any more.
    pub(super) fn retain_known(&mut self, operations: &Operations) {
        self.0.retain(|_, id| operations.get(*id).is_some());
        self.0.shrink_to(3 * self.0.len());
    }
}
