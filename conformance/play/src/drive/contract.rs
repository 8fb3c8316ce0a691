//! The lines of the driver protocol, declared once.

use std::fmt;

use efa_core::wire::{AtomicDatatype, AtomicOp};
use serde::{Deserialize, Serialize};

use super::line::{Bytes, Hex, Text, Value, lines};
use crate::application::{Failure, Report, Request, Started, Token};
use crate::libfabric::Version;
use crate::operation::pattern::Difference;
use crate::operation::{
    ATOMIC_OPS, AtomicAction, COMPARE_OPS, DATATYPES, EndpointIndex, Payload, RegionAccess, Remote,
    SendMode, TagMatch,
};
use crate::scenario::{Capability, EndpointSpec, Settings};

lines! {
    /// What a program is told.
    pub enum Command {
        /// The first line. Answer: `hello`.
        "hello" Hello = "hello version=1" {
            /// The version of this protocol.
            version: u32 = "version",
        }
        /// Open an endpoint; an earlier one has been closed. Answer: `opened`.
        "open" Open = "open api=1.11 capabilities=msg,tagged,source" {
            /// The version of libfabric's interface that the application asks for, as major.minor.
            /// Releases derive defaults from it.
            api: Version = "api",
            /// What the application uses, comma-separated: `msg`, `tagged`, `rma`, `atomic`, `source`
            /// (completions name the sender), `directed-recv` (receives name a sender).
            capabilities: Vec<Capability> = "capabilities",
            /// The application registers every buffer itself (`FI_MR_LOCAL`).
            register_local: bool = "register-local",
            /// The application promises to send and receive no message above this many bytes.
            max_message: Option<usize> = "max-message",
            /// The name of the device; otherwise the first EFA device.
            device: Option<String> = "device",
            /// Messages up to this many bytes are sent by medium packets.
            max_medium_size: Option<usize> = "hint-max-medium-size",
            /// Messages from this many bytes on are read by the receiver.
            min_read_message_size: Option<usize> = "hint-min-read-message-size",
            /// Writes from this many bytes on are read by the receiver.
            min_read_write_size: Option<usize> = "hint-min-read-write-size",
            /// How many bytes a runting read sends ahead.
            runt_size: Option<usize> = "hint-runt-size",
            /// How many packets a window of a CTS holds.
            cts_window_packets: Option<u32> = "hint-cts-window-packets",
            /// Whether RDMA of the device is used, 0 or 1.
            use_device_rdma: Option<Switch> = "hint-use-device-rdma",
            /// Whether messages wait for the handshake, 0 or 1.
            handshake_before_messages: Option<Switch> = "hint-handshake-before-messages",
            /// Whether the queue pair is made for unsolicited writes, 0 or 1.
            unsolicited_write_recv: Option<Switch> = "hint-unsolicited-write-recv",
        }
        /// Put a peer into the address vector. Answer: `done`.
        "insert" Insert = "insert peer=1 address=fe80000000000000000000fffe00000201000000785634120000000000000000" {
            /// The peer's number in all that follows.
            peer: EndpointIndex = "peer",
            /// Its raw address: 32 bytes, laid out as section 1.4 of the protocol says.
            address: Bytes = "address",
        }
        /// Take a peer out of the address vector. Answer: `done`.
        "remove" Remove = "remove peer=1" {
            /// The peer's number.
            peer: EndpointIndex = "peer",
        }
        /// Post a receive. Answer: `started`, or `again`.
        "recv" Recv = "recv id=0 length=256 tag=0x1230 ignore=0xf seed=7" {
            /// The operation's name in its completion.
            id: Token = "id",
            /// Size of the buffer in bytes.
            length: usize = "length",
            /// Accept only this peer.
            from: Option<EndpointIndex> = "from",
            /// The receive is tagged, with this tag.
            tag: Option<Hex> = "tag",
            /// Bits of the tag that are not compared; there if `tag` is.
            ignore: Option<Hex> = "ignore",
            /// Compare what arrives with the message of this seed.
            seed: Option<u64> = "seed",
        }
        /// Send a message. Answer: `started`, or `again`.
        "send" Send = "send id=1 to=1 length=100 seed=7 tag=0x1237" {
            /// The operation's name in its completion.
            id: Token = "id",
            /// The receiver.
            to: EndpointIndex = "to",
            /// How many bytes.
            length: usize = "length",
            /// Which bytes.
            seed: u64 = "seed",
            /// The message is tagged, with this tag.
            tag: Option<Hex> = "tag",
            /// Remote completion data.
            data: Option<Hex> = "data",
            /// `inject`: as `fi_inject`, without a completion. `delivery-complete`: the completion
            /// means that the receiver has the data. Otherwise as `fi_send`.
            mode: Option<SendMode> = "mode",
        }
        /// Register memory for peers. Answer: `registered`.
        "register" Register = "register id=2 length=4096 seed=9 access=remote-read,remote-write" {
            /// The memory's name.
            id: Token = "id",
            /// How many bytes.
            length: usize = "length",
            /// Which bytes it holds at first.
            seed: u64 = "seed",
            /// What peers may do, comma-separated: `remote-read`, `remote-write`.
            access: Vec<RegionAccess> = "access",
        }
        /// Write to a peer's memory. Answer: `started`, or `again`.
        "write" Write = "write id=3 to=1 address=0x7f0012345000 key=0x42 length=4096 seed=11" {
            /// The operation's name in its completion.
            id: Token = "id",
            /// The peer.
            to: EndpointIndex = "to",
            /// Where, as the peer's `registered` said, or behind it.
            address: Hex = "address",
            /// The memory's key.
            key: Hex = "key",
            /// How many bytes.
            length: usize = "length",
            /// Which bytes.
            seed: u64 = "seed",
            /// Remote completion data.
            data: Option<Hex> = "data",
            /// The completion means that the data is in the memory.
            delivery_complete: bool = "delivery-complete",
        }
        /// Read a peer's memory. Answer: `started`, or `again`.
        "read" Read = "read id=4 from=1 address=0x7f0012345000 key=0x42 length=4096 seed=9" {
            /// The operation's name in its completion.
            id: Token = "id",
            /// The peer.
            from: EndpointIndex = "from",
            /// Where.
            address: Hex = "address",
            /// The memory's key.
            key: Hex = "key",
            /// How many bytes.
            length: usize = "length",
            /// Compare what arrives with the message of this seed.
            seed: Option<u64> = "seed",
        }
        /// Apply an atomic operation to elements of a peer's memory. Answer: `started`, or `again`.
        "atomic" Atomic = "atomic id=5 to=1 address=0x7f0012345000 key=0x42 length=8 operand=12 call=fetch op=sum" {
            /// The operation's name in its completion.
            id: Token = "id",
            /// The peer.
            to: EndpointIndex = "to",
            /// Where.
            address: Hex = "address",
            /// The memory's key.
            key: Hex = "key",
            /// How many bytes the operand has, and the elements.
            length: usize = "length",
            /// Which operand.
            operand: u64 = "operand",
            /// `update` (`fi_atomic`), `fetch` (`fi_fetch_atomic`) or `compare`
            /// (`fi_compare_atomic`).
            call: AtomicCall = "call",
            /// `sum`, `xor` (of bits), `write`, `min`, `max`, `prod`, `lor`, `land`, `lxor`, `bor`, `band`;
            /// `read` is only fetched; `cswap`, `cswap-ne`, `cswap-le`, `cswap-lt`, `cswap-ge`, `cswap-gt`
            /// and `mswap` are only compared.
            op: String = "op",
            /// The type of the elements, if it is not `uint64`: a name of `enum fi_datatype` in small letters
            /// with dashes, such as `int8` or `float-complex`.
            datatype: Option<AtomicDatatype> = "datatype",
            /// The seed of what the elements are compared with; there if `call` is `compare`.
            comparand: Option<u64> = "comparand",
            /// The completion of an update means that it was carried out.
            delivery_complete: bool = "delivery-complete",
            /// Compare what is fetched with the message of this seed.
            seed: Option<u64> = "seed",
        }
        /// Compare registered memory with a message. Answer: `checked`.
        "check" Check = "check id=2 offset=0 length=4096 seed=11" {
            /// The memory.
            id: Token = "id",
            /// Where in it, in bytes.
            offset: usize = "offset",
            /// How many bytes.
            length: usize = "length",
            /// Which bytes have to be there.
            seed: u64 = "seed",
        }
        /// Show registered memory. Answer: `memory`.
        "dump" Dump = "dump id=2" {
            /// The memory.
            id: Token = "id",
        }
        /// Make progress once. Answer: `done`, after the completions that there are.
        "poll" Poll = "poll" {}
        /// Make progress, and report completions as they come, until `pause`. Answer: `done`, at once.
        "progress" Progress = "progress" {}
        /// Stop making progress. Answer: `done`, after which no completion follows.
        "pause" Pause = "pause" {}
        /// Close the endpoint, with everything that is outstanding; nothing of it is reported any
        /// more. Answer: `done`.
        "close" Close = "close" {}
    }
}

lines! {
    /// What a program says.
    pub enum Event {
        /// Answers `hello`.
        "hello" Hello = "hello version=1 name=libfabric release=1.17.0 path=/usr/lib/libfabric.so.1" {
            /// The version of this protocol that the program speaks.
            version: u32 = "version",
            /// What is tested, such as `libfabric`.
            name: String = "name",
            /// Its release.
            release: Option<String> = "release",
            /// The file it was loaded from.
            path: Option<String> = "path",
            /// The commit it was built from.
            commit: Option<String> = "commit",
        }
        /// The endpoint is open, and has posted its receive buffers or will when it first makes
        /// progress.
        "opened" Opened = "opened address=fe80000000000000000000fffe00000201000000785634120000000000000000" {
            /// Its raw address.
            address: Bytes = "address",
        }
        /// The command was carried out.
        "done" Done = "done" {}
        /// The operation was started; a completion follows, except for `mode=inject`.
        "started" Started = "started" {}
        /// The memory is registered.
        "registered" Registered = "registered address=0x7f0012345000 key=0x42" {
            /// Where it is, as peers name it.
            address: Hex = "address",
            /// The key that peers need.
            key: Hex = "key",
        }
        /// Resources are short: nothing was started. The same command comes again, after progress.
        "again" Again = "again" {}
        /// The comparison was made; without keys, the bytes are right.
        "checked" Checked = "checked differs-at=17 found=0x3a expected=0x12" {
            /// The first byte that differs, from 0.
            differs_at: Option<usize> = "differs-at",
            /// What it is.
            found: Option<Hex> = "found",
            /// What it should be.
            expected: Option<Hex> = "expected",
        }
        /// The memory.
        "memory" Memory = "memory bytes=0011223344556677" {
            /// All of it.
            bytes: Bytes = "bytes",
        }
        /// The command failed. The case fails, with this text.
        "refused" Refused = "refused text=fi_tsend failed: Invalid argument (error 22)" {
            /// Why.
            text: Text = "text",
        }
        /// The program, or what it tests, cannot do this. The case ends as unsupported.
        "unsupported" Unsupported = "unsupported text=RDMA" {
            /// What it cannot do.
            text: Text = "text",
        }
        /// An operation completed, or a peer wrote to this endpoint's memory with data. No answer.
        "completed" Completed = "completed id=0 length=100 tag=0x1237 source=1" {
            /// The operation; not there if a peer caused the completion.
            id: Option<Token> = "id",
            /// Bytes received.
            length: usize = "length",
            /// The tag of the message that a tagged receive got.
            tag: Option<Hex> = "tag",
            /// Remote completion data.
            data: Option<Hex> = "data",
            /// Who sent, if the endpoint was opened with `source` and knows the sender.
            source: Option<EndpointIndex> = "source",
            /// The first byte that differs from the message of the operation's seed, from 0.
            differs_at: Option<usize> = "differs-at",
            /// What it is.
            found: Option<Hex> = "found",
            /// What it should be.
            expected: Option<Hex> = "expected",
            /// The operation failed with this error number of libfabric, such as 265 (`FI_ETRUNC`).
            error: Option<u32> = "error",
            /// How many bytes did not fit.
            overflow: Option<u64> = "overflow",
            /// An explanation of the error.
            text: Option<Text> = "text",
        }
        /// A part of the capture of the program's device, the parts in their order. No answer; not printed by programs, but
        /// after their end by the recorder under which `run --at` starts them.
        "captured" Captured = "captured bytes=0a0d0d0a1c000000" {
            /// Of a pcapng file.
            bytes: Bytes = "bytes",
        }
        /// Something went wrong outside of any operation. No answer; the case fails.
        "reported" Reported = "reported text=event queue: protocol error" {
            /// What.
            text: Text = "text",
        }
    }
}

/// What a program says of what it tests.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// Such as `libfabric`.
    pub name: String,
    /// Its release.
    pub release: Option<String>,
    /// The file it was loaded from.
    pub path: Option<String>,
    /// The commit it was built from.
    pub commit: Option<String>,
}

impl Identity {
    /// What is known, by name.
    pub fn properties(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            ("name", Some(self.name.as_str())),
            ("release", self.release.as_deref()),
            ("path", self.path.as_deref()),
            ("commit", self.commit.as_deref()),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
    }

    /// All that is known, in a line.
    pub fn details(&self) -> String {
        let mut text = self.to_string();
        if let Some(commit) = &self.commit {
            text += &format!(", commit {commit}");
        }
        if let Some(path) = &self.path {
            text += &format!(", {path}");
        }
        text
    }

    /// The release's first two numbers, if it has them.
    pub fn version(&self) -> Option<Version> {
        let release = self.release.as_deref()?;
        let mut numbers = release.split('.');
        let short = format!("{}.{}", numbers.next()?, numbers.next()?);
        short.parse().ok()
    }
}

/// Name and release.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match &self.release {
            Some(release) => write!(f, " {release}"),
            None => Ok(()),
        }
    }
}

/// The parameters with which an endpoint is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opening {
    /// The version of the programming interface that the application asks for.
    pub api: Version,
    /// What the application uses.
    pub capabilities: Vec<Capability>,
    /// Whether the application registers every buffer itself.
    pub register_local: bool,
    /// The largest message in bytes, if the application promises one.
    pub max_message: Option<usize>,
    /// The name of the device; `None` is the first EFA device.
    pub device: Option<String>,
    /// Settings for the choice of subprotocols, for implementations that have them.
    pub settings: Settings,
}

impl Opening {
    /// Returns whether the application asks for `capability`.
    pub fn has(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }
}

impl From<&EndpointSpec> for Opening {
    fn from(endpoint: &EndpointSpec) -> Self {
        Opening {
            api: endpoint.api,
            capabilities: endpoint.capabilities.clone(),
            register_local: endpoint.register_local,
            max_message: endpoint.max_message,
            device: None,
            settings: endpoint.settings.clone(),
        }
    }
}

/// 0 or 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Switch(pub bool);

impl Value for Switch {
    const KIND: &'static str = "0 or 1";

    fn show(&self) -> String {
        u8::from(self.0).to_string()
    }

    fn read(text: &str) -> Option<Self> {
        match text {
            "0" => Some(Switch(false)),
            "1" => Some(Switch(true)),
            _ => None,
        }
    }
}

impl Value for Version {
    const KIND: &'static str = "a version, as major.minor";

    fn show(&self) -> String {
        self.to_string()
    }

    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// The family of libfabric's atomic calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicCall {
    /// `fi_atomic`.
    Update,
    /// `fi_fetch_atomic`.
    Fetch,
    /// `fi_compare_atomic`.
    Compare,
}

impl AtomicCall {
    const NAMES: [(&'static str, AtomicCall); 3] = [
        ("update", AtomicCall::Update),
        ("fetch", AtomicCall::Fetch),
        ("compare", AtomicCall::Compare),
    ];
}

fn name_of<T: PartialEq>(names: &[(&'static str, T)], value: &T) -> &'static str {
    let found = names.iter().find(|(_, known)| known == value);
    found.map_or("", |(name, _)| name)
}

fn named<T: Copy>(names: &[(&'static str, T)], text: &str) -> Option<T> {
    let found = names.iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| *value)
}

macro_rules! named_values {
    ($($type:ty, $names:expr, $kind:literal);*) => {
        $(impl Value for $type {
            const KIND: &'static str = $kind;

            fn show(&self) -> String {
                name_of(&$names, self).into()
            }

            fn read(text: &str) -> Option<Self> {
                named(&$names, text)
            }
        })*
    };
}

named_values! {
    AtomicCall, AtomicCall::NAMES, "`update`, `fetch` or `compare`";
    AtomicDatatype, DATATYPES, "a data type of libfabric";
    SendMode, SEND_MODES, "`inject` or `delivery-complete`"
}

macro_rules! lists {
    ($($type:ty, $kind:literal);*) => {
        $(impl Value for Vec<$type> {
            const KIND: &'static str = $kind;

            fn show(&self) -> String {
                let names = self.iter().map(|value| name_of(&<$type>::NAMES, value));
                names.collect::<Vec<_>>().join(",")
            }

            fn read(text: &str) -> Option<Self> {
                let names = text.split(',').filter(|name| !name.is_empty());
                names.map(|name| named(&<$type>::NAMES, name)).collect()
            }
        })*
    };
}

lists! {
    Capability, "a list of capabilities";
    RegionAccess, "a list of rights"
}

/// A normal send has no `mode`.
const SEND_MODES: [(&str, SendMode); 2] = [
    ("inject", SendMode::Inject),
    ("delivery-complete", SendMode::DeliveryComplete),
];

impl Command {
    /// Opens an endpoint.
    pub fn open(opening: &Opening) -> Self {
        let Settings {
            max_medium_size,
            min_read_message_size,
            min_read_write_size,
            runt_size,
            cts_window_packets,
            use_device_rdma,
            handshake_before_messages,
            unsolicited_write_recv,
        } = opening.settings;
        Command::Open {
            api: opening.api,
            capabilities: opening.capabilities.clone(),
            register_local: opening.register_local,
            max_message: opening.max_message,
            device: opening.device.clone(),
            max_medium_size,
            min_read_message_size,
            min_read_write_size,
            runt_size,
            cts_window_packets,
            use_device_rdma: use_device_rdma.map(Switch),
            handshake_before_messages: handshake_before_messages.map(Switch),
            unsolicited_write_recv: unsolicited_write_recv.map(Switch),
        }
    }

    /// Returns the parameters of a [`Command::Open`], or the command itself if it is another one.
    pub fn opening(self) -> Result<Opening, Box<Command>> {
        match self {
            Command::Open {
                api,
                capabilities,
                register_local,
                max_message,
                device,
                max_medium_size,
                min_read_message_size,
                min_read_write_size,
                runt_size,
                cts_window_packets,
                use_device_rdma,
                handshake_before_messages,
                unsolicited_write_recv,
            } => Ok(Opening {
                api,
                capabilities,
                register_local,
                max_message,
                device,
                settings: Settings {
                    max_medium_size,
                    min_read_message_size,
                    min_read_write_size,
                    runt_size,
                    cts_window_packets,
                    use_device_rdma: use_device_rdma.map(|switch| switch.0),
                    handshake_before_messages: handshake_before_messages.map(|switch| switch.0),
                    unsolicited_write_recv: unsolicited_write_recv.map(|switch| switch.0),
                },
            }),
            other => Err(Box::new(other)),
        }
    }

    /// The command that starts an operation; `seed` names the message that the operation must deliver.
    pub fn start(id: Token, request: &Request, seed: Option<u64>) -> Self {
        match *request {
            Request::Recv { length, from, tag } => Command::Recv {
                id,
                length,
                from,
                tag: tag.map(|tag| Hex(tag.tag)),
                ignore: tag.map(|tag| Hex(tag.ignore)),
                seed,
            },
            Request::Send {
                to,
                payload: Payload { length, seed },
                tag,
                data,
                mode,
            } => Command::Send {
                id,
                to,
                length,
                seed,
                tag: tag.map(Hex),
                data: data.map(Hex),
                mode: (mode != SendMode::Normal).then_some(mode),
            },
            Request::Register {
                payload: Payload { length, seed },
                ref access,
            } => Command::Register {
                id,
                length,
                seed,
                access: access.clone(),
            },
            Request::Write {
                to,
                remote: Remote { address, key },
                payload: Payload { length, seed },
                data,
                delivery_complete,
            } => Command::Write {
                id,
                to,
                address: Hex(address),
                key: Hex(key),
                length,
                seed,
                data: data.map(Hex),
                delivery_complete,
            },
            Request::Read {
                from,
                remote: Remote { address, key },
                length,
            } => Command::Read {
                id,
                from,
                address: Hex(address),
                key: Hex(key),
                length,
                seed,
            },
            Request::Atomic {
                to,
                remote: Remote { address, key },
                datatype,
                action,
                operand,
                delivery_complete,
            } => {
                let (call, op, comparand) = match action {
                    AtomicAction::Update(op) => {
                        (AtomicCall::Update, name_of(&ATOMIC_OPS, &op), None)
                    }
                    AtomicAction::Fetch(op) => (AtomicCall::Fetch, name_of(&ATOMIC_OPS, &op), None),
                    AtomicAction::Compare(op, comparand) => (
                        AtomicCall::Compare,
                        name_of(&COMPARE_OPS, &op),
                        Some(comparand.seed),
                    ),
                };
                Command::Atomic {
                    id,
                    to,
                    address: Hex(address),
                    key: Hex(key),
                    length: operand.length,
                    operand: operand.seed,
                    call,
                    op: op.into(),
                    datatype: (datatype != AtomicDatatype::UINT64).then_some(datatype),
                    comparand,
                    delivery_complete,
                    seed,
                }
            }
        }
    }

    /// The command that compares memory, which operation `id` registered, with a message.
    pub fn check(id: Token, offset: usize, payload: Payload) -> Self {
        let Payload { length, seed } = payload;
        Command::Check {
            id,
            offset,
            length,
            seed,
        }
    }

    /// Returns the operation that a command starts, its name, and the seed of the message that it must
    /// deliver, or the command itself if it starts no operation or an unknown one.
    pub fn operation(self) -> Result<(Token, Request, Option<u64>), Box<Command>> {
        Ok(match self {
            Command::Recv {
                id,
                length,
                from,
                tag,
                ignore,
                seed,
            } => {
                let tag = tag.map(|tag| TagMatch {
                    tag: tag.0,
                    ignore: ignore.map_or(0, |ignore| ignore.0),
                });
                (id, Request::Recv { length, from, tag }, seed)
            }
            Command::Send {
                id,
                to,
                length,
                seed,
                tag,
                data,
                mode,
            } => {
                let request = Request::Send {
                    to,
                    payload: Payload { length, seed },
                    tag: tag.map(|tag| tag.0),
                    data: data.map(|data| data.0),
                    mode: mode.unwrap_or(SendMode::Normal),
                };
                (id, request, None)
            }
            Command::Register {
                id,
                length,
                seed,
                access,
            } => {
                let payload = Payload { length, seed };
                (id, Request::Register { payload, access }, None)
            }
            Command::Write {
                id,
                to,
                address,
                key,
                length,
                seed,
                data,
                delivery_complete,
            } => {
                let request = Request::Write {
                    to,
                    remote: remote(address, key),
                    payload: Payload { length, seed },
                    data: data.map(|data| data.0),
                    delivery_complete,
                };
                (id, request, None)
            }
            Command::Read {
                id,
                from,
                address,
                key,
                length,
                seed,
            } => {
                let remote = remote(address, key);
                let request = Request::Read {
                    from,
                    remote,
                    length,
                };
                (id, request, seed)
            }
            Command::Atomic {
                id,
                to,
                address,
                key,
                length,
                operand,
                call,
                ref op,
                datatype,
                comparand,
                delivery_complete,
                seed,
            } => {
                let plain = named(&ATOMIC_OPS, op);
                let compares = named(&COMPARE_OPS, op);
                let action = match (call, plain, compares, comparand) {
                    (AtomicCall::Update, Some(op), _, None) if op != AtomicOp::ATOMIC_READ => {
                        AtomicAction::Update(op)
                    }
                    (AtomicCall::Fetch, Some(op), _, None) => AtomicAction::Fetch(op),
                    (AtomicCall::Compare, _, Some(op), Some(seed)) => {
                        AtomicAction::Compare(op, Payload { length, seed })
                    }
                    _ => return Err(Box::new(self)),
                };
                let request = Request::Atomic {
                    to,
                    remote: remote(address, key),
                    datatype: datatype.unwrap_or(AtomicDatatype::UINT64),
                    action,
                    operand: Payload {
                        length,
                        seed: operand,
                    },
                    delivery_complete,
                };
                (id, request, seed)
            }
            other => return Err(Box::new(other)),
        })
    }
}

fn remote(address: Hex, key: Hex) -> Remote {
    Remote {
        address: address.0,
        key: key.0,
    }
}

/// The three keys of a difference.
fn keys_of(difference: Option<Difference>) -> (Option<usize>, Option<Hex>, Option<Hex>) {
    (
        difference.map(|difference| difference.position),
        difference.map(|difference| Hex(difference.actual.into())),
        difference.map(|difference| Hex(difference.expected.into())),
    )
}

fn difference(
    position: Option<usize>,
    actual: Option<Hex>,
    expected: Option<Hex>,
) -> Option<Difference> {
    let byte = |value: Option<Hex>| value.map_or(0, |value| value.0 as u8);
    position.map(|position| Difference {
        position,
        actual: byte(actual),
        expected: byte(expected),
    })
}

#[expect(
    clippy::result_large_err,
    reason = "an event is handed back, it is no error"
)]
impl Event {
    /// The event for the result of comparing memory.
    pub fn checked(found: Option<Difference>) -> Self {
        let (differs_at, found, expected) = keys_of(found);
        Event::Checked {
            differs_at,
            found,
            expected,
        }
    }

    /// Returns the difference in an [`Event::Checked`], or the event itself if it is another one.
    pub fn difference(self) -> Result<Option<Difference>, Event> {
        match self {
            Event::Checked {
                differs_at,
                found,
                expected,
            } => Ok(difference(differs_at, found, expected)),
            other => Err(other),
        }
    }

    /// The event for a started operation.
    pub fn started(started: Started) -> Self {
        match started {
            Started::Operation => Event::Started {},
            Started::Region(Remote { address, key }) => Event::Registered {
                address: Hex(address),
                key: Hex(key),
            },
        }
    }

    /// Returns what the start of an operation gave, or the event itself if it does not say so.
    pub fn into_started(self) -> Result<Started, Event> {
        match self {
            Event::Started {} => Ok(Started::Operation),
            Event::Registered { address, key } => Ok(Started::Region(remote(address, key))),
            other => Err(other),
        }
    }

    /// The event for a finished operation.
    pub fn completed(report: Report) -> Self {
        let (differs_at, found, expected) = keys_of(report.difference);
        let failure = report.failure;
        let (error, overflow, text) = match failure {
            None => (None, None, None),
            Some(Failure {
                code,
                text,
                overflow,
            }) => (
                Some(code.unsigned_abs()),
                (overflow != 0).then_some(overflow),
                Some(Text(text)),
            ),
        };
        Event::Completed {
            id: report.token,
            length: report.length as usize,
            tag: (report.tag != 0).then_some(Hex(report.tag)),
            data: report.data.map(Hex),
            source: report.source,
            differs_at,
            found,
            expected,
            error,
            overflow,
            text,
        }
    }

    /// Returns the finished operation of an [`Event::Completed`], or the event itself if it is another one.
    pub fn into_report(self) -> Result<Report, Event> {
        match self {
            Event::Completed {
                id,
                length,
                tag,
                data,
                source,
                differs_at,
                found,
                expected,
                error,
                overflow,
                text,
            } => Ok(Report {
                token: id,
                length: length as u64,
                tag: tag.map_or(0, |tag| tag.0),
                data: data.map(|data| data.0),
                source,
                failure: error.map(|code| Failure {
                    code: code.cast_signed(),
                    text: text.map_or(String::new(), |text| text.0),
                    overflow: overflow.unwrap_or(0),
                }),
                difference: difference(differs_at, found, expected),
            }),
            other => Err(other),
        }
    }
}

#[cfg(test)]
#[path = "contract_tests.rs"]
mod tests;
