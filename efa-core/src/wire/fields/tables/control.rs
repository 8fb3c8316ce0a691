//! Tables of the packets that are no requests.

use super::{
    CONNID_HDR, bits, connid_or_padding, count, field, number, once, padding, section, stock, table,
};
use crate::wire::fields::{Array, Kind, Presence, Section, Source};
use crate::wire::flags::HandshakeFlags;

const T_CTS: Source = table("3.2", "3.6");
pub(super) const CTS: Section = once(&[
    connid_or_padding(T_CTS)[0],
    connid_or_padding(T_CTS)[1],
    number(
        "send_id",
        4,
        T_CTS,
        "operation of the data's sender, from its request",
    ),
    number(
        "recv_id",
        4,
        T_CTS,
        "operation of the data's receiver, for CTSDATA",
    ),
    number(
        "recv_length",
        8,
        T_CTS,
        "bytes that the receiver is ready to receive",
    ),
]);

const T_CTSDATA: Source = table("3.2", "3.7");
pub(super) const CTSDATA: Section = once(&[
    number(
        "recv_id",
        4,
        T_CTSDATA,
        "operation of the data's receiver, from CTS",
    ),
    number(
        "seg_length",
        8,
        T_CTSDATA,
        "length of the data in this packet",
    ),
    number(
        "seg_offset",
        8,
        T_CTSDATA,
        "where the data belongs, from the start of the message",
    ),
    bits("connid", 4, T_CTSDATA, "connection id of the sender").when(Presence::IfFlag(CONNID_HDR)),
    padding("padding", 4, T_CTSDATA).when(Presence::IfFlag(CONNID_HDR)),
]);

const T_READRSP: Source = table("3.3", "3.11");
pub(super) const READRSP: Section = once(&[
    connid_or_padding(T_READRSP)[0],
    connid_or_padding(T_READRSP)[1],
    number(
        "recv_id",
        4,
        T_READRSP,
        "operation of the requester, from RTR (the table swaps the two ids)",
    ),
    number(
        "send_id",
        4,
        T_READRSP,
        "operation of the responder, for CTS (the table swaps the two ids)",
    ),
    number(
        "seg_length",
        8,
        T_READRSP,
        "length of the data in this packet (recv_length in the table)",
    ),
]);

const T_EOR: Source = table("4.1", "4.2");
pub(super) const EOR: Section = once(&[
    number(
        "send_id",
        4,
        T_EOR,
        "operation of the data's sender, from its request",
    ),
    number("recv_id", 4, T_EOR, "operation of the data's receiver"),
    connid_or_padding(T_EOR)[0],
    // libfabric 1.11.0 ends the packet here.
    padding("padding", 4, T_EOR).when(Presence::UnlessFlagIfRoom(CONNID_HDR)),
]);

const T_ATOMRSP: Source = table("3.3", "3.15");
pub(super) const ATOMRSP: Section = once(&[
    connid_or_padding(T_ATOMRSP)[0],
    connid_or_padding(T_ATOMRSP)[1],
    padding("reserved", 4, T_ATOMRSP),
    number(
        "recv_id",
        4,
        T_ATOMRSP,
        "operation of the requester, from RTA",
    ),
    number(
        "seg_length",
        8,
        T_ATOMRSP,
        "length of the data in this packet",
    ),
]);

const T_HANDSHAKE: Source = table("2.1", "2.2");
const HOST_ID: Presence = Presence::IfFlag(HandshakeFlags::HOST_ID_HDR.bits());
const DEVICE_VERSION: Presence = Presence::IfFlag(HandshakeFlags::DEVICE_VERSION_HDR.bits());
const USER_RECV_QP: Presence = Presence::IfFlag(HandshakeFlags::USER_RECV_QP_HDR.bits());
const HMEM_P2P: Presence = Presence::IfFlag(HandshakeFlags::HMEM_P2P_HDR.bits());
pub(super) const HANDSHAKE: Section = once(&[count("nextra_p3", Array::ExtraInfo, T_HANDSHAKE)]);
pub(super) const EXTRA_INFO: Section = Section {
    array: Some(Array::ExtraInfo),
    fields: &[bits(
        "extra_info",
        8,
        T_HANDSHAKE,
        "extra features and requests, 64 in each word",
    )],
};
pub(super) const HANDSHAKE_OPTIONS: Section = once(&[
    bits("connid", 4, T_HANDSHAKE, "connection id of the sender")
        .when(Presence::IfFlag(CONNID_HDR)),
    padding("connid.padding", 4, T_HANDSHAKE).when(Presence::IfFlag(CONNID_HDR)),
    bits("host_id", 8, T_HANDSHAKE, "identifies the sender's host").when(HOST_ID),
    bits(
        "device_version",
        4,
        T_HANDSHAKE,
        "PCI part id of the sender's device",
    )
    .when(DEVICE_VERSION),
    padding("device_version.reserved", 4, T_HANDSHAKE).when(DEVICE_VERSION),
    number(
        "user_recv_qp.qpn",
        4,
        stock("1.22.0"),
        "number of the queue pair for headerless messages",
    )
    .when(USER_RECV_QP),
    bits("user_recv_qp.qkey", 4, stock("1.22.0"), "its Q-key").when(USER_RECV_QP),
    number(
        "hmem_p2p.p2p_supported",
        1,
        STOCK_DEVELOPMENT,
        "whether the sender's device reaches its accelerators' memory",
    )
    .when(HMEM_P2P),
    padding("hmem_p2p.reserved", 7, STOCK_DEVELOPMENT).when(HMEM_P2P),
]);

const S_RECEIPT: Source = section("4.2");
pub(super) const RECEIPT: Section = once(&[
    number(
        "send_id",
        4,
        S_RECEIPT,
        "operation of the sender, from its request",
    ),
    number(
        "msg_id",
        4,
        S_RECEIPT,
        "message, 0 for a write or an atomic",
    ),
    connid_or_padding(S_RECEIPT)[0],
    connid_or_padding(S_RECEIPT)[1],
]);

const S_READ_NACK: Source = section("4.7");
pub(super) const READ_NACK: Section = once(&[
    number(
        "send_id",
        4,
        S_READ_NACK,
        "operation of the data's sender, from its request",
    ),
    number(
        "recv_id",
        4,
        S_READ_NACK,
        "operation of the data's receiver",
    ),
    connid_or_padding(S_READ_NACK)[0],
    connid_or_padding(S_READ_NACK)[1],
]);

const STOCK_DEVELOPMENT: Source = stock("2.6.0 (development branch)");
pub(super) const PEER_ERROR: Section = once(&[
    number("op_id", 4, STOCK_DEVELOPMENT, "what is abandoned"),
    field(
        "ref_kind",
        4,
        Kind::PeerErrorRefKind,
        STOCK_DEVELOPMENT,
        "what op_id is",
    ),
    field(
        "prov_errno",
        4,
        Kind::ProviderError,
        STOCK_DEVELOPMENT,
        "why: a device status, or from 4096 on a number of libfabric's own",
    ),
    connid_or_padding(STOCK_DEVELOPMENT)[0],
    connid_or_padding(STOCK_DEVELOPMENT)[1],
]);
