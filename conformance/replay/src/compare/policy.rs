//! How each field of a tested packet is compared with the recorded one.
//!
//! One table, keyed by the names of [`efa_core::wire::fields`], according to the protocol: a value
//! that the application or the peer determines is exact, a value that the sender may choose is
//! bounded or free. A scenario may override it, with a reason.

use efa_core::rules;
use efa_core::wire::fields::{FieldDescriptor, FieldKind, field_of};
use efa_core::wire::{OpeType, PacketType};
use efa_play::scenario::{FieldPolicy, PolicyOverride};

/// The rule for one field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rule {
    /// The value is that of the recording.
    Exact,
    /// The values are equal in these bits. Other bits are free.
    Masked(u64),
    /// Any value is legal. A value other than the recorded one is reported as a note.
    Free,
    /// Any value of at least this is legal.
    AtLeast(u64),
    /// Not compared, because the bytes have no meaning.
    Ignored,
    /// One of these values is legal.
    OneOf(Vec<u64>),
    /// Part of the raw address of the packet's sender.
    Address(AddressPart),
    /// An id that the packet's sender has assigned to the packet's operation.
    Introduces(IdKind),
    /// An id that the packet's receiver has assigned to the packet's operation.
    Refers(IdKind),
    /// As [`Rule::Refers`], with the kind according to the packet's `emitter_ope_type`. A packet
    /// may also refer to no operation.
    MayRefer,
    /// Registered memory: the recorded address corresponds to the same offset in the region that is
    /// bound to the recorded one.
    Memory(MemoryPart),
    /// A constant of the sending endpoint: all values are equal.
    Constant,
    /// The sender may divide the operation's data as it likes. Received data is compared with the
    /// operation's, independent of the recorded division.
    Segment,
}

/// The part of a raw address in a field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AddressPart {
    /// The GID of the sender's device.
    Gid,
    /// The number of the sender's queue pair.
    Qpn,
    /// The sender's connection id.
    Connid,
}

/// The side that has assigned an id to an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IdKind {
    /// The side that sends the data.
    Send,
    /// The side that receives the data.
    Receive,
}

/// The part of an `efa_rma_iov` in a field, and the owner of the memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemoryPart {
    /// The address of memory that the packet's sender owns.
    SenderAddress,
    /// The key of memory that the packet's sender owns.
    SenderKey,
    /// The address of memory that the packet's receiver owns.
    ReceiverAddress,
    /// The key of memory that the packet's receiver owns.
    ReceiverKey,
}

/// The flag of a REQ packet with CQ data.
const CQ_DATA: u64 = 0x2;

/// Flags of a REQ packet that follow from the application's request: CQ data, message, tagged,
/// atomic, and reply to a READ_NACK. Flags of optional headers with the sender's identity are
/// checked elsewhere, because they depend on the sender's knowledge of its peer. Bits unknown to
/// this version are free.
const REQ_MEANING: u64 = CQ_DATA | 0x4 | 0x8 | 0x20 | 0x2000;

/// The flag for the type of the CTS's operation.
const CTS_EMULATED_READ: u64 = 0x80;

/// A raw address without extensions, in bytes.
const RAW_ADDRESS: u64 = 32;

/// Returns whether the packet contains a part of an operation's data, of a size that the sender
/// chooses.
pub fn is_segment(packet_type: PacketType) -> bool {
    use PacketType as T;
    !matches!(
        packet_type,
        T::WriteRta | T::FetchRta | T::CompareRta | T::DcWriteRta | T::AtomRsp
    ) && packet_type.carries_data()
}

/// Returns whether any number of packets of type `found` may replace packets of type `recorded`: a
/// sender divides data, and a receiver grants it, in pieces of any size. A message without an
/// answer may be one eager packet or several medium ones.
pub fn may_repeat(recorded: PacketType, found: PacketType) -> bool {
    use PacketType as T;
    let class = |packet_type| match packet_type {
        T::EagerMsgRtm | T::MediumMsgRtm => Some(0),
        T::EagerTagRtm | T::MediumTagRtm => Some(1),
        T::DcEagerMsgRtm | T::DcMediumMsgRtm => Some(2),
        T::DcEagerTagRtm | T::DcMediumTagRtm => Some(3),
        T::RuntreadMsgRtm => Some(4),
        T::RuntreadTagRtm => Some(5),
        T::CtsData => Some(6),
        T::Cts => Some(7),
        _ => None,
    };
    class(recorded).is_some() && class(recorded) == class(found)
}

/// The kind of the id in a PEER_ERROR: the packet's receiver is the other side of the message.
pub fn kind_in_peer_error(packet: &[u8]) -> Option<IdKind> {
    let emitter = field_of(packet, "emitter_ope_type")?;
    match OpeType(u32::try_from(emitter.value.as_u64()?).ok()?) {
        OpeType::TXE => Some(IdKind::Receive),
        OpeType::RXE => Some(IdKind::Send),
        _ => None,
    }
}

/// The default rule for a field.
pub fn standard(packet_type: PacketType, field: &FieldDescriptor) -> Rule {
    use IdKind::{Receive, Send};
    use PacketType as T;
    match field.kind {
        FieldKind::Padding => return Rule::Ignored,
        // Fields of a later version.
        FieldKind::Unknown => return Rule::Free,
        FieldKind::Data if is_segment(packet_type) => return Rule::Segment,
        _ => {}
    }
    match (packet_type, field.name) {
        (T::Cts, "flags") => Rule::Masked(CTS_EMULATED_READ),
        (packet_type, "flags") if packet_type.is_req() => Rule::Masked(REQ_MEANING),
        (_, "flags") => Rule::Free,
        (T::Handshake, "nextra_p3") => Rule::AtLeast(4),
        (T::Handshake, "extra_info") => Rule::Free,
        (T::Handshake, "host_id" | "device_version") => Rule::Constant,
        (_, "raw_addr.gid") => Rule::Address(AddressPart::Gid),
        (_, "raw_addr.qpn") => Rule::Address(AddressPart::Qpn),
        (_, "raw_addr.connid" | "connid") => Rule::Address(AddressPart::Connid),
        (_, "raw_addr.size") => Rule::AtLeast(RAW_ADDRESS),
        (_, "user_recv_qp.qpn" | "user_recv_qp.qkey") => Rule::Constant,
        (T::Cts | T::Eor | T::ReadNack | T::Receipt, "send_id") => Rule::Refers(Send),
        (T::Cts | T::Eor | T::ReadNack, "recv_id") => Rule::Introduces(Receive),
        (T::CtsData | T::AtomRsp | T::ReadRsp, "recv_id") => Rule::Refers(Receive),
        (T::PeerError, "op_id") => Rule::MayRefer,
        (T::ReadRsp, "send_id") => Rule::Introduces(Send),
        (_, "send_id") => Rule::Introduces(Send),
        (_, "recv_id") => Rule::Introduces(Receive),

        (_, "credit_request") => Rule::Free,
        (T::ShortRtr, "recv_length") => Rule::Free,
        (T::Cts | T::LongctsRtr, "recv_length") => Rule::AtLeast(1),
        (T::CtsData | T::ReadRsp, "seg_length") => Rule::Segment,
        (_, "seg_offset" | "runt_length") => Rule::Segment,
        // The receiver identifies the operation by `send_id`. Stock libfabric sends 0 for one-sided
        // operations.
        (T::Receipt, "msg_id") => Rule::Free,

        (_, "read_iov.addr") => Rule::Memory(MemoryPart::SenderAddress),
        (_, "read_iov.key") => Rule::Memory(MemoryPart::SenderKey),
        (_, "rma_iov.addr") => Rule::Memory(MemoryPart::ReceiverAddress),
        (_, "rma_iov.key") => Rule::Memory(MemoryPart::ReceiverKey),
        _ => Rule::Exact,
    }
}

/// The rule that a packet violates with a wrong value in a field. `bits` are the differing bits of
/// a number.
pub fn broken_by(
    packet_type: PacketType,
    field: &FieldDescriptor,
    bits: u64,
) -> &'static rules::Rule {
    use PacketType as T;
    match field.name {
        "type" | "version" => &rules::PACKET_FORM,
        _ if packet_type == T::Handshake => match field.name {
            "connid" => &rules::CONNID_TRUE,
            _ => &rules::HANDSHAKE_FORM,
        },
        "flags" if bits & REQ_MEANING == CQ_DATA => &rules::REQUEST_AS_ASKED,
        "flags" => &rules::REQ_FLAGS,
        "raw_addr.connid" | "connid" => &rules::CONNID_TRUE,
        name if name.starts_with("raw_addr.") => &rules::RAW_ADDRESS_TRUE,
        "send_id" | "recv_id" => match standard(packet_type, field) {
            Rule::Refers(_) if packet_type == T::CtsData => &rules::CTSDATA_NAMES_CTS,
            Rule::Refers(_) => &rules::ANSWER_NAMES_REQUEST,
            _ => &rules::SEGMENT_AGREEMENT,
        },
        "op_id" => &rules::ANSWER_NAMES_REQUEST,
        "recv_length" => &rules::CTS_POSITIVE,
        "seg_length" | "seg_offset" | "runt_length" => &rules::SEGMENT_BOUNDS,
        "msg_id" => &rules::MSG_ID_GAP,
        "rma_iov.len" | "read_iov.len" => &rules::IOV_LENGTH,
        "data" => &rules::DATA_AS_GIVEN,
        _ => &rules::REQUEST_AS_ASKED,
    }
}

/// The rule for a field in one trace.
pub fn rule(
    packet_type: PacketType,
    field: &FieldDescriptor,
    overrides: &[PolicyOverride],
) -> Rule {
    let matching = overrides.iter().find(|policy| {
        (policy.packet == "*" || policy.packet == packet_type.name()) && policy.field == field.name
    });
    match matching.map(|policy| &policy.policy) {
        None => standard(packet_type, field),
        Some(FieldPolicy::Exact) => Rule::Exact,
        Some(FieldPolicy::Bound) => Rule::Constant,
        Some(FieldPolicy::Ignored) => Rule::Ignored,
        Some(FieldPolicy::OneOf(values)) => Rule::OneOf(values.clone()),
    }
}

#[cfg(test)]
mod tests {
    use efa_core::wire::fields;

    use super::*;

    #[test]
    fn every_rule_names_a_field_that_exists() {
        // A renamed field would silently use `Exact`.
        let has = |name: &str| {
            PacketType::ALL
                .iter()
                .any(|packet_type| fields::find(*packet_type, name).is_some())
        };
        for name in [
            "flags",
            "extra_info",
            "host_id",
            "device_version",
            "raw_addr.gid",
            "raw_addr.qpn",
            "raw_addr.connid",
            "raw_addr.size",
            "connid",
            "user_recv_qp.qpn",
            "user_recv_qp.qkey",
            "send_id",
            "recv_id",
            "read_iov.addr",
            "read_iov.key",
            "rma_iov.addr",
            "rma_iov.key",
            "nextra_p3",
            "credit_request",
            "recv_length",
            "seg_length",
            "seg_offset",
            "runt_length",
            "msg_id",
        ] {
            assert!(has(name), "{name}");
        }
    }

    #[test]
    fn meaning_is_compared_and_padding_is_not() {
        for &packet_type in PacketType::ALL {
            for place in fields::layout(packet_type) {
                let rule = standard(packet_type, place.descriptor);
                let meaningless = matches!(place.descriptor.kind, FieldKind::Padding);
                assert_eq!(
                    rule == Rule::Ignored,
                    meaningless,
                    "{packet_type} {}",
                    place.descriptor.name
                );
            }
        }
    }

    #[test]
    fn a_trace_can_depart_from_the_table() {
        let field = fields::find(PacketType::EagerTagRtm, "tag").unwrap();
        let policy = |packet: &str| PolicyOverride {
            line: 1,
            packet: packet.into(),
            field: "tag".into(),
            policy: FieldPolicy::Ignored,
            reason: "test".into(),
        };
        let rule_with = |packet| rule(PacketType::EagerTagRtm, field, &[policy(packet)]);
        assert_eq!(rule_with("EAGER_TAGRTM"), Rule::Ignored);
        assert_eq!(rule_with("*"), Rule::Ignored);
        assert_eq!(rule_with("MEDIUM_TAGRTM"), Rule::Exact);
    }
}
