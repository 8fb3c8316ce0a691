//! Operations of applications.
//!
//! They are plain data, and have the same type from a scenario's steps to the driver of what is
//! tested. A payload is named by its seed, a peer by its place in the scenario. Only the name of a
//! peer's memory differs: a scenario names a [`RegionOffset`] in memory that a step registered, an
//! application needs the
//! [`Remote`] that the memory's owner announced.

pub(crate) mod names;
pub mod pattern;

use efa_core::wire::{AtomicDatatype, AtomicOp};
use serde::{Deserialize, Serialize};

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
        /// What is sent.
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
        /// What peers may do.
        access: Vec<RegionAccess>,
    },
    /// Write to a peer's memory.
    Write {
        /// The peer.
        to: EndpointIndex,
        /// The peer's memory.
        remote: M,
        /// What is written.
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

/// An offset in memory that a step of the scenario registers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionOffset {
    /// The step's name.
    pub region: String,
    /// The offset in the region, in bytes.
    pub offset: usize,
}

impl RegionOffset {
    /// Returns the place in the region that begins at `region`.
    pub fn within(&self, region: Remote) -> Remote {
        Remote {
            address: region.address.wrapping_add(self.offset as u64),
            ..region
        }
    }
}

/// A place in a peer's registered memory, as its owner announced it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remote {
    /// Its first byte, as its owner names it.
    pub address: u64,
    /// Its key.
    pub key: u64,
}

/// The change by an atomic operation, and whether it fetches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum AtomicAction {
    /// `fi_atomic`: changes the elements.
    Update(#[serde(with = "names::updated_op")] AtomicOp),
    /// `fi_fetch_atomic`: changes the elements, unless it only reads them, and fetches the old
    /// ones.
    Fetch(#[serde(with = "names::fetched_op")] AtomicOp),
    /// `fi_compare_atomic`: compares the elements with those of a message, changes some of them,
    /// and fetches the old ones.
    Compare {
        /// The function.
        #[serde(with = "names::compared_op")]
        op: AtomicOp,
        /// The message's seed. It is as long as the operand.
        comparand: u64,
    },
}

impl AtomicAction {
    /// The operation's number, the same on the wire and in libfabric.
    pub const fn code(self) -> AtomicOp {
        match self {
            AtomicAction::Update(op)
            | AtomicAction::Fetch(op)
            | AtomicAction::Compare { op, .. } => op,
        }
    }
}

/// The names of the operations that `fi_atomic` and `fi_fetch_atomic` take, in scenarios and in the
/// driver protocol.
pub const ATOMIC_OPS: [(&str, AtomicOp); 12] = [
    ("sum", AtomicOp::SUM),
    ("xor", AtomicOp::BXOR),
    ("write", AtomicOp::ATOMIC_WRITE),
    // `fi_fetch_atomic` only.
    ("read", AtomicOp::ATOMIC_READ),
    ("min", AtomicOp::MIN),
    ("max", AtomicOp::MAX),
    ("prod", AtomicOp::PROD),
    ("lor", AtomicOp::LOR),
    ("land", AtomicOp::LAND),
    ("lxor", AtomicOp::LXOR),
    ("bor", AtomicOp::BOR),
    ("band", AtomicOp::BAND),
];

/// The names of the operations that `fi_compare_atomic` takes.
pub const COMPARE_OPS: [(&str, AtomicOp); 7] = [
    ("cswap", AtomicOp::CSWAP),
    ("cswap-ne", AtomicOp::CSWAP_NE),
    ("cswap-le", AtomicOp::CSWAP_LE),
    ("cswap-lt", AtomicOp::CSWAP_LT),
    ("cswap-ge", AtomicOp::CSWAP_GE),
    ("cswap-gt", AtomicOp::CSWAP_GT),
    ("mswap", AtomicOp::MSWAP),
];

/// The names of the elements' types.
pub const DATATYPES: [(&str, AtomicDatatype); 20] = [
    ("int8", AtomicDatatype::INT8),
    ("uint8", AtomicDatatype::UINT8),
    ("int16", AtomicDatatype::INT16),
    ("uint16", AtomicDatatype::UINT16),
    ("int32", AtomicDatatype::INT32),
    ("uint32", AtomicDatatype::UINT32),
    ("int64", AtomicDatatype::INT64),
    ("uint64", AtomicDatatype::UINT64),
    ("float", AtomicDatatype::FLOAT),
    ("double", AtomicDatatype::DOUBLE),
    ("float-complex", AtomicDatatype::FLOAT_COMPLEX),
    ("double-complex", AtomicDatatype::DOUBLE_COMPLEX),
    ("long-double", AtomicDatatype::LONG_DOUBLE),
    ("long-double-complex", AtomicDatatype::LONG_DOUBLE_COMPLEX),
    ("int128", AtomicDatatype::INT128),
    ("uint128", AtomicDatatype::UINT128),
    ("float16", AtomicDatatype::FLOAT16),
    ("bfloat16", AtomicDatatype::BFLOAT16),
    ("float8-e4m3", AtomicDatatype::FLOAT8_E4M3),
    ("float8-e5m2", AtomicDatatype::FLOAT8_E5M2),
];

/// Returns the size of an element in bytes, 1 if the type is not known.
pub fn element_size(datatype: AtomicDatatype) -> usize {
    datatype.size().unwrap_or(1)
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

/// What peers may do with registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are libfabric's")]
pub enum RegionAccess {
    RemoteRead,
    RemoteWrite,
}

impl RegionAccess {
    /// Their names in scenarios and in the driver protocol.
    pub const NAMES: [(&'static str, RegionAccess); 2] = [
        ("remote-read", RegionAccess::RemoteRead),
        ("remote-write", RegionAccess::RemoteWrite),
    ];
}
