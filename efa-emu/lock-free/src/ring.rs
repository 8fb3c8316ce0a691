//! One ring: records from one process to another, and the answers to them.
//!
//! Only the sender writes records, and only the receiver writes answers. A record's commit word
//! contains the number that the receiver expects there next. So one cache line shows whether there
//! is a record, and also contains its header. Before the sender commits a record it clears the
//! commit word after it, which the receiver reads next.
//!
//! The bytes before the records contain one answer byte per record, at the record's number modulo
//! [`ANSWERS`]. Bit 7 is 1 in even laps and 0 in odd ones, so that an answer differs from that of
//! the previous lap; bits 0 to 5 are the [`Answer`]. Answers arrive in any order. The space of a
//! record is reused when it and all earlier ones are answered; the padding at the end of the ring
//! is answered too.

use efa_core::nic::Status;

use crate::claim;
use crate::record::{AT_CLAIM, Answer, BadRecord, Fields, LINE, Record, RecordKind};
use crate::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Answers of a ring; few in models, so that these reach the second lap.
pub const ANSWERS: usize = if cfg!(loom) { 4 } else { 4096 };

/// A cache line, word by word.
pub type Line = [AtomicU64; 8];

/// The memory of a ring, which both ends reach.
pub trait RingMemory {
    /// Offset of the records.
    const RECORDS: usize;

    /// Length of the records in bytes.
    fn capacity(&self) -> usize;

    /// The cache line that contains `offset`.
    fn line(&self, offset: usize) -> &Line;

    /// The answers, byte by byte.
    fn answers(&self) -> &[AtomicU8; ANSWERS];
}

/// The receiver of a ring's records, as the sender knows it.
pub trait Receiver {
    /// Notifies the receiver after a record was committed, unless it polls the ring.
    fn announce(&self);

    /// Whether the receiver has refused to read the ring any further.
    fn is_refused(&self) -> bool;

    /// Gives the ring up. The sender does not use it afterwards.
    fn give_up(&self);
}

/// The most records that one search for answers inspects after an unanswered record.
const LOOK_AHEAD: u64 = 64;

const PHASE: u8 = 0x80;
const CODE: u8 = 0x3f;

#[inline(always)]
fn phase(number: u64) -> u8 {
    if number & ANSWERS as u64 == 0 {
        PHASE
    } else {
        0
    }
}

/// A record's header: the commit word, and the fields after it.
#[inline(always)]
fn header<M: RingMemory>(
    memory: &M,
    at: usize,
) -> (&AtomicU64, &[AtomicU64; size_of::<Fields>() / 8]) {
    let [commit, fields @ ..] = memory.line(M::RECORDS + at);
    (commit, fields)
}

#[inline(always)]
fn answer_at(number: u64) -> usize {
    (number % ANSWERS as u64) as usize
}

/// The ring has no room for the record at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingFull;

/// The sender's reference to a record in a ring.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Position {
    number: u64,
    at: usize,
}

struct RingEntry<T> {
    /// Bytes in the ring.
    length: u32,
    pending: Pending<T>,
}

/// The answer that a record waits for.
enum Pending<T> {
    /// It was received.
    Nothing,
    /// The receiver must skip the padding before its space can be reused.
    Padding,
    Record(T),
}

/// The sending end. Each record has a `T` that is returned with its answer.
pub struct Producer<T, M, R> {
    receiver: R,
    memory: M,
    capacity: usize,
    write_at: usize,
    used: usize,
    /// Number of the next record.
    next: u64,
    /// Number of the oldest record whose space is in use.
    oldest: u64,
    /// Number of records whose answer is outstanding.
    waiting: usize,
    /// The start of the next search after the oldest record.
    glance: u64,
    entries: Box<[RingEntry<T>; ANSWERS]>,
}

impl<T, M: RingMemory, R: Receiver> Producer<T, M, R> {
    /// The sending end of a new ring.
    pub fn new(receiver: R, memory: M) -> Producer<T, M, R> {
        let capacity = memory.capacity();
        let entries = (0..ANSWERS)
            .map(|_| RingEntry {
                length: 0,
                pending: Pending::Nothing,
            })
            .collect::<Box<[_]>>()
            .try_into()
            .unwrap_or_else(|_| unreachable!("there are as many as answers"));
        Producer {
            receiver,
            memory,
            capacity,
            write_at: 0,
            used: 0,
            next: 0,
            oldest: 0,
            waiting: 0,
            glance: 0,
            entries,
        }
    }

    /// Capacity for records in bytes.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of unanswered records.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether the receiver has refused to read the ring any further.
    pub fn is_refused(&self) -> bool {
        self.receiver.is_refused()
    }

    /// Appends a record and notifies the receiver. `fill` writes [`Record::payload`] bytes at the
    /// given offset of the given memory.
    #[inline(always)]
    pub fn push(
        &mut self,
        record: &Record,
        token: T,
        fill: impl FnOnce(&M, usize),
    ) -> Result<Position, RingFull> {
        let length = record.length();
        let to_end = self.capacity - self.write_at;
        let padding = if length > to_end { to_end } else { 0 };
        // One line stays free: the commit word after the record, which is cleared.
        let is_full = self.used + padding + length + LINE > self.capacity
            || self.next - self.oldest + 2 > ANSWERS as u64;
        if is_full {
            return Err(RingFull);
        }
        if padding > 0 {
            self.commit(&Record::pad(padding), Pending::Padding);
        }
        fill(&self.memory, M::RECORDS + self.write_at + LINE);
        self.waiting += 1;
        let position = self.commit(record, Pending::Record(token));
        self.receiver.announce();
        Ok(position)
    }

    #[inline(always)]
    fn commit(&mut self, record: &Record, pending: Pending<T>) -> Position {
        let (at, number, length) = (self.write_at, self.next, record.length());
        let (commit, fields) = header(&self.memory, at);
        for (word, value) in fields.iter().zip(record.fields()) {
            word.store(value, Ordering::Relaxed);
        }
        let end = at + length;
        let behind = if end == self.capacity { 0 } else { end };
        let (next_commit, _) = header(&self.memory, behind);
        next_commit.store(0, Ordering::Relaxed);
        commit.store(number + 1, Ordering::Release);
        self.entries[answer_at(number)] = RingEntry {
            length: length as u32,
            pending,
        };
        self.write_at = behind;
        self.used += length;
        self.next += 1;
        Position { number, at }
    }

    /// Reads the available answers, each with its record's `T` and number. If the receiver answers
    /// in the order of the records, they are returned in that order.
    #[inline(always)]
    pub fn reap(&mut self, mut answered: impl FnMut(T, u64, Answer)) {
        if self.waiting == 0 {
            return;
        }
        self.reap_oldest(&mut answered);
        if self.oldest < self.next {
            self.reap_younger(answered);
        }
    }

    /// Reads the answers of the oldest records up to the first unanswered one, and frees their
    /// space.
    #[inline(always)]
    fn reap_oldest(&mut self, answered: &mut impl FnMut(T, u64, Answer)) {
        while self.oldest < self.next {
            let entry = &mut self.entries[answer_at(self.oldest)];
            if !look(
                &self.memory,
                self.oldest,
                entry,
                &mut self.waiting,
                answered,
            ) {
                return;
            }
            self.used -= entry.length as usize;
            self.oldest += 1;
        }
    }

    /// Checks some of the records after the oldest one, which was unanswered.
    #[inline(never)]
    fn reap_younger(&mut self, mut answered: impl FnMut(T, u64, Answer)) {
        let first = (self.oldest + 1).max(self.glance);
        let end = (first + LOOK_AHEAD).min(self.next);
        self.glance = if end == self.next { 0 } else { end };
        let found = (first..end).find(|number| {
            matches!(self.entries[answer_at(*number)].pending, Pending::Record(_))
                && answer_code(&self.memory, *number).is_some()
        });
        let Some(found) = found else {
            return;
        };
        // The oldest record may have been answered since it was checked, and must then be returned
        // first: all answers that precede a visible answer are visible too.
        self.reap_oldest(&mut answered);
        for number in found.max(self.oldest)..end {
            let entry = &mut self.entries[answer_at(number)];
            look(
                &self.memory,
                number,
                entry,
                &mut self.waiting,
                &mut answered,
            );
        }
    }

    /// Whether every record has its answer.
    pub fn is_settled(&self) -> bool {
        self.oldest == self.next
    }

    /// Ends the ring: calls `ended` for every record whose answer was not read, with its number,
    /// and with the answer if there is one. A dead receiver may have answered after the last
    /// [`Producer::reap`].
    pub fn abandon(mut self, mut ended: impl FnMut(T, u64, Option<Answer>)) {
        for number in self.oldest..self.next {
            let entry = &mut self.entries[answer_at(number)];
            let pending = std::mem::replace(&mut entry.pending, Pending::Nothing);
            if let Pending::Record(token) = pending {
                let answer = answer_code(&self.memory, number).map(Answer::from_code);
                ended(token, number, answer);
            }
        }
        self.receiver.give_up();
    }

    /// Withdraws the initiator's memory of a direct RDMA record. Returns true if the target does
    /// not access it any more, false if the target is copying right now and the caller must try
    /// again.
    pub fn try_withdraw(&self, position: Position) -> bool {
        let pending = &self.entries[answer_at(position.number)].pending;
        matches!(pending, Pending::Nothing)
            || claim::withdraw(claim_word(&self.memory, position.at))
    }

    /// Returns the memory to the target after [`Producer::try_withdraw`]. A target that has seen
    /// the withdrawal answers with [`Answer::Withdrawn`] nevertheless.
    pub fn reopen(&self, position: Position) {
        let pending = &self.entries[answer_at(position.number)].pending;
        if !matches!(pending, Pending::Nothing) {
            claim::reopen(claim_word(&self.memory, position.at));
        }
    }
}

/// The code of the answer to a record, if it has arrived. The byte of the previous lap has the
/// other phase; so has a byte in lap 0 that was never written and is zero.
#[inline(always)]
pub fn answer_code(memory: &impl RingMemory, number: u64) -> Option<u8> {
    let byte = memory.answers()[answer_at(number)].load(Ordering::Acquire);
    (byte & PHASE == phase(number)).then_some(byte & CODE)
}

/// Reads the answer of one record if it has arrived. Returns whether no answer is outstanding.
#[inline(always)]
fn look<T>(
    memory: &impl RingMemory,
    number: u64,
    entry: &mut RingEntry<T>,
    waiting: &mut usize,
    answered: &mut impl FnMut(T, u64, Answer),
) -> bool {
    if matches!(entry.pending, Pending::Nothing) {
        return true;
    }
    let Some(code) = answer_code(memory, number) else {
        return false;
    };
    if let Pending::Record(token) = std::mem::replace(&mut entry.pending, Pending::Nothing) {
        *waiting -= 1;
        answered(token, number, Answer::from_code(code));
    }
    true
}

fn claim_word<M: RingMemory>(memory: &M, at: usize) -> &AtomicU64 {
    &memory.line(M::RECORDS + at)[AT_CLAIM / 8]
}

/// A record that was read from a ring and must be answered.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// Its number in the ring, by which it is answered.
    pub number: u64,
    /// Start of the payload in the ring's memory.
    payload_at: usize,
    /// Its header.
    pub record: Record,
}

/// Where the payload of a record is in the memory of its ring.
#[derive(Clone, Copy, Debug)]
pub struct Payload {
    at: usize,
    length: u32,
}

impl Incoming {
    /// Where its payload is.
    #[inline(always)]
    pub fn payload(&self) -> Payload {
        Payload {
            at: self.payload_at,
            length: self.record.payload(),
        }
    }
}

/// The receiving end.
pub struct Consumer<M> {
    memory: M,
    capacity: usize,
    read_at: usize,
    next: u64,
    unanswered: usize,
}

impl<M: RingMemory> Consumer<M> {
    /// The receiving end of a ring's memory.
    pub fn new(memory: M) -> Consumer<M> {
        Consumer {
            capacity: memory.capacity(),
            memory,
            read_at: 0,
            next: 0,
            unanswered: 0,
        }
    }

    /// Whether there is a record. Reads one cache line.
    #[inline(always)]
    pub fn has_record(&self) -> bool {
        let (commit, _) = header(&self.memory, self.read_at);
        // `take` loads it again with Acquire.
        commit.load(Ordering::Relaxed) == self.next + 1
    }

    /// Reads the next record. After an error the ring's content must not be interpreted any more.
    #[inline(always)]
    pub fn take(&mut self) -> Result<Option<Incoming>, BadRecord> {
        self.take_if(|| true)
    }

    /// As [`Consumer::take`], if `may_take` returns true. It is only called when there is a
    /// record, and sees what happened before the record was written.
    #[inline(always)]
    pub fn take_if(&mut self, may_take: impl Fn() -> bool) -> Result<Option<Incoming>, BadRecord> {
        loop {
            let at = self.read_at;
            let (commit, fields) = header(&self.memory, at);
            if commit.load(Ordering::Acquire) != self.next + 1 || !may_take() {
                return Ok(None);
            }
            let fields: Fields = std::array::from_fn(|index| fields[index].load(Ordering::Relaxed));
            let record = Record::from_fields(&fields)?;
            let end = at + record.length();
            if end > self.capacity {
                return Err(BadRecord {
                    field: "length",
                    value: record.length() as u64,
                });
            }
            if self.unanswered >= ANSWERS {
                return Err(BadRecord {
                    field: "commit",
                    value: self.next + 1,
                });
            }
            let number = self.next;
            self.read_at = if end == self.capacity { 0 } else { end };
            self.next += 1;
            self.unanswered += 1;
            let incoming = Incoming {
                number,
                payload_at: M::RECORDS + at + LINE,
                record,
            };
            if record.is_message() || record.kind() != RecordKind::Pad {
                return Ok(Some(incoming));
            }
            self.answer(&incoming, Answer::Status(Status::Ok));
        }
    }

    /// Number of records that were read and are not answered.
    pub fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// Answers a record. Its memory belongs to the sender again.
    #[inline(always)]
    pub fn answer(&mut self, incoming: &Incoming, answer: Answer) {
        let byte = phase(incoming.number) | answer.to_code();
        self.memory.answers()[answer_at(incoming.number)].store(byte, Ordering::Release);
        self.unanswered -= 1;
    }

    /// The memory and the offset of `length` bytes of a record's payload from `offset` on. `None`
    /// if the payload is shorter.
    #[inline]
    pub fn payload(&self, payload: Payload, offset: u32, length: u32) -> Option<(&M, usize)> {
        let end = offset.checked_add(length)?;
        (end <= payload.length).then(|| (&self.memory, payload.at + offset as usize))
    }

    /// Claims the initiator's memory of a direct RDMA record for copying. Returns false if the
    /// initiator has withdrawn it.
    pub fn begin_copy(&self, incoming: &Incoming) -> bool {
        claim::claim(claim_word(
            &self.memory,
            incoming.payload_at - M::RECORDS - LINE,
        ))
    }

    /// Releases the claim.
    pub fn end_copy(&self, incoming: &Incoming) {
        claim::release(claim_word(
            &self.memory,
            incoming.payload_at - M::RECORDS - LINE,
        ));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::record::tests::any_record;
    use crate::test_ring::{PollingReceiver, TestMemory};
    use efa_device_model::link::RequestHeader;
    use proptest::prelude::*;

    /// Bytes of records: enough for several of the longest ones.
    const CAPACITY: usize = 1 << 16;

    type TestProducer = Producer<u64, TestMemory, PollingReceiver>;

    struct Pair {
        producer: TestProducer,
        consumer: Consumer<TestMemory>,
    }

    fn pair() -> Pair {
        let memory = TestMemory::of_lines(CAPACITY / LINE);
        Pair {
            producer: Producer::new(PollingReceiver::default(), memory.clone()),
            consumer: Consumer::new(memory),
        }
    }

    fn data(length: u32, sequence: u32) -> Record {
        let header = RequestHeader {
            sequence,
            length,
            ..Record::NO_REQUEST
        };
        Record::whole(RecordKind::Data, &header, length)
    }

    fn bytes(length: u32, seed: u32) -> Vec<u8> {
        (0..length).map(|at| (at ^ seed) as u8).collect()
    }

    fn push(producer: &mut TestProducer, length: u32, number: u32) -> Result<Position, RingFull> {
        producer.push(&data(length, number), u64::from(number), |memory, at| {
            memory.write(at, &bytes(length, number))
        })
    }

    fn payload(consumer: &Consumer<TestMemory>, incoming: &Incoming) -> Vec<u8> {
        let mut found = vec![0; incoming.record.payload() as usize];
        let (memory, at) = consumer
            .payload(incoming.payload(), 0, incoming.record.payload())
            .unwrap();
        memory.read(at, &mut found);
        found
    }

    /// Writes a record without the checks of an honest sender.
    fn write_record(memory: &TestMemory, at: usize, fields: &Fields, number: u64) {
        let (commit, words) = header(memory, at);
        for (word, value) in words.iter().zip(fields) {
            word.store(*value, Ordering::Relaxed);
        }
        commit.store(number, Ordering::Release);
    }

    fn reap(producer: &mut TestProducer) -> Vec<(u64, Answer)> {
        let mut answers = Vec::new();
        producer.reap(|token, _, answer| answers.push((token, answer)));
        answers
    }

    const OK: Answer = Answer::Status(Status::Ok);

    #[test]
    fn records_and_answers_go_round_many_times() {
        let mut pair = pair();
        let mut answered = 0;
        // The lengths reach the end of the ring at every distance, in several laps of the answers.
        for number in 0..20_000u32 {
            let length = (number * 67) % 3000;
            push(&mut pair.producer, length, number).unwrap();
            let incoming = pair.consumer.take().unwrap().unwrap();
            assert_eq!(incoming.record.sequence(), number);
            assert_eq!(payload(&pair.consumer, &incoming), bytes(length, number));
            assert!(pair.consumer.take().unwrap().is_none());
            let answer = if number % 3 == 0 {
                OK
            } else {
                Answer::Status(Status::RemoteRnr)
            };
            pair.consumer.answer(&incoming, answer);
            for (token, found) in reap(&mut pair.producer) {
                assert_eq!((token, found), (u64::from(number), answer));
                answered += 1;
            }
        }
        assert_eq!(answered, 20_000);
        assert_eq!(pair.producer.waiting(), 0);
    }

    #[test]
    fn answers_between_two_polls_keep_their_order() {
        let mut pair = pair();
        // More records than one search inspects.
        let count = 3 * LOOK_AHEAD;
        let reap_younger = |producer: &mut TestProducer| {
            let mut tokens = Vec::new();
            producer.reap_younger(|token, _, _| tokens.push(token));
            tokens
        };
        for glances in 0..3 {
            for number in 0..count {
                push(&mut pair.producer, 0, number as u32).unwrap();
            }
            for _ in 0..glances {
                assert_eq!(reap_younger(&mut pair.producer), [0u64; 0]);
            }
            // The search at the oldest record has found no answer. All records are answered before
            // the search after it.
            while let Some(incoming) = pair.consumer.take().unwrap() {
                pair.consumer.answer(&incoming, OK);
            }
            let heard = reap_younger(&mut pair.producer);
            assert_eq!(heard, (0..count).collect::<Vec<_>>());
            assert_eq!(pair.producer.waiting(), 0);
        }
    }

    #[test]
    fn a_full_ring_takes_records_again_after_answers() {
        let mut pair = pair();
        let mut sent = 0;
        while push(&mut pair.producer, 1000, sent).is_ok() {
            sent += 1;
        }
        assert!(u64::from(sent) * 1088 <= CAPACITY as u64);
        assert!(u64::from(sent) * 1088 > CAPACITY as u64 - 2 * 1088);
        let first = pair.consumer.take().unwrap().unwrap();
        let second = pair.consumer.take().unwrap().unwrap();
        pair.consumer.answer(&second, OK);
        assert_eq!(reap(&mut pair.producer), [(1, OK)]);
        assert_eq!(
            push(&mut pair.producer, 1000, sent),
            Err(RingFull),
            "the first is in the way"
        );
        pair.consumer.answer(&first, OK);
        assert_eq!(reap(&mut pair.producer), [(0, OK)]);
        push(&mut pair.producer, 1000, sent).unwrap();
    }

    #[test]
    fn a_record_that_may_not_be_taken_stays() {
        let mut pair = pair();
        let unasked = || panic!("there is no record");
        assert!(pair.consumer.take_if(unasked).unwrap().is_none());
        push(&mut pair.producer, 0, 7).unwrap();
        assert!(pair.consumer.take_if(|| false).unwrap().is_none());
        assert!(pair.consumer.has_record());
        let incoming = pair.consumer.take_if(|| true).unwrap();
        assert_eq!(incoming.map(|incoming| incoming.number), Some(0));
    }

    #[test]
    fn small_records_are_limited_by_their_answers() {
        let mut pair = pair();
        let room = CAPACITY / LINE;
        let mut sent = 0;
        while push(&mut pair.producer, 0, sent).is_ok() {
            sent += 1;
        }
        assert_eq!(sent as usize, (room - 1).min(ANSWERS - 1));
        let mut taken = Vec::new();
        while let Some(incoming) = pair.consumer.take().unwrap() {
            taken.push(incoming);
        }
        assert_eq!(taken.len(), sent as usize);
        // Answered from the last to the first: all answers are found before the first record is
        // answered.
        for incoming in taken.iter().skip(1).rev() {
            pair.consumer.answer(incoming, OK);
        }
        let mut found = 0;
        for _ in 0..sent {
            found += reap(&mut pair.producer).len();
        }
        assert_eq!(found, sent as usize - 1);
        pair.consumer.answer(&taken[0], OK);
        assert_eq!(reap(&mut pair.producer).len(), 1);
        assert_eq!(pair.producer.waiting(), 0);
        for number in 0..sent {
            push(&mut pair.producer, 0, number).unwrap();
        }
    }

    #[test]
    fn abandoning_lists_unanswered_records() {
        let mut pair = pair();
        for number in 0..5 {
            push(&mut pair.producer, 10, number).unwrap();
        }
        let taken: Vec<_> = (0..4)
            .map(|_| pair.consumer.take().unwrap().unwrap())
            .collect();
        pair.consumer.answer(&taken[0], OK);
        reap(&mut pair.producer);
        // The receiver's last action.
        pair.consumer.answer(&taken[3], OK);
        let PollingReceiver(is_given_up) = pair.producer.receiver.clone();
        assert!(!is_given_up.load(Ordering::Relaxed));
        let mut ended = Vec::new();
        pair.producer
            .abandon(|token, number, answer| ended.push((token, number, answer)));
        let unanswered = [1, 2].map(|number| (number, number, None));
        assert_eq!(ended[..2], unanswered);
        assert_eq!(ended[2..], [(3, 3, Some(OK)), (4, 4, None)]);
        assert!(is_given_up.load(Ordering::Relaxed));
    }

    #[test]
    fn memory_is_never_withdrawn_during_a_copy() {
        let mut pair = pair();
        let position = push(&mut pair.producer, 16, 0).unwrap();
        let incoming = pair.consumer.take().unwrap().unwrap();
        assert!(pair.consumer.begin_copy(&incoming));
        assert!(!pair.producer.try_withdraw(position));
        pair.consumer.end_copy(&incoming);
        assert!(pair.consumer.begin_copy(&incoming), "a second piece");
        pair.consumer.end_copy(&incoming);
        assert!(pair.producer.try_withdraw(position));
        assert!(pair.producer.try_withdraw(position));
        assert!(!pair.consumer.begin_copy(&incoming));
        pair.producer.reopen(position);
        assert!(pair.consumer.begin_copy(&incoming));
        pair.producer.reopen(position);
        assert!(!pair.producer.try_withdraw(position), "still being copied");
        pair.consumer.end_copy(&incoming);
        // Once the record is answered, its space is for other records.
        pair.consumer.answer(&incoming, OK);
        assert_eq!(reap(&mut pair.producer), [(0, OK)]);
        let word = claim_word(&pair.producer.memory, position.at);
        assert!(claim::withdraw(word));
        pair.producer.reopen(position);
        assert!(!claim::claim(word));
    }

    #[test]
    fn a_sender_thread_and_a_receiver_thread_agree() {
        const COUNT: u32 = 100_000;
        let Pair {
            mut producer,
            mut consumer,
        } = pair();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut held: Vec<Incoming> = Vec::new();
                for number in 0..COUNT {
                    let incoming = loop {
                        if let Some(incoming) = consumer.take().unwrap() {
                            break incoming;
                        }
                        std::thread::yield_now();
                    };
                    assert_eq!(incoming.record.sequence(), number);
                    let expected = bytes(incoming.record.payload(), number);
                    assert_eq!(payload(&consumer, &incoming), expected);
                    // Answers out of order, in small batches.
                    held.push(incoming);
                    if held.len() == 1 + number as usize % 5 || number + 1 == COUNT {
                        for incoming in held.drain(..).rev() {
                            consumer.answer(&incoming, OK);
                        }
                    }
                    // The sender must not wait for answers that are only sent after its next
                    // record.
                    if held.len() >= 5 {
                        consumer.answer(&held.remove(0), OK);
                    }
                }
            });
            let mut answered = vec![false; COUNT as usize];
            let mut count = 0;
            let mut next = 0;
            while count < COUNT {
                let pushed = next < COUNT && push(&mut producer, (next * 31) % 500, next).is_ok();
                next += u32::from(pushed);
                for (token, answer) in reap(&mut producer) {
                    assert_eq!(answer, OK);
                    assert!(!std::mem::replace(&mut answered[token as usize], true));
                    count += 1;
                }
                if !pushed {
                    std::thread::yield_now();
                }
            }
        });
    }

    #[test]
    fn a_producer_that_ignores_the_limits_is_refused() {
        let mut pair = pair();
        // Commits records without waiting for answers, again and again in the same memory.
        let mut refused = false;
        for number in 0..2 * ANSWERS as u64 {
            let fields = data(0, 0).fields();
            let at = pair.consumer.read_at;
            write_record(&pair.producer.memory, at, &fields, number + 1);
            if pair.consumer.take().is_err() {
                refused = true;
                break;
            }
        }
        assert!(refused);
        assert!(pair.consumer.unanswered() <= ANSWERS);
    }

    proptest! {
        #[test]
        fn hostile_rings_never_lead_out_of_bounds(
            words in prop::collection::vec((0..CAPACITY / 8, any::<u64>()), 0..60),
            answers in prop::collection::vec((0..ANSWERS, any::<u8>()), 0..60),
            fields in prop::collection::vec((any_record(), any::<bool>(), 0..7usize, any::<u64>()), 1..20),
        ) {
            let mut pair = pair();
            let memory = pair.producer.memory.clone();
            for (at, value) in words {
                let line = memory.line(TestMemory::RECORDS + 8 * at);
                line[at % line.len()].store(value, Ordering::Relaxed);
            }
            for (at, value) in answers {
                memory.answers()[at].store(value, Ordering::Relaxed);
            }
            for (record, damage, at, value) in fields {
                // At the receiver's read position, with the number that it expects.
                let mut fields = record.fields();
                if damage {
                    fields[at] = value;
                }
                let at = pair.consumer.read_at;
                let number = pair.consumer.next + 1;
                write_record(&pair.producer.memory, at, &fields, number);
                match pair.consumer.take() {
                    Ok(Some(incoming)) => {
                        let record = &incoming.record;
                        prop_assert!(pair.consumer.payload(incoming.payload(), 0, record.payload()).is_some());
                        prop_assert!(pair.consumer.payload(incoming.payload(), 1, record.payload()).is_none());
                        payload(&pair.consumer, &incoming);
                        pair.consumer.begin_copy(&incoming);
                        pair.consumer.answer(&incoming, OK);
                    }
                    Ok(None) => {}
                    Err(_) => break,
                }
            }
            // A hostile receiver: for any answer bytes, each record gets at most one answer.
            push(&mut pair.producer, 1, 1).unwrap();
            for answer in memory.answers() {
                answer.store(0xff, Ordering::Relaxed);
            }
            prop_assert_eq!(reap(&mut pair.producer).len(), 1);
            prop_assert_eq!(reap(&mut pair.producer).len(), 0);
        }
    }
}
