//! Completion counters: numbers in memory that the device counts up with each operation that ends, beside
//! the entries of completion queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use efa_core::address::Qpn;
use efa_core::nic::Status;
use slab::Slab;

use super::queue::{CompletionEntry, WqeOperation};
use super::queue_pair::QpState;
use super::{Command, Device, Error};

bitflags::bitflags! {
    /// Kinds of operations, in the numbers of `ibv_qp_attach_comp_cntr_op`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct CountedOps: u32 {
        /// Sends of this queue pair.
        const SEND = 1 << 0;
        /// Messages that arrive.
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

/// Where one of a counter's two values is.
#[derive(Debug)]
pub enum CounterValue {
    /// In memory of its own.
    Own(AtomicU64),
    /// In the program's memory.
    Program(*const AtomicU64),
}

// SAFETY: the pointer is one to an atomic value, by the contract of `CounterValue::in_program`.
unsafe impl Send for CounterValue {}
// SAFETY: as above.
unsafe impl Sync for CounterValue {}

impl CounterValue {
    /// A value of 0 in memory of its own.
    pub const fn own() -> CounterValue {
        CounterValue::Own(AtomicU64::new(0))
    }

    /// The value in a program's memory; `None` for an address at which no such value can be.
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
            // SAFETY: aligned, and there by the contract of `in_program`.
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

struct Entry {
    counter: Arc<CompCounter>,
    /// The number of queue pairs that it is attached to.
    users: u32,
}

/// The device's completion counters.
#[derive(Default)]
pub(super) struct CounterTable {
    counters: Slab<Entry>,
}

/// The counters of a queue pair.
#[derive(Default)]
pub(super) struct AttachedCounters(Vec<(CountedOps, CounterId, Arc<CompCounter>)>);

impl AttachedCounters {
    fn counted(&self) -> CountedOps {
        let all = self.0.iter().map(|(ops, ..)| *ops);
        all.fold(CountedOps::empty(), CountedOps::union)
    }

    /// Counts an operation that has ended.
    #[cold]
    pub(super) fn count(&self, op: CountedOps, succeeded: bool) {
        for (ops, _, counter) in &self.0 {
            if ops.contains(op) {
                counter.count(succeeded);
            }
        }
    }

    /// Counts the operation that has ended with this entry of a completion queue.
    #[cold]
    pub(super) fn count_entry(&self, entry: &CompletionEntry) {
        let op = match (entry.is_receive(), entry.operation()) {
            (false, operation) => CountedOps::of_request(operation),
            (true, WqeOperation::Send | WqeOperation::RdmaRead) => CountedOps::RECV,
            // Counted with the writes of peers, which need no entry.
            (true, WqeOperation::RdmaWrite) => return,
        };
        self.count(op, entry.status() == Status::Ok.code());
    }
}

impl CountedOps {
    /// The kind of a request of the send queue.
    pub(super) fn of_request(operation: WqeOperation) -> CountedOps {
        match operation {
            WqeOperation::Send => CountedOps::SEND,
            WqeOperation::RdmaRead => CountedOps::RDMA_READ,
            WqeOperation::RdmaWrite => CountedOps::RDMA_WRITE,
        }
    }
}

impl Device {
    /// Makes a completion counter with these values. [`Error::Unsupported`] if the device's generation has none.
    pub fn create_counter(&mut self, counter: Arc<CompCounter>) -> Result<CounterId, Error> {
        self.command(Command::Other, |device| {
            device.check_present()?;
            let most = device.profile.max_comp_counters as usize;
            if most == 0 {
                return Err(Error::Unsupported("completion counters"));
            }
            let counters = &mut device.comp_counters.counters;
            if counters.len() >= most {
                return Err(Error::Exhausted("completion counter"));
            }
            let id = counters.insert(Entry { counter, users: 0 });
            Ok(CounterId(id as u32))
        })
    }

    /// Ends a completion counter; [`Error::Busy`] while it is attached to a queue pair.
    pub fn destroy_counter(&mut self, id: CounterId) -> Result<(), Error> {
        self.command(Command::Other, |device| {
            let counters = &mut device.comp_counters.counters;
            match counters.get(id.0 as usize) {
                None => Err(Error::not_found("completion counter", id.0)),
                Some(entry) if entry.users > 0 => Err(Error::Busy("completion counter")),
                Some(_) => {
                    counters.remove(id.0 as usize);
                    Ok(())
                }
            }
        })
    }

    /// Counts these operations of a queue pair from now on, until it is destroyed. [`Error::Invalid`] unless the
    /// queue pair is in the state reset or init; [`Error::Busy`] if one of the operations has a counter.
    pub fn attach_counter(
        &mut self,
        qpn: Qpn,
        id: CounterId,
        ops: CountedOps,
    ) -> Result<(), Error> {
        self.command(Command::Other, |device| {
            device.check_present()?;
            let entry = device.comp_counters.counters.get_mut(id.0 as usize);
            let entry = entry.ok_or_else(|| Error::not_found("completion counter", id.0))?;
            let qp = device.qps.get_mut(qpn);
            let qp = qp.ok_or_else(|| Error::not_found("queue pair", qpn.0))?;
            if !matches!(qp.state, QpState::Reset | QpState::Init) {
                return Err(Error::invalid("queue pair state", qp.state as u64));
            }
            let attached = device.cqs.counters_of(qpn);
            if attached.counted().intersects(ops) {
                return Err(Error::Busy("counter of the operation"));
            }
            attached.0.push((ops, id, Arc::clone(&entry.counter)));
            entry.users += 1;
            qp.counted = true;
            for queue in [qp.config.send_cq, qp.config.recv_cq] {
                device.cqs.count_entries(queue);
            }
            Ok(())
        })
    }

    /// Gives back the counters of a queue pair that has ended.
    pub(super) fn detach_counters(&mut self, qpn: Qpn) {
        let attached = self.cqs.take_counters(qpn);
        for (_, id, _) in attached.into_iter().flat_map(|attached| attached.0) {
            if let Some(entry) = self.comp_counters.counters.get_mut(id.0 as usize) {
                entry.users -= 1;
            }
        }
    }
}
