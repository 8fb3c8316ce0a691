//! The tables. Each constant is a table of the spec, or what stock libfabric adds to it.

use super::{Array, FieldDescriptor, Kind, Presence, Section, Source, Width};
use crate::wire::flags::{HandshakeFlags, ReqFlags, UniversalFlags};
use crate::wire::packet_type::PacketType;

const CONNID_HDR: u16 = UniversalFlags::CONNID_HDR.bits();

const fn table(section: &'static str, table: &'static str) -> Source {
    Source::Spec {
        section,
        table: Some(table),
    }
}

const fn section(section: &'static str) -> Source {
    Source::Spec {
        section,
        table: None,
    }
}

const fn stock(since: &'static str) -> Source {
    Source::Stock { since }
}

const fn field(
    name: &'static str,
    width: usize,
    kind: Kind,
    source: Source,
    description: &'static str,
) -> FieldDescriptor {
    FieldDescriptor {
        name,
        width: Width::Fixed(width),
        presence: Presence::Always,
        kind,
        source,
        description,
    }
}

/// A number that is a quantity or an id.
const fn number(
    name: &'static str,
    width: usize,
    source: Source,
    description: &'static str,
) -> FieldDescriptor {
    field(name, width, Kind::Number, source, description)
}

/// A number that is read in hexadecimal.
const fn bits(
    name: &'static str,
    width: usize,
    source: Source,
    description: &'static str,
) -> FieldDescriptor {
    field(name, width, Kind::Bits, source, description)
}

const fn padding(name: &'static str, width: usize, source: Source) -> FieldDescriptor {
    field(
        name,
        width,
        Kind::Padding,
        source,
        "without meaning; senders may leave anything in it",
    )
}

const fn count(name: &'static str, array: Array, source: Source) -> FieldDescriptor {
    let description = match array {
        Array::RmaIov => "number of rma_iov entries, at most 4",
        Array::ReadIov => "number of read_iov entries, at most 4",
        Array::ExtraInfo => "number of extra_info words plus 3",
    };
    field(name, 4, Kind::Count(array), source, description)
}

impl FieldDescriptor {
    const fn when(mut self, presence: Presence) -> FieldDescriptor {
        self.presence = presence;
        self
    }
}

const fn once(fields: &'static [FieldDescriptor]) -> Section {
    Section {
        array: None,
        fields,
    }
}

/// Padding, or the sender's connid if the flag says so (`multiuse` in the spec's tables).
const fn connid_or_padding(source: Source) -> [FieldDescriptor; 2] {
    [
        bits("connid", 4, source, "connection id of the sender")
            .when(Presence::IfFlagElseNext(CONNID_HDR)),
        padding("padding", 4, source).when(Presence::UnlessFlag(CONNID_HDR)),
    ]
}

const T_BASE: Source = table("1.3", "1.3");
const BASE: Section = once(&[
    field("type", 1, Kind::PacketType, T_BASE, "packet type id"),
    number("version", 1, T_BASE, "protocol version, always 4"),
    field(
        "flags",
        2,
        Kind::Flags,
        T_BASE,
        "optional parts of the packet and what it is used for",
    ),
]);

const S_REQ: Source = section("3.1");
const DATA: Section = once(&[FieldDescriptor {
    name: "data",
    width: Width::Rest,
    presence: Presence::Always,
    kind: Kind::Data,
    source: S_REQ,
    description: "application data",
}]);
const TRAILING: Section = once(&[FieldDescriptor {
    name: "trailing",
    width: Width::Rest,
    presence: Presence::Always,
    kind: Kind::Unknown,
    source: section("1.3"),
    description: "bytes behind the end of the packet's format",
}]);

// Optional headers of requests.

const RAW_ADDR: Presence = Presence::IfFlag(ReqFlags::RAW_ADDR_HDR.bits());
const T_RAW_ADDR: Source = table("3.1", "3.2");
const T_ADDRESS: Source = table("1.4", "1.5");
const REQ_OPTIONS: Section = once(&[
    field(
        "raw_addr.size",
        4,
        Kind::RawAddressSize,
        T_RAW_ADDR,
        "bytes of the address that follow: 32, or 36 from stock libfabric since 1.13.0",
    )
    .when(RAW_ADDR),
    field(
        "raw_addr.gid",
        16,
        Kind::Gid,
        T_ADDRESS,
        "GID of the sender's device",
    )
    .when(RAW_ADDR),
    number(
        "raw_addr.qpn",
        2,
        T_ADDRESS,
        "queue pair number of the sender",
    )
    .when(RAW_ADDR),
    padding("raw_addr.pad", 2, T_ADDRESS).when(RAW_ADDR),
    bits(
        "raw_addr.connid",
        4,
        T_ADDRESS,
        "connection id of the sender, which is its Q-key",
    )
    .when(RAW_ADDR),
    padding("raw_addr.reserved", 8, T_ADDRESS).when(RAW_ADDR),
    FieldDescriptor {
        name: "raw_addr.surplus",
        width: Width::RawAddressSurplus,
        presence: RAW_ADDR,
        kind: Kind::Padding,
        source: T_RAW_ADDR,
        description: "what the size has beyond the 32 bytes of the address; not interpreted",
    },
    bits("cq_data", 8, S_REQ, "data for the completion at the target")
        .when(Presence::IfFlag(ReqFlags::CQ_DATA_HDR.bits())),
    bits("connid", 4, section("4.4"), "connection id of the sender")
        .when(Presence::IfFlag(CONNID_HDR)),
]);

// Arrays.

const S_RMA: Source = section("3.3");
const RMA_IOV: Section = Section {
    array: Some(Array::RmaIov),
    fields: &[
        bits("rma_iov.addr", 8, S_RMA, "virtual address at the target"),
        number("rma_iov.len", 8, S_RMA, "length in bytes"),
        bits("rma_iov.key", 8, S_RMA, "remote key of the target's memory"),
    ],
};

const S_READ: Source = section("4.1");
const READ_IOV: Section = Section {
    array: Some(Array::ReadIov),
    fields: &[
        bits("read_iov.addr", 8, S_READ, "virtual address at the sender"),
        number("read_iov.len", 8, S_READ, "length in bytes"),
        bits(
            "read_iov.key",
            8,
            S_READ,
            "remote key of the sender's memory",
        ),
    ],
};

// Packets that are no requests.

const T_CTS: Source = table("3.2", "3.6");
const CTS: Section = once(&[
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
const CTSDATA: Section = once(&[
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
const READRSP: Section = once(&[
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
const EOR: Section = once(&[
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
const ATOMRSP: Section = once(&[
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
const HANDSHAKE: Section = once(&[count("nextra_p3", Array::ExtraInfo, T_HANDSHAKE)]);
const EXTRA_INFO: Section = Section {
    array: Some(Array::ExtraInfo),
    fields: &[bits(
        "extra_info",
        8,
        T_HANDSHAKE,
        "extra features and requests, 64 in each word",
    )],
};
const HANDSHAKE_OPTIONS: Section = once(&[
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
const RECEIPT: Section = once(&[
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
const READ_NACK: Section = once(&[
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
const PEER_ERROR: Section = once(&[
    number("op_id", 4, STOCK_DEVELOPMENT, "what is abandoned"),
    number(
        "ref_kind",
        4,
        STOCK_DEVELOPMENT,
        "what op_id is: 0 operation, 1 message id, 2 message id to be skipped",
    ),
    number(
        "prov_errno",
        4,
        STOCK_DEVELOPMENT,
        "why: a provider error number",
    ),
    connid_or_padding(STOCK_DEVELOPMENT)[0],
    connid_or_padding(STOCK_DEVELOPMENT)[1],
]);

// Requests To Message.

const D_MSG_ID: &str = "place of the message in the sequence from this sender";
const D_MSG_LENGTH: &str = "length of the whole message";
const D_SEG_OFFSET: &str = "where the data belongs, from the start of the message";
const D_CREDIT_REQUEST: &str = "data packets that the sender would like to send";
const D_SEND_ID_CTS: &str = "operation of the sender, for CTS";
const D_SEND_ID_EOR: &str = "operation of the sender, for EOR or READ_NACK";

const T_EAGER_RTM: Source = table("3.2", "3.3");
const EAGER_RTM: Section = once(&[number("msg_id", 4, T_EAGER_RTM, D_MSG_ID)]);
const EAGER_TAG: Section = once(&[bits("tag", 8, T_EAGER_RTM, "tag")]);

const T_MEDIUM_RTM: Source = table("3.2", "3.4");
const MEDIUM_MSG_ID: Section = once(&[number("msg_id", 4, T_MEDIUM_RTM, D_MSG_ID)]);
const MEDIUM_SEGMENT: Section = once(&[
    number(
        "msg_length",
        8,
        T_MEDIUM_RTM,
        "length of the whole message (seg_length in the table, but stock sends the total)",
    ),
    number("seg_offset", 8, T_MEDIUM_RTM, D_SEG_OFFSET),
]);
const MEDIUM_TAG: Section = once(&[bits("tag", 8, T_MEDIUM_RTM, "tag")]);

const T_LONGCTS_RTM: Source = table("3.2", "3.5");
const LONGCTS_RTM: Section = once(&[
    number("msg_id", 4, T_LONGCTS_RTM, D_MSG_ID),
    number("msg_length", 8, T_LONGCTS_RTM, D_MSG_LENGTH),
    number("send_id", 4, T_LONGCTS_RTM, D_SEND_ID_CTS),
    number("credit_request", 4, T_LONGCTS_RTM, D_CREDIT_REQUEST),
]);
const LONGCTS_TAG: Section = once(&[bits("tag", 8, T_LONGCTS_RTM, "tag")]);

const T_LONGREAD_RTM: Source = table("4.1", "4.1");
const LONGREAD_RTM: Section = once(&[
    number("msg_id", 4, T_LONGREAD_RTM, D_MSG_ID),
    number("msg_length", 8, T_LONGREAD_RTM, D_MSG_LENGTH),
    number("send_id", 4, T_LONGREAD_RTM, D_SEND_ID_EOR),
    count("read_iov_count", Array::ReadIov, T_LONGREAD_RTM),
]);
const LONGREAD_TAG: Section = once(&[bits("tag", 8, T_LONGREAD_RTM, "tag")]);

// The spec's tables of the DC packets are those of the others; the ids are stock libfabric's.
const S_DC: Source = section("4.2");
const DC_SEND_ID: Section = once(&[
    number("send_id", 4, S_DC, "operation of the sender, for RECEIPT"),
    padding("padding", 4, S_DC),
]);

const T_RUNTREAD_RTM: Source = table("4.5", "4.4");
const RUNTREAD_RTM: Section = once(&[
    number("msg_id", 4, T_RUNTREAD_RTM, D_MSG_ID),
    number("msg_length", 8, T_RUNTREAD_RTM, D_MSG_LENGTH),
    number("send_id", 4, T_RUNTREAD_RTM, D_SEND_ID_EOR),
    count("read_iov_count", Array::ReadIov, T_RUNTREAD_RTM),
    number("seg_offset", 8, T_RUNTREAD_RTM, D_SEG_OFFSET),
    number(
        "runt_length",
        8,
        T_RUNTREAD_RTM,
        "bytes of the message that are sent in packets, in all of them together",
    ),
]);
const RUNTREAD_TAG: Section = once(&[bits("tag", 8, T_RUNTREAD_RTM, "tag")]);

const STOCK_RUNT: Source = stock("1.16.0");
const RUNTCTS_RTM: Section = once(&[
    number("msg_id", 4, STOCK_RUNT, D_MSG_ID),
    number("msg_length", 8, STOCK_RUNT, D_MSG_LENGTH),
    number("send_id", 4, STOCK_RUNT, D_SEND_ID_CTS),
    number("credit_request", 4, STOCK_RUNT, D_CREDIT_REQUEST),
    number("seg_offset", 8, STOCK_RUNT, D_SEG_OFFSET),
    number("runt_length", 8, STOCK_RUNT, D_RUNT_LENGTH),
]);
const RUNTCTS_TAG: Section = once(&[bits("tag", 8, STOCK_RUNT, "tag")]);
const D_RUNT_LENGTH: &str = "bytes that are sent in packets of this type, in all of them together";

// Requests To Write.

const T_EAGER_RTW: Source = table("3.3", "3.8");
const EAGER_RTW: Section = once(&[count("rma_iov_count", Array::RmaIov, T_EAGER_RTW)]);

const T_LONGCTS_RTW: Source = table("3.3", "3.9");
const LONGCTS_RTW: Section = once(&[
    count("rma_iov_count", Array::RmaIov, T_LONGCTS_RTW),
    number("msg_length", 8, T_LONGCTS_RTW, "length of the whole write"),
    number("send_id", 4, T_LONGCTS_RTW, D_SEND_ID_CTS),
    number("credit_request", 4, T_LONGCTS_RTW, D_CREDIT_REQUEST),
]);

const T_LONGREAD_RTW: Source = table("4.1", "4.3");
const LONGREAD_RTW: Section = once(&[
    count("rma_iov_count", Array::RmaIov, T_LONGREAD_RTW),
    number("msg_length", 8, T_LONGREAD_RTW, "length of the whole write"),
    number("send_id", 4, T_LONGREAD_RTW, D_SEND_ID_EOR),
    count("read_iov_count", Array::ReadIov, T_LONGREAD_RTW),
]);

const RUNTCTS_RTW: Section = once(&[
    count("rma_iov_count", Array::RmaIov, STOCK_RUNT),
    number("msg_length", 8, STOCK_RUNT, "length of the whole write"),
    number("send_id", 4, STOCK_RUNT, D_SEND_ID_CTS),
    number("credit_request", 4, STOCK_RUNT, D_CREDIT_REQUEST),
    number("seg_offset", 8, STOCK_RUNT, D_SEG_OFFSET),
    number("runt_length", 8, STOCK_RUNT, D_RUNT_LENGTH),
]);

const RUNTREAD_RTW: Section = once(&[
    count("rma_iov_count", Array::RmaIov, STOCK_RUNT),
    number("msg_length", 8, STOCK_RUNT, "length of the whole write"),
    number("send_id", 4, STOCK_RUNT, D_SEND_ID_EOR),
    count("read_iov_count", Array::ReadIov, STOCK_RUNT),
    number("seg_offset", 8, STOCK_RUNT, D_SEG_OFFSET),
    number("runt_length", 8, STOCK_RUNT, D_RUNT_LENGTH),
]);

// Requests To Read.

const T_SHORT_RTR: Source = table("3.3", "3.10");
const SHORT_RTR: Section = once(&[
    count("rma_iov_count", Array::RmaIov, T_SHORT_RTR),
    number("msg_length", 8, T_SHORT_RTR, "length of the whole read"),
    number(
        "recv_id",
        4,
        T_SHORT_RTR,
        "operation of the requester, for READRSP",
    ),
    number(
        "recv_length",
        4,
        T_SHORT_RTR,
        "length of the whole read (padding in the table, but stock fills it)",
    ),
]);

const T_LONGCTS_RTR: Source = table("3.3", "3.12");
const LONGCTS_RTR: Section = once(&[
    count("rma_iov_count", Array::RmaIov, T_LONGCTS_RTR),
    number("msg_length", 8, T_LONGCTS_RTR, "length of the whole read"),
    number(
        "recv_id",
        4,
        T_LONGCTS_RTR,
        "operation of the requester, for READRSP and CTSDATA",
    ),
    number(
        "recv_length",
        4,
        T_LONGCTS_RTR,
        "bytes that the requester is ready to receive, those in READRSP included",
    ),
]);

// Requests To Atomic.

const fn rta(source: Source) -> [FieldDescriptor; 4] {
    [
        number(
            "msg_id",
            4,
            source,
            "place of the operation in the sequence from this sender",
        ),
        count("rma_iov_count", Array::RmaIov, source),
        field(
            "atomic_datatype",
            4,
            Kind::AtomicDatatype,
            source,
            "enum fi_datatype of libfabric",
        ),
        field(
            "atomic_op",
            4,
            Kind::AtomicOp,
            source,
            "enum fi_op of libfabric",
        ),
    ]
}

const T_WRITE_RTA: Source = table("3.3", "3.13");
const RTA: Section = once(&rta(T_WRITE_RTA));
const RTA_PADDING: Section = once(&[padding("padding", 4, T_WRITE_RTA)]);
const T_FETCH_RTA: Source = table("3.3", "3.14");
const FETCHING_RTA: Section = once(&rta(T_FETCH_RTA));
const FETCHING_RTA_RECV_ID: Section = once(&[number(
    "recv_id",
    4,
    T_FETCH_RTA,
    "operation of the requester, for ATOMRSP",
)]);
const DC_RTA: Section = once(&rta(S_DC));
const DC_RTA_SEND_ID: Section = once(&[number(
    "send_id",
    4,
    S_DC,
    "operation of the requester, for RECEIPT",
)]);

/// The sections of each type, in the order of the packet.
pub(super) const fn sections(packet_type: PacketType) -> &'static [&'static Section] {
    use PacketType as T;
    match packet_type {
        T::Rts | T::Connack | T::RmaContext => &[&BASE, &TRAILING],
        T::Cts => &[&BASE, &CTS, &TRAILING],
        T::CtsData => &[&BASE, &CTSDATA, &DATA],
        T::ReadRsp => &[&BASE, &READRSP, &DATA],
        T::Eor => &[&BASE, &EOR, &TRAILING],
        T::AtomRsp => &[&BASE, &ATOMRSP, &DATA],
        T::Handshake => &[
            &BASE,
            &HANDSHAKE,
            &EXTRA_INFO,
            &HANDSHAKE_OPTIONS,
            &TRAILING,
        ],
        T::Receipt => &[&BASE, &RECEIPT, &TRAILING],
        T::ReadNack => &[&BASE, &READ_NACK, &TRAILING],
        T::PeerError => &[&BASE, &PEER_ERROR, &TRAILING],

        T::EagerMsgRtm => &[&BASE, &EAGER_RTM, &REQ_OPTIONS, &DATA],
        T::EagerTagRtm => &[&BASE, &EAGER_RTM, &EAGER_TAG, &REQ_OPTIONS, &DATA],
        T::DcEagerMsgRtm => &[&BASE, &EAGER_RTM, &DC_SEND_ID, &REQ_OPTIONS, &DATA],
        T::DcEagerTagRtm => &[
            &BASE,
            &EAGER_RTM,
            &DC_SEND_ID,
            &EAGER_TAG,
            &REQ_OPTIONS,
            &DATA,
        ],
        T::MediumMsgRtm => &[&BASE, &MEDIUM_MSG_ID, &MEDIUM_SEGMENT, &REQ_OPTIONS, &DATA],
        T::MediumTagRtm => &[
            &BASE,
            &MEDIUM_MSG_ID,
            &MEDIUM_SEGMENT,
            &MEDIUM_TAG,
            &REQ_OPTIONS,
            &DATA,
        ],
        T::DcMediumMsgRtm => &[
            &BASE,
            &MEDIUM_MSG_ID,
            &DC_SEND_ID,
            &MEDIUM_SEGMENT,
            &REQ_OPTIONS,
            &DATA,
        ],
        T::DcMediumTagRtm => &[
            &BASE,
            &MEDIUM_MSG_ID,
            &DC_SEND_ID,
            &MEDIUM_SEGMENT,
            &MEDIUM_TAG,
            &REQ_OPTIONS,
            &DATA,
        ],
        T::LongctsMsgRtm | T::DcLongctsMsgRtm => &[&BASE, &LONGCTS_RTM, &REQ_OPTIONS, &DATA],
        T::LongctsTagRtm | T::DcLongctsTagRtm => {
            &[&BASE, &LONGCTS_RTM, &LONGCTS_TAG, &REQ_OPTIONS, &DATA]
        }
        T::LongreadMsgRtm => &[&BASE, &LONGREAD_RTM, &REQ_OPTIONS, &READ_IOV, &TRAILING],
        T::LongreadTagRtm => &[
            &BASE,
            &LONGREAD_RTM,
            &LONGREAD_TAG,
            &REQ_OPTIONS,
            &READ_IOV,
            &TRAILING,
        ],
        T::RuntreadMsgRtm => &[&BASE, &RUNTREAD_RTM, &REQ_OPTIONS, &READ_IOV, &DATA],
        T::RuntreadTagRtm => &[
            &BASE,
            &RUNTREAD_RTM,
            &RUNTREAD_TAG,
            &REQ_OPTIONS,
            &READ_IOV,
            &DATA,
        ],
        T::RuntctsMsgRtm => &[&BASE, &RUNTCTS_RTM, &REQ_OPTIONS, &DATA],
        T::RuntctsTagRtm => &[&BASE, &RUNTCTS_RTM, &RUNTCTS_TAG, &REQ_OPTIONS, &DATA],

        T::EagerRtw => &[&BASE, &EAGER_RTW, &RMA_IOV, &REQ_OPTIONS, &DATA],
        T::DcEagerRtw => &[
            &BASE,
            &EAGER_RTW,
            &DC_SEND_ID,
            &RMA_IOV,
            &REQ_OPTIONS,
            &DATA,
        ],
        T::LongctsRtw | T::DcLongctsRtw => &[&BASE, &LONGCTS_RTW, &RMA_IOV, &REQ_OPTIONS, &DATA],
        T::LongreadRtw => &[
            &BASE,
            &LONGREAD_RTW,
            &RMA_IOV,
            &REQ_OPTIONS,
            &READ_IOV,
            &TRAILING,
        ],
        T::RuntctsRtw => &[&BASE, &RUNTCTS_RTW, &RMA_IOV, &REQ_OPTIONS, &DATA],
        T::RuntreadRtw => &[
            &BASE,
            &RUNTREAD_RTW,
            &RMA_IOV,
            &REQ_OPTIONS,
            &READ_IOV,
            &DATA,
        ],

        T::ShortRtr => &[&BASE, &SHORT_RTR, &RMA_IOV, &REQ_OPTIONS, &TRAILING],
        T::LongctsRtr => &[&BASE, &LONGCTS_RTR, &RMA_IOV, &REQ_OPTIONS, &TRAILING],
        T::ReadRtr => &[&BASE, &REQ_OPTIONS, &TRAILING],

        T::WriteRta => &[&BASE, &RTA, &RTA_PADDING, &RMA_IOV, &REQ_OPTIONS, &DATA],
        T::FetchRta | T::CompareRta => &[
            &BASE,
            &FETCHING_RTA,
            &FETCHING_RTA_RECV_ID,
            &RMA_IOV,
            &REQ_OPTIONS,
            &DATA,
        ],
        T::DcWriteRta => &[
            &BASE,
            &DC_RTA,
            &DC_RTA_SEND_ID,
            &RMA_IOV,
            &REQ_OPTIONS,
            &DATA,
        ],
    }
}
