//! Tag matching by a device.

use efa_core::address::Qpn;
use efa_device_model::device::connected::{
    RVH, RendezvousHeader, SendOperation, SrqId, TMH, TagHeader, TagOperation, TagRequest,
    TagRequestOperation, TaggedBuffer, WcStatus,
};
use efa_device_model::device::queue::CompletionEntry;

pub(crate) use efa_testing::device::net::codes::*;
use efa_testing::device::net::{Host, MEMORY, Net, NetworkEffects, request};

/// Offsets of tagged buffers and plain receives in the receiver's memory.
const TAGS: usize = 0x1000;
const PLAIN: usize = 0x8000;
const SLOT: usize = 0x800;

pub(crate) struct Receiver {
    pub(crate) net: Net,
    pub(crate) srq: SrqId,
}

impl Receiver {
    /// A host with tag matching, and two hosts that send to it.
    pub(crate) fn new(effects: NetworkEffects) -> Receiver {
        let (net, srq) = Net::receiver(2, effects, 1, 16, Some(4));
        let mut receiver = Receiver { net, srq };
        for wr_id in 100..104 {
            receiver.post(wr_id);
        }
        receiver
    }

    /// Posts a plain receive.
    pub(crate) fn post(&mut self, wr_id: u64) {
        let place = PLAIN + (wr_id % 8) as usize * SLOT;
        let posted = self.net.hosts[0].receive_shared(self.srq, wr_id, place, SLOT);
        posted.unwrap();
    }

    pub(crate) fn operate(
        &mut self,
        wr_id: u64,
        handled: Option<u32>,
        operation: TagRequestOperation,
    ) -> Result<u32, i32> {
        self.request(&TagRequest {
            wr_id,
            is_signaled: true,
            handled,
            operation,
        })
    }

    pub(crate) fn request(&mut self, request: &TagRequest) -> Result<u32, i32> {
        let device = &mut self.net.hosts[0].device;
        let done = device.post_tag_request(self.srq, request);
        done.map_err(|error| error.errno())
    }

    /// The operation to add a tag with a buffer of this length.
    pub(crate) fn tag(&self, wr_id: u64, tag: u64, length: usize) -> TagRequestOperation {
        TagRequestOperation::Add(TaggedBuffer {
            wr_id,
            buffers: self.net.hosts[0].list(TAGS + wr_id as usize * SLOT, length),
            tag,
            mask: u64::MAX,
        })
    }

    /// Adds a tag with a buffer of this length.
    pub(crate) fn add(&mut self, wr_id: u64, tag: u64, length: usize) -> u32 {
        let operation = self.tag(wr_id, tag, length);
        self.operate(wr_id, None, operation).unwrap()
    }

    /// Sends a message with a header and data.
    pub(crate) fn send(&mut self, operation: TagOperation, tag: u64, rest: &[u8]) {
        let header = TagHeader {
            operation,
            data: 0xda7a,
            tag,
        };
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend_from_slice(rest);
        self.send_bytes(&bytes);
    }

    fn send_bytes(&mut self, bytes: &[u8]) {
        self.send_from(1, bytes);
    }

    /// Sends a message with these bytes from a host.
    pub(crate) fn send_from(&mut self, host: usize, bytes: &[u8]) {
        self.send_on(host, Qpn(5), bytes);
    }

    /// Sends a message with these bytes on a queue pair of a host.
    pub(crate) fn send_on(&mut self, host: usize, qpn: Qpn, bytes: &[u8]) {
        let sender = &mut self.net.hosts[host];
        sender.memory[..bytes.len()].copy_from_slice(bytes);
        let list = sender.list(0, bytes.len());
        let wr = request(1, SendOperation::Send(None), list);
        self.net.post(host, qpn, wr);
        self.net.settle();
    }

    /// The request of a rendezvous for bytes of the first sender's memory at 0x4000.
    pub(crate) fn rendezvous_message(&self, tag: u64, length: u32) -> Vec<u8> {
        let header = TagHeader {
            operation: TagOperation::Rendezvous,
            data: 0xda7a,
            tag,
        };
        let remote = self.remote(length);
        [header.to_bytes(), remote.to_bytes()].concat()
    }

    fn remote(&self, length: u32) -> RendezvousHeader {
        RendezvousHeader {
            address: MEMORY + 0x4000,
            key: self.net.hosts[1].keys.rkey.0,
            length,
        }
    }

    /// The request of a rendezvous for bytes of the sender's memory at 0x4000.
    fn rendezvous(&mut self, tag: u64, length: u32, more: &[u8]) -> [u8; RVH] {
        let header = self.remote(length).to_bytes();
        let rest = [&header[..], more].concat();
        self.send(TagOperation::Rendezvous, tag, &rest);
        header
    }

    /// Work request id, operation, flags and tag of each completion.
    pub(crate) fn completions(&mut self) -> Vec<(u64, u8, u8, u64)> {
        let mut found = Vec::new();
        while let Some(entry) = self.net.hosts[0].poll() {
            assert_eq!(entry.status(), 0, "{entry:?}");
            found.push(summary(&entry));
        }
        found
    }

    pub(crate) fn at(&self, wr_id: u64) -> &[u8] {
        let place = match wr_id < 100 {
            true => TAGS + wr_id as usize * SLOT,
            false => PLAIN + (wr_id % 8) as usize * SLOT,
        };
        &self.net.hosts[0].memory[place..place + SLOT]
    }
}

fn summary(entry: &CompletionEntry) -> (u64, u8, u8, u64) {
    (
        entry.connected_wr_id(),
        entry.connected_operation(),
        entry.connected_flags(),
        entry.connected_tag(),
    )
}

pub(crate) const CALM: NetworkEffects = NetworkEffects {
    loss: 0.0,
    duplicates: 0.0,
    longest: 1,
    busy: 0.0,
    acknowledges: false,
};

#[test]
fn an_eager_message_lands_without_its_header() {
    let mut receiver = Receiver::new(CALM);
    receiver.add(1, 5, 64);
    receiver.send(TagOperation::Eager, 5, b"payload");
    let both = MATCH | DATA_VALID;
    let expected = [(1, ADDED, 0, 0), (1, TAGGED, both, 5)];
    assert_eq!(receiver.completions(), expected);
    assert_eq!(receiver.at(1)[..8], *b"payload\0");
}

/// The match is reported with the first packet, the data with the last.
#[test]
fn match_and_data_of_long_messages_are_apart() {
    let mut receiver = Receiver::new(CALM);
    receiver.add(1, 5, 1000);
    let payload: Vec<u8> = (0..900).map(|index| index as u8).collect();
    receiver.send(TagOperation::Eager, 5, &payload);
    let expected = [
        (1, ADDED, 0, 0),
        (1, TAGGED, MATCH, 5),
        (1, TAGGED, DATA_VALID, 5),
    ];
    assert_eq!(receiver.completions(), expected);
    assert!(receiver.at(1)[..900] == payload);
}

#[test]
fn unexpected_messages_hold_back_new_tags() {
    let mut receiver = Receiver::new(CALM);
    receiver.send(TagOperation::Eager, 5, b"first");
    assert_eq!(receiver.completions(), [(100, TAGGED, 0, 0)]);
    assert_eq!(receiver.at(100)[0], TagOperation::Eager as u8);
    assert_eq!(receiver.at(100)[TMH..TMH + 5], *b"first");
    // The program has not handled the message yet, and posts a receive that accepts it.
    receiver.add(1, 5, 64);
    assert_eq!(receiver.completions(), [(1, ADDED, SYNC_REQUESTED, 0)]);
    receiver.send(TagOperation::Eager, 5, b"second");
    assert_eq!(receiver.completions(), [(101, TAGGED, 0, 0)]);
    receiver
        .operate(2, Some(2), TagRequestOperation::Sync)
        .unwrap();
    assert_eq!(receiver.completions(), [(2, SYNCED, 0, 0)]);
    receiver.send(TagOperation::Eager, 5, b"third");
    assert_eq!(receiver.completions()[0].0, 1, "now it is matched");
    assert_eq!(receiver.at(1)[..5], *b"third");
}

#[test]
fn messages_without_tags_are_not_counted() {
    let mut receiver = Receiver::new(CALM);
    receiver.send(TagOperation::NoTag, 5, b"plain");
    receiver.send(TagOperation::Finish, 5, &[0; RVH]);
    receiver.send_bytes(b"short");
    receiver.send_bytes(&[9; 20]);
    let expected = [
        (100, WITHOUT_TAG, 0, 0),
        (101, RECV, 0, 0),
        (102, WITHOUT_TAG, 0, 0),
        (103, RECV, 0, 0),
    ];
    assert_eq!(receiver.completions(), expected);
    receiver.add(1, 5, 64);
    assert_eq!(receiver.completions(), [(1, ADDED, 0, 0)], "in step");
}

#[test]
fn the_device_completes_a_rendezvous() {
    let mut receiver = Receiver::new(CALM);
    let data: Vec<u8> = (0..1500u32).map(|index| (index * 7) as u8).collect();
    receiver.net.hosts[1].memory[0x4000..0x4000 + 1500].copy_from_slice(&data);
    receiver.net.hosts[1].receive(Qpn(5), 50, 0xe000, 64);
    receiver.add(1, 5, 1500);
    let header = receiver.rendezvous(5, 1500, b"for the program");
    let expected = [
        (1, ADDED, 0, 0),
        (1, TAGGED, MATCH, 5),
        (1, TAGGED, DATA_VALID, 5),
    ];
    assert_eq!(receiver.completions(), expected);
    assert!(receiver.at(1)[..1500] == data);
    let finished = receiver.net.hosts[1].completions();
    assert_eq!(finished, [(1, 0, 0), (50, 0, RECV)]);
    let finish = TagHeader {
        operation: TagOperation::Finish,
        data: 0xda7a,
        tag: 5,
    };
    let message = &receiver.net.hosts[1].memory[0xe000..0xe000 + TMH + RVH];
    assert_eq!(message, [finish.to_bytes(), header].concat());
}

#[test]
fn a_rendezvous_too_large_leaves_its_headers() {
    let mut receiver = Receiver::new(CALM);
    receiver.add(1, 5, 64);
    let header = receiver.rendezvous(5, 65, b"");
    assert_eq!(receiver.net.hosts[0].poll().unwrap().connected_wr_id(), 1);
    let entry = receiver.net.hosts[0].poll().unwrap();
    assert_eq!(entry.status(), WcStatus::RendezvousIncomplete as u8);
    assert_eq!((entry.connected_wr_id(), entry.connected_tag()), (1, 5));
    assert_eq!(receiver.at(1)[TMH..TMH + RVH], header);
    assert_eq!(receiver.at(1)[0], TagOperation::Rendezvous as u8);
}

/// An incomplete rendezvous request, or one that is too long, is left to the program.
#[test]
fn odd_rendezvous_requests_are_unexpected() {
    for rest in [vec![0; RVH - 1], vec![0; 49]] {
        let mut receiver = Receiver::new(CALM);
        receiver.add(1, 5, 64);
        receiver.send(TagOperation::Rendezvous, 5, &rest);
        let expected = [(1, ADDED, 0, 0), (100, TAGGED, 0, 0)];
        assert_eq!(receiver.completions(), expected, "{} bytes", rest.len());
    }
}

/// An invalid key fails the read, and with it the connection.
#[test]
fn a_rendezvous_with_a_bad_key_fails() {
    let mut receiver = Receiver::new(CALM);
    receiver.add(1, 5, 64);
    let header = RendezvousHeader {
        address: MEMORY,
        key: 1,
        length: 64,
    };
    receiver.send(TagOperation::Rendezvous, 5, &header.to_bytes());
    let statuses: Vec<u8> = std::iter::from_fn(|| receiver.net.hosts[0].poll())
        .map(|entry| entry.status())
        .collect();
    assert_eq!(statuses, [0, 0, WcStatus::RemoteAccess as u8]);
}

#[test]
fn deleted_tags_match_nothing_and_taken_ones_fail() {
    let mut receiver = Receiver::new(CALM);
    let first = receiver.add(1, 5, 64);
    let second = receiver.add(2, 6, 64);
    receiver.send(TagOperation::Eager, 5, b"x");
    receiver.completions();
    let delete = TagRequestOperation::Delete;
    receiver.operate(3, None, delete(first)).unwrap();
    receiver.operate(4, None, delete(second)).unwrap();
    let entries: Vec<_> = std::iter::from_fn(|| receiver.net.hosts[0].poll()).collect();
    let found: Vec<_> = entries
        .iter()
        .map(|entry| {
            (
                entry.connected_wr_id(),
                entry.connected_operation(),
                entry.status(),
            )
        })
        .collect();
    let gone = WcStatus::TagMatching as u8;
    assert_eq!(found, [(3, DELETED, gone), (4, DELETED, 0)]);
    receiver.send(TagOperation::Eager, 6, b"y");
    assert_eq!(receiver.completions(), [(100, TAGGED, 0, 0)]);
    assert_eq!(receiver.operate(5, None, delete(77)), Err(libc::EINVAL));
}

#[test]
fn counts_from_the_future_are_not_taken() {
    let mut receiver = Receiver::new(CALM);
    receiver
        .operate(1, Some(1), TagRequestOperation::Sync)
        .unwrap();
    let entry = receiver.net.hosts[0].poll().unwrap();
    assert_eq!(entry.status(), WcStatus::TagMatching as u8);
    receiver.add(2, 5, 64);
    assert_eq!(receiver.completions(), [(2, ADDED, 0, 0)], "in step");
}

/// A message that matches needs no plain receive. A message that does not match waits for one.
#[test]
fn only_unexpected_messages_need_receives() {
    let mut receiver = Receiver::new(CALM);
    for _ in 0..4 {
        receiver.send(TagOperation::NoTag, 0, b"");
    }
    receiver.completions();
    receiver.add(1, 5, 64);
    receiver.send(TagOperation::Eager, 5, b"x");
    assert_eq!(receiver.completions().len(), 2);
    let sender: &mut Host = &mut receiver.net.hosts[1];
    sender.memory[..TMH].copy_from_slice(
        &TagHeader {
            operation: TagOperation::Eager,
            data: 0,
            tag: 6,
        }
        .to_bytes(),
    );
    let list = sender.list(0, TMH);
    let wr = request(1, SendOperation::Send(None), list);
    receiver.net.post(1, Qpn(5), wr);
    for _ in 0..100 {
        receiver.net.step();
    }
    assert_eq!(receiver.completions(), []);
    receiver.post(104);
    receiver.net.settle();
    assert_eq!(receiver.completions(), [(104, TAGGED, 0, 0)]);
}
