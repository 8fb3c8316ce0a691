//! A ring from a sender to a receiver, and the claim of an initiator's memory.

use efa_core::address::{Qkey, Qpn};
use efa_core::nic::Status;
use loom::sync::Arc;
use loom::thread;

use crate::claim;
use crate::record::{Answer, Record, RecordKind};
use crate::ring::{Consumer, Producer};
use crate::sync::UnsafeCell;
use crate::sync::atomic::AtomicU64;
use crate::test_ring::{PollingReceiver, TestMemory};
use efa_device_model::link::{Operation, RequestHeader};

fn record(length: u32, sequence: u32) -> Record {
    let header = RequestHeader {
        operation: Operation::Send,
        source_qpn: Qpn(1),
        destination_qpn: Qpn(2),
        qkey: Qkey(3),
        sequence,
        retries: 0,
        immediate: None,
        remote: None,
        length,
    };
    Record::whole(RecordKind::Data, &header, length)
}

/// The sender, with the state of its records.
struct Sender {
    producer: Producer<usize, TestMemory, PollingReceiver>,
    answered: Vec<bool>,
}

impl Sender {
    /// Sends the next record with a payload of one byte, if there is room.
    fn push(&mut self) {
        let number = self.answered.len();
        let pushed = self
            .producer
            .push(&record(1, number as u32), number, |memory, at| {
                memory.write(at, &[number as u8])
            });
        if pushed.is_ok() {
            self.answered.push(false);
        }
    }

    /// Takes the available answers; they may be seen out of order.
    fn reap(&mut self) {
        self.producer.reap(|number, _, answer| {
            assert_eq!(answer, Answer::Status(Status::RemoteRnr));
            assert!(!self.answered[number], "answered twice");
            self.answered[number] = true;
        });
    }
}

/// The receiver, and the number of records that it took.
struct Receiver {
    consumer: Consumer<TestMemory>,
    taken: u32,
}

impl Receiver {
    /// Takes a record if there is one, reads its payload, and answers it.
    fn take(&mut self) {
        let Some(incoming) = self.consumer.take().expect("the sender is honest") else {
            return;
        };
        assert_eq!(incoming.record.sequence(), self.taken);
        let payload = incoming.payload();
        let (memory, at) = self.consumer.payload(payload, 0, 1).expect("a byte");
        let mut byte = [0];
        memory.read(at, &mut byte);
        assert_eq!(byte, [self.taken as u8]);
        self.consumer
            .answer(&incoming, Answer::Status(Status::RemoteRnr));
        self.taken += 1;
    }
}

/// Records with a payload each pass through a ring of `lines` lines. The first few pass one by one,
/// which determines where in the ring the others reach its end. `ahead` records are in the ring
/// when sender and receiver start to run concurrently. Each record arrives once, whole and in
/// order, and is answered once.
pub(super) fn records_arrive_whole_and_are_answered(lines: usize, first: u32, ahead: u32) {
    let memory = TestMemory::of_lines(lines);
    let mut receiver = Receiver {
        consumer: Consumer::new(memory.clone()),
        taken: 0,
    };
    let mut sender = Sender {
        producer: Producer::new(PollingReceiver::default(), memory),
        answered: Vec::new(),
    };
    for _ in 0..first {
        sender.push();
        receiver.take();
        sender.reap();
    }
    (0..ahead).for_each(|_| sender.push());
    let thread = thread::spawn(move || {
        (0..3).for_each(|_| receiver.take());
        receiver
    });
    sender.reap();
    for _ in 0..2 {
        sender.push();
        sender.reap();
    }
    sender.push();
    let mut receiver = thread.join().expect("it does not panic");
    for _ in 0..4 {
        sender.reap();
        receiver.take();
    }
    sender.push();
    receiver.take();
    sender.reap();
    assert_eq!(receiver.taken as usize, sender.answered.len());
    assert!(!sender.answered.contains(&false), "{:?}", sender.answered);
}

/// The memory that an initiator and a target share, and its claim.
struct Shared {
    word: AtomicU64,
    memory: UnsafeCell<u32>,
}

impl Shared {
    fn touch(&self) {
        // SAFETY: the cell checks that nobody else has access now.
        unsafe { *self.memory.get() += 1 };
    }
}

/// The target copies in two parts while the initiator takes its memory back: no copy overlaps the
/// initiator's later use of the memory.
pub(super) fn memory_that_was_taken_back_is_quiet() {
    let shared = Arc::new(Shared {
        word: AtomicU64::new(7 << 32),
        memory: UnsafeCell::new(0),
    });
    let target = Arc::clone(&shared);
    let thread = thread::spawn(move || {
        for _ in 0..2 {
            if !claim::claim(&target.word) {
                return;
            }
            target.touch();
            claim::release(&target.word);
        }
    });
    while !claim::withdraw(&shared.word) {
        thread::yield_now();
    }
    shared.touch();
    thread.join().expect("it does not panic");
}

/// The initiator takes its memory back, uses it, and opens it to the target again.
pub(super) fn memory_that_was_reopened_is_the_targets_again() {
    let shared = Arc::new(Shared {
        word: AtomicU64::new(7 << 32),
        memory: UnsafeCell::new(0),
    });
    let target = Arc::clone(&shared);
    let thread = thread::spawn(move || {
        if claim::claim(&target.word) {
            target.touch();
            claim::release(&target.word);
        }
    });
    if claim::withdraw(&shared.word) {
        shared.touch();
        claim::reopen(&shared.word);
    }
    thread.join().expect("it does not panic");
    assert!(claim::claim(&shared.word), "it is the target's");
    shared.touch();
}
