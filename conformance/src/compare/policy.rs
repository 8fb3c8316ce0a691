//! How each field of a packet under test is compared with the recorded one.
//!
//! One table, keyed by the names of [`efa_core::wire::fields`]. A scenario may depart from it, with
//! a reason.

use efa_core::wire::PacketType;
use efa_core::wire::fields::{FieldDescriptor, Kind};

use crate::scenario::{FieldPolicy, PolicyOverride};

/// The rule for one field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rule {
    /// The values are equal.
    Exact,
    /// The values are equal in these bits.
    Masked(u64),
    /// Not compared: bytes without a meaning, or a free choice of the implementation.
    Ignored,
    /// The value is one of these.
    OneOf(Vec<u64>),
    /// Part of an endpoint's raw address: the recorded endpoint's value corresponds to that of the
    /// endpoint in its place, from the first packet on.
    Address(AddressPart),
    /// An id that the sender of the packet chose: from now on the recorded one stands for it.
    Introduces(IdKind),
    /// An id that was introduced before.
    Refers(IdKind),
    /// Registered memory: the recorded place corresponds to the same place in the region that stands
    /// for the recorded one.
    Memory(MemoryPart),
    /// A constant of the sending endpoint: the first value seen is the one.
    Constant,
}

/// Which part of a raw address a field holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "the names are the fields'")]
pub enum AddressPart {
    Gid,
    Qpn,
    Connid,
}

/// What an id names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IdKind {
    /// An operation of the one who has the data.
    Send,
    /// An operation of the one who wants the data.
    Receive,
}

/// Which part of an `efa_rma_iov` a field holds, and whose memory it names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemoryPart {
    /// The address of memory of the packet's sender.
    SenderAddress,
    /// The key of memory of the packet's sender.
    SenderKey,
    /// The address of memory of the packet's receiver.
    ReceiverAddress,
    /// The key of memory of the packet's receiver.
    ReceiverKey,
}

/// Optional parts of a handshake that an implementation may leave out (spec section 2.1.1).
const OPTIONAL_HANDSHAKE_FLAGS: u64 = 0x0001 | 0x0002;

/// Capabilities that every release since 1.16 announces in the same way, given the same device and
/// settings: RDMA read, delivery complete, constant header length, connid, runting read. Later
/// releases announce more, which is theirs to do.
const COMMON_CAPABILITIES: u64 = 0b1_1111;

/// The suite's rule for a field.
pub fn standard(packet_type: PacketType, field: &FieldDescriptor) -> Rule {
    use IdKind::{Receive, Send};
    use PacketType as T;
    if matches!(field.kind, Kind::Padding) {
        return Rule::Ignored;
    }
    match (packet_type, field.name) {
        (T::Handshake, "flags") => Rule::Masked(!OPTIONAL_HANDSHAKE_FLAGS),
        (T::Handshake, "extra_info") => Rule::Masked(COMMON_CAPABILITIES),
        (T::Handshake, "host_id" | "device_version") => Rule::Constant,
        (_, "raw_addr.gid") => Rule::Address(AddressPart::Gid),
        (_, "raw_addr.qpn") => Rule::Address(AddressPart::Qpn),
        (_, "raw_addr.connid" | "connid") => Rule::Address(AddressPart::Connid),
        // 32 bytes are the address; stock libfabric sends four more since 1.13.
        (_, "raw_addr.size") => Rule::OneOf(vec![32, 36]),
        (_, "user_recv_qp.qpn" | "user_recv_qp.qkey") => Rule::Constant,
        (T::Cts | T::Eor | T::ReadNack | T::Receipt, "send_id") => Rule::Refers(Send),
        (T::Cts | T::Eor | T::ReadNack, "recv_id") => Rule::Introduces(Receive),
        (T::CtsData | T::AtomRsp | T::ReadRsp, "recv_id") => Rule::Refers(Receive),
        (T::ReadRsp, "send_id") => Rule::Introduces(Send),
        (_, "send_id") => Rule::Introduces(Send),
        (_, "recv_id") => Rule::Introduces(Receive),

        (_, "read_iov.addr") => Rule::Memory(MemoryPart::SenderAddress),
        (_, "read_iov.key") => Rule::Memory(MemoryPart::SenderKey),
        (_, "rma_iov.addr") => Rule::Memory(MemoryPart::ReceiverAddress),
        (_, "rma_iov.key") => Rule::Memory(MemoryPart::ReceiverKey),
        _ => Rule::Exact,
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
        // A renamed field would silently fall back to `Exact`.
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
        ] {
            assert!(has(name), "{name}");
        }
    }

    #[test]
    fn meaning_is_compared_and_padding_is_not() {
        for &packet_type in PacketType::ALL {
            for place in fields::layout(packet_type) {
                let rule = standard(packet_type, place.descriptor);
                let meaningless = matches!(place.descriptor.kind, Kind::Padding);
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
