//! Queued records for local processes whose rings are full.

use std::collections::{HashMap, VecDeque};

use efa_core::address::{Gid, Qpn};

use super::proxy::Token;
use crate::transport::segment::Address;
use efa_lock_free::record::{Record, RecordKind};

/// Most queued bytes for a destination. Datagrams beyond that are dropped.
const MOST_DATAGRAMS: usize = 4 << 20;

/// The destination of a record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Destination {
    /// The proxy that sends the record.
    pub(super) device: usize,
    pub(super) to: RecordTarget,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum RecordTarget {
    /// The process that owns the queue pair.
    QueuePair(Gid, Qpn),
    Process(Address),
}

/// A queued record.
#[derive(Debug)]
pub(super) struct WaitingRecord {
    pub(super) record: Record,
    pub(super) token: Token,
    pub(super) data: Vec<u8>,
}

impl WaitingRecord {
    /// The memory that the record uses, in bytes.
    fn size(&self) -> usize {
        size_of::<WaitingRecord>() + self.data.len()
    }
}

/// All queued records. Records for one destination stay in their order.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    queues: HashMap<Destination, Queue>,
    /// The destinations, in the order of their turns.
    order: VecDeque<Destination>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Queue {
    records: VecDeque<WaitingRecord>,
    bytes: usize,
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Bytes of all queued records.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether records for this destination are queued. Later records for it must be queued too.
    pub(super) fn wait_for(&self, destination: &Destination) -> bool {
        !self.queues.is_empty() && self.queues.contains_key(destination)
    }

    /// Queues a record. A record whose outcome is not reported, such as a datagram, is dropped if
    /// too many bytes are queued for its destination.
    pub(super) fn push(
        &mut self,
        destination: Destination,
        record: Record,
        token: Token,
        data: &[u8],
    ) {
        let queue = self.queues.entry(destination).or_insert_with(|| {
            self.order.push_back(destination);
            Queue::default()
        });
        let is_missed = !matches!(token, Token::Nobody) || record.kind() != RecordKind::Data;
        if !is_missed && queue.bytes >= MOST_DATAGRAMS {
            let reason = "too much is queued for its destination";
            tracing::debug!(to = ?destination.to, reason, "datagram dropped");
            return;
        }
        let waiting = WaitingRecord {
            record,
            token,
            data: data.to_vec(),
        };
        queue.bytes += waiting.size();
        self.bytes += waiting.size();
        queue.records.push_back(waiting);
    }

    /// Calls `send` for the first record of each destination, and for the next ones as long as
    /// `send` returns that the record can be removed. Returns whether any was removed.
    pub(super) fn send(
        &mut self,
        mut send: impl FnMut(&Destination, &WaitingRecord) -> bool,
    ) -> bool {
        let before = self.bytes;
        for _ in 0..self.order.len() {
            let Some(destination) = self.order.pop_front() else {
                break;
            };
            let Some(queue) = self.queues.get_mut(&destination) else {
                continue;
            };
            while let Some(waiting) = queue.records.front()
                && send(&destination, waiting)
            {
                queue.bytes -= waiting.size();
                self.bytes -= waiting.size();
                queue.records.pop_front();
            }
            match queue.records.is_empty() {
                true => drop(self.queues.remove(&destination)),
                false => self.order.push_back(destination),
            }
        }
        // Several destinations may share a full ring. The next call begins with another one.
        if !self.order.is_empty() {
            self.order.rotate_left(1);
        }
        self.bytes != before
    }

    /// Drops the records for which `keep` returns false.
    pub(super) fn retain(&mut self, keep: impl Fn(&Destination, &WaitingRecord) -> bool) {
        self.bytes = 0;
        self.queues.retain(|destination, queue| {
            queue.records.retain(|waiting| keep(destination, waiting));
            queue.bytes = queue.records.iter().map(WaitingRecord::size).sum();
            self.bytes += queue.bytes;
            !queue.records.is_empty()
        });
        self.order
            .retain(|destination| self.queues.contains_key(destination));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use efa_device_model::link::{Operation, RequestHeader};
    use efa_testing::events::Events;

    fn destination(number: u16) -> Destination {
        Destination {
            device: 0,
            to: RecordTarget::QueuePair(Gid([1; 16]), Qpn(number)),
        }
    }

    fn record(operation: Operation, sequence: u32, length: usize) -> Record {
        let header = RequestHeader {
            operation,
            sequence,
            length: length as u32,
            ..Record::NO_REQUEST
        };
        Record::whole(RecordKind::Data, &header, length as u32)
    }

    fn push_message(waiting: &mut Backlog, to: u16, sequence: u32) {
        let token = Token::Request {
            name: 1,
            pull: None,
        };
        let record = record(Operation::Send, sequence, 0);
        waiting.push(destination(to), record, token, &[]);
    }

    fn push_datagram(waiting: &mut Backlog, to: u16, sequence: u32, data: &[u8]) {
        let record = record(Operation::Datagram, sequence, data.len());
        waiting.push(destination(to), record, Token::Nobody, data);
    }

    #[test]
    fn records_without_data_count() {
        let mut waiting = Backlog::default();
        for sequence in 0..100 {
            push_message(&mut waiting, 1, sequence);
            push_message(&mut waiting, 2, sequence);
        }
        assert!(waiting.bytes() >= 200 * size_of::<Record>());
        let before = waiting.bytes();
        waiting.retain(|to, _| *to == destination(1));
        assert_eq!(2 * waiting.bytes(), before);
        assert!(waiting.send(|_, _| true));
        assert_eq!((waiting.bytes(), waiting.is_empty()), (0, true));
    }

    /// Records for other destinations keep their turn, and each full destination is tried only
    /// once.
    #[test]
    fn one_request_per_busy_destination_keeps_order() {
        let mut waiting = Backlog::default();
        for sequence in 0..100 {
            for number in 0..3 {
                push_message(&mut waiting, number, sequence);
            }
        }
        let (mut looks, mut sent) = (Vec::new(), Vec::new());
        let any = waiting.send(|to, waiting| {
            looks.push((*to, waiting.record.sequence()));
            let is_sent = *to == destination(1);
            sent.extend(is_sent.then(|| waiting.record.sequence()));
            is_sent
        });
        assert!(any);
        assert_eq!(sent, Vec::from_iter(0..100));
        assert_eq!(looks.len(), 102);
        assert!(looks.contains(&(destination(0), 0)) && looks.contains(&(destination(2), 0)));
        assert!(!waiting.wait_for(&destination(1)) && waiting.wait_for(&destination(2)));

        // With room for one record per call, both destinations make progress.
        let mut firsts = Vec::new();
        for _ in 0..4 {
            let mut has_room = true;
            waiting.send(|to, _| {
                firsts.extend(has_room.then_some(*to));
                std::mem::take(&mut has_room)
            });
        }
        let turns = |number| {
            firsts
                .iter()
                .filter(|to| **to == destination(number))
                .count()
        };
        assert_eq!((turns(0), turns(2)), (2, 2));
    }

    #[test]
    fn only_datagrams_are_dropped_from_long_queues() {
        let mut waiting = Backlog::default();
        for data in [&[][..], &[7; 8192]] {
            for _ in 0..100_000 {
                push_datagram(&mut waiting, 1, 0, data);
            }
        }
        let events = Events::of(|| push_datagram(&mut waiting, 1, 0, &[]));
        events.once(&[
            "DEBUG",
            "datagram dropped to=QueuePair(",
            "reason=\"too much",
        ]);
        assert!((MOST_DATAGRAMS..2 * MOST_DATAGRAMS).contains(&waiting.bytes()));
        let before = waiting.bytes();
        push_message(&mut waiting, 1, 7);
        push_datagram(&mut waiting, 2, 8, &[]);
        assert_eq!(waiting.bytes(), before + 2 * size_of::<WaitingRecord>());
        let mut last = HashMap::new();
        waiting.send(|to, waiting| {
            last.insert(*to, waiting.record.sequence());
            true
        });
        assert_eq!(
            last,
            HashMap::from([(destination(1), 7), (destination(2), 8)])
        );
    }
}
