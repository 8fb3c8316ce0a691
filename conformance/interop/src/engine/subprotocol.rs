//! The subprotocols: how each is forced, and its packets.

use efa_play::libfabric::Version;

use super::Initiator;
use super::release::Release;

/// One way to carry out an operation.
#[derive(Debug)]
pub(super) struct Subprotocol {
    pub(super) name: &'static str,
    /// The first release of libfabric that has it.
    since: Version,
    /// Whether it needs writes with immediate data that consume no receive, which only some builds of a
    /// release have.
    pub(super) unsolicited: bool,
    /// What happens with releases that lack it.
    without: Without,
    /// The devices of both hosts.
    pub(super) profile: &'static str,
    /// The environment in which stock libfabric chooses it.
    pub(super) environment: &'static [(&'static str, &'static str)],
    /// The settings with which the engine chooses it.
    pub(super) settings: &'static [&'static str],
    pub(super) operations: Operations,
    /// The fault that is staged at the responder.
    pub(super) staged: Staged,
    /// Whether stock's application registers its memory (`FI_MR_LOCAL`) or leaves that to the provider.
    pub(super) register_local: bool,
    /// What each side must send.
    pub(super) initiator: &'static [&'static str],
    pub(super) responder: &'static [&'static str],
    fault: Option<Fault>,
}

/// What happens with a release that lacks a subprotocol.
#[derive(Clone, Copy, Debug)]
struct Without {
    /// When the engine initiates.
    engine: Instead,
    /// When the release initiates.
    stock: Instead,
}

/// What happens instead of a subprotocol.
#[derive(Clone, Copy, Debug)]
pub(super) enum Instead {
    /// There is no cell.
    Nothing,
    /// The operation is refused with an error that contains this.
    Refusal(&'static str),
    /// The initiator and the responder send these packets.
    Packets(&'static [&'static str], &'static [&'static str]),
}

/// A fault of a stock release as the responder of a subprotocol.
#[derive(Debug)]
pub(super) struct Fault {
    release: &'static str,
    /// Part of the failure that shows it.
    pub(super) shows: &'static str,
    /// The packet that the release owes and never sends.
    pub(super) withholds: &'static str,
    /// What the release does wrong.
    pub(super) reason: &'static str,
}

/// A staged fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Staged {
    Nothing,
    /// The first two registrations of memory of this many bytes, or slightly more, fail.
    RegistrationsFail(usize),
}

impl Staged {
    /// The rules for the network.
    pub(super) fn rules(self, host: &str) -> String {
        match self {
            Staged::Nothing => String::new(),
            Staged::RegistrationsFail(length) => [1, 2]
                .map(|nth| {
                    // A cache of registrations may round up to pages.
                    let to = length + 2 * 4096;
                    let when = format!(
                        "when = {{ on = \"registration\", host = \"{host}\", min-length = \
                         {length}, max-length = {to}, nth = {nth} }}"
                    );
                    format!("[[fault]]\n{when}\nthen = {{ fail = \"ENOMEM\" }}\n")
                })
                .concat(),
        }
    }
}

/// The operations of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operations {
    /// Tagged and untagged messages, some of them unexpected.
    Messages {
        length: usize,
        delivery_complete: bool,
    },
    Write {
        length: usize,
        delivery_complete: bool,
        data: bool,
    },
    Read {
        length: usize,
    },
    /// `atomic`, `atomic-dc`, `fetch-atomic` or `compare-atomic`.
    Atomic(&'static str),
}

const NO_RDMA: &[(&str, &str)] = &[("FI_EFA_USE_DEVICE_RDMA", "0")];
const RDMA: &[(&str, &str)] = &[("FI_EFA_USE_DEVICE_RDMA", "1")];
const READ_LONG: &[(&str, &str)] = &[
    ("FI_EFA_USE_DEVICE_RDMA", "1"),
    ("FI_EFA_INTER_MIN_READ_MESSAGE_SIZE", "70000"),
];
const READ_RUNT: &[(&str, &str)] = &[
    ("FI_EFA_USE_DEVICE_RDMA", "1"),
    ("FI_EFA_INTER_MIN_READ_MESSAGE_SIZE", "70000"),
    ("FI_EFA_RUNT_SIZE", "20480"),
];
const WRITE_LONG: &[(&str, &str)] = &[
    ("FI_EFA_USE_DEVICE_RDMA", "1"),
    ("FI_EFA_INTER_MIN_READ_WRITE_SIZE", "70000"),
];

/// The engine's error for delivery complete towards a peer that cannot acknowledge.
const NO_DC: &str = "not supported: delivery complete";
/// 2.1 can be set to receive no unsolicited writes.
const RDMA_SOLICITED: &[(&str, &str)] = &[
    ("FI_EFA_USE_DEVICE_RDMA", "1"),
    ("FI_EFA_USE_UNSOLICITED_WRITE_RECV", "0"),
];

const EMULATED: &[&str] = &["use_device_rdma = false"];

const fn since(major: u16, minor: u16) -> Version {
    Version { major, minor }
}

const fn messages(length: usize) -> Operations {
    Operations::Messages {
        length,
        delivery_complete: false,
    }
}

const fn messages_dc(length: usize) -> Operations {
    Operations::Messages {
        length,
        delivery_complete: true,
    }
}

const fn write(length: usize) -> Operations {
    Operations::Write {
        length,
        delivery_complete: false,
        data: false,
    }
}

const fn write_dc(length: usize) -> Operations {
    Operations::Write {
        length,
        delivery_complete: true,
        data: false,
    }
}

/// Baseline subprotocols without RDMA.
const BASELINE: Subprotocol = Subprotocol {
    name: "",
    since: since(1, 10),
    unsolicited: false,
    without: Without {
        engine: Instead::Packets(&[], &[]),
        stock: Instead::Packets(&[], &[]),
    },
    profile: "efa2",
    environment: NO_RDMA,
    settings: EMULATED,
    operations: messages(64),
    staged: Staged::Nothing,
    register_local: true,
    initiator: &[],
    responder: &[],
    fault: None,
};

/// In the order of table 1.1 of the specification.
pub(super) const SUBPROTOCOLS: &[Subprotocol] = &[
    Subprotocol {
        name: "eager message",
        initiator: &["EAGER_MSGRTM", "EAGER_TAGRTM", "HANDSHAKE"],
        responder: &["HANDSHAKE"],
        ..BASELINE
    },
    Subprotocol {
        name: "medium message",
        operations: messages(40_000),
        initiator: &["MEDIUM_MSGRTM", "MEDIUM_TAGRTM"],
        ..BASELINE
    },
    Subprotocol {
        name: "long-CTS message",
        operations: messages(500_000),
        initiator: &["LONGCTS_MSGRTM", "LONGCTS_TAGRTM", "CTSDATA"],
        responder: &["CTS"],
        ..BASELINE
    },
    Subprotocol {
        name: "long-read message",
        environment: READ_LONG,
        settings: &["min_read_message_size = 70000"],
        operations: messages(200_000),
        initiator: &["LONGREAD_MSGRTM", "LONGREAD_TAGRTM"],
        responder: &["RDMA_READ_REQUEST", "EOR"],
        ..BASELINE
    },
    Subprotocol {
        name: "runting-read message",
        since: since(1, 16),
        without: Without {
            engine: Instead::Packets(
                &["LONGREAD_MSGRTM", "LONGREAD_TAGRTM"],
                &["RDMA_READ_REQUEST", "EOR"],
            ),
            stock: Instead::Packets(
                &["LONGREAD_MSGRTM", "LONGREAD_TAGRTM"],
                &["RDMA_READ_REQUEST", "EOR"],
            ),
        },
        environment: READ_RUNT,
        settings: &["min_read_message_size = 70000", "runt_size = 20480"],
        operations: messages(200_000),
        initiator: &["RUNTREAD_MSGRTM", "RUNTREAD_TAGRTM"],
        responder: &["RDMA_READ_REQUEST", "EOR"],
        ..BASELINE
    },
    Subprotocol {
        name: "read nack of a message",
        since: since(1, 20),
        // Earlier releases try again; nothing tells a sender that the receiver cannot read.
        without: Without {
            engine: Instead::Nothing,
            stock: Instead::Nothing,
        },
        environment: READ_LONG,
        settings: &["min_read_message_size = 70000"],
        operations: messages(200_000),
        staged: Staged::RegistrationsFail(200_000),
        register_local: false,
        initiator: &[
            "LONGREAD_MSGRTM",
            "LONGREAD_TAGRTM",
            "LONGCTS_MSGRTM",
            "CTSDATA",
        ],
        responder: &["READ_NACK", "CTS", "RDMA_READ_REQUEST", "EOR"],
        ..BASELINE
    },
    Subprotocol {
        name: "DC eager message",
        since: since(1, 12),
        without: Without {
            engine: Instead::Refusal(NO_DC),
            stock: Instead::Packets(&["EAGER_MSGRTM", "EAGER_TAGRTM"], &[]),
        },
        operations: messages_dc(64),
        initiator: &["DC_EAGER_MSGRTM", "DC_EAGER_TAGRTM"],
        responder: &["RECEIPT"],
        ..BASELINE
    },
    Subprotocol {
        name: "DC medium message",
        since: since(1, 12),
        without: Without {
            engine: Instead::Refusal(NO_DC),
            stock: Instead::Packets(&["MEDIUM_MSGRTM", "MEDIUM_TAGRTM"], &[]),
        },
        operations: messages_dc(40_000),
        initiator: &["DC_MEDIUM_MSGRTM", "DC_MEDIUM_TAGRTM"],
        responder: &["RECEIPT"],
        ..BASELINE
    },
    Subprotocol {
        name: "DC long-CTS message",
        since: since(1, 12),
        without: Without {
            engine: Instead::Refusal(NO_DC),
            stock: Instead::Packets(&["LONGCTS_MSGRTM", "LONGCTS_TAGRTM", "CTSDATA"], &["CTS"]),
        },
        operations: messages_dc(500_000),
        initiator: &["DC_LONGCTS_MSGRTM", "DC_LONGCTS_TAGRTM", "CTSDATA"],
        responder: &["CTS", "RECEIPT"],
        ..BASELINE
    },
    Subprotocol {
        name: "eager write",
        operations: write(1000),
        initiator: &["EAGER_RTW"],
        ..BASELINE
    },
    Subprotocol {
        name: "long-CTS write",
        operations: write(500_000),
        initiator: &["LONGCTS_RTW", "CTSDATA"],
        responder: &["CTS"],
        ..BASELINE
    },
    Subprotocol {
        name: "long-read write",
        profile: "efa1",
        environment: WRITE_LONG,
        settings: &["min_read_write_size = 70000"],
        operations: write(200_000),
        register_local: false,
        initiator: &["LONGREAD_RTW"],
        responder: &["RDMA_READ_REQUEST", "EOR"],
        ..BASELINE
    },
    Subprotocol {
        name: "long-read write, FI_MR_LOCAL",
        profile: "efa1",
        environment: WRITE_LONG,
        settings: &["min_read_write_size = 70000"],
        operations: write(200_000),
        initiator: &["LONGREAD_RTW"],
        responder: &["RDMA_READ_REQUEST", "EOR"],
        fault: Some(Fault {
            release: "2.1.0",
            shows: "lower did not complete",
            withholds: "EOR",
            reason: "2.1 uses the application's registration, but registers memory that peers may \
                     write without IBV_ACCESS_LOCAL_WRITE where the device has no RDMA write: it \
                     refuses the read that is to bring the data",
        }),
        ..BASELINE
    },
    Subprotocol {
        name: "DC eager write",
        since: since(1, 12),
        without: Without {
            engine: Instead::Refusal(NO_DC),
            stock: Instead::Packets(&["EAGER_RTW"], &[]),
        },
        operations: write_dc(1000),
        initiator: &["DC_EAGER_RTW"],
        responder: &["RECEIPT"],
        ..BASELINE
    },
    Subprotocol {
        name: "DC long-CTS write",
        since: since(1, 12),
        without: Without {
            engine: Instead::Refusal(NO_DC),
            stock: Instead::Packets(&["LONGCTS_RTW", "CTSDATA"], &["CTS"]),
        },
        operations: write_dc(500_000),
        initiator: &["DC_LONGCTS_RTW", "CTSDATA"],
        responder: &["CTS", "RECEIPT"],
        ..BASELINE
    },
    Subprotocol {
        name: "short read",
        operations: Operations::Read { length: 1000 },
        initiator: &["SHORT_RTR"],
        responder: &["READRSP"],
        ..BASELINE
    },
    Subprotocol {
        name: "long-CTS read",
        operations: Operations::Read { length: 500_000 },
        initiator: &["LONGCTS_RTR", "CTS"],
        responder: &["READRSP", "CTSDATA"],
        ..BASELINE
    },
    Subprotocol {
        name: "direct read",
        environment: RDMA,
        settings: &[],
        operations: Operations::Read { length: 200_000 },
        initiator: &["RDMA_READ_REQUEST"],
        responder: &["RDMA_READ_RESPONSE"],
        ..BASELINE
    },
    Subprotocol {
        name: "direct write",
        since: since(1, 18),
        without: Without {
            engine: Instead::Packets(&["LONGREAD_RTW"], &["RDMA_READ_REQUEST", "EOR"]),
            stock: Instead::Packets(&["LONGREAD_RTW"], &["RDMA_READ_REQUEST", "EOR"]),
        },
        environment: RDMA,
        settings: &[],
        operations: write(200_000),
        initiator: &["RDMA_WRITE"],
        ..BASELINE
    },
    Subprotocol {
        name: "direct write with immediate",
        since: since(1, 18),
        without: Without {
            engine: Instead::Packets(&["EAGER_RTW"], &[]),
            stock: Instead::Packets(&["EAGER_RTW"], &[]),
        },
        environment: RDMA_SOLICITED,
        settings: &[],
        operations: Operations::Write {
            length: 4000,
            delivery_complete: false,
            data: true,
        },
        initiator: &["RDMA_WRITE with immediate"],
        ..BASELINE
    },
    Subprotocol {
        name: "unsolicited write with immediate",
        since: since(2, 1),
        unsolicited: true,
        without: Without {
            engine: Instead::Packets(&["EAGER_RTW"], &[]),
            stock: Instead::Packets(&["EAGER_RTW"], &[]),
        },
        environment: RDMA,
        settings: &[],
        operations: Operations::Write {
            length: 4000,
            delivery_complete: false,
            data: true,
        },
        initiator: &["RDMA_WRITE with immediate"],
        ..BASELINE
    },
    Subprotocol {
        name: "write atomic",
        operations: Operations::Atomic("atomic"),
        initiator: &["WRITE_RTA"],
        ..BASELINE
    },
    Subprotocol {
        name: "fetch atomic",
        operations: Operations::Atomic("fetch-atomic"),
        initiator: &["FETCH_RTA"],
        responder: &["ATOMRSP"],
        ..BASELINE
    },
    Subprotocol {
        name: "compare atomic",
        operations: Operations::Atomic("compare-atomic"),
        initiator: &["COMPARE_RTA"],
        responder: &["ATOMRSP"],
        ..BASELINE
    },
    Subprotocol {
        name: "DC write atomic",
        since: since(1, 12),
        without: Without {
            engine: Instead::Refusal(NO_DC),
            stock: Instead::Packets(&["WRITE_RTA"], &[]),
        },
        operations: Operations::Atomic("atomic-dc"),
        initiator: &["DC_WRITE_RTA"],
        responder: &["RECEIPT"],
        ..BASELINE
    },
];

impl Subprotocol {
    /// Returns what happens instead, if the release lacks the subprotocol.
    pub(super) fn instead(&self, release: &Release, initiator: Initiator) -> Option<Instead> {
        let is_there = release.version >= self.since && (release.unsolicited || !self.unsolicited);
        match initiator {
            _ if is_there => None,
            Initiator::Engine => Some(self.without.engine),
            Initiator::Stock => Some(self.without.stock),
        }
    }

    /// Returns whether the engine's device takes writes with immediate data without a receive. It agrees with
    /// the release wherever the subprotocol does not depend on it.
    pub(super) fn engine_unsolicited(&self, release: &Release) -> bool {
        match self.operations {
            Operations::Write { data: true, .. } => self.unsolicited,
            _ => release.unsolicited,
        }
    }

    /// Returns the fault of a release that responds.
    pub(super) fn fault_of(&self, release: &Release, initiator: Initiator) -> Option<&Fault> {
        self.fault
            .as_ref()
            .filter(|fault| fault.release == release.name && initiator == Initiator::Engine)
    }
}
