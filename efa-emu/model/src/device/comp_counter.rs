//! Completion counters: numbers in memory that the device increments for each completed operation,
//! in addition to the entries of completion queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use efa_core::nic::Status;
use slab::Slab;

use super::queue::{CompletionEntry, WqeOperation};

bitflags::bitflags! {
    /// Operations, as `ibv_qp_attach_comp_cntr_op`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct CountedOps: u32 {
        /// Sends of this queue pair.
        const SEND = 1 << 0;
        /// Received messages.
        const RECV = 1 << 1;
        /// RDMA reads of this queue pair.
        const RDMA_READ = 1 << 2;
        /// RDMA reads by peers.
        const REMOTE_RDMA_READ = 1 << 3;
        /// RDMA writes of this queue pair.
        const RDMA_WRITE = 1 << 4;
        /// RDMA writes by peers, with and without immediate.
        const REMOTE_RDMA_WRITE = 1 << 5;
    }
}

/// A completion counter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CounterId(pub u32);

/// The memory of one of a counter's two values.
#[derive(Debug)]
pub enum CounterValue {
    /// In separate memory.
    Own(AtomicU64),
    /// In the program's memory.
    Program(*const AtomicU64),
}

// SAFETY: the pointer refers to an atomic value, by the contract of `CounterValue::in_program`.
unsafe impl Send for CounterValue {}
// SAFETY: as above.
unsafe impl Sync for CounterValue {}

impl CounterValue {
    /// A value of 0 in separate memory.
    pub const fn own() -> CounterValue {
        CounterValue::Own(AtomicU64::new(0))
    }

    /// A value in a program's memory; `None` if the address is null or misaligned.
    ///
    /// # Safety
    /// The memory is readable and writable until the counter has been destroyed.
    pub unsafe fn in_program(address: *mut u64) -> Option<CounterValue> {
        let is_possible = !address.is_null() && address.is_aligned();
        is_possible.then_some(CounterValue::Program(address.cast()))
    }

    fn place(&self) -> &AtomicU64 {
        match self {
            CounterValue::Own(value) => value,
            // SAFETY: the pointer is aligned, and valid by the contract of `in_program`.
            CounterValue::Program(value) => unsafe { &**value },
        }
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.place().load(Ordering::Acquire)
    }

    /// Replaces the value.
    pub fn set(&self, value: u64) {
        self.place().store(value, Ordering::Release);
    }

    /// Adds to the value.
    pub fn add(&self, amount: u64) {
        self.place().fetch_add(amount, Ordering::AcqRel);
    }
}

/// The two values of a completion counter.
#[derive(Debug)]
pub struct CompCounter {
    /// Operations that have succeeded.
    pub completions: CounterValue,
    /// Operations that have failed.
    pub errors: CounterValue,
}

impl CompCounter {
    fn count(&self, succeeded: bool) {
        match succeeded {
            true => self.completions.add(1),
            false => self.errors.add(1),
        }
    }
}

pub(super) struct CounterEntry {
    pub(super) counter: Arc<CompCounter>,
    /// The number of queue pairs that it is attached to.
    pub(super) users: u32,
}

/// The device's completion counters.
#[derive(Default)]
pub(super) struct CounterTable {
    pub(super) counters: Slab<CounterEntry>,
}

/// The counters of a queue pair.
#[derive(Default)]
pub(super) struct AttachedCounters(pub(super) Vec<(CountedOps, CounterId, Arc<CompCounter>)>);

impl AttachedCounters {
    pub(super) fn counted(&self) -> CountedOps {
        let all = self.0.iter().map(|(ops, ..)| *ops);
        all.fold(CountedOps::empty(), CountedOps::union)
    }

    /// Counts a completed operation.
    #[cold]
    pub(super) fn count(&self, op: CountedOps, succeeded: bool) {
        for (ops, _, counter) in &self.0 {
            if ops.contains(op) {
                counter.count(succeeded);
            }
        }
    }

    /// Counts the operation of a completion queue's entry.
    #[cold]
    pub(super) fn count_entry(&self, entry: &CompletionEntry) {
        let op = match (entry.is_receive(), entry.operation()) {
            (false, operation) => CountedOps::of_request(operation),
            (true, WqeOperation::Send | WqeOperation::RdmaRead) => CountedOps::RECV,
            // Counted with the writes of peers, which have no entry without immediate.
            (true, WqeOperation::RdmaWrite) => return,
        };
        self.count(op, entry.status() == Status::Ok.code());
    }
}

impl CountedOps {
    /// The counted operation of a send queue's request.
    pub(super) fn of_request(operation: WqeOperation) -> CountedOps {
        match operation {
            WqeOperation::Send => CountedOps::SEND,
            WqeOperation::RdmaRead => CountedOps::RDMA_READ,
            WqeOperation::RdmaWrite => CountedOps::RDMA_WRITE,
        }
    }
}
