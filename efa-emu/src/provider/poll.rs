//! Reading completions.

use std::sync::Arc;

use efa_core::address::{Ahn, Gid, Qpn};
use efa_core::nic::Status;

use super::ibv_wc_status;
use super::request_ids::Retired;
use crate::device::queue::{
    CompletionEntry, CompletionRing, CqDoorbell, QueueSide, Slot, WqeOperation,
};

/// What finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WcOpcode {
    /// A send.
    Send,
    /// An RDMA read.
    RdmaRead,
    /// An RDMA write.
    RdmaWrite,
    /// A message arrived.
    Recv,
    /// A peer's RDMA write with immediate arrived.
    RecvRdmaWithImmediate,
}

impl WcOpcode {
    /// The `ibv_wc_opcode` that rdma-core reports; it reports RDMA reads as sends.
    pub const fn ibv_wc_opcode(self) -> u32 {
        match self {
            WcOpcode::Send | WcOpcode::RdmaRead => 0,
            WcOpcode::RdmaWrite => 1,
            WcOpcode::Recv => 128,
            WcOpcode::RecvRdmaWithImmediate => 129,
        }
    }
}

bitflags::bitflags! {
    /// Flags of a completion, in the numbers of `ibv_wc_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct WcFlags: u32 {
        /// There is immediate data.
        const WITH_IMMEDIATE = 1 << 1;
    }
}

/// One completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkCompletion {
    /// The application's work request id; 0 for unsolicited writes.
    pub wr_id: u64,
    /// The device's status code, which is also the vendor error.
    pub code: u8,
    /// What finished.
    pub opcode: WcOpcode,
    /// Bytes received (with the 40 bytes of a UD receive's header) or written; 0 for the send queue.
    pub byte_len: u32,
    /// Immediate data in host byte order.
    pub immediate: Option<u32>,
    /// The local queue pair.
    pub qp_num: Qpn,
    /// The sender's queue pair; 0 for the send queue.
    pub src_qp: Qpn,
    /// The sender's address handle number; `None` (0xFFFF in the verbs) if it has none here.
    pub ahn: Option<Ahn>,
    /// The sender's GID, if it is unknown and the device reports it.
    pub sgid: Option<Gid>,
    /// A write with immediate that consumed no receive.
    pub unsolicited: bool,
}

impl WorkCompletion {
    /// The status, if the code is known.
    pub fn status(&self) -> Option<Status> {
        Status::from_code(self.code)
    }

    /// The status as the verbs name it.
    pub fn ibv_wc_status(&self) -> u32 {
        ibv_wc_status(self.code)
    }

    /// Flags as the verbs report them.
    pub fn flags(&self) -> WcFlags {
        match self.immediate {
            Some(_) => WcFlags::WITH_IMMEDIATE,
            None => WcFlags::empty(),
        }
    }

    fn new(wr_id: u64, entry: &CompletionEntry) -> Self {
        let mut completion = WorkCompletion {
            wr_id,
            code: entry.status,
            opcode: match entry.operation {
                WqeOperation::Send => WcOpcode::Send,
                WqeOperation::RdmaRead => WcOpcode::RdmaRead,
                WqeOperation::RdmaWrite => WcOpcode::RdmaWrite,
            },
            byte_len: 0,
            immediate: None,
            qp_num: entry.qpn,
            src_qp: Qpn(0),
            ahn: None,
            sgid: None,
            unsolicited: false,
        };
        if let QueueSide::Receive(detail) = &entry.side {
            completion.opcode = match entry.operation {
                WqeOperation::RdmaWrite => WcOpcode::RecvRdmaWithImmediate,
                WqeOperation::Send | WqeOperation::RdmaRead => WcOpcode::Recv,
            };
            completion.byte_len = detail.length;
            completion.immediate = detail.immediate;
            completion.src_qp = detail.source_qpn;
            completion.ahn = detail.ahn;
            completion.sgid = detail.source_gid;
            completion.unsolicited = detail.unsolicited;
        }
        completion
    }
}

/// Finds the queues that completions belong to. The C ABI looks the queue pair up by number and
/// takes its locks; a program with one queue pair has nothing to look up.
pub trait QueueOwner {
    /// A completion of `qpn`'s send queue arrived; [`Retired::Stale`] if there is no such queue pair.
    fn retire_send(&mut self, qpn: Qpn, request_id: u16) -> Retired;

    /// A completion of `qpn`'s receive queue arrived; likewise.
    fn retire_recv(&mut self, qpn: Qpn, request_id: u16) -> Retired;

    /// Whether `qpn` exists; asked for completions that belong to no work request.
    fn owns(&mut self, qpn: Qpn) -> bool;
}

/// A completion queue, as its client sees it.
pub struct CompletionQueue {
    ring: Arc<CompletionRing>,
    consumer: u16,
    sequence: u8,
    stale: u64,
    current: Option<WorkCompletion>,
}

impl CompletionQueue {
    /// A completion queue on an empty ring.
    pub fn new(ring: Arc<CompletionRing>) -> Self {
        CompletionQueue {
            ring,
            consumer: 0,
            sequence: 0,
            stale: 0,
            current: None,
        }
    }

    /// The ring.
    pub fn ring(&self) -> &Arc<CompletionRing> {
        &self.ring
    }

    /// Entries dropped so far because they belonged to no outstanding work request.
    pub fn stale(&self) -> u64 {
        self.stale
    }

    /// Takes the next completion. Entries that belong to no outstanding work request of a live queue
    /// pair are dropped.
    #[inline]
    pub fn next(&mut self, owner: &mut impl QueueOwner) -> Option<WorkCompletion> {
        loop {
            let entry = match self.ring.read(self.consumer) {
                Slot::Empty => return None,
                Slot::Garbage => None,
                Slot::Entry(entry) => Some(entry),
            };
            self.consumer = self.consumer.wrapping_add(1);
            if let Some(entry) = entry
                && let Retired::WorkRequest(wr_id) = retire(&entry, owner)
            {
                return Some(WorkCompletion::new(wr_id, &entry));
            }
            self.stale += 1;
        }
    }

    /// Whether there are entries that were not taken yet.
    pub fn has_unread(&self) -> bool {
        !matches!(self.ring.read(self.consumer), Slot::Empty)
    }

    /// Begins a polling session (`ibv_start_poll`): true if there is a completion, which
    /// [`CompletionQueue::current`] then shows. Without one there is no session to end.
    pub fn start_poll(&mut self, owner: &mut impl QueueOwner) -> bool {
        self.current = self.next(owner);
        self.current.is_some()
    }

    /// Moves to the next completion (`ibv_next_poll`). If there is none, the last one stays.
    pub fn next_poll(&mut self, owner: &mut impl QueueOwner) -> bool {
        let next = self.next(owner);
        if next.is_some() {
            self.current = next;
        }
        next.is_some()
    }

    /// Ends a polling session (`ibv_end_poll`).
    pub fn end_poll(&mut self) {
        self.current = None;
    }

    /// The completion of the polling session; valid until the next one.
    pub fn current(&self) -> Option<&WorkCompletion> {
        self.current.as_ref()
    }

    /// Writes the doorbell: asks for an event when there is an entry that was not polled yet. The
    /// caller tells the device to look.
    pub fn request_notification(&mut self) {
        self.write_doorbell(true);
    }

    /// The application received an event of this queue: the next request for one is a new one.
    pub fn event_received(&mut self) {
        self.sequence = self.sequence.wrapping_add(1) & 3;
    }

    fn write_doorbell(&self, arm: bool) {
        let doorbell = CqDoorbell {
            consumer: self.consumer,
            sequence: self.sequence,
            arm,
        };
        self.ring.doorbell().write(doorbell.to_bits());
    }
}

fn retire(entry: &CompletionEntry, owner: &mut impl QueueOwner) -> Retired {
    match &entry.side {
        QueueSide::Send(_) => owner.retire_send(entry.qpn, entry.request_id),
        QueueSide::Receive(detail) if detail.unsolicited => match owner.owns(entry.qpn) {
            true => Retired::WorkRequest(0),
            false => Retired::Stale,
        },
        QueueSide::Receive(_) => owner.retire_recv(entry.qpn, entry.request_id),
    }
}
