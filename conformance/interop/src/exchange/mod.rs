//! Exchanges between two endpoints: messages, remote memory and atomics of all sizes, verified on the side
//! where the bytes arrive.
//!
//! Each endpoint is stock libfabric or the protocol engine, in its own process and on its own emulated host
//! ([`efa_play::drive`]).

mod memory;
mod pair;

use std::fmt;
use std::path::PathBuf;

use efa_play::application::Request;
use efa_play::drive::Opening;
use efa_play::operation::{Payload, SendMode, TagMatch};
use efa_play::player::{self, Program};
use efa_play::scenario::Capability;

use self::pair::Pair;
use super::harness::{Bench, Unmet};

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
    /// Messages to a receiver that has them in its application's buffers: of a packet, in no order. Parties have to be
    /// opened for that ([`Party::promise_packets`]).
    ZeroCopy,
}

impl Topic {
    /// All topics that any two endpoints can exchange.
    pub const ALL: [Topic; 7] = [
        Topic::Messages,
        Topic::Data,
        Topic::UnexpectedData,
        Topic::DeliveryComplete,
        Topic::Rma,
        Topic::WriteData,
        Topic::Atomics,
    ];

    /// Sizes in bytes for which subprotocols differ.
    pub const SMALL: [usize; 7] = [0, 1, 64, 4 << 10, (8 << 10) + 1, 64 << 10, 1 << 20];
    /// Sizes in bytes that take many packets or more than one device operation.
    pub const LARGE: [usize; 2] = [8 << 20, 64 << 20];
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Topic::Messages => "messages",
            Topic::Data => "data",
            Topic::UnexpectedData => "unexpected-data",
            Topic::DeliveryComplete => "delivery-complete",
            Topic::Rma => "rma",
            Topic::WriteData => "write-data",
            Topic::Atomics => "atomics",
            Topic::ZeroCopy => "zero-copy",
        })
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
    /// Lets the application promise what libfabric's efa provider needs to receive into its buffers: messages of at most
    /// `largest` bytes, which fit a packet, in no order; registered memory; nothing that has to be matched.
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

impl Pair<'_> {
    fn exchange(&mut self, topic: Topic, sizes: &[usize]) -> Result<(), Unmet> {
        match topic {
            Topic::Messages => {
                for &size in sizes {
                    let plain = Message::new(size);
                    self.message("message", plain, false)?;
                    let tagged = Message {
                        tag: Some(0x7a9_0000),
                        ..plain
                    };
                    self.message("tagged message", tagged, false)?;
                    self.message("unexpected tagged message", tagged, true)?;
                }
            }
            Topic::Data => {
                for &size in sizes {
                    let plain = Message {
                        data: Some(0x1234_5678),
                        ..Message::new(size)
                    };
                    let tagged = Message {
                        tag: Some(0xda7a),
                        ..plain
                    };
                    self.message("message with data", plain, false)?;
                    self.message("tagged message with data", tagged, false)?;
                    // The limit differs between releases; all accept this size.
                    if size <= INJECTED {
                        for (data, tag) in [(None, None), (plain.data, tagged.tag)] {
                            let mode = SendMode::Inject;
                            let injected = Message {
                                size,
                                tag,
                                data,
                                mode,
                            };
                            self.message("injected message", injected, false)?;
                        }
                    }
                }
            }
            Topic::DeliveryComplete => {
                for &size in sizes {
                    let plain = Message {
                        mode: SendMode::DeliveryComplete,
                        ..Message::new(size)
                    };
                    let tagged = Message {
                        tag: Some(0xde11),
                        ..plain
                    };
                    let with_data = Message {
                        data: Some(0x1234_5678),
                        ..tagged
                    };
                    self.message("message", plain, false)?;
                    self.message("tagged message with data", with_data, false)?;
                    self.message("unexpected tagged message", tagged, true)?;
                }
            }
            Topic::UnexpectedData => {
                for &size in sizes {
                    let message = Message {
                        tag: Some(0x0dd),
                        data: Some(0x1234_5678),
                        ..Message::new(size)
                    };
                    self.message("unexpected message with data", message, true)?;
                }
            }
            Topic::ZeroCopy => {
                for &size in sizes {
                    let plain = Message::new(size);
                    self.message("message", plain, false)?;
                    // Stock libfabric counts a header for the data, and sends messages that have no room for it as two
                    // packets, which the receiver cannot know.
                    if size <= WITH_DATA {
                        let data = Some(0x1234_5678);
                        self.message("message with data", Message { data, ..plain }, false)?;
                    }
                    let delivered = Message {
                        mode: SendMode::DeliveryComplete,
                        ..plain
                    };
                    self.message("delivered message", delivered, false)?;
                    if size <= INJECTED {
                        let mode = SendMode::Inject;
                        self.message("injected message", Message { mode, ..plain }, false)?;
                    }
                }
                self.read_and_write(4096)?;
            }
            Topic::Rma | Topic::WriteData => {
                // Not all releases support reads and writes of 0 bytes.
                for &size in sizes.iter().filter(|size| **size > 0) {
                    let result = if topic == Topic::Rma {
                        self.read_and_write(size)
                    } else {
                        self.write_with_data(size)
                    };
                    result.map_err(|unmet| at_size(unmet, "", size))?;
                }
            }
            Topic::Atomics => {
                for count in ELEMENTS {
                    self.atomics(count)
                        .map_err(|unmet| at_size(unmet, "atomics on ", count * size_of::<u64>()))?;
                }
            }
        }
        Ok(())
    }

    fn message(&mut self, what: &str, message: Message, unexpected: bool) -> Result<(), Unmet> {
        self.send_and_receive(message, unexpected)
            .map_err(|unmet| at_size(unmet, &format!("{what} of "), message.size))
    }

    fn send_and_receive(&mut self, message: Message, unexpected: bool) -> Result<(), Unmet> {
        let seed = self.tokens;
        let recv = Request::Recv {
            length: message.size,
            from: None,
            // The lower half of the tag is ignored.
            tag: message.tag.map(|tag| TagMatch {
                tag: tag | 0xffff,
                ignore: 0xffff,
            }),
        };
        let send = Request::Send {
            to: TARGET,
            payload: Payload {
                length: message.size,
                seed,
            },
            tag: message.tag,
            data: message.data,
            mode: message.mode,
        };
        let (sent, received);
        if unexpected {
            sent = self.begin(INITIATOR, send, None)?;
            // Messages are delivered in order: when this one has arrived, so has the message.
            self.send_and_receive(Message::new(0), false)?;
            received = self.begin(TARGET, recv, Some(seed))?;
        } else {
            received = self.begin(TARGET, recv, Some(seed))?;
            sent = self.begin(INITIATOR, send, None)?;
        }
        let report = self.wait(received, Some(message.size))?;
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
        self.count(message.size);
        Ok(())
    }
}

/// The numbers of elements of atomics. The largest fits into a packet of each profile.
const ELEMENTS: [usize; 4] = [1, 8, 500, 1000];
/// The largest injected message in bytes.
const INJECTED: usize = 64;
/// The largest message with completion data for a zero-copy receiver, in bytes.
const WITH_DATA: usize = 8192;

/// A message, and the way in which it is sent.
#[derive(Clone, Copy)]
struct Message {
    size: usize,
    tag: Option<u64>,
    data: Option<u64>,
    mode: SendMode,
}

impl Message {
    fn new(size: usize) -> Self {
        Message {
            size,
            tag: None,
            data: None,
            mode: SendMode::Normal,
        }
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
