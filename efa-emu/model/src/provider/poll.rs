//! Reading completions.

use std::sync::Arc;

use efa_core::address::{Ahn, Gid, Qpn};
use efa_core::nic::Status;

use super::ibv_wc_status;
use super::request_ids::Retired;
use crate::device::connected::WcOperation;
use crate::device::queue::{
    CompletionEntry, CompletionRing, CompletionSlot, CqDoorbell, WqeOperation,
};

/// The operation of a completion.
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
            WcOpcode::Send | WcOpcode::RdmaRead => WcOperation::Send as u32,
            WcOpcode::RdmaWrite => WcOperation::RdmaWrite as u32,
            WcOpcode::Recv => WcOperation::Recv as u32,
            WcOpcode::RecvRdmaWithImmediate => WcOperation::RecvRdmaWithImmediate as u32,
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

/// One completion: the queue's entry and the application's id of the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The application's work request id; 0 for unsolicited writes.
    pub wr_id: u64,
    entry: CompletionEntry,
}

impl Completion {
    /// The queue's entry, if it belongs to a connected queue pair or a shared receive queue.
    pub fn connected(&self) -> Option<&CompletionEntry> {
        Some(&self.entry).filter(|entry| entry.is_connected())
    }

    /// The device's status code, which is also the vendor error.
    #[inline]
    pub fn code(&self) -> u8 {
        self.entry.status()
    }

    /// The status, if the code is known.
    pub fn status(&self) -> Option<Status> {
        Status::from_code(self.code())
    }

    /// The status as `ibv_wc_status`.
    #[inline]
    pub fn ibv_wc_status(&self) -> u32 {
        ibv_wc_status(self.code())
    }

    /// The completed operation.
    #[inline]
    pub fn opcode(&self) -> WcOpcode {
        match (self.entry.is_receive(), self.entry.operation()) {
            (false, WqeOperation::Send) => WcOpcode::Send,
            (false, WqeOperation::RdmaRead) => WcOpcode::RdmaRead,
            (false, WqeOperation::RdmaWrite) => WcOpcode::RdmaWrite,
            (true, WqeOperation::RdmaWrite) => WcOpcode::RecvRdmaWithImmediate,
            (true, WqeOperation::Send | WqeOperation::RdmaRead) => WcOpcode::Recv,
        }
    }

    /// A field that only receive completions have.
    #[inline]
    fn of_receive<T>(&self, absent: T, get: impl FnOnce(&CompletionEntry) -> T) -> T {
        if self.entry.is_receive() {
            get(&self.entry)
        } else {
            absent
        }
    }

    /// Bytes received (including the 40 bytes of a UD receive's header) or written; 0 for the send
    /// queue.
    #[inline]
    pub fn byte_len(&self) -> u32 {
        self.of_receive(0, CompletionEntry::length)
    }

    /// Immediate data in host byte order.
    #[inline]
    pub fn immediate(&self) -> Option<u32> {
        self.of_receive(None, CompletionEntry::immediate)
    }

    /// Flags as the verbs report them.
    #[inline]
    pub fn flags(&self) -> WcFlags {
        match self.immediate() {
            Some(_) => WcFlags::WITH_IMMEDIATE,
            None => WcFlags::empty(),
        }
    }

    /// The local queue pair.
    #[inline]
    pub fn qp_num(&self) -> Qpn {
        self.entry.qpn()
    }

    /// The sender's queue pair; 0 for the send queue.
    #[inline]
    pub fn src_qp(&self) -> Qpn {
        self.of_receive(Qpn(0), CompletionEntry::source_qpn)
    }

    /// The sender's address handle number; `None` (0xFFFF in the verbs) if it has no address handle
    /// here.
    #[inline]
    pub fn ahn(&self) -> Option<Ahn> {
        self.of_receive(None, CompletionEntry::ahn)
    }

    /// The sender's GID, if it has no address handle and the device reports the GID.
    #[inline]
    pub fn sgid(&self) -> Option<Gid> {
        self.of_receive(None, CompletionEntry::source_gid)
    }

    /// Whether it is a write with immediate that consumed no receive.
    #[inline]
    pub fn is_unsolicited(&self) -> bool {
        self.of_receive(false, CompletionEntry::is_unsolicited)
    }
}

/// Finds the queues of completions. The C ABI looks the queue pair up by number and acquires its
/// locks; a program with one queue pair needs no lookup.
pub trait QueueOwner {
    /// Retires the request of a completion of `qpn`'s send queue; [`Retired::Stale`] if the queue
    /// pair does not exist.
    fn retire_send(&mut self, qpn: Qpn, request_id: u16) -> Retired;

    /// As [`QueueOwner::retire_send`], for a completion of `qpn`'s receive queue.
    fn retire_recv(&mut self, qpn: Qpn, request_id: u16) -> Retired;

    /// Whether `qpn` exists. Called for completions without a work request.
    fn owns(&mut self, qpn: Qpn) -> bool;
}

/// A completion queue on its client's side.
pub struct CompletionQueue {
    ring: Arc<CompletionRing>,
    /// The counter of the next entry to read. The ring has a copy for the device.
    consumer: u16,
    sequence: u8,
    stale: u64,
    current: Option<Completion>,
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

    /// Number of entries dropped because they belonged to no outstanding work request.
    pub fn stale(&self) -> u64 {
        self.stale
    }

    /// Returns the next completion. Drops entries that belong to no outstanding work request of a
    /// live queue pair, and successful ones of unsignaled requests.
    #[inline(always)]
    pub fn next(&mut self, owner: &mut impl QueueOwner) -> Option<Completion> {
        loop {
            let slot = self.ring.read(self.consumer);
            if slot == CompletionSlot::Empty {
                return None;
            }
            self.consumer = self.consumer.wrapping_add(1);
            self.ring.set_consumer(self.consumer);
            let CompletionSlot::Entry(entry) = slot else {
                self.stale += 1;
                continue;
            };
            let wr_id = match retire(&entry, owner) {
                Retired::WorkRequest(wr_id) => Some(wr_id),
                retired => self.other_wr_id(entry, retired),
            };
            if let Some(wr_id) = wr_id {
                return Some(Completion { wr_id, entry });
            }
        }
    }

    /// The work request id to report for an entry that has no signaled work request with a 16-bit
    /// id; `None` if it is not reported. The entry is passed by value, so that on the hot path it
    /// stays in registers.
    #[cold]
    fn other_wr_id(&mut self, entry: CompletionEntry, retired: Retired) -> Option<u64> {
        match retired {
            Retired::WorkRequest(wr_id) => Some(wr_id),
            Retired::Own => Some(entry.long_request_id()),
            Retired::Connected => Some(entry.connected_wr_id()),
            Retired::Unsignaled(wr_id) => (entry.status() != 0).then_some(wr_id),
            Retired::Stale => {
                let found = of_no_queue_pair(&entry);
                self.stale += u64::from(found.is_none());
                found
            }
        }
    }

    /// Whether there are unread entries.
    #[inline(always)]
    pub fn has_unread(&self) -> bool {
        !self.ring.is_empty(self.consumer)
    }

    /// Begins a polling session (`ibv_start_poll`) with the next completion, which
    /// [`CompletionQueue::current`] then shows. Without one there is no session to end.
    #[inline(always)]
    pub fn start_poll(&mut self, owner: &mut impl QueueOwner) -> Option<&Completion> {
        self.current = self.next(owner);
        self.current.as_ref()
    }

    /// Advances to the next completion (`ibv_next_poll`). If there is none, the last one stays
    /// current.
    #[inline(always)]
    pub fn next_poll(&mut self, owner: &mut impl QueueOwner) -> Option<&Completion> {
        let next = self.next(owner)?;
        Some(self.current.insert(next))
    }

    /// The current completion. It stays valid after the end of the session, until the next one
    /// begins.
    #[inline]
    pub fn current(&self) -> Option<&Completion> {
        self.current.as_ref()
    }

    /// Writes the doorbell to request an event for an unread entry. The caller notifies the device.
    pub fn request_notification(&mut self) {
        self.write_doorbell(true, false);
    }

    /// As [`CompletionQueue::request_notification`], for solicited entries.
    pub fn request_solicited(&mut self) {
        self.write_doorbell(true, true);
    }

    /// Records that the application has received an event, so that the next request is a new one.
    pub fn event_received(&mut self) {
        self.sequence = self.sequence.wrapping_add(1) & 3;
    }

    fn write_doorbell(&self, arm: bool, solicited_only: bool) {
        let doorbell = CqDoorbell {
            consumer: self.consumer,
            sequence: self.sequence,
            solicited_only,
            arm,
        };
        self.ring.doorbell().write(doorbell.to_bits());
    }
}

/// The work request id of an operation on a tag list, which belongs to no queue pair.
fn of_no_queue_pair(entry: &CompletionEntry) -> Option<u64> {
    let is_of_list = entry.is_connected() && entry.qpn() == Qpn(0);
    is_of_list.then(|| entry.connected_wr_id())
}

#[inline(always)]
fn retire(entry: &CompletionEntry, owner: &mut impl QueueOwner) -> Retired {
    if !entry.is_receive() {
        return owner.retire_send(entry.qpn(), entry.request_id());
    }
    if !entry.is_unsolicited() {
        return owner.retire_recv(entry.qpn(), entry.request_id());
    }
    match owner.owns(entry.qpn()) {
        true => Retired::WorkRequest(0),
        false => Retired::Stale,
    }
}
