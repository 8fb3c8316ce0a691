//! Both halves of tag matching against the rules of MPI.
//!
//! Receives are posted in an order, and messages arrive in one, which the completions of the shared
//! receive queue show. A receive takes the earliest message that it accepts, a message the earliest
//! receive that accepts it. There is one such pairing only, whatever happens when, and whether the
//! device or the software matches.

use std::collections::BTreeMap;

use efa_core::address::Qpn;
use efa_device_model::device::connected::{
    Payload, RVH, RecvWr, RemoteMemory, RendezvousHeader, SendOperation, SrqConfig, SrqId, TMH,
    TagConfig, TagHeader, TagOperation, TagRequest, WcStatus,
};
use efa_device_model::device::queue::CompletionEntry;
use efa_device_model::provider::{Cancellation, TagMatcher, TagReceive};
use proptest::prelude::{ProptestConfig, any, proptest};
use rand::{Rng as _, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::net::{MEMORY, Net, Weather, attributes, request};

const SENDERS: usize = 2;
const MESSAGES: usize = 20;
const LONGEST: usize = 600;
const SLOT: usize = 656;

/// The data of a rendezvous in the sender's memory, and receives for its end.
const DATA: usize = 0x8000;
const FINISHED: usize = 0xf000;

/// Plain receives of the receiver, behind the buffers of its tags.
const PLAIN: usize = 0xb000;
const PLAIN_RECEIVES: usize = 12;

/// An unexpected message: its plain receive, and the queue pair that it came to.
#[derive(Clone, Copy)]
struct Kept {
    slot: usize,
    length: usize,
    qpn: Qpn,
}

struct Run {
    net: Net,
    srq: SrqId,
    matcher: TagMatcher<Kept>,
    random: ChaCha8Rng,
    /// Receives by id: tag and mask, in the order of posting.
    receives: Vec<(u64, u64)>,
    cancelled: Vec<usize>,
    /// Tags of messages by their numbers, and whether they are a rendezvous.
    messages: Vec<(u64, bool)>,
    /// Where the data of a rendezvous is, in the memory of which host.
    places: BTreeMap<usize, (usize, usize)>,
    sent: [usize; SENDERS],
    /// Messages in the order in which the shared receive queue has reported them.
    arrived: Vec<usize>,
    /// The message of each receive, and which have all their data.
    pairs: BTreeMap<usize, usize>,
    complete: Vec<usize>,
    finished: Vec<usize>,
    unexpected: u32,
}

/// The data of a message.
fn data(message: usize) -> Vec<u8> {
    let length = (message * 97) % LONGEST;
    let byte = |index: usize| (message * 31 + index * 7) as u8;
    (0..length).map(byte).collect()
}

impl Run {
    fn new(seed: u64, weather: Weather, prefix: usize) -> Run {
        let mut net = Net::new(1 + SENDERS, weather, seed);
        let host = &mut net.hosts[0];
        let config = SrqConfig {
            pd: host.pd,
            max_wr: PLAIN_RECEIVES as u32,
            max_sge: 1,
            tags: Some(TagConfig {
                cq: host.cq,
                max_tags: 64,
            }),
        };
        let srq = host.device.create_srq(config).unwrap();
        for peer in 1..=SENDERS {
            let own = net.queue_pair(0, 10 + peer as u16, Some(srq));
            let theirs = net.queue_pair(peer, 5, None);
            net.bring_up(0, own, attributes(peer, theirs));
            net.bring_up(peer, theirs, attributes(0, own));
            for slot in 0..MESSAGES {
                net.hosts[peer].receive(theirs, slot as u64, FINISHED + 64 * slot, 64);
            }
        }
        let mut run = Run {
            net,
            srq,
            matcher: TagMatcher::new(prefix),
            random: ChaCha8Rng::seed_from_u64(seed),
            receives: Vec::new(),
            cancelled: Vec::new(),
            messages: Vec::new(),
            places: BTreeMap::new(),
            sent: [0; SENDERS],
            arrived: Vec::new(),
            pairs: BTreeMap::new(),
            complete: Vec::new(),
            finished: Vec::new(),
            unexpected: 0,
        };
        for slot in 0..PLAIN_RECEIVES {
            run.post_plain(slot);
        }
        run
    }

    fn post_plain(&mut self, slot: usize) {
        let host = &mut self.net.hosts[0];
        let buffers = host.list(PLAIN + slot * SLOT, SLOT);
        let wr_id = slot as u64;
        let receive = RecvWr { wr_id, buffers };
        host.device.post_srq_recv(self.srq, receive).unwrap();
    }

    /// Does something with the matcher and the device.
    fn with<R>(
        &mut self,
        work: impl FnOnce(
            &mut TagMatcher<Kept>,
            &mut dyn FnMut(&TagRequest) -> Result<u32, efa_device_model::device::Error>,
        ) -> R,
    ) -> R {
        let device = &mut self.net.hosts[0].device;
        let srq = self.srq;
        let mut ask = |request: &TagRequest| device.post_tag_request(srq, request);
        work(&mut self.matcher, &mut ask)
    }

    fn send(&mut self) {
        let peer = self.random.random_range(1..=SENDERS);
        let count = self.sent[peer - 1];
        if count == MESSAGES {
            return;
        }
        self.sent[peer - 1] += 1;
        let message = self.messages.len();
        let is_rendezvous = self.random.random_bool(0.4);
        // A source, and one of few tags.
        let tag = (peer as u64) << 8 | self.random.random_range(0..3u64);
        self.messages.push((tag, is_rendezvous));
        let operation = match is_rendezvous {
            true => TagOperation::Rendezvous,
            false => TagOperation::Eager,
        };
        let header = TagHeader {
            operation,
            data: message as u32,
            tag,
        };
        let payload = data(message);
        let sender = &mut self.net.hosts[peer];
        let mut bytes = header.to_bytes().to_vec();
        if is_rendezvous {
            let place = DATA + count * SLOT;
            sender.memory[place..place + payload.len()].copy_from_slice(&payload);
            self.places.insert(message, (peer, place));
            let remote = RendezvousHeader {
                address: MEMORY + place as u64,
                key: sender.keys.rkey.0,
                length: payload.len() as u32,
            };
            bytes.extend_from_slice(&remote.to_bytes());
        } else {
            bytes.extend_from_slice(&payload);
        }
        let place = count * SLOT;
        sender.memory[place..place + bytes.len()].copy_from_slice(&bytes);
        let list = sender.list(place, bytes.len());
        let wr = request(message as u64, SendOperation::Send(None), list);
        self.net.post(peer, Qpn(5), wr);
    }

    fn post_receive(&mut self) {
        let id = self.receives.len();
        if id == 2 * SENDERS * MESSAGES / 2 + 10 {
            return;
        }
        let source = self.random.random_range(1..=SENDERS as u64) << 8;
        let tag = source | self.random.random_range(0..3u64);
        let mask = match self.random.random_range(0..4) {
            0 => 0xff,
            1 => 0xff00,
            2 => 0,
            _ => 0xffff,
        };
        self.receives.push((tag & mask, mask));
        let receive = TagReceive {
            id: id as u64,
            buffers: self.net.hosts[0].list(id * SLOT, LONGEST),
            tag,
            mask,
        };
        let found = self.with(|matcher, mut device| matcher.post(receive, &mut device));
        if let Some(message) = found.unwrap() {
            self.take(receive, message.message);
        }
    }

    fn cancel(&mut self) {
        if self.receives.is_empty() {
            return;
        }
        let id = self.random.random_range(0..self.receives.len());
        let result = self.with(|matcher, mut device| matcher.cancel(id as u64, &mut device));
        if result == Ok(Cancellation::Done) {
            self.cancelled.push(id);
        }
    }

    /// The software has matched an unexpected message.
    fn take(&mut self, receive: TagReceive, kept: Kept) {
        let place = PLAIN + kept.slot * SLOT;
        let message = self.net.hosts[0].memory[place..place + kept.length].to_vec();
        let header = TagHeader::parse(message.first_chunk().unwrap()).unwrap();
        let id = receive.id as usize;
        self.pair(id, header.data as usize);
        let target = id * SLOT;
        match header.operation {
            TagOperation::Eager => {
                let payload = &message[TMH..];
                let memory = &mut self.net.hosts[0].memory;
                memory[target..target + payload.len()].copy_from_slice(payload);
                self.complete.push(id);
            }
            TagOperation::Rendezvous => {
                let remote: &[u8; RVH] = message[TMH..].first_chunk().unwrap();
                let RendezvousHeader {
                    address,
                    key,
                    length,
                } = RendezvousHeader::parse(remote);
                let list = self.net.hosts[0].list(target, length as usize);
                let read = SendOperation::Read(RemoteMemory { address, key });
                self.net.post(0, kept.qpn, request(receive.id, read, list));
                let finish = TagHeader {
                    operation: TagOperation::Finish,
                    ..header
                };
                let bytes = [&finish.to_bytes()[..], &remote[..]].concat();
                let mut wr = request(0, SendOperation::Send(None), Default::default());
                wr.payload = Payload::inline(&bytes).unwrap();
                wr.is_fenced = true;
                self.net.post(0, kept.qpn, wr);
            }
            other => panic!("an unexpected {other:?}"),
        }
        self.post_plain(kept.slot);
    }

    fn pair(&mut self, receive: usize, message: usize) {
        let before = self.pairs.insert(receive, message);
        assert_eq!(before, None, "receive {receive} has a message already");
    }

    fn poll(&mut self) {
        while let Some(entry) = self.net.hosts[0].poll() {
            self.take_completion(&entry);
        }
        self.with(|matcher, mut device| matcher.settle(&mut device))
            .unwrap();
        for peer in 1..=SENDERS {
            while let Some(entry) = self.net.hosts[peer].poll() {
                assert_eq!(entry.status(), 0, "{entry:?}");
                const RECV: u8 = 128;
                if entry.connected_operation() == RECV {
                    let place = FINISHED + 64 * entry.connected_wr_id() as usize;
                    let bytes = &self.net.hosts[peer].memory[place..];
                    let header = TagHeader::parse(bytes.first_chunk().unwrap()).unwrap();
                    assert_eq!(header.operation, TagOperation::Finish);
                    let message = header.data as usize;
                    self.finished.push(message);
                    // Now the sender may use its memory for something else.
                    let (host, place) = self.places[&message];
                    self.net.hosts[host].memory[place..place + LONGEST].fill(0xee);
                }
            }
        }
    }

    fn take_completion(&mut self, entry: &CompletionEntry) {
        const READ: u8 = 2;
        const DELETED: u8 = 131;
        const TAGGED: u8 = 133;
        const MATCH: u8 = 1 << 5;
        const DATA_VALID: u8 = 1 << 6;
        let id = entry.connected_wr_id();
        let flags = entry.connected_flags();
        match entry.connected_operation() {
            DELETED => {
                let succeeded = entry.status() != WcStatus::TagMatching as u8;
                let deleted =
                    self.with(|matcher, mut device| matcher.deleted(id, succeeded, &mut device));
                if deleted.unwrap() {
                    self.cancelled.push(id as usize);
                }
            }
            TAGGED if flags & (MATCH | DATA_VALID) == 0 => {
                assert_eq!(entry.status(), 0, "{entry:?}");
                self.unexpected += 1;
                let kept = Kept {
                    slot: id as usize,
                    length: entry.connected_length() as usize,
                    qpn: entry.qpn(),
                };
                let place = PLAIN + kept.slot * SLOT;
                let bytes = &self.net.hosts[0].memory[place..];
                let header = TagHeader::parse(bytes.first_chunk().unwrap()).unwrap();
                self.arrived.push(header.data as usize);
                let tag = header.tag;
                let taken =
                    self.with(|matcher, mut device| matcher.unexpected(tag, kept, &mut device));
                if let Some((receive, kept)) = taken.unwrap() {
                    self.take(receive, kept);
                }
            }
            TAGGED => {
                assert_eq!(entry.status(), 0, "{entry:?}");
                if flags & MATCH != 0 {
                    let message = entry.connected_data() as usize;
                    self.arrived.push(message);
                    self.pair(id as usize, message);
                    let known = self.with(|matcher, mut device| matcher.matched(id, &mut device));
                    assert!(known.unwrap().is_some(), "the device has no receive {id}");
                }
                if flags & DATA_VALID != 0 {
                    self.complete.push(id as usize);
                }
            }
            READ => self.complete.push(id as usize),
            other => assert_eq!(entry.status(), 0, "operation {other}"),
        }
    }

    /// The only pairing by the rules of MPI.
    fn expected(&self) -> BTreeMap<usize, usize> {
        let mut pairs = BTreeMap::new();
        let mut waiting = self.arrived.clone();
        for (id, (tag, mask)) in self.receives.iter().enumerate() {
            if self.cancelled.contains(&id) {
                continue;
            }
            let accepts = |message: &usize| self.messages[*message].0 & mask == *tag;
            if let Some(position) = waiting.iter().position(accepts) {
                pairs.insert(id, waiting.remove(position));
            }
        }
        pairs
    }

    fn run(mut self) {
        for _ in 0..4000 {
            match self.random.random_range(0..12) {
                0 => self.send(),
                1 => self.post_receive(),
                2 if self.random.random_bool(0.1) => self.cancel(),
                3..6 => self.poll(),
                _ => {
                    self.net.step();
                }
            }
        }
        // What waits for a plain receive gets one when a message is taken.
        for _ in 0..200 {
            for _ in 0..2000 {
                if !self.net.step() {
                    break;
                }
            }
            self.poll();
            self.post_receive();
        }
        self.net.weather = Weather::default();
        for _ in 0..100_000 {
            if !self.net.step() {
                break;
            }
            self.poll();
        }
        self.poll();
        self.check();
    }

    fn check(mut self) {
        assert_eq!(self.pairs, self.expected(), "MPI's rules");
        let mut all = self.arrived.clone();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), self.arrived.len(), "nothing arrives twice");
        // Messages of a sender arrive in the order of sending.
        for peer in 1..=SENDERS as u64 {
            let of_peer = |message: &&usize| self.messages[**message].0 >> 8 == peer;
            let arrived: Vec<_> = self.arrived.iter().filter(of_peer).collect();
            assert!(arrived.is_sorted(), "{arrived:?}");
        }
        self.complete.sort_unstable();
        let paired: Vec<_> = self.pairs.keys().copied().collect();
        assert_eq!(self.complete, paired, "all data, once");
        for (id, message) in &self.pairs {
            let bytes = data(*message);
            let memory = &self.net.hosts[0].memory[id * SLOT..];
            assert!(memory[..bytes.len()] == bytes, "data of message {message}");
        }
        self.finished.sort_unstable();
        let mut rendezvous: Vec<_> = self.pairs.values().copied().collect();
        rendezvous.retain(|message| self.messages[*message].1);
        rendezvous.sort_unstable();
        assert_eq!(self.finished, rendezvous, "each rendezvous ends once");
        assert_eq!(self.matcher.handled(), self.unexpected);
    }
}

/// `make sim` asks for 10,000.
fn cases() -> u32 {
    let asked = std::env::var("EFA_SEEDS").ok();
    asked.and_then(|count| count.parse().ok()).unwrap_or(100)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn matches_are_those_of_mpi(
        seed in any::<u64>(), prefix in 0..6usize,
        loss in 0..5u32, duplicates in 0..5u32, longest in 1..60u64,
    ) {
        let weather = Weather {
            loss: f64::from(loss) / 100.0,
            duplicates: f64::from(duplicates) / 100.0,
            longest,
            busy: 0.0,
        };
        Run::new(seed, weather, prefix).run();
    }
}
