//! Messages and receives of the random workload.

use efa_core::endpoint::*;
use efa_core::nic::UserSlice;
use rand::Rng;

use super::{Pending, World, byte};

/// A message of the workload. Its number is its place in [`World::messages`].
pub(super) struct Message {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) tag: Option<u64>,
    pub(super) length: usize,
    pub(super) cq_data: Option<u64>,
    pub(super) flags: OperationFlags,
    /// Where the sender has it.
    pub(super) address: u64,
    /// Its place among the messages that its sender started; `None` until then.
    pub(super) sent: Option<usize>,
    pub(super) reported: bool,
    pub(super) received: Option<usize>,
}

/// A receive of the workload. Its number, which is its context, is the order of posting.
pub(super) struct Receive {
    pub(super) at: usize,
    pub(super) source: Option<usize>,
    pub(super) tag: Option<TagFilter>,
    pub(super) capacity: usize,
    pub(super) address: u64,
    pub(super) id: ReceiveId,
    pub(super) done: bool,
}

/// What a receive was told, whether or not all of the message fit.
pub(super) struct Arrival {
    pub(super) number: usize,
    pub(super) length: u64,
    pub(super) overflow: u64,
    pub(super) data: u64,
    pub(super) tag: u64,
    pub(super) flags: CompletionFlags,
    pub(super) source: Option<PeerId>,
}

impl World {
    pub(super) fn tag(&mut self) -> u64 {
        self.rng.random_range(0..4)
    }

    pub(super) fn new_message(&mut self) {
        let number = self.messages.len();
        let from = self.rng.random_range(0..self.hosts.len());
        let to = self.rng.random_range(0..self.hosts.len());
        let length = match self.rng.random_range(0..4) {
            0 => self.rng.random_range(0..16),
            1 => self.rng.random_range(0..300),
            2 => self.rng.random_range(200..3000),
            _ => self.rng.random_range(2000..8000),
        };
        let tagged = self.rng.random();
        let tag = if tagged { Some(self.tag()) } else { None };
        let with_data = length < 8 || self.rng.random();
        let mut flags = OperationFlags::COMPLETION;
        if self.rng.random_range(0..4) == 0 {
            flags |= OperationFlags::DELIVERY_COMPLETE;
        }
        let inject_size = self.hosts[from].endpoint.inject_size();
        if length <= inject_size && self.rng.random_range(0..4) == 0 {
            flags |= OperationFlags::INJECT;
        }
        let address = self.allocate(from, length);
        let mut bytes: Vec<u8> = (0..length).map(|index| byte(number, index)).collect();
        if length >= 8 {
            bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
        }
        self.network.fill(from, address, &bytes);
        self.messages.push(Message {
            from,
            to,
            tag,
            length,
            cq_data: with_data.then_some(number as u64),
            flags,
            address,
            sent: None,
            reported: false,
            received: None,
        });
        self.hosts[from].pending.push_back(Pending::Message(number));
    }

    pub(super) fn send_message(&mut self, host: usize, number: usize) -> Result<(), EndpointError> {
        let message = &mut self.messages[number];
        let host = &mut self.hosts[host];
        // One piece or several: the receiver cannot tell.
        let cut = message.length / 3;
        let pieces = [
            IoVec::new(UserSlice {
                address: message.address,
                length: cut,
            }),
            IoVec::new(UserSlice {
                address: message.address + cut as u64,
                length: message.length - cut,
            }),
        ];
        let whole = [IoVec {
            memory: UserSlice {
                address: message.address,
                length: message.length,
            },
            region: (number.is_multiple_of(2)).then_some(host.region),
        }];
        host.endpoint.send(SendArgs {
            peer: host.peers[message.to],
            data: if number.is_multiple_of(3) {
                &pieces
            } else {
                &whole
            },
            tag: message.tag,
            cq_data: message.cq_data,
            flags: message.flags,
            context: number as u64,
        })?;
        message.sent = Some(host.sent);
        host.sent += 1;
        if message.flags.contains(OperationFlags::INJECT) {
            // The memory is ours again.
            let junk = vec![0xEE; message.length];
            self.network.fill(message.from, message.address, &junk);
        }
        Ok(())
    }

    pub(super) fn new_receive(&mut self) {
        let at = self.rng.random_range(0..self.hosts.len());
        let directed: bool = self.rng.random();
        let source = directed.then(|| self.rng.random_range(0..self.hosts.len()));
        let tagged = self.rng.random();
        let tag = if tagged {
            let ignore = [0, 0, 1, 3, u64::MAX][self.rng.random_range(0..5)];
            Some(TagFilter {
                tag: self.tag(),
                ignore,
            })
        } else {
            None
        };
        let capacity = [8, 300, 3000, 8000][self.rng.random_range(0..4)];
        self.post(at, source, tag, capacity);
    }

    pub(super) fn post(
        &mut self,
        at: usize,
        source: Option<usize>,
        tag: Option<TagFilter>,
        capacity: usize,
    ) {
        let address = self.allocate(at, capacity);
        let host = &mut self.hosts[at];
        let cut = capacity / 2;
        let pieces = [
            IoVec::new(UserSlice {
                address,
                length: cut,
            }),
            IoVec::new(UserSlice {
                address: address + cut as u64,
                length: capacity - cut,
            }),
        ];
        let id = host
            .endpoint
            .recv(RecvArgs {
                source: source.map_or(SourceFilter::Any, |source| {
                    SourceFilter::Peer(host.peers[source])
                }),
                buffer: &pieces,
                tag,
                flags: OperationFlags::COMPLETION,
                context: self.receives.len() as u64,
            })
            .unwrap();
        self.receives.push(Receive {
            at,
            source,
            tag,
            capacity,
            address,
            id,
            done: false,
        });
    }

    pub(super) fn on_received(&mut self, host: usize, arrival: &Arrival) {
        let Arrival {
            number,
            length,
            overflow,
            data,
            tag,
            flags,
            source,
        } = *arrival;
        let receive = &mut self.receives[number];
        assert_eq!((receive.at, receive.done), (host, false));
        receive.done = true;
        let bytes = self.network.memory(host, receive.address, receive.capacity);
        let id = if flags.contains(CompletionFlags::REMOTE_CQ_DATA) {
            data as usize
        } else {
            u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize
        };
        let message = &mut self.messages[id];
        assert_eq!(message.received, None, "message {id} came twice");
        message.received = Some(number);
        assert_eq!(message.to, host);
        assert_eq!(source, Some(self.hosts[host].peers[message.from]));
        assert_eq!(length + overflow, message.length as u64, "message {id}");
        assert_eq!(length, message.length.min(receive.capacity) as u64);
        assert_eq!(tag, message.tag.unwrap_or(0));
        let kind = match message.tag {
            Some(_) => CompletionFlags::TAGGED,
            None => CompletionFlags::MSG,
        };
        let data_flag = match message.cq_data {
            Some(_) => CompletionFlags::REMOTE_CQ_DATA,
            None => CompletionFlags::empty(),
        };
        assert_eq!(flags, kind | CompletionFlags::RECV | data_flag);
        let start = if message.length >= 8 { 8 } else { 0 };
        for (index, found) in bytes.iter().enumerate().take(length as usize).skip(start) {
            assert_eq!(*found, byte(id, index), "message {id} byte {index}");
        }
    }

    /// Posts receives for the messages that found none.
    pub(super) fn receive_what_is_left(&mut self) {
        for (tag, tagged) in [
            (None, false),
            (
                Some(TagFilter {
                    tag: 0,
                    ignore: u64::MAX,
                }),
                true,
            ),
        ] {
            let left: Vec<usize> = self
                .messages
                .iter()
                .filter(|message| message.received.is_none() && message.tag.is_some() == tagged)
                .map(|message| message.to)
                .collect();
            for to in left {
                self.post(to, None, tag, 8000);
            }
        }
    }

    /// Cancels the receives that found no message.
    pub(super) fn cancel_what_is_left(&mut self) {
        for number in 0..self.receives.len() {
            let Receive { at, id, done, .. } = self.receives[number];
            let endpoint = &mut self.hosts[at].endpoint;
            assert_eq!(endpoint.cancel(id), !done, "receive {number}");
            if !done {
                let error = endpoint.poll_completion().unwrap().unwrap_err();
                assert_eq!(error.context, number as u64);
                assert_eq!(error.failure.errno, Errno::ECANCELED);
            }
        }
    }

    /// Every message was received, and reported unless it was injected.
    pub(super) fn check_messages(&self) {
        for (number, message) in self.messages.iter().enumerate() {
            let silent = message.flags.contains(OperationFlags::INJECT);
            assert_eq!(message.reported, !silent, "message {number}");
            assert!(message.received.is_some(), "message {number}");
        }
        self.check_order();
    }

    /// Messages of one sender that a receive accepts must have been taken in their order.
    pub(super) fn check_order(&self) {
        for (later_id, later) in self.messages.iter().enumerate() {
            let by = later.received.unwrap();
            let receive = &self.receives[by];
            for (earlier_id, earlier) in self.messages.iter().enumerate() {
                let same_stream = (earlier.from, earlier.to, earlier.tag.is_some())
                    == (later.from, later.to, later.tag.is_some());
                let accepted = match (receive.tag, earlier.tag) {
                    (Some(filter), Some(tag)) => filter.accepts(tag),
                    (None, None) => true,
                    _ => false,
                };
                let source_accepted = receive.source.is_none_or(|source| source == earlier.from);
                if same_stream && earlier.sent < later.sent && accepted && source_accepted {
                    assert!(
                        earlier.received.unwrap() < by,
                        "receive {by} took message {later_id} instead of {earlier_id}"
                    );
                }
            }
        }
    }
}
