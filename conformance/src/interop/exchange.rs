//! What two endpoints can exchange: messages, remote memory, atomics, of all sizes, everything
//! verified on the side where it arrives.
//!
//! Each endpoint is stock libfabric or the protocol engine in a process and on an emulated host of its
//! own ([`crate::drive`]).

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{Bench, Unmet};
use crate::application::{AtomicAction, AtomicFunction, Remote, Report, Request, Started, Token};
use crate::drive::{Command, Event};
use crate::player::{self, Player, PlayerError};
use crate::scenario::{Payload, RegionAccess, SendMode, TagMatch, pattern};

/// How long operations may take without any of them completing.
const STALLED: Duration = Duration::from_secs(30);
/// How long to wait before something is tried again.
const PAUSE: Duration = Duration::from_millis(1);
/// How often memory is looked at that a peer should have written.
const LOOK: Duration = Duration::from_millis(20);
/// Lines of standard error that a failure shows.
const SHOWN: usize = 12;

/// The endpoint that begins operations.
const INITIATOR: usize = 0;
/// The endpoint that messages go to and whose memory is read and written.
const TARGET: usize = 1;

/// What is exchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Topic {
    /// Untagged and tagged messages, the latter also unexpected.
    Messages,
    /// Messages with remote completion data, and injected ones.
    Data,
    /// Messages with remote completion data that arrive before their receive is posted.
    UnexpectedData,
    /// Messages whose completion says that they have been received.
    DeliveryComplete,
    /// Reads and writes of memory.
    Rma,
    /// Writes of memory with remote completion data.
    WriteData,
    /// Atomics on 64-bit elements: updating, fetching, comparing.
    Atomics,
}

impl Topic {
    /// All topics.
    pub const ALL: [Topic; 7] = [
        Topic::Messages,
        Topic::Data,
        Topic::UnexpectedData,
        Topic::DeliveryComplete,
        Topic::Rma,
        Topic::WriteData,
        Topic::Atomics,
    ];

    /// Sizes in bytes whose protocols differ.
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
        })
    }
}

/// One of the two.
#[derive(Clone, Debug)]
pub struct Party {
    /// Opens the endpoint.
    pub open: Command,
    /// Where it runs. The bench fills in the name and the log.
    pub host: player::Host,
}

/// What was verified.
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

/// Lets the first party exchange `topic` with the second, in each of `sizes` bytes.
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
                players, verified, ..
            } = pair;
            for player in players {
                player.end()?;
            }
            Ok(verified)
        }
        Err(Unmet::Failed(text)) => Err(pair.explained(text)),
        Err(unmet) => Err(unmet),
    }
}

impl From<PlayerError> for Unmet {
    fn from(error: PlayerError) -> Self {
        Unmet::failed(error)
    }
}

/// An operation in flight.
type Operation = (usize, Token);

struct Pair<'a> {
    bench: &'a Bench<'a>,
    players: [Player; 2],
    logs: [PathBuf; 2],
    tokens: Token,
    reports: HashMap<Operation, Report>,
    /// Completion data of writes to the target's memory.
    written: Vec<u64>,
    /// What endpoints said outside of any operation.
    said: Vec<String>,
    verified: Verified,
}

impl<'a> Pair<'a> {
    fn open(bench: &'a Bench<'a>, parties: [&Party; 2]) -> Result<Self, Unmet> {
        let names = ["a", "b"];
        let logs = names.map(|name| bench.directory().join(format!("{name}.log")));
        let launch = |at: usize| {
            let host = player::Host {
                name: names[at].into(),
                log: Some(logs[at].clone()),
                ..parties[at].host.clone()
            };
            Player::launch(bench.launcher(), &host)
        };
        let players = [launch(INITIATOR)?, launch(TARGET)?];
        let mut pair = Pair {
            bench,
            players,
            logs,
            tokens: 0,
            reports: HashMap::new(),
            written: Vec::new(),
            said: Vec::new(),
            verified: Verified::default(),
        };
        match pair.connect(parties) {
            Err(Unmet::Failed(text)) => Err(pair.explained(text)),
            Err(unmet) => Err(unmet),
            Ok(()) => Ok(pair),
        }
    }

    fn connect(&mut self, parties: [&Party; 2]) -> Result<(), Unmet> {
        let mut addresses = Vec::new();
        for (at, party) in parties.into_iter().enumerate() {
            match self.ask(at, &party.open)? {
                Event::Opened { address, .. } => addresses.push(address),
                event => return Err(self.unexpected(at, &event)),
            }
        }
        for (at, address) in addresses.into_iter().rev().enumerate() {
            let peer = 1 - at;
            self.ask(at, &Command::Insert { peer, address })?;
        }
        for at in [INITIATOR, TARGET] {
            self.ask(at, &Command::Progress)?;
        }
        Ok(())
    }

    fn ask(&mut self, at: usize, command: &Command) -> Result<Event, Unmet> {
        let mut aside = Vec::new();
        let answer = self.players[at].ask(command, &mut aside)?;
        for event in aside {
            self.take(at, event);
        }
        Ok(answer)
    }

    fn take(&mut self, at: usize, event: Event) {
        match event {
            Event::Completed { report } => match (report.token, report.data) {
                (Some(token), _) => {
                    self.reports.insert((at, token), report);
                }
                (None, Some(data)) if at == TARGET => self.written.push(data),
                (None, _) => self
                    .said
                    .push(format!("completed nothing of ours: {report:?}")),
            },
            Event::Reported { text } => {
                let endpoint = self.players[at].endpoint();
                self.said
                    .push(format!("endpoint `{endpoint}` reported: {text}"));
            }
            _ => {}
        }
    }

    fn unexpected(&self, at: usize, event: &Event) -> Unmet {
        let endpoint = self.players[at].endpoint();
        Unmet::Failed(format!("endpoint `{endpoint}` answered {event:?}"))
    }

    /// An error if an endpoint said something outside of any operation.
    fn reported(&mut self) -> Result<(), Unmet> {
        if self.said.is_empty() {
            Ok(())
        } else {
            Err(Unmet::Failed(std::mem::take(&mut self.said).join("\n")))
        }
    }

    /// A failure with what the endpoints said around it.
    fn explained(&self, mut text: String) -> Unmet {
        for line in &self.said {
            text.push_str(&format!("\n{line}"));
        }
        for (player, log) in self.players.iter().zip(&self.logs) {
            let log = std::fs::read_to_string(log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            for line in &lines[lines.len().saturating_sub(SHOWN)..] {
                text.push_str(&format!("\n{}: {line}", player.endpoint()));
            }
        }
        Unmet::Failed(text)
    }

    /// Takes what endpoints say; returns whether they said anything.
    fn listen(&mut self) -> Result<bool, Unmet> {
        let mut heard = false;
        for at in [INITIATOR, TARGET] {
            while let Some(event) = self.players[at].hear(PAUSE)? {
                heard = true;
                self.take(at, event);
            }
        }
        Ok(heard)
    }

    /// Starts an operation, as soon as there is room for it.
    fn start(
        &mut self,
        at: usize,
        request: Request,
        seed: Option<u64>,
    ) -> Result<(Operation, Started), Unmet> {
        let token = self.tokens;
        self.tokens += 1;
        let command = Command::Start {
            token,
            request,
            seed,
        };
        let deadline = Instant::now() + STALLED.min(self.bench.left());
        loop {
            match self.ask(at, &command)? {
                Event::Started { started } => return Ok(((at, token), started)),
                Event::TryAgain if Instant::now() < deadline => {
                    self.listen()?;
                }
                Event::TryAgain => {
                    return Err(Unmet::Failed(format!(
                        "there is never room for it: {command:?}"
                    )));
                }
                event => return Err(self.unexpected(at, &event)),
            }
        }
    }

    fn begin(
        &mut self,
        at: usize,
        request: Request,
        seed: Option<u64>,
    ) -> Result<Operation, Unmet> {
        Ok(self.start(at, request, seed)?.0)
    }

    /// Waits until an operation has completed, without an error and with the right bytes.
    fn wait(&mut self, operation: Operation, length: Option<usize>) -> Result<Report, Unmet> {
        let mut quiet_since = Instant::now();
        let report = loop {
            if let Some(report) = self.reports.remove(&operation) {
                break report;
            }
            if self.listen()? {
                quiet_since = Instant::now();
            }
            if quiet_since.elapsed() > STALLED || self.bench.left().is_zero() {
                let endpoint = self.players[operation.0].endpoint();
                return Err(Unmet::Failed(format!(
                    "endpoint `{endpoint}` never completes it"
                )));
            }
        };
        if let Some(failure) = &report.failure {
            let endpoint = self.players[operation.0].endpoint();
            return Err(Unmet::Failed(format!(
                "endpoint `{endpoint}` ends it with error {}: {}",
                failure.code, failure.text
            )));
        }
        if let Some(difference) = &report.difference {
            return Err(Unmet::Failed(difference.clone()));
        }
        if let Some(length) = length
            && report.length != length as u64
        {
            return Err(Unmet::Failed(format!("{} bytes arrive", report.length)));
        }
        Ok(report)
    }

    fn count(&mut self, bytes: usize) {
        self.verified = self.verified
            + Verified {
                operations: 1,
                bytes,
            };
    }

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
                    // How much may be injected differs; this much always may.
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
            Topic::Rma | Topic::WriteData => {
                // Not all offer to read or write nothing.
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
            // The lower half of the tag does not count.
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
            // What is sent later is delivered later: when this has arrived, so has the message.
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

    fn register(&mut self, payload: Payload) -> Result<(Token, Remote), Unmet> {
        let access = vec![RegionAccess::RemoteRead, RegionAccess::RemoteWrite];
        let (operation, started) =
            self.start(TARGET, Request::Register { payload, access }, None)?;
        match started {
            Started::Region(remote) => Ok((operation.1, remote)),
            Started::Operation => Err(Unmet::Failed("registering gave no memory".into())),
        }
    }

    fn read_and_write(&mut self, size: usize) -> Result<(), Unmet> {
        let seed = self.tokens;
        let initial = Payload { length: size, seed };
        let (region, remote) = self.register(initial)?;
        let read = Request::Read {
            from: TARGET,
            remote,
            length: size,
        };
        self.begin(INITIATOR, read, Some(seed))
            .and_then(|operation| self.wait(operation, Some(size)))
            .map_err(|unmet| at(unmet, "read"))?;
        self.count(size);
        let written = self.write(size, remote, None)?;
        // The initiator's completion does not say that the bytes have arrived.
        self.await_bytes(region, written, STALLED)
            .map_err(|unmet| at(unmet, "write"))?;
        self.count(size);
        Ok(())
    }

    fn write_with_data(&mut self, size: usize) -> Result<(), Unmet> {
        let blank = Payload {
            length: size,
            seed: self.tokens,
        };
        let (region, remote) = self.register(blank)?;
        let data = 0x4321_8765;
        let written = self.write(size, remote, Some(data))?;
        // The data says that the bytes are there.
        self.await_data(data)
            .and_then(|()| self.await_bytes(region, written, Duration::ZERO))
            .map_err(|unmet| at(unmet, "write"))?;
        self.count(size);
        Ok(())
    }

    fn write(&mut self, size: usize, remote: Remote, data: Option<u64>) -> Result<Payload, Unmet> {
        let payload = Payload {
            length: size,
            seed: self.tokens,
        };
        let write = Request::Write {
            to: TARGET,
            remote,
            payload,
            data,
        };
        self.begin(INITIATOR, write, None)
            .and_then(|operation| self.wait(operation, None))
            .map_err(|unmet| at(unmet, "write"))?;
        Ok(payload)
    }

    fn await_data(&mut self, data: u64) -> Result<(), Unmet> {
        let begin = Instant::now();
        while self.written.is_empty() {
            self.listen()?;
            if begin.elapsed() > STALLED || self.bench.left().is_zero() {
                return Err(Unmet::Failed("its data never arrives".into()));
            }
        }
        match std::mem::take(&mut self.written)[..] {
            [arrived] if arrived == data => Ok(()),
            ref arrived => Err(Unmet::Failed(format!(
                "the data that arrives is {arrived:x?}"
            ))),
        }
    }

    /// Looks at memory until it holds the message, for at most `patience`.
    fn await_bytes(
        &mut self,
        token: Token,
        payload: Payload,
        patience: Duration,
    ) -> Result<(), Unmet> {
        let begin = Instant::now();
        let check = Command::Check {
            token,
            offset: 0,
            payload,
        };
        loop {
            let difference = match self.ask(TARGET, &check)? {
                Event::Checked { difference: None } => return Ok(()),
                Event::Checked {
                    difference: Some(difference),
                } => difference,
                event => return Err(self.unexpected(TARGET, &event)),
            };
            if begin.elapsed() >= patience || self.bench.left().is_zero() {
                return Err(Unmet::Failed(difference));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn atomics(&mut self, count: usize) -> Result<(), Unmet> {
        let length = count * size_of::<u64>();
        let payload = |seed| Payload { length, seed };
        let first = payload(self.tokens);
        let (region, remote) = self.register(first)?;
        let mut elements = words(first);
        let mut seed = self.tokens;
        // The message whose words the elements are, if it is one.
        let mut known = Some(first);
        let actions = [
            AtomicAction::Update(AtomicFunction::Write),
            AtomicAction::Fetch(AtomicFunction::Sum),
            AtomicAction::Update(AtomicFunction::Xor),
            AtomicAction::Update(AtomicFunction::Write),
            AtomicAction::Read,
            AtomicAction::Fetch(AtomicFunction::Write),
            AtomicAction::Update(AtomicFunction::Sum),
            AtomicAction::Update(AtomicFunction::Write),
        ];
        for action in actions {
            seed += 1;
            let operand = payload(seed << 32);
            let function = match action {
                AtomicAction::Update(function) | AtomicAction::Fetch(function) => Some(function),
                AtomicAction::Read | AtomicAction::CompareSwap(_) => None,
            };
            self.atomic(remote, action, operand, known.map(|payload| payload.seed))?;
            if let Some(function) = function {
                for (element, operand) in elements.iter_mut().zip(words(operand)) {
                    *element = function.apply(*element, operand);
                }
                known = (function == AtomicFunction::Write).then_some(operand);
            }
            self.await_words(region, &elements)
                .map_err(|unmet| at(unmet, &format!("{action:?}")))?;
            self.count(length);
        }
        // Once the comparison holds, once it does not.
        if length <= COMPARED
            && let Some(held) = known
        {
            let swapped = payload((seed + 1) << 32);
            let refused = payload((seed + 2) << 32);
            self.atomic(
                remote,
                AtomicAction::CompareSwap(held),
                swapped,
                Some(held.seed),
            )?;
            self.await_words(region, &words(swapped))
                .map_err(|unmet| at(unmet, "swap"))?;
            self.atomic(
                remote,
                AtomicAction::CompareSwap(held),
                refused,
                Some(swapped.seed),
            )?;
            self.await_words(region, &words(swapped))
                .map_err(|unmet| at(unmet, "no swap"))?;
            self.count(2 * length);
        }
        Ok(())
    }

    /// Does one atomic; what it fetches must be the message of seed `old`.
    fn atomic(
        &mut self,
        remote: Remote,
        action: AtomicAction,
        operand: Payload,
        old: Option<u64>,
    ) -> Result<(), Unmet> {
        let fetches = !matches!(action, AtomicAction::Update(_));
        let request = Request::Atomic {
            to: TARGET,
            remote,
            action,
            operand,
        };
        let operation = self.begin(INITIATOR, request, old.filter(|_| fetches))?;
        let result = self.wait(operation, fetches.then_some(operand.length));
        result
            .map(drop)
            .map_err(|unmet| at(unmet, &format!("{action:?}")))
    }

    fn await_words(&mut self, token: Token, expected: &[u64]) -> Result<(), Unmet> {
        let begin = Instant::now();
        loop {
            let found = match self.ask(TARGET, &Command::Words { token })? {
                Event::Words { words } => words,
                event => return Err(self.unexpected(TARGET, &event)),
            };
            if found == expected {
                return Ok(());
            }
            if begin.elapsed() > STALLED || self.bench.left().is_zero() {
                let wrong = found
                    .iter()
                    .zip(expected)
                    .position(|(found, expected)| found != expected);
                return Err(Unmet::Failed(format!(
                    "element {wrong:?} of memory is wrong"
                )));
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// How many elements atomics work on. The largest fits into a packet of each profile.
const ELEMENTS: [usize; 4] = [1, 8, 500, 1000];
/// Up to how many bytes are compared: two operands have to fit into a packet.
const COMPARED: usize = 4000;
/// Up to how many bytes are injected.
const INJECTED: usize = 64;

/// A message and how it is sent.
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

fn words(payload: Payload) -> Vec<u64> {
    let bytes = pattern::bytes(payload.seed, payload.length);
    let (words, _) = bytes.as_chunks();
    words.iter().copied().map(u64::from_le_bytes).collect()
}

/// Puts what was tried in front of a failure.
fn at(unmet: Unmet, what: &str) -> Unmet {
    match unmet {
        Unmet::Failed(text) => Unmet::Failed(format!("{what}: {text}")),
        unmet => unmet,
    }
}

fn at_size(unmet: Unmet, what: &str, size: usize) -> Unmet {
    at(unmet, &format!("{what}{size} bytes"))
}
