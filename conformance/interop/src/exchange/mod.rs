//! Exchanges between two endpoints: messages, remote memory and atomics of all sizes, verified on
//! the side where the bytes arrive.
//!
//! Each endpoint is stock libfabric or the protocol engine, in its own process and on its own
//! emulated host ([`efa_play::drive`]).

mod memory;
mod pair;

use std::fmt;
use std::path::PathBuf;

use self::pair::Pair;
use super::harness::{Bench, Unmet};
use efa_play::application::Request;
use efa_play::drive::Opening;
use efa_play::operation::{Payload, SendMode, TagMatch};
use efa_play::player::{self, Program};
use efa_play::scenario::Capability;

/// The kind of packets that carry messages without headers.
pub(crate) const HEADERLESS: &str = "message without header";

/// The endpoint that starts operations.
const INITIATOR: usize = 0;
/// The endpoint that receives messages and whose memory is read and written.
const TARGET: usize = 1;

/// A kind of exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Topic {
    /// Untagged and tagged messages; the tagged ones also unexpected.
    Messages,
    /// Messages with remote completion data, and injected ones.
    Data,
    /// Messages with remote completion data that arrive before their receive is posted.
    UnexpectedData,
    /// Messages with `FI_DELIVERY_COMPLETE`.
    DeliveryComplete,
    /// Reads and writes of memory.
    Rma,
    /// Writes of memory with remote completion data.
    WriteData,
    /// Atomics on 64-bit elements: updating, fetching, comparing.
    Atomics,
    /// Messages to a receiver that has them in its application's buffers: of a packet, in no order.
    /// Parties have to be opened for that ([`Party::promise_packets`]).
    ZeroCopy,
}

impl Topic {
    /// Sizes in bytes for which subprotocols differ.
    pub const SMALL: [usize; 7] = [0, 1, 64, 4 << 10, (8 << 10) + 1, 64 << 10, 1 << 20];
    /// Sizes in bytes that take many packets or more than one device operation.
    pub const LARGE: [usize; 2] = [8 << 20, 64 << 20];
}

impl Topic {
    const NAMES: [(&'static str, Topic); 8] = [
        ("messages", Topic::Messages),
        ("data", Topic::Data),
        ("unexpected-data", Topic::UnexpectedData),
        ("delivery-complete", Topic::DeliveryComplete),
        ("rma", Topic::Rma),
        ("write-data", Topic::WriteData),
        ("atomics", Topic::Atomics),
        ("zero-copy", Topic::ZeroCopy),
    ];

    /// The topic with this name in cells.
    pub(crate) fn named(name: &str) -> Result<Topic, String> {
        let found = Self::NAMES.iter().find(|(named, _)| *named == name);
        let topic = found.map(|(_, topic)| *topic);
        topic.ok_or_else(|| format!("unknown topic `{name}`"))
    }

    /// How many messages it has in these sizes.
    pub(crate) fn count_of_messages(self, sizes: &[usize]) -> usize {
        let messages = self.messages();
        let of_size = |size: &usize| messages.iter().filter(|one| *size <= one.largest).count();
        sizes.iter().map(of_size).sum()
    }
}

/// One of the two endpoints.
#[derive(Clone, Debug)]
pub struct Party {
    /// The program that plays it.
    pub program: Program,
    /// How the endpoint is opened.
    pub opening: Opening,
    /// The host on which it runs. The bench fills in the name and the log.
    pub host: player::Host,
}

impl Party {
    /// Lets the application promise what libfabric's efa provider needs to receive into its
    /// buffers: messages of at most `largest` bytes, which fit a packet, in no order; registered
    /// memory; nothing that has to be matched.
    pub fn promise_packets(&mut self, largest: usize) {
        self.opening.capabilities = vec![Capability::Msg, Capability::Rma];
        self.opening.register_local = true;
        self.opening.max_message = Some(largest);
        let no_shared_memory = ("FI_EFA_ENABLE_SHM_TRANSFER".into(), "0".into());
        self.host.environment.extend([no_shared_memory]);
    }
}

/// Counts of what was verified.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Verified {
    /// Operations.
    pub operations: usize,
    /// Bytes that arrived and were compared.
    pub bytes: usize,
}

impl std::ops::Add for Verified {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Verified {
            operations: self.operations + other.operations,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = self.bytes as f64 / f64::from(1 << 20);
        write!(
            f,
            "{} operations, {mebibytes:.1} MiB verified",
            self.operations
        )
    }
}

/// Lets the first party exchange `topic` with the second, in each size of `sizes` in bytes.
pub fn exchange(
    bench: &Bench,
    parties: [&Party; 2],
    topic: Topic,
    sizes: &[usize],
) -> Result<Verified, Unmet> {
    let mut pair = Pair::open(bench, parties)?;
    let result = pair.exchange(topic, sizes).and_then(|()| pair.reported());
    match result {
        Ok(()) => {
            let Pair {
                players,
                verified,
                captures,
                ..
            } = pair;
            for (player, capture) in players.into_iter().zip(captures) {
                keep(&player.end()?, capture)?;
            }
            Ok(verified)
        }
        Err(Unmet::Failed(text)) => {
            let failed = pair.explained(text);
            for (player, capture) in pair.players.into_iter().zip(pair.captures) {
                keep(&player.salvage(), capture)?;
            }
            Err(failed)
        }
        Err(unmet) => Err(unmet),
    }
}

/// Keeps a capture that came from another host. Those of emulated hosts are written there.
fn keep(bytes: &[u8], capture: Option<PathBuf>) -> Result<(), Unmet> {
    match capture {
        Some(path) if !bytes.is_empty() => std::fs::write(&path, bytes)
            .map_err(|error| Unmet::Failed(format!("cannot write {}: {error}", path.display()))),
        _ => Ok(()),
    }
}

/// A kind of messages.
#[derive(Clone, Copy)]
struct Message {
    tag: Option<u64>,
    data: Option<u64>,
    mode: SendMode,
    /// Whether it arrives before its receive is posted.
    is_unexpected: bool,
    /// The largest size in bytes.
    largest: usize,
}

impl Message {
    const PLAIN: Message = Message {
        tag: None,
        data: None,
        mode: SendMode::Normal,
        is_unexpected: false,
        largest: usize::MAX,
    };

    fn tagged(self) -> Self {
        let tag = Some(0x7a9_0000);
        Message { tag, ..self }
    }

    fn with_data(self) -> Self {
        let data = Some(0x1234_5678);
        Message { data, ..self }
    }

    fn unexpected(self) -> Self {
        let is_unexpected = true;
        Message {
            is_unexpected,
            ..self
        }
    }

    fn delivered(self) -> Self {
        let mode = SendMode::DeliveryComplete;
        Message { mode, ..self }
    }

    /// The limit differs between releases; all accept this size.
    fn injected(self) -> Self {
        let (mode, largest) = (SendMode::Inject, 64);
        Message {
            mode,
            largest,
            ..self
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            SendMode::Normal => "",
            SendMode::Inject => "injected ",
            SendMode::DeliveryComplete => "delivered ",
        };
        let unexpected = if self.is_unexpected {
            "unexpected "
        } else {
            ""
        };
        let tagged = if self.tag.is_some() { "tagged " } else { "" };
        let data = if self.data.is_some() {
            " with data"
        } else {
            ""
        };
        write!(f, "{mode}{unexpected}{tagged}message{data}")
    }
}

impl Topic {
    /// Its messages, in each size.
    fn messages(self) -> Vec<Message> {
        let plain = Message::PLAIN;
        let (tagged, with_data) = (plain.tagged(), plain.with_data());
        let both = tagged.with_data();
        match self {
            Topic::Messages => vec![plain, tagged, tagged.unexpected()],
            Topic::Data => vec![with_data, both, plain.injected(), both.injected()],
            Topic::UnexpectedData => vec![both.unexpected()],
            Topic::DeliveryComplete => vec![
                plain.delivered(),
                both.delivered(),
                tagged.delivered().unexpected(),
            ],
            Topic::ZeroCopy => {
                // Stock libfabric counts a header for the data, and sends messages that have no
                // room for it as two packets, which the receiver cannot know.
                let with_data = Message {
                    largest: 8192,
                    ..with_data
                };
                vec![plain, with_data, plain.delivered(), plain.injected()]
            }
            Topic::Rma | Topic::WriteData | Topic::Atomics => Vec::new(),
        }
    }
}

/// The numbers of elements of atomics. The largest fits into a packet of each profile.
const ELEMENTS: [usize; 4] = [1, 8, 500, 1000];

impl Pair<'_> {
    fn exchange(&mut self, topic: Topic, sizes: &[usize]) -> Result<(), Unmet> {
        for &size in sizes {
            let messages = topic.messages().into_iter();
            for message in messages.filter(|message| size <= message.largest) {
                self.message(message, size)
                    .map_err(|unmet| at_size(unmet, &format!("{message} of "), size))?;
            }
            // Not all releases support reads and writes of 0 bytes.
            match topic {
                Topic::Rma if size > 0 => self.read_and_write(size),
                Topic::WriteData if size > 0 => self.write_with_data(size),
                _ => Ok(()),
            }
            .map_err(|unmet| at_size(unmet, "", size))?;
        }
        match topic {
            Topic::Atomics => {
                for count in ELEMENTS {
                    self.atomics(count)
                        .map_err(|unmet| at_size(unmet, "atomics on ", count * size_of::<u64>()))?;
                }
                Ok(())
            }
            Topic::ZeroCopy => self.read_and_write(4096),
            _ => Ok(()),
        }
    }

    fn message(&mut self, message: Message, size: usize) -> Result<(), Unmet> {
        let seed = self.tokens;
        let recv = Request::Recv {
            length: size,
            from: None,
            // The lower half of the tag is ignored.
            tag: message.tag.map(|tag| TagMatch {
                tag: tag | 0xffff,
                ignore: 0xffff,
            }),
        };
        let send = Request::Send {
            to: TARGET,
            payload: Payload { length: size, seed },
            tag: message.tag,
            data: message.data,
            mode: message.mode,
        };
        let (sent, received);
        if message.is_unexpected {
            sent = self.begin(INITIATOR, send, None)?;
            // Messages are delivered in order: when this one has arrived, so has the message.
            self.message(Message::PLAIN, 0)?;
            received = self.begin(TARGET, recv, Some(seed))?;
        } else {
            received = self.begin(TARGET, recv, Some(seed))?;
            sent = self.begin(INITIATOR, send, None)?;
        }
        let report = self.wait(received, Some(size))?;
        if message.mode != SendMode::Inject {
            self.wait(sent, None)?;
        }
        if message.tag.is_some_and(|tag| tag != report.tag) {
            return Err(Unmet::Failed(format!(
                "the tag that arrives is {:#x}",
                report.tag
            )));
        }
        if report.data != message.data {
            return Err(Unmet::Failed(format!(
                "the data that arrives is {:x?}",
                report.data
            )));
        }
        self.count(size);
        Ok(())
    }
}

/// Puts the name of the operation in front of a failure.
fn at(unmet: Unmet, what: &str) -> Unmet {
    match unmet {
        Unmet::Failed(text) => Unmet::Failed(format!("{what}: {text}")),
        unmet => unmet,
    }
}

fn at_size(unmet: Unmet, what: &str, size: usize) -> Unmet {
    at(unmet, &format!("{what}{size} bytes"))
}
