//! A device that matches tags between a hostile peer and an honest one. The bytes are the hostile
//! peer's messages and packets, the application's operations on the tag list, and the order of
//! events.
//!
//! Checked: no panic; each receive completes at most once, with a message that it accepts; memory
//! without a receive is unchanged; operations on the list succeed or fail correctly; the honest
//! peer's messages arrive once each, in order and undamaged; at the end, the counts of unexpected
//! messages agree and new tags are matched.

use std::collections::BTreeMap;

use efa_core::address::{Qkey, Qpn};
use efa_core::nic::Access;
use efa_device_model::device::QpState;
use efa_device_model::device::connected::{
    ConnectionAttributes, ConnectionMask, RVH, RendezvousHeader, SendOperation, SrqId, TMH,
    TagHeader, TagOperation, TagRequest, TagRequestOperation, TaggedBuffer, WcStatus,
};
use efa_device_model::device::queue::CompletionEntry;
use efa_device_model::link::{Operation, RequestHeader};
use efa_testing::choices::Choices;
use efa_testing::device::net::codes::{
    DATA_VALID, MATCH, RECV, SYNC_REQUESTED, TAGGED, WITHOUT_TAG,
};
use efa_testing::device::net::{MEMORY, Net, NetworkEffects, TaggedMessage, attributes, request};
use efa_testing::pattern;

const STEPS: usize = 300;

const RECEIVER: usize = 0;
const ATTACKER: usize = 1;
const HONEST: usize = 2;

/// The queue pairs of the receiver, and the queue pairs of its peers.
const TO_ATTACKER: Qpn = Qpn(11);
const TO_HONEST: Qpn = Qpn(12);
const OF_PEER: Qpn = Qpn(5);

/// Tags of the honest peer's messages, which count up from this one.
const HONEST_TAG: u64 = 1 << 32;
/// The most of its messages, and their longest data.
const MESSAGES: usize = 20;
const LONGEST: usize = 400;

const MAX_TAGS: u32 = 6;
const MAX_PLAIN: u32 = 8;

/// The receiver's memory: slots for tagged buffers, followed by slots for plain receives.
const SLOT: usize = 512;
const SLOTS: usize = 96;
const PLAIN: usize = SLOTS * SLOT;
/// The content of memory without a receive.
const NOBODYS: u8 = 0xa5;

/// The honest peer's data of a rendezvous, and its receives for the end.
const DATA: usize = 0x8000;
const FINISHED: usize = 0xf000;

/// See the module documentation.
pub(crate) fn check(bytes: &[u8]) {
    Machine::new().run(Choices(bytes));
}

/// A tagged receive, until it has ended.
#[derive(Clone, Copy)]
struct Tagged {
    handle: u32,
    tag: u64,
    mask: u64,
    length: usize,
    /// It was added when the counts did not agree, and they have not since.
    waits: bool,
    /// The message of the honest peer that it has, or that it has another.
    message: Option<Option<usize>>,
}

/// The number of times that each checked case occurred.
#[derive(Clone, Copy, Default, Debug)]
struct CaseCounts {
    honest_matches: usize,
    honest_unexpected: usize,
    hostile_matches: usize,
    hostile_unexpected: usize,
    hostile_failures: usize,
}

/// A message of the honest peer.
struct Message {
    is_rendezvous: bool,
    length: usize,
}

struct Machine {
    net: Net,
    srq: SrqId,
    /// By work request id.
    tagged: BTreeMap<u64, Tagged>,
    plain: BTreeMap<u64, usize>,
    next_id: u64,
    handles: u32,
    /// The number of unexpected messages, and the number that was reported to the device.
    unexpected: u32,
    told: u32,
    messages: Vec<Message>,
    arrived: usize,
    finished: usize,
    reached: CaseCounts,
}

impl Machine {
    fn new() -> Machine {
        let calm = NetworkEffects {
            longest: 1,
            ..NetworkEffects::default()
        };
        let mut net = Net::new(3, calm, 1);
        let host = &mut net.hosts[RECEIVER];
        host.memory.fill(NOBODYS);
        let srq = host.shared_queue(MAX_PLAIN, Some(MAX_TAGS));
        for (peer, own) in [(ATTACKER, TO_ATTACKER), (HONEST, TO_HONEST)] {
            net.queue_pair(RECEIVER, own.0, Some(srq));
            net.queue_pair(peer, OF_PEER.0, None);
            net.bring_up(peer, OF_PEER, attributes(RECEIVER, own));
            net.bring_up(RECEIVER, own, closed(peer));
        }
        for slot in 0..=MESSAGES {
            let place = FINISHED + 64 * slot;
            net.hosts[HONEST].receive(OF_PEER, slot as u64, place, 64);
        }
        Machine {
            net,
            srq,
            tagged: BTreeMap::new(),
            plain: BTreeMap::new(),
            next_id: 0,
            handles: 0,
            unexpected: 0,
            told: 0,
            messages: Vec::new(),
            arrived: 0,
            finished: 0,
            reached: CaseCounts::default(),
        }
    }

    fn run(mut self, mut choices: Choices<'_>) -> CaseCounts {
        for _ in 0..STEPS {
            if choices.is_over() {
                break;
            }
            self.step(&mut choices);
            self.collect();
        }
        self.end();
        self.reached
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 16 {
            0 | 1 => self.add(choices),
            2 => self.delete(choices),
            3 => {
                let count = match choices.byte() {
                    0..200 => self.unexpected,
                    200..230 => self.unexpected.wrapping_add(1),
                    _ => choices.word(),
                };
                self.sync(count);
            }
            4 | 5 => self.post_plain(),
            6 | 7 => self.send(choices),
            8 | 9 => self.attack_with_message(choices),
            10..13 => self.attack_with_packet(choices),
            13 if choices.byte() < 16 => self.reconnect(),
            _ => {
                for _ in 0..choices.byte() % 8 {
                    self.net.step();
                }
            }
        }
    }

    /// A new name of a receive, and memory that no other has.
    fn take_id(&mut self) -> Option<(u64, usize)> {
        let id = self.next_id;
        let place = id as usize % SLOTS;
        let is_taken = |other: &u64| *other as usize % SLOTS == place;
        if self.tagged.keys().any(is_taken) {
            return None;
        }
        self.next_id += 1;
        Some((id, place * SLOT))
    }

    fn add(&mut self, choices: &mut Choices<'_>) {
        let Some((id, place)) = self.take_id() else {
            return;
        };
        let next = self.messages.len() as u64 + u64::from(choices.byte() % 4);
        let (tag, mask) = match choices.byte() % 4 {
            0 => (HONEST_TAG + next, u64::MAX),
            1 => (choices.byte().into(), u64::MAX),
            2 => (0, 0),
            _ => (HONEST_TAG, HONEST_TAG),
        };
        // Too little memory would end the honest peer's connection.
        let length = match tag < HONEST_TAG && mask == u64::MAX {
            true => usize::from(choices.byte()),
            false => LONGEST,
        };
        let buffers = self.net.hosts[RECEIVER].list(place, length);
        let buffer = TaggedBuffer {
            wr_id: id,
            buffers,
            tag,
            mask,
        };
        let handled = (choices.byte() == 0).then(|| choices.word());
        let is_counted = handled.is_none_or(|count| self.accepts(count));
        let held = self.tagged.values().filter(|tag| tag.message.is_none());
        let is_full = held.count() == MAX_TAGS as usize;
        let result = self.operate(handled, TagRequestOperation::Add(buffer));
        if is_full {
            assert_eq!(result, Err(libc::ENOMEM));
            return;
        }
        let (handle, status, _) = result.expect("there is room");
        assert_eq!(status == 0, is_counted);
        self.handles += 1;
        if is_counted {
            let tagged = Tagged {
                handle,
                tag,
                mask,
                length,
                waits: self.told != self.unexpected,
                message: None,
            };
            let other = self.tagged.insert(id, tagged);
            assert!(other.is_none());
        }
    }

    fn delete(&mut self, choices: &mut Choices<'_>) {
        let handle = match choices.byte() {
            0..200 => u32::from(choices.byte()) % self.handles.max(1),
            _ => choices.word(),
        };
        self.delete_handle(handle);
    }

    fn delete_handle(&mut self, handle: u32) {
        let mut held = self.tagged.iter();
        let found = held.find(|(_, tag)| tag.handle == handle && tag.message.is_none());
        let found = found.map(|(id, _)| *id);
        let result = self.operate(None, TagRequestOperation::Delete(handle));
        if handle >= self.handles {
            assert_eq!(result, Err(libc::EINVAL));
            return;
        }
        let (_, status, _) = result.expect("a handle");
        assert_eq!(status == 0, found.is_some());
        if let Some(id) = found {
            let tagged = self.tagged.remove(&id).expect("it is listed");
            self.check_place(id, tagged.length, &[]);
        }
    }

    /// Returns whether operations still need a count.
    fn sync(&mut self, count: u32) -> bool {
        let is_right = self.accepts(count);
        let result = self.operate(Some(count), TagRequestOperation::Sync);
        let (_, status, flags) = result.expect("a list");
        assert_eq!(status == 0, is_right, "{count}");
        flags & SYNC_REQUESTED != 0
    }

    fn accepts(&self, count: u32) -> bool {
        count.wrapping_sub(self.told) <= self.unexpected.wrapping_sub(self.told)
    }

    /// Carries an operation out. Returns handle, and status and flags of the completion.
    fn operate(
        &mut self,
        handled: Option<u32>,
        operation: TagRequestOperation,
    ) -> Result<(u32, u8, u8), i32> {
        self.collect();
        let request = TagRequest {
            wr_id: 0,
            is_signaled: true,
            handled,
            operation,
        };
        let host = &mut self.net.hosts[RECEIVER];
        let result = host.device.post_tag_request(self.srq, &request);
        let handle = result.map_err(|error| error.errno())?;
        let entry = host.poll().expect("it is signaled");
        assert!([0, WcStatus::TagMatching as u8].contains(&entry.status()));
        if let Some(count) = handled
            && self.accepts(count)
        {
            self.told = count;
        }
        if self.told == self.unexpected {
            let tags = self.tagged.values_mut();
            tags.for_each(|tagged| tagged.waits = false);
        }
        Ok((handle, entry.status(), entry.connected_flags()))
    }

    fn post_plain(&mut self) {
        let mut places = (0..SLOTS).map(|slot| PLAIN + slot * SLOT);
        let is_free = |place: &usize| !self.plain.values().any(|other| other == place);
        let place = places.find(is_free).expect("there are fewer receives");
        let id = self.next_id;
        self.next_id += 1;
        match self.net.hosts[RECEIVER].receive_shared(self.srq, id, place, SLOT) {
            Ok(()) => {
                self.plain.insert(id, place);
            }
            Err(error) => assert_eq!(error, libc::ENOMEM),
        }
    }

    /// The honest peer sends a message.
    fn send(&mut self, choices: &mut Choices<'_>) {
        let number = self.messages.len();
        if number == MESSAGES {
            return;
        }
        let message = Message {
            is_rendezvous: choices.byte() < 128,
            length: usize::from(choices.half()) % LONGEST,
        };
        self.send_message(message);
    }

    fn send_message(&mut self, message: Message) {
        let number = self.messages.len();
        let payload = pattern(message.length, number as u8);
        let header = TagHeader {
            operation: match message.is_rendezvous {
                true => TagOperation::Rendezvous,
                false => TagOperation::Eager,
            },
            data: number as u32,
            tag: HONEST_TAG + number as u64,
        };
        let sent = TaggedMessage {
            header,
            payload: &payload,
            place: number * SLOT,
            data: DATA + number * SLOT,
            further: 0,
        };
        self.net.send_tagged(HONEST, OF_PEER, &sent);
        self.messages.push(message);
    }

    /// The bytes of a message as the attacker likes them.
    fn hostile_message(&self, choices: &mut Choices<'_>) -> Vec<u8> {
        let next = HONEST_TAG + self.messages.len() as u64;
        let header = TagHeader {
            operation: TagOperation::Eager,
            data: choices.word(),
            tag: match choices.byte() {
                0..200 => u64::from(choices.byte()),
                200..220 => next,
                _ => choices.long(),
            },
        };
        let mut bytes = header.to_bytes().to_vec();
        bytes[0] = choices.byte() % 6;
        let key = self.net.hosts[ATTACKER].keys.rkey.0;
        let remote = RendezvousHeader {
            address: MEMORY + u64::from(choices.half()),
            key: if choices.byte() < 200 {
                key
            } else {
                choices.word()
            },
            length: choices.length() % 600,
        };
        bytes.extend_from_slice(&remote.to_bytes());
        let length = match choices.byte() {
            0..100 => TMH + RVH,
            100..120 => TMH + RVH - 1,
            120..180 => usize::from(choices.byte()) % 70,
            _ => usize::from(choices.half()) % 600,
        };
        bytes.resize(length, 7);
        bytes
    }

    fn attack_with_message(&mut self, choices: &mut Choices<'_>) {
        let bytes = self.hostile_message(choices);
        let attacker = &mut self.net.hosts[ATTACKER];
        let place = 0x1000 * usize::from(choices.byte() % 8);
        attacker.memory[place..place + bytes.len()].copy_from_slice(&bytes);
        let list = attacker.list(place, bytes.len());
        let wr = request(0, SendOperation::Send(None), list);
        // Its queue pair may have failed, or be full.
        let _ = attacker.device.post_connected_send(OF_PEER, wr);
    }

    /// A packet that the attacker makes, which may pass the first checks.
    fn attack_with_packet(&mut self, choices: &mut Choices<'_>) {
        let mut bytes = vec![0; 12];
        bytes[0] = match choices.byte() {
            0..128 => choices.byte() % 5,
            _ => choices.byte() % 24,
        };
        bytes[2..4].fill(0xff);
        bytes[4..8].copy_from_slice(&u32::from(TO_ATTACKER.0).to_be_bytes());
        let ahead = u32::from(choices.byte() % 16);
        let psn = (0xff_fff0 + ahead) & 0xff_ffff;
        bytes[8..12].copy_from_slice(&(psn | 1 << 31).to_be_bytes());
        if choices.byte() < 128 {
            bytes.extend_from_slice(&self.hostile_message(choices));
            if bytes[0] < 2 {
                // All but the last packet of a message are full.
                bytes.resize(12 + 256, 7);
            }
        } else {
            let length = usize::from(choices.byte());
            bytes.extend(std::iter::repeat_with(|| choices.byte()).take(length));
        }
        let padding = bytes.len().next_multiple_of(4) - bytes.len();
        bytes[1] = (padding as u8) << 4;
        bytes.resize(bytes.len() + padding, 0);
        let header = RequestHeader {
            operation: Operation::Connected,
            source_qpn: OF_PEER,
            destination_qpn: TO_ATTACKER,
            qkey: Qkey(0),
            sequence: 0,
            retries: 0,
            immediate: None,
            remote: None,
            length: bytes.len() as u32,
        };
        self.net.inject(ATTACKER, RECEIVER, &header, &bytes);
    }

    /// Connects with the attacker again.
    fn reconnect(&mut self) {
        self.disconnect();
        let to = attributes(RECEIVER, TO_ATTACKER);
        self.net.bring_up(ATTACKER, OF_PEER, to);
        self.net.bring_up(RECEIVER, TO_ATTACKER, closed(ATTACKER));
    }

    fn disconnect(&mut self) {
        for (host, qpn) in [(RECEIVER, TO_ATTACKER), (ATTACKER, OF_PEER)] {
            let device = &mut self.net.hosts[host].device;
            for state in [QpState::Error, QpState::Reset] {
                let to = ConnectionAttributes {
                    state,
                    ..ConnectionAttributes::default()
                };
                let changed = device.modify_connected_qp(qpn, &to, ConnectionMask::STATE);
                changed.expect("always allowed");
            }
        }
    }

    fn collect(&mut self) {
        while let Some(entry) = self.net.hosts[RECEIVER].poll() {
            self.take(&entry);
        }
        while let Some(entry) = self.net.hosts[HONEST].poll() {
            assert_eq!(entry.status(), 0, "{entry:?}");
            self.finished += usize::from(entry.connected_operation() == RECV);
        }
        while self.net.hosts[ATTACKER].poll().is_some() {}
    }

    fn take(&mut self, entry: &CompletionEntry) {
        let id = entry.connected_wr_id();
        let is_honest = entry.qpn() == TO_HONEST;
        self.reached.hostile_failures += usize::from(entry.status() != 0);
        assert!(!is_honest || entry.status() == 0, "{entry:?}");
        if let Some(place) = self.plain.remove(&id) {
            self.take_plain(entry, place, is_honest);
        } else if self.tagged.contains_key(&id) {
            assert_eq!(entry.connected_operation(), TAGGED);
            self.take_tagged(entry, is_honest);
        } else {
            panic!("nobody has posted {entry:?}");
        }
    }

    fn take_plain(&mut self, entry: &CompletionEntry, place: usize, is_honest: bool) {
        let operation = entry.connected_operation();
        assert!([RECV, TAGGED, WITHOUT_TAG].contains(&operation));
        assert_eq!(entry.connected_flags() & (MATCH | DATA_VALID), 0);
        let is_there = entry.status() == 0;
        let is_unexpected = is_there && operation == TAGGED;
        self.unexpected += u32::from(is_unexpected);
        match is_honest {
            true => self.reached.honest_unexpected += 1,
            false => self.reached.hostile_unexpected += usize::from(is_unexpected),
        }
        let length = entry.connected_length() as usize;
        if is_honest {
            assert_eq!(operation, TAGGED);
            let number = self.arrived;
            self.arrived += 1;
            let message = &self.messages[number];
            let bytes = &self.net.hosts[RECEIVER].memory[place..place + length];
            let header = TagHeader::parse(bytes.first_chunk().expect("headers")).expect("known");
            assert_eq!(header.data as usize, number, "in order");
            if message.is_rendezvous {
                assert_eq!(length, TMH + RVH);
                self.finished += 1;
            } else {
                assert!(bytes[TMH..] == pattern(message.length, number as u8));
            }
        }
        if is_there {
            let beside = &self.net.hosts[RECEIVER].memory[place + length..place + SLOT];
            assert!(beside.iter().all(|byte| *byte == NOBODYS));
        }
        self.net.hosts[RECEIVER].memory[place..place + SLOT].fill(NOBODYS);
    }

    fn take_tagged(&mut self, entry: &CompletionEntry, is_honest: bool) {
        let id = entry.connected_wr_id();
        let flags = entry.connected_flags();
        let mut tagged = self.tagged[&id];
        if flags & MATCH != 0 {
            assert!(tagged.message.is_none(), "{id} has a message");
            assert!(!tagged.waits, "{id} is not to be matched yet");
            assert_eq!(entry.connected_tag() & tagged.mask, tagged.tag, "accepts");
            tagged.message = Some(is_honest.then_some(self.arrived));
            match is_honest {
                true => self.reached.honest_matches += 1,
                false => self.reached.hostile_matches += 1,
            }
            if is_honest {
                assert_eq!(entry.connected_data() as usize, self.arrived, "in order");
                self.arrived += 1;
            }
        }
        if entry.status() == 0 && flags & DATA_VALID == 0 {
            self.tagged.insert(id, tagged);
            return;
        }
        // It has all data, or gets no more.
        self.tagged.remove(&id);
        match tagged.message {
            Some(Some(number)) => {
                let bytes = pattern(self.messages[number].length, number as u8);
                self.check_place(id, bytes.len(), &bytes);
            }
            _ => self.check_place(id, tagged.length, &[]),
        }
    }

    /// Checks the first bytes of a tagged buffer, and that there are no others after the first
    /// `length`.
    fn check_place(&mut self, id: u64, length: usize, expected: &[u8]) {
        let place = id as usize % SLOTS * SLOT;
        let memory = &mut self.net.hosts[RECEIVER].memory[place..place + SLOT];
        assert!(memory.starts_with(expected), "data of {id}");
        let beside = &memory[length..];
        assert!(beside.iter().all(|byte| *byte == NOBODYS), "beside {id}");
        memory.fill(NOBODYS);
    }

    /// The attacker goes, and all is as it should be.
    fn end(&mut self) {
        self.disconnect();
        for _ in 0..4 * MESSAGES {
            self.post_plain();
            for _ in 0..100 {
                self.net.step();
            }
            self.collect();
        }
        assert_eq!(self.arrived, self.messages.len(), "all messages arrive");
        let held = self.tagged.values();
        let handles: Vec<u32> = held.map(|tagged| tagged.handle).collect();
        for handle in handles {
            self.delete_handle(handle);
        }
        let is_out_of_step = self.sync(self.unexpected);
        assert!(!is_out_of_step, "the counts agree");
        let (id, place) = self.take_id().expect("all places are free");
        let buffers = self.net.hosts[RECEIVER].list(place, LONGEST);
        let buffer = TaggedBuffer {
            wr_id: id,
            buffers,
            tag: HONEST_TAG + self.messages.len() as u64,
            mask: u64::MAX,
        };
        let added = self.operate(None, TagRequestOperation::Add(buffer.clone()));
        let (handle, ..) = added.expect("the list is empty");
        let tagged = Tagged {
            handle,
            tag: buffer.tag,
            mask: u64::MAX,
            length: LONGEST,
            waits: false,
            message: None,
        };
        self.tagged.insert(id, tagged);
        self.send_message(Message {
            is_rendezvous: true,
            length: LONGEST,
        });
        self.net.settle();
        self.collect();
        assert!(self.tagged.is_empty(), "the device matches again");
        let rendezvous = self.messages.iter().filter(|message| message.is_rendezvous);
        assert_eq!(self.finished, rendezvous.count(), "each ends");
    }
}

/// Attributes of a connection to a peer that may not reach into memory.
fn closed(peer: usize) -> ConnectionAttributes {
    ConnectionAttributes {
        access: Access::empty(),
        ..attributes(peer, OF_PEER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_reach_all_that_is_checked() {
        let mut word = 1u64;
        let mut byte = || {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (word >> 56) as u8
        };
        let mut sum = CaseCounts::default();
        for _ in 0..100 {
            let input: Vec<u8> = (0..2000).map(|_| byte()).collect();
            let reached = Machine::new().run(Choices(&input));
            sum.honest_matches += reached.honest_matches;
            sum.honest_unexpected += reached.honest_unexpected;
            sum.hostile_matches += reached.hostile_matches;
            sum.hostile_unexpected += reached.hostile_unexpected;
            sum.hostile_failures += reached.hostile_failures;
        }
        let CaseCounts {
            honest_matches,
            honest_unexpected,
            hostile_matches,
            hostile_unexpected,
            hostile_failures,
        } = sum;
        let all = [
            // One of each run belongs to its end.
            honest_matches.saturating_sub(100),
            honest_unexpected,
            hostile_matches,
            hostile_unexpected,
            hostile_failures,
        ];
        assert!(all.iter().all(|count| *count > 10), "{sum:?}");
    }
}
