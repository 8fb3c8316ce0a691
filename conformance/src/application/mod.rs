//! Applications: what uses an endpoint on a scenario's behalf.
//!
//! The same requests and outcomes serve stock libfabric ([`stock`]) and the protocol engine
//! ([`engine`]), in the suite's own process or in another one. They are plain data: payloads are named
//! by their seed, peers by their place in the scenario.

pub mod engine;
pub mod stock;
pub mod subject;

use efa_core::endpoint::Instant;
use efa_core::wire::AtomicOp;

use crate::scenario::pattern::{self, Difference};
use crate::scenario::{EndpointIndex, Payload, RegionAccess, SendMode, TagMatch};

/// Names an operation of one application.
pub type Token = u64;

/// An operation, ready to be started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Post a receive.
    Recv {
        /// Size of the buffer in bytes.
        length: usize,
        /// Accept only this sender.
        from: Option<EndpointIndex>,
        /// `Some` for a tagged receive.
        tag: Option<TagMatch>,
    },
    /// Send a message.
    Send {
        /// The receiver.
        to: EndpointIndex,
        /// What is sent.
        payload: Payload,
        /// `Some` for a tagged message.
        tag: Option<u64>,
        /// Remote completion data.
        data: Option<u64>,
        /// Which call.
        mode: SendMode,
    },
    /// Register memory for peers. The answer is a [`Started::Region`].
    Register {
        /// The initial bytes.
        payload: Payload,
        /// What peers may do.
        access: Vec<RegionAccess>,
    },
    /// Write to a peer's memory.
    Write {
        /// The peer.
        to: EndpointIndex,
        /// The peer's memory.
        remote: Remote,
        /// What is written.
        payload: Payload,
        /// Remote completion data.
        data: Option<u64>,
        /// The completion means that the data is in the memory (`FI_DELIVERY_COMPLETE`).
        delivery_complete: bool,
    },
    /// Read a peer's memory.
    Read {
        /// The peer.
        from: EndpointIndex,
        /// The peer's memory.
        remote: Remote,
        /// How much, in bytes.
        length: usize,
    },
    /// Apply an atomic operation to unsigned 64-bit elements of a peer's memory. If it fetches the
    /// old elements, they arrive as the operation's bytes.
    Atomic {
        /// The peer.
        to: EndpointIndex,
        /// The peer's memory.
        remote: Remote,
        /// What is done, and with which operands.
        action: AtomicAction,
        /// The operands; the length is a multiple of 8 bytes.
        operand: Payload,
        /// The completion of an [`AtomicAction::Update`] means that it was carried out.
        delivery_complete: bool,
    },
}

/// What an atomic operation does, and whether it fetches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicAction {
    /// `fi_atomic`: changes the elements.
    Update(AtomicFunction),
    /// `fi_fetch_atomic`: changes the elements and fetches the old ones.
    Fetch(AtomicFunction),
    /// `fi_fetch_atomic` with `FI_ATOMIC_READ`: fetches the elements.
    Read,
    /// `fi_compare_atomic` with `FI_CSWAP`: sets the elements that are equal to those of this message,
    /// and fetches the old ones.
    CompareSwap(Payload),
}

/// How an element and its operand make the new element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicFunction {
    /// The wrapping sum.
    Sum,
    /// The exclusive or of their bits.
    Xor,
    /// The operand.
    Write,
}

impl AtomicFunction {
    /// What scenarios call them.
    pub const NAMES: [(&'static str, AtomicFunction); 3] = [
        ("sum", AtomicFunction::Sum),
        ("xor", AtomicFunction::Xor),
        ("write", AtomicFunction::Write),
    ];

    /// The new element.
    pub fn apply(self, element: u64, operand: u64) -> u64 {
        match self {
            AtomicFunction::Sum => element.wrapping_add(operand),
            AtomicFunction::Xor => element ^ operand,
            AtomicFunction::Write => operand,
        }
    }

    const fn code(self) -> AtomicOp {
        match self {
            AtomicFunction::Sum => AtomicOp::SUM,
            AtomicFunction::Xor => AtomicOp::BXOR,
            AtomicFunction::Write => AtomicOp::ATOMIC_WRITE,
        }
    }
}

impl AtomicAction {
    /// The operation's number, the same on the wire and in libfabric.
    pub const fn code(self) -> AtomicOp {
        match self {
            AtomicAction::Update(function) | AtomicAction::Fetch(function) => function.code(),
            AtomicAction::Read => AtomicOp::ATOMIC_READ,
            AtomicAction::CompareSwap(_) => AtomicOp::CSWAP,
        }
    }
}

/// A place in a peer's registered memory, as its owner announced it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// First byte.
    pub address: u64,
    /// Its key.
    pub key: u64,
}

/// What starting a request gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Started {
    /// A completion will follow, except for injected messages.
    Operation,
    /// Memory is registered.
    Region(Remote),
}

/// A finished operation, or something that a peer did to our memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The operation; `None` if a peer caused it.
    pub token: Option<Token>,
    /// Bytes received.
    pub length: u64,
    /// The tag of a tagged receive.
    pub tag: u64,
    /// Remote completion data.
    pub data: Option<u64>,
    /// Who sent, if the application asked for sources and the peer is in its address vector.
    pub source: Option<EndpointIndex>,
    /// How it ended.
    pub result: Result<(), Failure>,
    /// The operation's buffer.
    pub bytes: Vec<u8>,
}

/// Why an operation failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// libfabric's positive error number.
    pub code: i32,
    /// An explanation.
    pub text: String,
    /// Bytes that did not fit (truncation).
    pub overflow: u64,
}

/// Why a request was not started.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// Resources are short now: poll, then try again.
    #[error("resources are short: poll, then try again")]
    TryAgain,
    /// It cannot be started.
    #[error("{0}")]
    Refused(String),
    /// What is tested has no such operation.
    #[error("{0}")]
    Unsupported(String),
}

/// An application with one endpoint.
pub trait Application {
    /// The endpoint's raw address.
    fn address(&self) -> Result<Vec<u8>, RequestError>;

    /// Makes a peer's raw address known. Peers are inserted in the order of the scenario.
    fn insert(&mut self, peer: EndpointIndex, address: &[u8]) -> Result<(), RequestError>;

    /// Takes a peer out of the address vector (`fi_av_remove`).
    fn remove(&mut self, peer: EndpointIndex) -> Result<(), RequestError>;

    /// Starts an operation.
    fn start(&mut self, token: Token, request: &Request) -> Result<Started, RequestError>;

    /// Makes progress and takes completions.
    fn poll(&mut self) -> Result<Vec<Outcome>, RequestError>;

    /// Takes what the endpoint reported outside of any operation, as text.
    fn events(&mut self) -> Result<Vec<String>, RequestError>;

    /// The present bytes of memory that [`Request::Register`] registered.
    fn region(&mut self, token: Token) -> Result<Vec<u8>, RequestError>;

    /// When progress is due although nothing arrives; `None` if the application looks after its own
    /// time.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }
}

/// An [`Outcome`] without its bytes: they have been compared with what was expected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The operation; `None` if a peer caused it.
    pub token: Option<Token>,
    /// Bytes received.
    pub length: u64,
    /// The tag of a tagged receive.
    pub tag: u64,
    /// Remote completion data.
    pub data: Option<u64>,
    /// Who sent.
    pub source: Option<EndpointIndex>,
    /// The error, if the operation failed.
    pub failure: Option<Failure>,
    /// The first difference between the bytes that arrived and those expected.
    pub difference: Option<Difference>,
}

impl Outcome {
    /// Compares the bytes that arrived with the message of `seed`.
    pub fn report(&self, seed: Option<u64>) -> Report {
        let arrived = self.bytes.len().min(self.length as usize);
        let difference = seed.and_then(|seed| pattern::compare(seed, &self.bytes[..arrived]).err());
        Report {
            token: self.token,
            length: self.length,
            tag: self.tag,
            data: self.data,
            source: self.source,
            failure: self.result.clone().err(),
            difference,
        }
    }
}
