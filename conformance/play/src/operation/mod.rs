//! Operations of applications.
//!
//! They are plain data, and have the same type from a scenario's steps to the driver of the tested
//! software. A payload is named by its seed, a peer by its index in the scenario. Only the name of
//! a peer's memory differs: a scenario names a [`RegionOffset`] in memory that a step registered,
//! an application needs the [`Remote`] that the memory's owner announced.

mod atomic;
mod memory;
pub(crate) mod names;
pub mod pattern;

use efa_core::wire::AtomicDatatype;
use serde::{Deserialize, Serialize};

pub use atomic::{AtomicAction, element_size};
pub use memory::{RegionOffset, Remote};
pub use names::{ATOMIC_OPS, COMPARE_OPS, DATATYPES};

/// An endpoint's place in the scenario.
pub type EndpointIndex = usize;

/// An operation; `M` names a peer's memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
#[serde(deny_unknown_fields)]
pub enum Operation<M> {
    /// Post a receive.
    Recv {
        /// Size of the buffer in bytes.
        length: usize,
        /// Accept only this sender.
        #[serde(skip_serializing_if = "Option::is_none")]
        from: Option<EndpointIndex>,
        /// The receive is tagged, and accepts these tags.
        #[serde(skip_serializing_if = "Option::is_none")]
        tag: Option<TagMatch>,
    },
    /// Send a message.
    Send {
        /// The receiver.
        to: EndpointIndex,
        /// The data to send.
        payload: Payload,
        /// The message is tagged, with this tag.
        #[serde(skip_serializing_if = "Option::is_none")]
        tag: Option<u64>,
        /// Remote completion data.
        #[serde(skip_serializing_if = "Option::is_none")]
        data: Option<u64>,
        /// How it is sent, if it is not `normal`.
        #[serde(default, skip_serializing_if = "SendMode::is_normal")]
        mode: SendMode,
    },
    /// Register memory for peers.
    Register {
        /// The initial bytes.
        payload: Payload,
        /// The accesses that peers may make.
        access: Vec<RegionAccess>,
    },
    /// Write to a peer's memory.
    Write {
        /// The peer.
        to: EndpointIndex,
        /// The peer's memory.
        remote: M,
        /// The data to write.
        payload: Payload,
        /// Remote completion data.
        #[serde(skip_serializing_if = "Option::is_none")]
        data: Option<u64>,
        /// The completion means that the data is in the memory (`FI_DELIVERY_COMPLETE`).
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        delivery_complete: bool,
    },
    /// Read a peer's memory.
    Read {
        /// The peer.
        from: EndpointIndex,
        /// The peer's memory.
        remote: M,
        /// The number of bytes.
        length: usize,
    },
    /// Apply an atomic operation to elements of a peer's memory. If it fetches the old elements,
    /// they arrive as the operation's bytes.
    Atomic {
        /// The peer.
        to: EndpointIndex,
        /// The peer's memory.
        remote: M,
        /// The type of the elements, if it is not `uint64`.
        #[serde(
            with = "names::datatype",
            default = "uint64",
            skip_serializing_if = "is_uint64"
        )]
        datatype: AtomicDatatype,
        /// The function, and whether old elements are fetched.
        action: AtomicAction,
        /// The operands; the length is a multiple of an element's.
        operand: Payload,
        /// The completion of an update means that it was carried out.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        delivery_complete: bool,
    },
}

fn uint64() -> AtomicDatatype {
    AtomicDatatype::UINT64
}

fn is_uint64(datatype: &AtomicDatatype) -> bool {
    *datatype == uint64()
}

impl<M> Operation<M> {
    /// Returns whether the operation has a completion.
    pub fn completes(&self) -> bool {
        !matches!(
            self,
            Operation::Register { .. }
                | Operation::Send {
                    mode: SendMode::Inject,
                    ..
                }
        )
    }

    /// Returns whether the operation delivers bytes to the application.
    pub fn delivers(&self) -> bool {
        match self {
            Operation::Recv { .. } | Operation::Read { .. } => true,
            Operation::Atomic { action, .. } => !matches!(action, AtomicAction::Update(_)),
            _ => false,
        }
    }

    /// The bytes that the operation provides.
    pub fn payload(&self) -> Option<Payload> {
        match self {
            Operation::Send { payload, .. }
            | Operation::Register { payload, .. }
            | Operation::Write { payload, .. }
            | Operation::Atomic {
                operand: payload, ..
            } => Some(*payload),
            Operation::Recv { .. } | Operation::Read { .. } => None,
        }
    }

    /// Returns the same operation with another name of the peer's memory.
    pub fn with_remote<N>(&self, name: impl FnOnce(&M) -> N) -> Operation<N> {
        match *self {
            Operation::Recv { length, from, tag } => Operation::Recv { length, from, tag },
            Operation::Send {
                to,
                payload,
                tag,
                data,
                mode,
            } => Operation::Send {
                to,
                payload,
                tag,
                data,
                mode,
            },
            Operation::Register {
                payload,
                ref access,
            } => Operation::Register {
                payload,
                access: access.clone(),
            },
            Operation::Write {
                to,
                ref remote,
                payload,
                data,
                delivery_complete,
            } => Operation::Write {
                to,
                remote: name(remote),
                payload,
                data,
                delivery_complete,
            },
            Operation::Read {
                from,
                ref remote,
                length,
            } => Operation::Read {
                from,
                remote: name(remote),
                length,
            },
            Operation::Atomic {
                to,
                ref remote,
                datatype,
                action,
                operand,
                delivery_complete,
            } => Operation::Atomic {
                to,
                remote: name(remote),
                datatype,
                action,
                operand,
                delivery_complete,
            },
        }
    }
}

/// Bytes made from a seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Payload {
    /// The number of bytes.
    pub length: usize,
    /// The seed.
    pub seed: u64,
}

impl Payload {
    /// The bytes.
    pub fn bytes(self) -> Vec<u8> {
        pattern::bytes(self.seed, self.length)
    }
}

/// The tags that a receive accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TagMatch {
    /// The tag.
    pub tag: u64,
    /// Bits that are not compared.
    pub ignore: u64,
}

/// One of libfabric's send calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SendMode {
    /// `fi_send` and its relatives: the buffer belongs to the library until the completion.
    #[default]
    Normal,
    /// `fi_inject` and its relatives: the bytes are copied, and no completion follows.
    Inject,
    /// `fi_sendmsg` with `FI_DELIVERY_COMPLETE`.
    DeliveryComplete,
}

impl SendMode {
    fn is_normal(&self) -> bool {
        *self == SendMode::Normal
    }
}

/// The accesses that peers may make to registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionAccess {
    /// Peers may read it (`FI_REMOTE_READ`).
    RemoteRead,
    /// Peers may write it (`FI_REMOTE_WRITE`).
    RemoteWrite,
}

impl RegionAccess {
    /// Their names in scenarios and in the driver protocol.
    pub const NAMES: [(&'static str, RegionAccess); 2] = [
        ("remote-read", RegionAccess::RemoteRead),
        ("remote-write", RegionAccess::RemoteWrite),
    ];
}

names::by_name!(RegionAccess);
