//! A random program of senders and one receiver.

use std::collections::BTreeSet;

use efa_core::address::Qpn;
use efa_device_model::device::Error;
use efa_device_model::device::connected::{
    Payload, RVH, RemoteMemory, RendezvousHeader, SendOperation, SrqId, TMH, TagHeader,
    TagOperation, TagRequest, TagRequestOperation, WcStatus,
};
use efa_device_model::device::queue::CompletionEntry;
use efa_device_model::provider::{Cancellation, TagMatcher, TagReceive};
use rand::{Rng as _, SeedableRng};
use rand_chacha::ChaCha8Rng;

use efa_testing::device::net::codes::{
    DATA_VALID, MATCH, RECV, SYNC_REQUESTED, TAGGED, WITHOUT_TAG,
};
use efa_testing::device::net::{MEMORY, Net, NetworkEffects, TaggedMessage, request};
use efa_testing::pattern;

pub(super) const SENDERS: usize = 3;

/// Messages per sender, the longest eager message and the longest of all.
const MESSAGES: usize = 16;
const EAGER: usize = 400;
const LONGEST: usize = 640;
const SLOT: usize = 656;

/// The most receives that the program posts at random.
const RECEIVES: usize = 60;

/// The data of a rendezvous in the sender's memory, and receives for its end message.
const DATA: usize = 0x8000;
const FINISHED: usize = 0xf000;

/// Plain receives of the receiver, behind the buffers of its tags.
const PLAIN: usize = 0x1_8000;
const PLAIN_RECEIVES: usize = 6;

/// The tag of an additional message, which the device must match at the end.
const PROBE: u64 = 0xff_ffff;

// Operations of completions.
const SEND: u8 = 0;
const READ: u8 = 2;
const DELETED: u8 = 131;
const SYNCED: u8 = 132;

/// A message that was sent.
#[derive(Clone, Copy)]
pub(super) struct Message {
    pub(super) peer: usize,
    pub(super) tag: u64,
    operation: TagOperation,
    length: usize,
    /// Offset of a rendezvous's data in the sender's memory.
    place: usize,
}

impl Message {
    pub(super) fn is_untagged(&self) -> bool {
        self.operation == TagOperation::NoTag
    }
}

/// An event at the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// A receive was posted.
    Posted(usize),
    /// A receive was cancelled.
    Cancelled(usize),
    /// The shared receive queue has reported a message.
    Arrived(usize),
}

/// The result of a program.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) receives: Vec<TagReceive>,
    pub(super) messages: Vec<Message>,
    pub(super) steps: Vec<Step>,
    /// Receive and message, in the order of matching.
    pub(super) matches: Vec<(usize, usize)>,
}

/// An unexpected message: its plain receive, and the queue pair that it came to.
#[derive(Clone, Copy)]
struct UnexpectedReceive {
    slot: usize,
    length: usize,
    qpn: Qpn,
}

pub(super) struct Program {
    net: Net,
    srq: SrqId,
    matcher: TagMatcher<UnexpectedReceive>,
    prefix: usize,
    random: ChaCha8Rng,
    sent: [usize; SENDERS],
    outcome: Outcome,
    /// Receives that the device has matched, and those that it has deleted.
    by_device: BTreeSet<usize>,
    deleted: BTreeSet<usize>,
    /// Receives that have all data.
    complete: BTreeSet<usize>,
    /// Messages without a tag that have arrived, and rendezvous that have ended.
    untagged: Vec<usize>,
    finished: BTreeSet<usize>,
    unexpected: u32,
}

impl Program {
    pub(super) fn new(seed: u64, effects: NetworkEffects, prefix: usize) -> Program {
        let plain = PLAIN_RECEIVES as u32;
        // The software must not exceed its own limit.
        let (mut net, srq) = Net::receiver(SENDERS, effects, seed, plain, Some(prefix as u32));
        for peer in 1..=SENDERS {
            for slot in 0..=MESSAGES {
                net.hosts[peer].receive(Qpn(5), slot as u64, FINISHED + 64 * slot, 64);
            }
        }
        let mut program = Program {
            net,
            srq,
            matcher: TagMatcher::new(prefix),
            prefix,
            random: ChaCha8Rng::seed_from_u64(seed),
            sent: [0; SENDERS],
            outcome: Outcome::default(),
            by_device: BTreeSet::new(),
            deleted: BTreeSet::new(),
            complete: BTreeSet::new(),
            untagged: Vec::new(),
            finished: BTreeSet::new(),
            unexpected: 0,
        };
        for slot in 0..PLAIN_RECEIVES {
            program.post_plain(slot);
        }
        program
    }

    pub(super) fn run(mut self) -> Outcome {
        for _ in 0..3000 {
            match self.random.random_range(0..12) {
                0 => self.send_any(),
                1 => self.post_any(),
                2 if self.random.random_bool(0.15) => self.cancel_any(),
                3 => self.poll(usize::MAX),
                4 => {
                    let count = self.random.random_range(0..3);
                    self.poll(count);
                }
                _ => {
                    self.net.step();
                }
            }
        }
        self.net.effects = NetworkEffects::default();
        self.receive_the_rest();
        self.match_one_more();
        self.compare_counts();
        self.check_ends();
        self.outcome
    }

    fn send_any(&mut self) {
        let peer = self.random.random_range(1..=SENDERS);
        if self.sent[peer - 1] == MESSAGES {
            return;
        }
        let operation = match self.random.random_range(0..10) {
            0 => TagOperation::NoTag,
            1..5 => TagOperation::Rendezvous,
            _ => TagOperation::Eager,
        };
        // The source in the upper bits, and one of few tags.
        let tag = (peer as u64) << 8 | self.random.random_range(0..3u64);
        self.send(peer, tag, operation);
    }

    fn send(&mut self, peer: usize, tag: u64, operation: TagOperation) {
        let count = self.sent[peer - 1];
        self.sent[peer - 1] += 1;
        let number = self.outcome.messages.len();
        let longest = match operation {
            TagOperation::Rendezvous => LONGEST,
            _ => EAGER,
        };
        let message = Message {
            peer,
            tag,
            operation,
            length: self.random.random_range(0..=longest),
            place: DATA + count * SLOT,
        };
        self.outcome.messages.push(message);
        let header = TagHeader {
            operation,
            data: number as u32,
            tag,
        };
        let message = TaggedMessage {
            header,
            payload: &pattern(message.length, number as u8),
            place: count * SLOT,
            data: message.place,
            further: number % 33,
        };
        self.net.send_tagged(peer, Qpn(5), &message);
    }

    fn post_any(&mut self) {
        if self.outcome.receives.len() >= RECEIVES {
            return;
        }
        let source = self.random.random_range(1..=SENDERS as u64) << 8;
        let tag = source | self.random.random_range(0..3u64);
        // Wildcards for source, tag, both, one bit, or none.
        let masks = [0xff, !0xff, 0, !1, u64::MAX, u64::MAX];
        let mask = masks[self.random.random_range(0..masks.len())];
        let length = match self.random.random_bool(0.8) {
            true => LONGEST,
            false => EAGER,
        };
        self.post(tag, mask, length);
    }

    fn post(&mut self, tag: u64, mask: u64, length: usize) {
        let id = self.outcome.receives.len();
        assert!((id + 1) * SLOT <= PLAIN, "there is memory for a receive");
        let receive = TagReceive {
            id: id as u64,
            buffers: self.net.hosts[0].list(id * SLOT, length),
            tag,
            mask,
        };
        self.outcome.receives.push(receive.clone());
        self.outcome.steps.push(Step::Posted(id));
        let found = self.with(|matcher, mut device| matcher.post(receive.clone(), &mut device));
        if let Some(message) = found.unwrap() {
            self.take(receive, message.message);
        }
    }

    fn cancel_any(&mut self) {
        if !self.outcome.receives.is_empty() {
            let id = self.random.random_range(0..self.outcome.receives.len());
            self.cancel(id);
        }
    }

    fn cancel(&mut self, id: usize) {
        let result = self.with(|matcher, mut device| matcher.cancel(id as u64, &mut device));
        if result == Ok(Cancellation::Done) {
            self.outcome.steps.push(Step::Cancelled(id));
        }
    }

    fn post_plain(&mut self, slot: usize) {
        let (host, place) = (&mut self.net.hosts[0], PLAIN + slot * SLOT);
        let posted = host.receive_shared(self.srq, slot as u64, place, SLOT);
        posted.unwrap();
    }

    /// Calls `work` with the matcher and the device.
    fn with<R>(
        &mut self,
        work: impl FnOnce(
            &mut TagMatcher<UnexpectedReceive>,
            &mut dyn FnMut(&TagRequest) -> Result<u32, Error>,
        ) -> R,
    ) -> R {
        let device = &mut self.net.hosts[0].device;
        let srq = self.srq;
        let mut post = |request: &TagRequest| device.post_tag_request(srq, request);
        work(&mut self.matcher, &mut post)
    }

    /// Handles at most this many completions of the receiver, and those of the senders.
    fn poll(&mut self, most: usize) {
        for _ in 0..most {
            let Some(entry) = self.net.hosts[0].poll() else {
                break;
            };
            self.take_completion(&entry);
        }
        self.with(|matcher, mut device| matcher.settle(&mut device))
            .unwrap();
        for peer in 1..=SENDERS {
            while let Some(entry) = self.net.hosts[peer].poll() {
                assert_eq!(entry.status(), 0, "{entry:?}");
                if entry.connected_operation() == RECV {
                    let place = FINISHED + 64 * entry.connected_wr_id() as usize;
                    self.end_rendezvous(peer, place);
                }
            }
        }
    }

    /// Handles the message that the data of a rendezvous was read.
    fn end_rendezvous(&mut self, peer: usize, place: usize) {
        let bytes = &self.net.hosts[peer].memory[place..];
        let header = TagHeader::parse(bytes.first_chunk().unwrap()).unwrap();
        assert_eq!(header.operation, TagOperation::Finish);
        let number = header.data as usize;
        let message = self.outcome.messages[number];
        assert_eq!((message.peer, message.tag), (peer, header.tag));
        let remote = RendezvousHeader::parse(bytes[TMH..].first_chunk().unwrap());
        assert_eq!(remote.address, MEMORY + message.place as u64);
        assert!(self.finished.insert(number), "message {number} ends once");
        // From now on the sender may reuse its memory.
        let place = message.place;
        self.net.hosts[peer].memory[place..place + SLOT].fill(0xee);
    }

    fn take_completion(&mut self, entry: &CompletionEntry) {
        let id = entry.connected_wr_id();
        match entry.connected_operation() {
            SEND => assert_eq!(entry.status(), 0, "{entry:?}"),
            READ => {
                assert_eq!(entry.status(), 0, "{entry:?}");
                self.complete(id as usize);
            }
            DELETED => self.take_deletion(id, entry.status()),
            TAGGED if entry.connected_flags() & (MATCH | DATA_VALID) == 0 => {
                assert_eq!(entry.status(), 0, "{entry:?}");
                self.take_unexpected(entry);
            }
            TAGGED => self.take_match(entry),
            WITHOUT_TAG => {
                assert_eq!(entry.status(), 0, "{entry:?}");
                let slot = id as usize;
                let place = PLAIN + slot * SLOT;
                let length = entry.connected_length() as usize;
                let bytes = &self.net.hosts[0].memory[place..place + length];
                let header = TagHeader::parse(bytes.first_chunk().unwrap()).unwrap();
                let number = header.data as usize;
                let sent = pattern(self.outcome.messages[number].length, number as u8);
                assert!(bytes[TMH..] == sent, "data of message {number}");
                self.untagged.push(number);
                self.post_plain(slot);
            }
            other => panic!("operation {other}: {entry:?}"),
        }
    }

    /// Handles a completed deletion, which may have failed because a message has taken the receive.
    fn take_deletion(&mut self, id: u64, status: u8) {
        let receive = id as usize;
        let succeeded = status == 0;
        if succeeded {
            assert!(!self.by_device.contains(&receive), "a message has {id}");
            assert!(self.deleted.insert(receive), "{id} is deleted once");
        } else {
            assert_eq!(status, WcStatus::TagMatching as u8);
            let is_gone = self.by_device.contains(&receive) || self.deleted.contains(&receive);
            assert!(is_gone, "nobody has {id}");
        }
        let cancelled =
            self.with(|matcher, mut device| matcher.deleted(id, succeeded, &mut device));
        if cancelled.unwrap() {
            self.outcome.steps.push(Step::Cancelled(receive));
        }
    }

    fn take_unexpected(&mut self, entry: &CompletionEntry) {
        self.unexpected += 1;
        let kept = UnexpectedReceive {
            slot: entry.connected_wr_id() as usize,
            length: entry.connected_length() as usize,
            qpn: entry.qpn(),
        };
        let bytes = &self.net.hosts[0].memory[PLAIN + kept.slot * SLOT..];
        let header = TagHeader::parse(bytes.first_chunk().unwrap()).unwrap();
        self.outcome.steps.push(Step::Arrived(header.data as usize));
        let tag = header.tag;
        let taken = self.with(|matcher, mut device| matcher.unexpected(tag, kept, &mut device));
        if let Some((receive, kept)) = taken.unwrap() {
            self.take(receive, kept);
        }
    }

    /// Handles a match of the device, or the end of a message's data.
    fn take_match(&mut self, entry: &CompletionEntry) {
        let id = entry.connected_wr_id();
        let flags = entry.connected_flags();
        if flags & MATCH != 0 {
            let number = entry.connected_data() as usize;
            assert_eq!(entry.connected_tag(), self.outcome.messages[number].tag);
            self.by_device.insert(id as usize);
            self.outcome.steps.push(Step::Arrived(number));
            self.outcome.matches.push((id as usize, number));
            let known = self.with(|matcher, mut device| matcher.matched(id, &mut device));
            assert!(known.unwrap().is_some(), "the device has no receive {id}");
        }
        if entry.status() == WcStatus::RendezvousIncomplete as u8 {
            // The software continues with the headers, which are in the buffer.
            let place = id as usize * SLOT;
            let headers = self.net.hosts[0].memory[place..place + TMH + RVH].to_vec();
            self.read(id as usize, &headers, entry.qpn());
            return;
        }
        assert_eq!(entry.status(), 0, "{entry:?}");
        if flags & DATA_VALID != 0 {
            self.complete(id as usize);
        }
    }

    /// Handles a match of the software with an unexpected message.
    fn take(&mut self, receive: TagReceive, kept: UnexpectedReceive) {
        let place = PLAIN + kept.slot * SLOT;
        let message = self.net.hosts[0].memory[place..place + kept.length].to_vec();
        let header = TagHeader::parse(message.first_chunk().unwrap()).unwrap();
        let id = receive.id as usize;
        self.outcome.matches.push((id, header.data as usize));
        match header.operation {
            TagOperation::Eager => {
                let payload = &message[TMH..];
                let target = id * SLOT;
                let memory = &mut self.net.hosts[0].memory;
                memory[target..target + payload.len()].copy_from_slice(payload);
                self.complete(id);
            }
            TagOperation::Rendezvous => self.read(id, &message, kept.qpn),
            other => panic!("an unexpected {other:?}"),
        }
        self.post_plain(kept.slot);
    }

    /// Reads the data of a rendezvous that fits into the receive, and notifies the sender.
    fn read(&mut self, id: usize, headers: &[u8], qpn: Qpn) {
        let header = TagHeader::parse(headers.first_chunk().unwrap()).unwrap();
        let remote: &[u8; RVH] = headers[TMH..].first_chunk().unwrap();
        let RendezvousHeader {
            address,
            key,
            length,
        } = RendezvousHeader::parse(remote);
        let room = self.outcome.receives[id].buffers.length() as usize;
        let list = self.net.hosts[0].list(id * SLOT, room.min(length as usize));
        let read = SendOperation::Read(RemoteMemory { address, key });
        self.net.post(0, qpn, request(id as u64, read, list));
        let finish = TagHeader {
            operation: TagOperation::Finish,
            ..header
        };
        let bytes = [&finish.to_bytes()[..], &remote[..]].concat();
        let mut wr = request(0, SendOperation::Send(None), Default::default());
        wr.payload = Payload::inline(&bytes).unwrap();
        wr.is_fenced = true;
        self.net.post(0, qpn, wr);
    }

    /// Checks that a receive contains exactly the data of its message.
    fn complete(&mut self, id: usize) {
        assert!(self.complete.insert(id), "receive {id} completes once");
        let matches = self.outcome.matches.iter();
        let found = matches.rev().find(|(receive, _)| *receive == id);
        let (_, number) = found.unwrap_or_else(|| panic!("receive {id} has no message"));
        let message = self.outcome.messages[*number];
        let room = self.outcome.receives[id].buffers.length() as usize;
        let bytes = pattern(message.length.min(room), *number as u8);
        let (there, beside) = self.net.hosts[0].memory[id * SLOT..][..SLOT].split_at(bytes.len());
        assert!(there == bytes, "data of message {number}");
        assert!(beside.iter().all(|byte| *byte == 0), "beside {number}");
    }

    /// Runs until there are no more events.
    fn come_to_rest(&mut self) {
        for _ in 0..100 {
            for _ in 0..2000 {
                if !self.net.step() {
                    self.poll(usize::MAX);
                    break;
                }
            }
            self.poll(usize::MAX);
            if !self.net.step() {
                return;
            }
        }
        panic!("the devices never come to rest");
    }

    /// Receives all sent messages, and cancels the unmatched receives.
    fn receive_the_rest(&mut self) {
        for _ in 0..2000 {
            for _ in 0..50 {
                self.net.step();
            }
            self.poll(usize::MAX);
            let there = self.outcome.matches.len() + self.untagged.len();
            if there == self.outcome.messages.len() {
                break;
            }
            if !self.waits_for_any() {
                self.post(0, 0, LONGEST);
            }
        }
        for id in 0..self.outcome.receives.len() {
            self.cancel(id);
        }
        self.come_to_rest();
        assert_eq!(self.matcher.outstanding(), 0, "all receives are over");
    }

    /// Whether the last receive accepts any message, and is unmatched.
    fn waits_for_any(&self) -> bool {
        let Some(id) = self.outcome.receives.len().checked_sub(1) else {
            return false;
        };
        let Outcome {
            receives,
            steps,
            matches,
            ..
        } = &self.outcome;
        let is_taken = matches.iter().any(|(receive, _)| *receive == id);
        receives[id].mask == 0 && !is_taken && !steps.contains(&Step::Cancelled(id))
    }

    /// Checks that the device matches again when all messages are handled.
    fn match_one_more(&mut self) {
        self.sent[0] = 0;
        let id = self.outcome.receives.len();
        self.post(PROBE, u64::MAX, LONGEST);
        self.send(1, PROBE, TagOperation::Rendezvous);
        self.come_to_rest();
        let by_device = self.by_device.contains(&id);
        assert_eq!(by_device, self.prefix > 0, "who matches");
    }

    /// Checks that device and software have the same number of unexpected messages.
    fn compare_counts(&mut self) {
        assert_eq!(self.matcher.handled(), self.unexpected);
        for (handled, status) in [(1, WcStatus::TagMatching), (0, WcStatus::Success)] {
            let request = TagRequest {
                wr_id: 0,
                is_signaled: true,
                handled: Some(self.unexpected + handled),
                operation: TagRequestOperation::Sync,
            };
            let host = &mut self.net.hosts[0];
            host.device.post_tag_request(self.srq, &request).unwrap();
            let entry = host.poll().unwrap();
            let found = (entry.connected_operation(), entry.status());
            assert_eq!(found, (SYNCED, status as u8));
            if status == WcStatus::Success {
                assert_eq!(entry.connected_flags() & SYNC_REQUESTED, 0);
            }
        }
    }

    /// Checks that each receive has its data, and that each rendezvous has ended.
    fn check_ends(&self) {
        let matched = self.outcome.matches.iter();
        let receives: BTreeSet<usize> = matched.clone().map(|(receive, _)| *receive).collect();
        assert_eq!(self.complete, receives, "all data");
        let numbers = 0..self.outcome.messages.len();
        let with = |operation| {
            let messages = &self.outcome.messages;
            let numbers = numbers.clone();
            numbers.filter(move |number| messages[*number].operation == operation)
        };
        let rendezvous: BTreeSet<usize> = with(TagOperation::Rendezvous).collect();
        assert_eq!(self.finished, rendezvous, "each rendezvous ends");
        let mut untagged = self.untagged.clone();
        untagged.sort_unstable();
        assert!(with(TagOperation::NoTag).eq(untagged), "without tags");
    }
}
