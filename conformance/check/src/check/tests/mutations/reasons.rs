//! The reasons why changes of some fields cannot be found in packets.

use efa_wire::PacketType;
use efa_wire::fields::FieldKind;

use super::change::{Aspect, Change};

/// The reason why a change cannot be found.
pub(super) struct Reason {
    pub(super) text: &'static str,
    is_for: fn(&Change, PacketType) -> bool,
}

pub(super) const REASONS: &[Reason] = &[
    Reason {
        text: "Bytes without a meaning, or a flag that no release defines: they are for later \
               versions, and receivers skip them.",
        is_for: |change, _| {
            let field = change.field.as_str();
            let is_undefined_flag =
                field == "flags" && matches!(change.aspect, Aspect::ByteOrder | Aspect::Neighbour);
            change.kind == FieldKind::Padding || is_undefined_flag
        },
    },
    Reason {
        text: "Only the application that gave it knows it: tag, completion data, bytes and length of \
               a message in one packet, memory of the target, what an atomic does, in which order \
               pieces of memory come. `run` has the scenario, and judges it by `request-as-asked` \
               and `data-as-given`.",
        is_for: |change, packet_type| {
            let field = change.field.as_str();
            let is_of_application = matches!(
                field,
                "tag"
                    | "cq_data"
                    | "data"
                    | "rma_iov.addr"
                    | "rma_iov.key"
                    | "atomic_op"
                    | "atomic_datatype"
            );
            is_of_application || takes_bytes_for_data(change, packet_type)
        },
    },
    Reason {
        text: "Only its owner knows which memory it offers to be read. A receiver may read less of \
               several pieces, if its buffer is shorter than the message.",
        is_for: |change, _| change.field.starts_with("read_iov."),
    },
    Reason {
        text: "It says what the sender's host and device are, which packets do not show. Without \
               the device version, `device-version` warns where the peer reads it.",
        is_for: |change, _| {
            let field = change.field.as_str();
            let is_of_device = ["host_id", "device_version", "hmem_p2p"];
            let is_flag = ["HOST_ID_HDR", "DEVICE_VERSION_HDR", "HMEM_P2P_HDR"];
            is_of_device.iter().any(|name| field.starts_with(name))
                || is_flag.iter().any(|name| field.ends_with(name))
        },
    },
    Reason {
        text: "An endpoint that does not know connection ids sends none; `run` warns \
               (`connid-given`) if it knows them.",
        is_for: |change, _| {
            change.field == "flags.CONNID_HDR"
                || change.field == "connid" && change.aspect == Aspect::Presence
        },
    },
    Reason {
        text: "Surplus bytes behind the last field, which later versions may have: receivers skip \
               them, and the dissector notes them (`trailing-bytes`).",
        is_for: |change, packet_type| {
            let has_no_data = !matches!(
                packet_type,
                PacketType::EagerMsgRtm | PacketType::EagerTagRtm
            );
            let is_address = change.field.starts_with("raw_addr.");
            has_no_data && (change.aspect == Aspect::Presence || is_address)
        },
    },
    Reason {
        text: "A wish of the sender, which receivers need not look at.",
        is_for: |change, _| change.field == "credit_request",
    },
    Reason {
        text: "The id is the endpoint's own, and is not used before or after: the peer does nothing \
               with it.",
        is_for: |change, packet_type| match change.field.as_str() {
            "recv_id" => matches!(packet_type, PacketType::Eor | PacketType::ReadNack),
            "op_id" => packet_type == PacketType::PeerError,
            _ => false,
        },
    },
    Reason {
        text: "The document has the flag for these requests. Stock libfabric never sets it, and looks \
               at the type.",
        is_for: |change, _| change.field == "flags.RMA",
    },
    Reason {
        text: "Why a peer gives up is its own affair.",
        is_for: |change, _| change.field == "prov_errno",
    },
    Reason {
        text: "Padding in the document; stock libfabric puts the length there.",
        is_for: |change, packet_type| {
            change.field == "recv_length" && packet_type == PacketType::ShortRtr
        },
    },
    Reason {
        text: "As right as before: a long-CTS read whose first window is all of it may be answered \
               as a short read is.",
        is_for: |change, packet_type| change.field == "type" && packet_type == PacketType::ShortRtr,
    },
];

/// Whether an eager message only has other bytes: its length is not stated.
fn takes_bytes_for_data(change: &Change, packet_type: PacketType) -> bool {
    let is_eager = matches!(
        packet_type,
        PacketType::EagerMsgRtm
            | PacketType::EagerTagRtm
            | PacketType::DcEagerMsgRtm
            | PacketType::DcEagerTagRtm
    );
    let field = change.field.as_str();
    is_eager
        && (field.starts_with("raw_addr.")
            || field == "flags.CQ_DATA_HDR"
            || field == "flags.CONNID_HDR"
            || field == "connid" && change.what == "there twice")
}

/// The number of the reason for a change.
pub(super) fn of(change: &Change, packet_type: PacketType) -> Option<usize> {
    let fits = |reason: &Reason| (reason.is_for)(change, packet_type);
    REASONS.iter().position(fits)
}
